"""Inline HIP: flash-decoding by MFMA for CDNA 3 (gfx942) and 4 (gfx950). Emulated, never timed.

Idea. A cached key and its value are used once, so nothing is to be gained from shared memory: every wave loads tiles of
16 keys and values into registers as the matrix instructions want them, 16 bytes a lane, and asks for its next tile
before it works on this one. No barrier in the loop. Four waves of a workgroup take turns at the tiles of a split, and
meet once, at its end, in shared memory.

    global ──► registers: 16 keys, 16 values     of the tile 4 further on meanwhile
    S^T [keys, rows] = K Q^T      lane n: row n % 16, keys 4 (n / 16) ..+3
    softmax over a lane's keys, then over four lanes
    O^T [dims, rows] = V^T P^T    weights are the operand where they are; values by v_perm, 4 tokens x 1 dim a lane

Rows. The G query heads of a KV head times Sq positions, 16 to a matrix instruction, two such tiles a wave in 16 bits.
More rows read keys and values again, from L2.

Operands. In which order dims are summed is free, so a lane takes eight neighbouring ones of a key for two steps of a
product, not four and four. Of a value it takes 8, 4, 2 or 1 neighbouring dims of four tokens, as D allows (128 = 8 x
16, 192 = 8 x 16 + 4 x 16, 80 = 4 x 16 + 1 x 16), and ends with as many side by side to store. 16-bit values go through
MFMA 16x16x16, float32 through 16x16x4, whose products are IEEE's.

New keys are one more tile, the last; the workgroup that has it writes them to their slots. Splits are whole tiles, cut
by each sequence's own length; a second kernel merges them in their order and advances seq_lens, after all have read it.
Waits for no other workgroup; no atomics. Loads past a sequence's end go to its last key instead, so that no garbage is
read, and score -inf. The parts carry their maximum, finite from the start, and their sum.

Bytes a cached key and KV head: 4 D in 16 bits, read once. docs/emulated-files.md has registers, occupancy and counts.
What limits it on a GPU is not known: it has not run on one.
"""

import torch

from harness.hip import Module, float32, int32, ptr

SOURCE = r"""
#define D HEAD_DIM
#define BYTES (IS_FLOAT32 ? 4 : 2)  // of an element
#define KEYS 16                     // of a tile
#define WAVES 4
#define TILES_OF_DIMS (D / 16)      // of the output
#define KEY_WORDS (D * BYTES / 16)  // of a key, a lane
#define VALUE_WORDS ((D / 16 * BYTES + 3) / 4)  // of a value, a lane
#define NEVER (-1e30f)              // below each score: finite, so that no maximum is infinite and no difference NaN

typedef float f32x2 __attribute__((ext_vector_type(2)));
typedef float f32x4 __attribute__((ext_vector_type(4)));
typedef unsigned u32x2 __attribute__((ext_vector_type(2)));
typedef unsigned u32x4 __attribute__((ext_vector_type(4)));
template <int N> struct Number { static constexpr int value = N; };

// c[i, j] += sum over k of a[i, k] b[k, j]: 16 values of k in 16 bits, 4 of them a lane; one of 4 in float32.
#if IS_FLOAT32
__device__ inline f32x4 product(unsigned a, unsigned b, f32x4 c) {
    return __builtin_amdgcn_mfma_f32_16x16x4f32(__builtin_bit_cast(float, a), __builtin_bit_cast(float, b), c, 0, 0, 0);
}
#else
__device__ inline f32x4 product(unsigned a0, unsigned a1, unsigned b0, unsigned b1, f32x4 c) {
#if IS_FLOAT16
    typedef _Float16 four __attribute__((ext_vector_type(4)));
    return __builtin_amdgcn_mfma_f32_16x16x16f16(
        __builtin_bit_cast(four, u32x2{a0, a1}), __builtin_bit_cast(four, u32x2{b0, b1}), c, 0, 0, 0);
#else
    typedef short four __attribute__((ext_vector_type(4)));
    return __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(
        __builtin_bit_cast(four, u32x2{a0, a1}), __builtin_bit_cast(four, u32x2{b0, b1}), c, 0, 0, 0);
#endif
}
#endif

__device__ inline unsigned rounded(float x) {  // not for NaN
#if IS_FLOAT32
    return __builtin_bit_cast(unsigned, x);
#elif IS_FLOAT16
    return float16_bits(x);
#else
    const unsigned bits = __builtin_bit_cast(unsigned, x);
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
#endif
}

template <int COUNT> __device__ inline void take(unsigned* to, const unsigned char* from) {
    if constexpr (COUNT == 2) to[0] = *(const unsigned short*)from;
    if constexpr (COUNT == 4) to[0] = *(const unsigned*)from;
    if constexpr (COUNT == 8) { const u32x2 x = *(const u32x2*)from; to[0] = x[0]; to[1] = x[1]; }
    if constexpr (COUNT == 16) {
        const u32x4 x = *(const u32x4*)from;
        for (int i = 0; i < 4; i++) to[i] = x[i];
    }
}

template <int COUNT> __device__ inline void give(unsigned char* to, const unsigned* from) {
    if constexpr (COUNT == 2) *(unsigned short*)to = (unsigned short)from[0];
    if constexpr (COUNT == 4) *(unsigned*)to = from[0];
    if constexpr (COUNT == 8) *(u32x2*)to = u32x2{from[0], from[1]};
    if constexpr (COUNT == 16) *(u32x4*)to = u32x4{from[0], from[1], from[2], from[3]};
    if constexpr (COUNT == 32) { give<16>(to, from); give<16>(to + 16, from + 4); }
}

// Of keys and queries: 16 bytes of a row for each of the four lanes that have it, then 8 if that leaves some.
template <class F> __device__ inline void pieces_of_key(F f) {
#pragma unroll
    for (int piece = 0; piece < KEY_WORDS / 4; piece++) f(piece * 64, piece * 4, Number<16>{});
    if constexpr (KEY_WORDS % 4 != 0) f(KEY_WORDS / 4 * 64, KEY_WORDS / 4 * 4, Number<8>{});
}

// Of values and outputs: 16 times 8, 4, 2 or 1 dims, f(first dim, how many a lane).
template <int FIRST = 0, class F> __device__ inline void pieces_of_value(F f) {
    if constexpr (FIRST < D) {
        constexpr int LEFT = (D - FIRST) / 16;
        constexpr int WIDTH = LEFT >= 8 && !IS_FLOAT32 ? 8 : LEFT >= 4 ? 4 : LEFT >= 2 ? 2 : 1;
        f(Number<FIRST>{}, Number<WIDTH>{});
        pieces_of_value<FIRST + 16 * WIDTH>(f);
    }
}

struct Tile { unsigned key[KEY_WORDS], value[4][VALUE_WORDS]; };

// keys, values [count, D]: lane n gets of key n % 16 what `pieces_of_key` says, of values 4 (n / 16) ..+3 their pieces.
__device__ inline void load(Tile& to, const unsigned char* __restrict__ keys, const unsigned char* __restrict__ values,
                            int count, int line, int group) {
    const int token = line < count ? line : count - 1;
    pieces_of_key([&](int place, int word, auto size) {
        constexpr int SIZE = decltype(size)::value;
        take<SIZE>(to.key + word, keys + token * (D * BYTES) + place + group * SIZE);
    });
#pragma unroll
    for (int r = 0; r < 4; r++) {
        const int row = group * 4 + r < count ? group * 4 + r : count - 1;
        pieces_of_value([&](auto first, auto width) {
            constexpr int FIRST = decltype(first)::value, WIDTH = decltype(width)::value;
            take<WIDTH * BYTES>(to.value[r] + FIRST / 16 * BYTES / 4,
                                values + (row * D + FIRST + line * WIDTH) * BYTES);
        });
    }
}

// A tile to slots of the caches, of which there are `count`.
__device__ inline void append(const Tile& from, unsigned char* keys, unsigned char* values, int count, int line,
                              int group) {
    if (line < count)
        pieces_of_key([&](int place, int word, auto size) {
            constexpr int SIZE = decltype(size)::value;
            give<SIZE>(keys + line * (D * BYTES) + place + group * SIZE, from.key + word);
        });
#pragma unroll
    for (int r = 0; r < 4; r++)
        if (group * 4 + r < count)
            pieces_of_value([&](auto first, auto width) {
                constexpr int FIRST = decltype(first)::value, WIDTH = decltype(width)::value;
                give<WIDTH * BYTES>(values + ((group * 4 + r) * D + FIRST + line * WIDTH) * BYTES,
                                    from.value[r] + FIRST / 16 * BYTES / 4);
            });
}

// Over the four lanes that have one row.
__device__ inline float largest_of_row(float x) {
    x = __builtin_fmaxf(x, shuffle_xor(x, 16));
    return __builtin_fmaxf(x, shuffle_xor(x, 32));
}

// q, out [pairs, rows, D]: row = head * q_len + position, of the heads that share a KV head; k_new, v_new [pairs,
// q_len, D]; caches [pairs, slots, D]; all of one type. seq_lens [pairs / kv_heads]. With several splits, in the place
// of out: parts [pairs, splits, rows, D], not divided by their sums, and stats [pairs, splits, rows, 2], their maxima
// in log2 and sums. scale = log2(e) / sqrt(D). Grid (pairs, splits, rows / 16 / ROW_TILES).
extern "C" __global__ __launch_bounds__(256) void attend_split(
    const unsigned char* __restrict__ q, const unsigned char* __restrict__ k_new,
    const unsigned char* __restrict__ v_new, unsigned char* k_cache, unsigned char* v_cache,
    const int* __restrict__ seq_lens, unsigned char* __restrict__ out, float* __restrict__ parts,
    f32x2* __restrict__ stats, int kv_heads, int rows, int q_len, int slots, int splits, int is_causal, int appends,
    float scale) {
    __shared__ float shared_sums[WAVES][2][TILES_OF_DIMS][64];
    __shared__ float shared_peaks[WAVES][ROW_TILES][16], shared_totals[WAVES][ROW_TILES][16];
    const int lane = threadIdx.x % 64, line = lane % 16, group = lane / 16;
    const int wave = __builtin_amdgcn_readfirstlane(threadIdx.x / 64);
    const int pair = blockIdx.x, split = blockIdx.y, first_row = blockIdx.z * (16 * ROW_TILES);
    const int length = seq_lens[pair / kv_heads];
    const int cached = (length + KEYS - 1) / KEYS, tiles = cached + 1;  // the last one of new keys
    const int share = (tiles + splits - 1) / splits;
    const int begin = split * share, end = begin + share < tiles ? begin + share : tiles;
    k_cache += (long)pair * slots * (D * BYTES);
    v_cache += (long)pair * slots * (D * BYTES);
    k_new += (long)pair * q_len * (D * BYTES);
    v_new += (long)pair * q_len * (D * BYTES);

    const auto load_tile = [&](Tile& to, int tile) {
        const long place = (long)tile * (KEYS * D * BYTES);
        const int left = tile < cached ? length - tile * KEYS : q_len;
        load(to, tile < cached ? k_cache + place : k_new, tile < cached ? v_cache + place : v_new,
             left < KEYS ? left : KEYS, line, group);
    };
    unsigned query[ROW_TILES][KEY_WORDS];
    f32x4 sums[ROW_TILES][TILES_OF_DIMS];  // at [tile][c][r]: of row `line`, dim c of those of row 4 group + r
    float peak[ROW_TILES], total[ROW_TILES];
#pragma unroll
    for (int t = 0; t < ROW_TILES; t++) {
        const int row = first_row + t * 16 + line;
        const unsigned char* const from = q + ((long)pair * rows + (row < rows ? row : rows - 1)) * (D * BYTES);
        pieces_of_key([&](int place, int word, auto size) {
            constexpr int SIZE = decltype(size)::value;
            take<SIZE>(query[t] + word, from + place + group * SIZE);
        });
        peak[t] = NEVER;
        total[t] = 0.0f;
#pragma unroll
        for (int c = 0; c < TILES_OF_DIMS; c++) sums[t][c] = f32x4{0, 0, 0, 0};
    }

    // seen(t, i): whether row `line` of row tile t may see key i of the tile.
    const auto attend = [&](const Tile& now, auto seen) {
#pragma unroll
        for (int t = 0; t < ROW_TILES; t++) {
            f32x4 score = {0, 0, 0, 0};
#pragma unroll
#if IS_FLOAT32
            for (int word = 0; word < KEY_WORDS; word++) score = product(now.key[word], query[t][word], score);
#else
            for (int word = 0; word < KEY_WORDS; word += 2)
                score = product(now.key[word], now.key[word + 1], query[t][word], query[t][word + 1], score);
#endif
            score *= scale;
            float largest = NEVER;
#pragma unroll
            for (int r = 0; r < 4; r++) {
                if (!seen(t, group * 4 + r)) score[r] = -__builtin_inff();
                largest = __builtin_fmaxf(largest, score[r]);
            }
            const float new_peak = __builtin_fmaxf(peak[t], largest_of_row(largest));
            if (__builtin_amdgcn_ballot_w64(new_peak > peak[t])) {
                const float less = exp2_fast(peak[t] - new_peak);
                total[t] *= less;
#pragma unroll
                for (int c = 0; c < TILES_OF_DIMS; c++) sums[t][c] *= less;
                peak[t] = new_peak;
            }
            unsigned weight[4];
#pragma unroll
            for (int r = 0; r < 4; r++) {
                const float exact = exp2_fast(score[r] - peak[t]);
                total[t] += exact;
                weight[r] = rounded(exact);
            }
#if IS_FLOAT32
#pragma unroll
            for (int c = 0; c < TILES_OF_DIMS; c++)
#pragma unroll
                for (int r = 0; r < 4; r++) sums[t][c] = product(now.value[r][c], weight[r], sums[t][c]);
#else
            const unsigned low = weight[0] | weight[1] << 16, high = weight[2] | weight[3] << 16;
#pragma unroll
            for (int c = 0; c < TILES_OF_DIMS; c++) {
                const unsigned which = c % 2 ? 0x07060302 : 0x05040100;  // the upper halves of two words, or the lower
                sums[t][c] = product(__builtin_amdgcn_perm(now.value[1][c / 2], now.value[0][c / 2], which),
                                     __builtin_amdgcn_perm(now.value[3][c / 2], now.value[2][c / 2], which),
                                     low, high, sums[t][c]);
            }
#endif
        }
    };

    int tile = begin + wave;
    if (tile < end) {
        Tile next;
        load_tile(next, tile);
        // Waited for once, here: a wait in the loop would be for the next tile as well.
#pragma unroll
        for (int t = 0; t < ROW_TILES; t++)
#pragma unroll
            for (int word = 0; word < KEY_WORDS; word++) asm volatile("" : "+v"(query[t][word]));
        for (; tile + WAVES < end; tile += WAVES) {  // not the sequence's last two tiles: all keys are there and seen
            const Tile now = next;
            load_tile(next, tile + WAVES);
            attend(now, [](int, int) { return true; });
        }
        const bool is_new = tile == cached;
        const int count = is_new ? q_len : length - tile * KEYS;
        if (is_new && appends && blockIdx.z == 0) {
            const long place = (long)length * (D * BYTES);
            append(next, k_cache + place, v_cache + place, q_len, line, group);
        }
        attend(next, [&](int t, int key) {
            const int position = (first_row + t * 16 + line) % q_len;
            return key < (is_new && is_causal ? position + 1 : count);
        });
    }

    // The waves' sums together: rows r = 0 and 1 of each lane's four, then 2 and 3. Wave w adds up and stores r = w.
#pragma unroll
    for (int t = 0; t < ROW_TILES; t++) {
        total[t] += shuffle_xor(total[t], 16);
        total[t] += shuffle_xor(total[t], 32);
        if (group == 0) {
            shared_peaks[wave][t][line] = peak[t];
            shared_totals[wave][t][line] = total[t];
        }
    }
    __syncthreads();
#pragma unroll
    for (int t = 0; t < ROW_TILES; t++) {
        float best = NEVER, all = 0.0f;
#pragma unroll
        for (int w = 0; w < WAVES; w++) best = __builtin_fmaxf(best, shared_peaks[w][t][line]);
#pragma unroll
        for (int w = 0; w < WAVES; w++) all += shared_totals[w][t][line] * exp2_fast(shared_peaks[w][t][line] - best);
        const float share_of_wave = exp2_fast(peak[t] - best);
        const int row = first_row + t * 16 + line;
        const long part_row = ((long)pair * splits + split) * rows + row;
        if (splits > 1 && wave == 0 && group == 0 && row < rows) stats[part_row] = f32x2{best, all};
        const float factor = splits > 1 ? 1.0f : 1.0f / all;
#pragma unroll
        for (int round = 0; round < 2; round++) {
            if (t + round > 0) __syncthreads();  // the sums before have been read
#pragma unroll
            for (int c = 0; c < TILES_OF_DIMS; c++)
#pragma unroll
                for (int i = 0; i < 2; i++) shared_sums[wave][i][c][lane] = sums[t][c][round * 2 + i] * share_of_wave;
            __syncthreads();
            if (wave / 2 == round && row < rows) {
                float x[TILES_OF_DIMS];
#pragma unroll
                for (int c = 0; c < TILES_OF_DIMS; c++) {
                    x[c] = 0.0f;
#pragma unroll
                    for (int w = 0; w < WAVES; w++) x[c] += shared_sums[w][wave % 2][c][lane];
                    x[c] *= factor;
                }
                pieces_of_value([&](auto first, auto width) {
                    constexpr int FIRST = decltype(first)::value, WIDTH = decltype(width)::value;
                    const int dim = FIRST + (group * 4 + wave) * WIDTH;
                    unsigned words[WIDTH];
                    if (splits > 1) {
#pragma unroll
                        for (int i = 0; i < WIDTH; i++) words[i] = __builtin_bit_cast(unsigned, x[FIRST / 16 + i]);
                        give<WIDTH * 4>((unsigned char*)(parts + part_row * D + dim), words);
                    } else {
#pragma unroll
                        for (int i = 0; i < WIDTH; i++) {
                            const unsigned bits = rounded(x[FIRST / 16 + i]);
                            if (IS_FLOAT32 || i % 2 == 0) words[i * BYTES / 4] = bits;
                            else words[i / 2] |= bits << 16;
                        }
                        give<WIDTH * BYTES>(out + (((long)pair * rows + row) * D + dim) * BYTES, words);
                    }
                });
            }
        }
    }
}

// A thread four dims of a row, grid (pairs, rows * D / 4 / 256). Arguments as above.
extern "C" __global__ __launch_bounds__(256) void merge_splits(
    const f32x4* __restrict__ parts, const f32x2* __restrict__ stats, unsigned char* __restrict__ out, int* seq_lens,
    int kv_heads, int rows, int q_len, int splits, int appends) {
    const int pair = blockIdx.x, place = blockIdx.y * 256 + threadIdx.x, row = place / (D / 4);
    if (appends && place == 0 && pair % kv_heads == 0) seq_lens[pair / kv_heads] += q_len;
    if (row >= rows) return;
    float peak = NEVER, total = 0.0f;
    for (int split = 0; split < splits; split++)
        peak = __builtin_fmaxf(peak, stats[((long)pair * splits + split) * rows + row][0]);
    f32x4 sum = {0, 0, 0, 0};
    for (int split = 0; split < splits; split++) {
        const long part_row = ((long)pair * splits + split) * rows + row;
        const float weight = exp2_fast(stats[part_row][0] - peak);
        total += stats[part_row][1] * weight;
        sum += parts[part_row * (D / 4) + place % (D / 4)] * weight;
    }
    sum *= 1.0f / total;
    unsigned words[4];
    for (int i = 0; i < 4; i++) words[i] = rounded(sum[i]);
#if !IS_FLOAT32
    words[0] |= words[1] << 16;
    words[1] = words[2] | words[3] << 16;
#endif
    give<4 * BYTES>(out + ((long)pair * rows * (D / 4) + place) * (4 * BYTES), words);
}

// Where there was nothing to merge.
extern "C" __global__ __launch_bounds__(256) void advance_lengths(int* seq_lens, int batch, int q_len) {
    const int sequence = blockIdx.x * 256 + threadIdx.x;
    if (sequence < batch) seq_lens[sequence] += q_len;
}
"""

KEYS, THREADS = 16, 256
PER_COMPUTE_UNIT = 3  # workgroups that registers leave room for, of 16 bits, D = 128 and up to 16 rows
TARGETS = ("gfx942", "gfx950")  # its matrix instructions exist nowhere else
MAX_SPLITS = 64
CPU_SPLITS = 2  # emulated workgroups cost time each; two splits still need merging
LOG2_E = 1.4426950408889634
FLOAT32, LENGTHS = ptr(torch.float32, alignment=16), ptr(torch.int32)
MODULES = {}


def kernels(dtype, head_dim, row_tiles):
    """attend_split, merge_splits and advance_lengths for such tensors, made when they are first needed."""
    key = dtype, head_dim, row_tiles
    if key not in MODULES:
        kinds = {"IS_FLOAT32": int(dtype == torch.float32), "IS_FLOAT16": int(dtype == torch.float16)}
        module = Module(SOURCE, {"HEAD_DIM": head_dim, "ROW_TILES": row_tiles, **kinds}, TARGETS)
        tensor = ptr(dtype, alignment=16)
        parts = {"parts": FLOAT32, "stats": FLOAT32}
        counts = {"kv_heads": int32, "rows": int32, "q_len": int32}
        caches = {"k_cache": tensor, "v_cache": tensor, "seq_lens": LENGTHS}
        flags = {"is_causal": int32, "appends": int32}
        MODULES[key] = (
            module.kernel(
                "attend_split",
                {"q": tensor, "k_new": tensor, "v_new": tensor, **caches, "out": tensor, **parts, **counts}
                | {"slots": int32, "splits": int32, **flags, "scale": float32},
            ),
            module.kernel(
                "merge_splits",
                {**parts, "out": tensor, "seq_lens": LENGTHS, **counts, "splits": int32, "appends": int32},
            ),
            module.kernel("advance_lengths", {"seq_lens": LENGTHS, "batch": int32, "q_len": int32}),
        )
    return MODULES[key]


def custom_kernel(data):
    q, k_new, v_new, k_cache, v_cache, seq_lens, config = data
    batch, q_heads, q_len, head_dim = q.shape
    kv_heads, slots = k_cache.shape[1:3]
    pairs, rows = batch * kv_heads, q_heads // kv_heads * q_len
    row_tiles = 2 if rows > 16 and q.dtype != torch.float32 else 1
    row_groups = -(-rows // (16 * row_tiles))
    splits = choose_splits(q, pairs * row_groups, -(-slots // KEYS) + 1)
    appends = config["update_cache"]

    attend_split, merge_splits, advance_lengths = kernels(q.dtype, head_dim, row_tiles)
    out = torch.empty_like(q)
    counts = (pairs, splits) if splits > 1 else (0, 0)
    parts = torch.empty(*counts, rows, head_dim, dtype=torch.float32, device=q.device)
    stats = torch.empty(*counts, rows, 2, dtype=torch.float32, device=q.device)
    attend_split(
        q, k_new, v_new, k_cache, v_cache, seq_lens, out, parts, stats, kv_heads, rows, q_len, slots, splits,
        int(config["is_causal"]), int(appends), LOG2_E / head_dim**0.5,
        grid=(pairs, splits, row_groups), block=THREADS,
    )  # fmt: skip
    if splits > 1:
        blocks = -(-rows * head_dim // (4 * THREADS))
        merge_splits(
            parts, stats, out, seq_lens, kv_heads, rows, q_len, splits, int(appends),
            grid=(pairs, blocks), block=THREADS,
        )  # fmt: skip
    elif appends:
        advance_lengths(seq_lens, batch, q_len, grid=-(-batch // THREADS), block=THREADS)
    return out


def choose_splits(q, workgroups, tiles):
    """How many workgroups share so many tiles of keys, given `workgroups` without."""
    if q.device.type == "cpu":
        return min(CPU_SPLITS, tiles)
    properties = torch.cuda.get_device_properties(q.device)
    wanted = PER_COMPUTE_UNIT * properties.multi_processor_count // workgroups
    return max(min(wanted, -(-tiles // 8), MAX_SPLITS), 1)
