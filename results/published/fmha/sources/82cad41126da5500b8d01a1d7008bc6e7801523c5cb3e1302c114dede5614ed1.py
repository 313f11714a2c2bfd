"""Inline HIP: one block of 256 threads a query head; scores and output by MFMA on AMD's gfx9, by shuffles elsewhere.

Idea. The block asks for all it needs at once, in 16-byte loads: Q and K go to shared memory, V waits in registers until
the scores are done and then takes K's place there (a union: 8 KiB instead of 16 at D = 256). Scores, softmax over 16
lanes, weighted sum: four barriers a head.

    global   Q [D]   K [S, D]              V [S, D]
               │       │                     │ in registers meanwhile
    shared   q [D]   tile [16, D + 4] ──────► tile           rows padded by 4: the 16 rows that lanes read at once
               └──► scores [16] ─► weights [16] ─┴─► out     start in different banks

MFMA 16x16x16, four waves (gfx90a, gfx942, gfx950). Scores: A is K, 16 keys by 16 dims, B is Q in all 16 columns; a wave
takes a quarter of the dims and the four partial sums meet in shared memory. Output: A holds the weights, 16 keys deep,
B is V, 16 keys by 16 dims; a wave takes a quarter of the dims. One query leaves 15 rows of A free, so even rows hold
the weights rounded to bfloat16 and odd rows what the rounding left: two rows of the result add up to 16 bits' accuracy
at no cost. The weights are divided by their sum at the end, in float32.

Elsewhere (gfx1100, CUDA): 16 threads a key for the scores, summed by shuffles; then a thread a dim, over the keys.

Any S from 1 to 16: keys past S are not loaded, score -inf, and count as zeros with V. One key: its weight is 1, and a
second kernel converts V to float16 without reading Q or K. Any grouping: KV head = query head // G. Grid (1, heads,
batch) with blocks that stride over batches where there are more than 65535. Offsets are 64 bits wide.

Bytes a query head: 2 D (2 + 2 S), 4 D at one key. Limited by latency where S is small: a row of K is D / 8 pieces of 16
bytes, so at S = 2, D = 128 only 32 of the 256 threads have one to ask for, and a multiprocessor full of blocks has no
more than 10 KiB under way. At S = 16 every thread loads 32 bytes or more. docs/kernels.md has what was measured.
"""

import torch

from harness.hip import Module, float32, int32, int64, ptr

SOURCE = r"""
#define KEYS 16
#define ROW (HEAD_DIM + 4)       // elements of a row in shared memory
#define PIECES (HEAD_DIM / 8)    // 16-byte pieces of a row
#define EACH (KEYS * PIECES / 256)  // pieces of K, and of V, a thread: 1 or 2
#define MINUS_INFINITY __builtin_bit_cast(float, 0xff800000u)

// Rows in shared memory start at multiples of 8 bytes.
__device__ inline void put(unsigned short* row, int piece, bytes16 x) {
    bytes8* place = (bytes8*)(row + 8 * piece);
    place[0] = bytes8{{x.at[0], x.at[1]}};
    place[1] = bytes8{{x.at[2], x.at[3]}};
}

__device__ inline float largest_of_16(float x) {
    for (int mask = 8; mask; mask /= 2) { const float y = shuffle_xor(x, mask); x = x > y ? x : y; }
    return x;
}

__device__ inline float sum_of_16(float x) {
    for (int mask = 8; mask; mask /= 2) x += shuffle_xor(x, mask);
    return x;
}

// q, out [batch, q_heads, HEAD_DIM]; k, v [batch, kv_heads, keys, HEAD_DIM]. exp2_scale = sm_scale * log2(e).
extern "C" __global__ __launch_bounds__(256) void attend_one_head(
    const bytes16* __restrict__ q, const bytes16* __restrict__ k, const bytes16* __restrict__ v,
    unsigned short* __restrict__ out, int batch_size, int q_heads, int kv_heads, int keys, float exp2_scale) {
    __shared__ bytes8 shared_q[HEAD_DIM / 4];
    __shared__ bytes8 shared_tile[KEYS * ROW / 4];  // K, then V
    __shared__ float score[4][KEYS];
    __shared__ float weight[KEYS];
    unsigned short* const row_q = (unsigned short*)shared_q;
    unsigned short* const tile = (unsigned short*)shared_tile;
    const int thread = threadIdx.x, head = blockIdx.y;

    for (int batch = blockIdx.z; batch < batch_size; batch += gridDim.z) {
        const long long row = (long long)batch * q_heads + head;
        const long long kv_row = ((long long)batch * kv_heads + head / (q_heads / kv_heads)) * keys;
        bytes16 from_k[EACH], from_v[EACH], from_q;
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            const int piece = i * 256 + thread;
            if (piece < keys * PIECES) from_k[i] = k[kv_row * PIECES + piece];
        }
        if (thread < PIECES) from_q = q[row * PIECES + thread];
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            const int piece = i * 256 + thread;
            if (piece < keys * PIECES) from_v[i] = v[kv_row * PIECES + piece];
        }
        if (thread < PIECES) put(row_q, thread, from_q);
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            const int piece = i * 256 + thread;
            if (piece < keys * PIECES) put(tile + piece / PIECES * ROW, piece % PIECES, from_k[i]);
        }
        __syncthreads();

        // Rows of the tile past `keys` hold anything; each row affects its own score only.
#ifdef HAS_MFMA_BF16
        const int wave = thread / 64, lane = thread % 64, line = lane % 16, four = lane / 16 * 4;
        vec<float, 4> partial = {{0, 0, 0, 0}};
#pragma unroll
        for (int step = 0; step < HEAD_DIM / 64; step++) {
            const int dim = wave * (HEAD_DIM / 4) + step * 16 + four;
            partial = mfma_16x16x16_bf16(*(vec<unsigned short, 4>*)(tile + line * ROW + dim),
                                         *(vec<unsigned short, 4>*)(row_q + dim), partial);
        }
        if (line == 0) for (int i = 0; i < 4; i++) score[wave][four + i] = partial.at[i];
#else
        const int key_scored = thread / 16;
        float dot = 0;
#pragma unroll
        for (int step = 0; step < HEAD_DIM / 64; step++) {
            const int dim = step * 64 + thread % 16 * 4;
            const bytes8 a = *(bytes8*)(tile + key_scored * ROW + dim), b = *(bytes8*)(row_q + dim);
#pragma unroll
            for (int i = 0; i < 2; i++) {
                dot += bfloat16_low(a.at[i]) * bfloat16_low(b.at[i]);
                dot += bfloat16_high(a.at[i]) * bfloat16_high(b.at[i]);
            }
        }
        dot = sum_of_16(dot);
        if (thread % 16 == 0) score[0][key_scored] = dot;
#endif
        __syncthreads();

#pragma unroll
        for (int i = 0; i < EACH; i++) {
            const int piece = i * 256 + thread;
            const bytes16 zeros = {{0, 0, 0, 0}};  // a weight of 0 times anything is not always 0
            put(tile + piece / PIECES * ROW, piece % PIECES, piece < keys * PIECES ? from_v[i] : zeros);
        }
        const int key = thread % 16;  // every 16 threads do the same softmax
#ifdef HAS_MFMA_BF16
        const float scored = score[0][key] + score[1][key] + score[2][key] + score[3][key];
#else
        const float scored = score[0][key];
#endif
        const float exponent = key < keys ? scored * exp2_scale : MINUS_INFINITY;
        const float e = exp2_fast(exponent - largest_of_16(exponent));
        const float one_over_sum = 1.0f / sum_of_16(e);
        if (thread < KEYS) weight[key] = e;
        __syncthreads();

#ifdef HAS_MFMA_BF16
        vec<unsigned short, 4> weights;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float exact = weight[four + i];
            const unsigned short rounded = bfloat16_bits(exact);
            weights.at[i] = line % 2 ? bfloat16_bits(exact - bfloat16_value(rounded)) : rounded;
        }
        float mine = 0;
#pragma unroll
        for (int step = 0; step < HEAD_DIM / 64; step++) {
            const unsigned short* column = tile + wave * (HEAD_DIM / 4) + step * 16 + line;
            vec<unsigned short, 4> values;
#pragma unroll
            for (int i = 0; i < 4; i++) values.at[i] = column[(four + i) * ROW];
            const vec<float, 4> sum = mfma_16x16x16_bf16(weights, values, vec<float, 4>{{0, 0, 0, 0}});
            if (lane / 16 == step) mine = sum.at[0] + sum.at[1];
        }
        if (lane < HEAD_DIM / 4) out[row * HEAD_DIM + wave * (HEAD_DIM / 4) + lane] = float16_bits(mine * one_over_sum);
#else
        if (thread < HEAD_DIM) {
            float sum = 0;
#pragma unroll
            for (int i = 0; i < KEYS; i++) sum += weight[i] * bfloat16_value(tile[i * ROW + thread]);
            out[row * HEAD_DIM + thread] = float16_bits(sum * one_over_sum);
        }
#endif
        __syncthreads();
    }
}

// v [rows / group, HEAD_DIM] bfloat16 to out [rows, HEAD_DIM] float16; `pieces` of 8 values there are in out.
extern "C" __global__ __launch_bounds__(256) void copy_values(
    const bytes16* __restrict__ v, bytes16* __restrict__ out, long long pieces, int group) {
    const long long piece = (long long)blockIdx.x * 256 + threadIdx.x;
    if (piece >= pieces) return;
    const long long row = piece / PIECES;
    const bytes16 from = v[row / group * PIECES + piece % PIECES];
    bytes16 to;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const unsigned low = float16_bits(bfloat16_low(from.at[i])), high = float16_bits(bfloat16_high(from.at[i]));
        to.at[i] = low | high << 16;
    }
    out[piece] = to;
}
"""

THREADS = 256
MAX_GRID_Z = 65535
LOG2_E = 1.4426950408889634

BFLOAT16, FLOAT16 = ptr(torch.bfloat16, alignment=16), ptr(torch.float16, alignment=16)
COUNTS = {name: int32 for name in ("batch_size", "q_heads", "kv_heads", "keys")}
MODULES = {head_dim: Module(SOURCE, {"HEAD_DIM": head_dim}) for head_dim in (128, 256)}
ATTEND = {
    head_dim: module.kernel(
        "attend_one_head",
        {"q": BFLOAT16, "k": BFLOAT16, "v": BFLOAT16, "out": FLOAT16, **COUNTS, "exp2_scale": float32},
    )
    for head_dim, module in MODULES.items()
}
COPY_VALUES = {
    head_dim: module.kernel("copy_values", {"v": BFLOAT16, "out": FLOAT16, "pieces": int64, "group": int32})
    for head_dim, module in MODULES.items()
}


def custom_kernel(data):
    q, k, v, config = data
    batch, heads, kv_heads = config["batch_size"], config["num_q_heads"], config["num_kv_heads"]
    head_dim, keys = config["head_dim"], config["kv_seq_len"]
    out = torch.empty_like(q, dtype=torch.float16)
    if keys == 1:
        pieces = out.numel() // 8
        COPY_VALUES[head_dim](v, out, pieces, heads // kv_heads, grid=-(-pieces // THREADS), block=THREADS)
        return out
    sizes = (batch, heads, kv_heads, keys)
    grid = (1, heads, min(batch, MAX_GRID_Z))
    ATTEND[head_dim](q, k, v, out, *sizes, config["sm_scale"] * LOG2_E, grid=grid, block=THREADS)
    return out
