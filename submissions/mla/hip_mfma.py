"""Inline HIP: MLA decode on the fp8 cache by fp8 MFMA, for CDNA 3 (gfx942) and 4 (gfx950). Emulated, never timed.

Idea. All 16 heads read one latent KV head, and the first 512 dims of a key are its value: each tile of 32 tokens is
read once from memory, lies once in shared memory, and is an operand of both products as it is, in 8 bits. Nothing is
widened.

    global ──16 B a lane──► registers ──► shared tile [32, 576 + 16]     the next tile waits in registers meanwhile
    S^T [tokens, heads] = K Q^T     wave w: 16 of the tokens, half of the dims; halves meet in shared memory
    softmax                         each wave the same, all 32 tokens: lane n has tokens 4 (n / 16) ..+3 of each 16
    O^T [dims, heads] = V^T P^T     wave w: dims 128 w ..+127

Operands. MFMA 16x16x32 wants eight bytes a lane: eight dims of a key, which lie together, and eight tokens of one dim,
which do not. So a lane reads eight dims of eight tokens, and v_perm transposes 4 x 4 bytes, eight permutations for
sixteen. In which order tokens are summed is free: with the order in which the first product leaves its scores, weights
become the second one's operand where they are. Dim 8 i + c is row i of tile c, so a lane ends with 8 dims side by side.

Types. The matrix unit of gfx942 reads e4m3fnuz, that of gfx950 e4m3fn. A tensor of e4m3fn on gfx942 means twice what
its bits say there, but for 0x80, -0 in one and NaN in the other: it becomes 0 on the way to shared memory, and the
scale is doubled. Queries are rounded by a scale a head. A weight is two fp8: itself, and 32 times what the rounding
left; with sums of their own that is 8 bits, down to 2^-22 of the largest. It costs products, of which there is room.

Banks. Rows of 592 bytes: 148 dwords are 20 modulo 32, so eight rows that lanes read 16 bytes of fill the 32 banks once,
as do two rows four apart of which eight lanes each write 8 bytes.

Splits. A sequence is cut into whole tiles for as many workgroups as are two a compute unit; a second kernel merges the
parts in the order of the splits. Waits for no other workgroup; no atomics. The parts carry their maximum and sum.

Bytes. 576 a token, and 64 KiB a (sequence, split) for writing and reading the parts. docs/emulated-files.md has
registers, occupancy and counts. What limits it on a GPU is not known: it has not run on one.
"""

import torch

from harness.hip import Module, float32, int32, ptr

SOURCE = r"""
#define HEADS 16
#define LATENT 512
#define DIMS 576
#define TOKENS 32         // of a tile
#define ROW (DIMS + 16)   // bytes of a row in shared memory
#define STEPS (DIMS / 64) // of the first product: 64 dims each, two matrix instructions
#define OWN_STEPS 5       // of a wave: 5 of the 9, or 4
#define IS_OWN(n) ((n) < STEPS / 2 || half == 0)
#if defined(__gfx942__) && !CACHE_IS_FNUZ
#define CONVERTS 1
#define BITS_MEAN 2.0f
#else
#define CONVERTS 0
#define BITS_MEAN 1.0f
#endif
#define WEIGHT_BITS 7.0f  // the largest weight is 2^7 in fp8
#define REST 32.0f        // what rounding left of it, at most 4, is held so many times as large
#define NEVER (-1e30f)    // below each score: finite, so that no maximum is infinite and no difference NaN

typedef float f32x2 __attribute__((ext_vector_type(2)));
typedef float f32x4 __attribute__((ext_vector_type(4)));
typedef unsigned u32x2 __attribute__((ext_vector_type(2)));
typedef unsigned u32x4 __attribute__((ext_vector_type(4)));

__device__ inline f32x4 product(unsigned a0, unsigned a1, unsigned b0, unsigned b1, f32x4 c) {
    const long a = (long)((unsigned long)a1 << 32 | a0), b = (long)((unsigned long)b1 << 32 | b0);
    return __builtin_amdgcn_mfma_f32_16x16x32_fp8_fp8(a, b, c, 0, 0, 0);
}

__device__ inline unsigned fp8x4(float a, float b, float c, float d) {
    const int low = __builtin_amdgcn_cvt_pk_fp8_f32(a, b, 0, false);
    return (unsigned)__builtin_amdgcn_cvt_pk_fp8_f32(c, d, low, true);
}

// Four fp8 as this chip's matrix unit is to read them.
__device__ inline unsigned native(unsigned codes) {
#if CONVERTS
    const unsigned nonzero = (codes & 0x7f7f7f7fu) + 0x7f7f7f7fu;  // bit 7 of a byte: neither 0 nor -0
    return codes & (nonzero | 0x7f7f7f7fu);
#else
    return codes;
#endif
}

// Rows a to d of 4 x 4 bytes become columns.
__device__ inline u32x4 transposed(unsigned a, unsigned b, unsigned c, unsigned d) {
    const unsigned low_ab = __builtin_amdgcn_perm(b, a, 0x05010400), high_ab = __builtin_amdgcn_perm(b, a, 0x07030602);
    const unsigned low_cd = __builtin_amdgcn_perm(d, c, 0x05010400), high_cd = __builtin_amdgcn_perm(d, c, 0x07030602);
    u32x4 columns;
    columns[0] = __builtin_amdgcn_perm(low_cd, low_ab, 0x05040100);
    columns[1] = __builtin_amdgcn_perm(low_cd, low_ab, 0x07060302);
    columns[2] = __builtin_amdgcn_perm(high_cd, high_ab, 0x05040100);
    columns[3] = __builtin_amdgcn_perm(high_cd, high_ab, 0x07060302);
    return columns;
}

// Of the four lanes that have one head.
__device__ inline float largest_of_head(float x) {
    float y = shuffle_xor(x, 16); x = x > y ? x : y;
    y = shuffle_xor(x, 32); return x > y ? x : y;
}

// What a thread loads of a tile: 16 bytes of four rows' latent dims, 8 of a row's rope dims.
struct Pieces { u32x4 latent[4]; u32x2 rope; };

// Eight threads a row: two rows that sixteen write at once are four apart, which is half of the banks.
__device__ inline int row_of_rope(int thread) {
    const int eight = thread / 8;
    return eight / 8 * 8 + eight % 2 * 4 + eight / 2 % 4;
}

__device__ inline void load(Pieces& to, const unsigned char* __restrict__ keys, int start, int last, int thread) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int token = start + i * 8 + thread / 32;
        to.latent[i] = *(const u32x4*)(keys + (token < last ? token : last) * DIMS + thread % 32 * 16);
    }
    const int token = start + row_of_rope(thread);
    to.rope = *(const u32x2*)(keys + (token < last ? token : last) * DIMS + LATENT + thread % 8 * 8);
}

__device__ inline void put(unsigned char* tile, const Pieces& from, int thread) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        u32x4 piece = from.latent[i];
#pragma unroll
        for (int word = 0; word < 4; word++) piece[word] = native(piece[word]);
        *(u32x4*)(tile + (i * 8 + thread / 32) * ROW + thread % 32 * 16) = piece;
    }
    *(u32x2*)(tile + row_of_rope(thread) * ROW + LATENT + thread % 8 * 8) =
        u32x2{native(from.rope[0]), native(from.rope[1])};
}

// q [batch, HEADS, DIMS] bfloat16; kv [total_kv, DIMS] fp8; kv_scale [1]; kv_indptr [batch + 1]; out [batch, HEADS,
// LATENT] bfloat16, written if there is one split, else parts [batch, splits, HEADS, LATENT], not divided by their
// sums, and stats [batch, splits, HEADS, 2], their maxima in log2 and sums. softmax_scale = sm_scale * log2(e).
extern "C" __global__ __launch_bounds__(256) void split_kv(
    const u32x4* __restrict__ q, const unsigned char* __restrict__ kv, const float* __restrict__ kv_scale,
    const int* __restrict__ kv_indptr, u32x4* __restrict__ out, f32x4* __restrict__ parts, f32x2* __restrict__ stats,
    float softmax_scale, int splits) {
    __shared__ u32x4 shared_tile[TOKENS * ROW / 16];
    __shared__ f32x4 shared_scores[4][64];
    __shared__ float shared_amax[2][HEADS];
    unsigned char* const tile = (unsigned char*)shared_tile;
    const int thread = threadIdx.x, lane = thread % 64, line = lane % 16, group = lane / 16;
    const int wave = __builtin_amdgcn_readfirstlane(thread / 64), half = wave / 2;
    const int sequence = blockIdx.y, split = blockIdx.x;
    const int first = kv_indptr[sequence], length = kv_indptr[sequence + 1] - first;
    const int share = (length + splits - 1) / splits, span = (share + TOKENS - 1) / TOKENS * TOKENS;
    const int begin = split * span, end = begin + span < length ? begin + span : length;
    const int head_row = sequence * HEADS + line;
    const int part_row = (sequence * splits + split) * HEADS + line;
    if (begin >= end) {  // nobody reads the part of a split without a sum
        if (splits > 1) {
            if (thread < HEADS) stats[part_row] = f32x2{NEVER, 0.0f};
        } else {
            for (int i = thread; i < HEADS * LATENT / 8; i += 256)
                out[sequence * (HEADS * LATENT / 8) + i] = u32x4{0, 0, 0, 0};
        }
        return;
    }

    const unsigned char* const keys = kv + (long)first * DIMS;
    Pieces next;
    load(next, keys, begin, end - 1, thread);

    // Queries of head `line`: in step n dims 64 (half + 2 n) + 16 group ..+15, as fp8.
    u32x4 raw[OWN_STEPS][2];
    float amax = 0.0f;
#pragma unroll
    for (int n = 0; n < OWN_STEPS; n++) {
        raw[n][0] = raw[n][1] = u32x4{0, 0, 0, 0};
        if (IS_OWN(n)) {
            const u32x4* const from = q + (long)head_row * (DIMS / 8) + (half + 2 * n) * 8 + group * 2;
            raw[n][0] = from[0];
            raw[n][1] = from[1];
        }
    }
#pragma unroll
    for (int n = 0; n < OWN_STEPS; n++)
#pragma unroll
        for (int word = 0; word < 8; word++) {
            const unsigned two = raw[n][word / 4][word % 4];
            amax = __builtin_fmaxf(amax, __builtin_fabsf(bfloat16_low(two)));
            amax = __builtin_fmaxf(amax, __builtin_fabsf(bfloat16_high(two)));
        }
    amax = largest_of_head(amax);
    if (wave % 2 == 0 && lane < HEADS) shared_amax[half][line] = amax;
    __syncthreads();
    amax = __builtin_fmaxf(__builtin_fmaxf(shared_amax[0][line], shared_amax[1][line]), 1e-30f);
    const float shrink = 224.0f / amax;  // 224: below the largest value of either flavour, 448 and 240
    u32x4 query[OWN_STEPS];
#pragma unroll
    for (int n = 0; n < OWN_STEPS; n++)
#pragma unroll
        for (int word = 0; word < 4; word++) {
            const unsigned low = raw[n][word / 2][word % 2 * 2], high = raw[n][word / 2][word % 2 * 2 + 1];
            query[n][word] = fp8x4(bfloat16_low(low) * shrink, bfloat16_high(low) * shrink,
                                   bfloat16_low(high) * shrink, bfloat16_high(high) * shrink);
        }
    const float scale = kv_scale[0] * BITS_MEAN;
    const float score_scale = softmax_scale * scale * (amax / 224.0f);

    f32x4 sums[8], rests[8];  // of dims 128 wave + 8 (4 group + r) + c, at [c][r]
#pragma unroll
    for (int c = 0; c < 8; c++) sums[c] = rests[c] = f32x4{0, 0, 0, 0};
    float peak = NEVER, total = 0.0f;

    for (int start = begin; start < end; start += TOKENS) {
        __syncthreads();  // all have read the tile before
        put(tile, next, thread);
        if (start + TOKENS < end) load(next, keys, start + TOKENS, end - 1, thread);
        __syncthreads();

        f32x4 even = {0, 0, 0, 0}, odd = {0, 0, 0, 0};  // two chains of products, neither of which waits for the other
#pragma unroll
        for (int n = 0; n < OWN_STEPS; n++)
            if (IS_OWN(n)) {
                const unsigned char* const row = tile + (wave % 2 * 16 + line) * ROW;
                const u32x4 key = *(const u32x4*)(row + (half + 2 * n) * 64 + group * 16);
                even = product(key[0], key[1], query[n][0], query[n][1], even);
                odd = product(key[2], key[3], query[n][2], query[n][3], odd);
            }
        shared_scores[wave][lane] = even + odd;
        u32x2 rows[8];  // 8 dims of tokens 4 group ..+3 of either 16
#pragma unroll
        for (int e = 0; e < 8; e++)
            rows[e] = *(const u32x2*)(tile + (e / 4 * 16 + group * 4 + e % 4) * ROW + wave * 128 + line * 8);
        __syncthreads();

        f32x4 scores[2];
        float largest = NEVER;
#pragma unroll
        for (int m = 0; m < 2; m++) {
            scores[m] = (shared_scores[m][lane] + shared_scores[m + 2][lane]) * score_scale;
#pragma unroll
            for (int r = 0; r < 4; r++) {
                if (start + m * 16 + group * 4 + r >= end) scores[m][r] = -__builtin_inff();
                largest = __builtin_fmaxf(largest, scores[m][r]);
            }
        }
        const float new_peak = __builtin_fmaxf(peak, largest_of_head(largest));
        if (__builtin_amdgcn_ballot_w64(new_peak > peak)) {
            const float less = exp2_fast(peak - new_peak);
            total *= less;
#pragma unroll
            for (int c = 0; c < 8; c++) { sums[c] *= less; rests[c] *= less; }
            peak = new_peak;
        }
        unsigned weights[2], left[2];
#pragma unroll
        for (int m = 0; m < 2; m++) {
            float w[4];
#pragma unroll
            for (int r = 0; r < 4; r++) total += w[r] = exp2_fast(scores[m][r] - (peak - WEIGHT_BITS));
            weights[m] = fp8x4(w[0], w[1], w[2], w[3]);
            const f32x2 low = __builtin_amdgcn_cvt_pk_f32_fp8(weights[m], false);
            const f32x2 high = __builtin_amdgcn_cvt_pk_f32_fp8(weights[m], true);
            left[m] = fp8x4((w[0] - low[0]) * REST, (w[1] - low[1]) * REST, (w[2] - high[0]) * REST,
                            (w[3] - high[1]) * REST);
        }
#pragma unroll
        for (int word = 0; word < 2; word++) {
            const u32x4 a = transposed(rows[0][word], rows[1][word], rows[2][word], rows[3][word]);
            const u32x4 b = transposed(rows[4][word], rows[5][word], rows[6][word], rows[7][word]);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int c = word * 4 + i;
                sums[c] = product(a[i], b[i], weights[0], weights[1], sums[c]);
                rests[c] = product(a[i], b[i], left[0], left[1], rests[c]);
            }
        }
    }

    total += shuffle_xor(total, 16);
    total += shuffle_xor(total, 32);
    const float factor = splits > 1 ? scale : scale / total;
    if (splits > 1 && thread < HEADS) stats[part_row] = f32x2{peak, total};
#pragma unroll
    for (int r = 0; r < 4; r++) {
        float x[8];
#pragma unroll
        for (int c = 0; c < 8; c++) x[c] = (sums[c][r] + rests[c][r] * (1.0f / REST)) * factor;
        const int dim = wave * 128 + (group * 4 + r) * 8;
        if (splits > 1) {
            f32x4* const to = parts + ((long)part_row * LATENT + dim) / 4;
            to[0] = f32x4{x[0], x[1], x[2], x[3]};
            to[1] = f32x4{x[4], x[5], x[6], x[7]};
        } else {
            u32x4 rounded;
#pragma unroll
            for (int i = 0; i < 4; i++)
                rounded[i] = bfloat16_bits(x[2 * i]) | (unsigned)bfloat16_bits(x[2 * i + 1]) << 16;
            out[((long)head_row * LATENT + dim) / 8] = rounded;
        }
    }
}

// A block a (sequence, head), a thread four dims. Arguments as above.
extern "C" __global__ __launch_bounds__(128) void merge_splits(
    const f32x4* __restrict__ parts, const f32x2* __restrict__ stats, u32x2* __restrict__ out, int splits) {
    const int thread = threadIdx.x, head = blockIdx.x, sequence = blockIdx.y;
    float peak = NEVER, total = 0.0f;
    for (int split = 0; split < splits; split++)
        peak = __builtin_fmaxf(peak, stats[(sequence * splits + split) * HEADS + head][0]);
    f32x4 sum = {0, 0, 0, 0};
    for (int split = 0; split < splits; split++) {
        const int row = (sequence * splits + split) * HEADS + head;
        const f32x2 of_part = stats[row];
        if (of_part[1] > 0.0f) {
            const float weight = exp2_fast(of_part[0] - peak);
            total += of_part[1] * weight;
            sum += parts[(long)row * (LATENT / 4) + thread] * weight;
        }
    }
    const float factor = total > 0.0f ? 1.0f / total : 0.0f;
    out[(long)(sequence * HEADS + head) * (LATENT / 4) + thread] =
        u32x2{bfloat16_bits(sum[0] * factor) | (unsigned)bfloat16_bits(sum[1] * factor) << 16,
              bfloat16_bits(sum[2] * factor) | (unsigned)bfloat16_bits(sum[3] * factor) << 16};
}
"""

HEADS, LATENT, TOKENS = 16, 512, 32
PER_COMPUTE_UNIT = 2  # workgroups that shared memory has room for
MAX_SPLITS = 64
CPU_WORKGROUPS = 4  # emulated ones cost time each; a few splits still need merging
LOG2_E = 1.4426950408889634
FNUZ = torch.float8_e4m3fnuz
TARGETS = ("gfx942", "gfx950")  # the matrix instructions of 8-bit floats exist nowhere else
FNUZ_TARGETS = ("gfx942",)  # those of gfx950 read e4m3fn

BFLOAT16, FLOAT32 = ptr(torch.bfloat16, alignment=16), ptr(torch.float32, alignment=16)
MODULES = {}


def kernels(dtype):
    """The two kernels for a cache of one flavour of fp8, made when a first tensor tells which one is here."""
    if dtype not in MODULES:
        module = Module(SOURCE, {"CACHE_IS_FNUZ": int(dtype == FNUZ)}, FNUZ_TARGETS if dtype == FNUZ else TARGETS)
        MODULES[dtype] = (
            module.kernel(
                "split_kv",
                {
                    "q": BFLOAT16,
                    "kv": ptr(dtype, alignment=16),
                    "kv_scale": ptr(torch.float32),
                    "kv_indptr": ptr(torch.int32),
                    "out": BFLOAT16,
                    "parts": FLOAT32,
                    "stats": FLOAT32,
                    "softmax_scale": float32,
                    "splits": int32,
                },
            ),
            module.kernel("merge_splits", {"parts": FLOAT32, "stats": FLOAT32, "out": BFLOAT16, "splits": int32}),
        )
    return MODULES[dtype]


def custom_kernel(data):
    q, kv_data, _, kv_indptr, config = data
    kv, kv_scale = kv_data["fp8"]
    batch = q.shape[0]
    splits = choose_splits(q, -(-config["kv_seq_len"] // TOKENS))
    split_kv, merge_splits = kernels(kv.dtype)
    out = torch.empty(batch, HEADS, LATENT, dtype=torch.bfloat16, device=q.device)
    counts = (batch, splits) if splits > 1 else (0, 0)
    parts = torch.empty(*counts, HEADS, LATENT, dtype=torch.float32, device=q.device)
    stats = torch.empty(*counts, HEADS, 2, dtype=torch.float32, device=q.device)
    scale = config["sm_scale"] * LOG2_E
    split_kv(q, kv, kv_scale, kv_indptr, out, parts, stats, scale, splits, grid=(splits, batch), block=256)
    if splits > 1:
        merge_splits(parts, stats, out, splits, grid=(HEADS, batch), block=LATENT // 4)
    return out


def choose_splits(q, tiles):
    """How many workgroups share the tokens of a sequence of so many tiles."""
    workgroups = CPU_WORKGROUPS
    if q.device.type != "cpu":
        properties = torch.cuda.get_device_properties(q.device)
        workgroups = PER_COMPUTE_UNIT * properties.multi_processor_count
    return max(min(workgroups // q.shape[0], tiles, MAX_SPLITS), 1)
