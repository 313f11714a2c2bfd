"""Inline CUDA for Hopper: one launch, in which a cluster of programs shares the keys of a KV head and merges on chip.

Idea. Flash-decoding splits the keys of a sequence over programs, and a second kernel merges what they leave in global
memory (triton_split_kv.py). On Hopper, up to 8 programs can be a cluster, whose members write to each other's shared
memory: partial results stay on chip, and one launch does it all.

Programs. Grid (cluster, B * Hkv), 256 threads. The programs of a cluster take chunks of 64 keys in turn. A cluster is
as large, up to 8, as gives each program a multiprocessor of its own. It does not cross a GPC, and those of an H200 have
14 to 18 multiprocessors, so not all can be used: 8 of 11 are counted on, 96 of 132. With more pairs (sequence, KV head)
than half of that it is 2, up to a pair a multiprocessor, and 1 beyond: the pairs alone fill the device.

Few pairs. 8 clusters of 8 leave half of the device idle, and a multiprocessor reads no faster with more on its way.
With up to 8 pairs and many slots the programs of a pair are no cluster: one a multiprocessor, up to 64 a pair. Each
leaves its sums in global memory and takes a ticket of its pair. The one that takes the last ticket merges. That costs
a few us more than a cluster's merge, so 8 pairs have to have 24576 slots, and one 5462. A cache that has them and
holds few keys loses these few us: the host does not know the lengths. So that no program merges more than 256 sums,
many heads get fewer programs, and from 17 heads on a cluster.

Warps. The G = Hq / Hkv heads of a KV head are the rows of m16n8k16, padded to 16, or above 16 to 32. Every 2 of the 8
warps are a key group. It copies, and alone reads, its 16 keys of each chunk, and so is a pipeline of its own (cp.async
into a ring of 2 or 3 stages) whose barriers hold up 64 threads and not 256. Its warps share the dims of the output, or
the rows where there are 32. Scores stay in registers: the C fragments of Q K^T are the A fragments of P V.

    chunk of 64 keys   16 keys ─► group 0, 2 warps ┐ shared memory             st.async    owner of the row
                       16 keys ─► group 1          ├─► sums, peak, total, ─────────────► merge over programs
                       16 keys ─► group 2          │   merged over groups                and the new key ─► out
                       16 keys ─► group 3          ┘

Begin. The first chunk is asked for before the length is known, or one wait for memory would follow another. Where it
has too few keys of the sequence it is copied again, with zeros in the place of the others, since 0 * NaN is NaN.

End. The rows are dealt among the programs of the cluster. Each program sends its unnormalised fp32 sums of a row, with
their peak and total, to the row's owner by st.async, which counts the bytes on the owner's mbarrier: one wait for all.
A program alone keeps its rows: there st.async is an error. The new key takes no part in the chunks. Its score is ready
long before, and it is one more addend of the last merge.

Append. Cached keys are read below L and written at L, so nothing has to be ordered but seq_lens, which all programs of
a sequence read. The last of its clusters to have done so, as a ticket per sequence tells, advances it.

Clusters and stages on an H200:

    B * Hkv, keys       1024, 1024   512, 2048   512, 8192   256, 4096   128, 2048   64, 2048   32    16    8, 32768
    cluster, stages     1, 2         1, 2        1, 2        1, 2        2, 2        2, 3       3, 3  6, 3  16 alone, 3

Bytes a cached key and KV head: 4 D, read once. Limited by memory bandwidth from 256 pairs on, below that by a chain:
launch, first chunk, last chunk, merge over groups, merge over programs. docs/kernels.md has what was measured,
docs/kernels-tried.md what was slower.

For q_len 1, D = 128, bfloat16 and float16, G up to 32. Anything else goes to SDPA, one sequence after another, which
is right and slow. Not for AMD, nor for any NVIDIA GPU but Hopper (sm_90): elsewhere see triton_split_kv.py.
"""

import functools
import math

import torch
from torch.nn.functional import scaled_dot_product_attention

from harness.hip import Module, NoDevice, float32, int32, ptr

HEAD_DIM = 128
CHUNK = 64  # keys, that a program attends to at a time
KEY_GROUPS = 4  # of the 8 warps, each with 16 keys of a chunk
THREADS = 256
MAX_GROUP = 32  # query heads of a KV head
MAX_GRID_Y = 65535
MOST_SCATTERED = 64  # programs of a pair, whose sums one program merges
MOST_MERGED = 256  # sums of a head that it merges
WORTH_SCATTERING = 49152  # slots, times 10 less the pairs
PORTABLE_CLUSTER = 8  # the most that every chip with clusters grants (CUDA programming guide, "Thread Block Clusters")

# Macros: those above, and ROWS (heads of a KV head, padded: 16 or 32), CLUSTER, SCATTERED (0 or 1: the programs of a KV
# head are no cluster), STAGES, IS_FP16 (0 or 1), SHARED_BYTES, RESIDENT (programs that are to fit a multiprocessor).
SOURCE = r"""
#define ROW_BYTES (HEAD_DIM * 2)
#define KEYS (CHUNK / KEY_GROUPS)
#define GROUP_THREADS (THREADS / KEY_GROUPS)
#define ROW_STEP (GROUP_THREADS / 16)  // rows that a group copies at once, 16 bytes a thread
#define ROW_TILES (ROWS / 16)
#define DIM_SPLITS (THREADS / 32 / (KEY_GROUPS * ROW_TILES))  // warps of a group that share the dims of a row tile
#define TILES (HEAD_DIM / 8 / DIM_SPLITS)  // of 8 dims, that a warp accumulates
#define STAGE_BYTES (2 * KEYS * ROW_BYTES)
#define PARTIAL_BYTES (ROWS * HEAD_DIM * 4)
#define MERGE_BYTES (PARTIAL_BYTES + ROWS * 8)
#define REGION_BYTES (STAGES * STAGE_BYTES > MERGE_BYTES ? STAGES * STAGE_BYTES : MERGE_BYTES)
#define OWN_ROWS ((ROWS + CLUSTER - 1) / CLUSTER)  // that a program merges, at most
#define WARP_ROWS ((OWN_ROWS + 7) / 8)
#define FIRST_ROW(rank) (((int)(rank) * heads + CLUSTER - 1) / CLUSTER)
#define MINUS_INFINITY __builtin_bit_cast(float, 0xff800000u)
#define NO_PEAK -1e30f  // finite: exp2(-inf - NO_PEAK) is 0

typedef unsigned u32;

struct __align__(128) Shared {
    // By key group: stages of 16 keys and then their values, 16-byte piece i of row r at i ^ r % 8, so that ldmatrix
    // reads 8 rows from different banks. After the last chunk: the group's sums, and (peak, total).
    unsigned char ring[KEY_GROUPS][REGION_BYTES];
    float4 received[CLUSTER * OWN_ROWS * HEAD_DIM / 4];  // [from][row][dim]; at the beginning the queries
    float2 received_stat[CLUSTER * OWN_ROWS];            // peak, total
    uint2 new_value[32];
    float new_score[32];      // of this program's rows
    unsigned long long full;  // mbarrier: all that is to be received is here
    u32 before;  // programs of this pair that had left their sums; in a cluster unused
};
static_assert(sizeof(Shared) == SHARED_BYTES, "as much as the host asks for");
static_assert(KEYS == 16 && DIM_SPLITS >= 1 && ROWS * ROW_BYTES <= sizeof(Shared::received), "roles");

__device__ __forceinline__ u32 address(const void* p) { return (u32)__cvta_generic_to_shared(p); }

__device__ __forceinline__ void ldmatrix4(u32* r, u32 from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(from) : "memory");
}

__device__ __forceinline__ void ldmatrix4_transposed(u32* r, u32 from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(from) : "memory");
}

#if IS_FP16
#define TYPE "f16"
#else
#define TYPE "bf16"
#endif

__device__ __forceinline__ void mma(float* c, const u32* a, u32 b0, u32 b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." TYPE "." TYPE ".f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ u32 packed(float low, float high) {
    u32 x;
    asm("cvt.rn." TYPE "x2.f32 %0, %2, %1;" : "=r"(x) : "f"(low), "f"(high));
    return x;
}

__device__ __forceinline__ float low_of(u32 x) {
    return IS_FP16 ? float16_value((unsigned short)x) : bfloat16_low(x);
}

__device__ __forceinline__ float high_of(u32 x) {
    return IS_FP16 ? float16_value((unsigned short)(x >> 16)) : bfloat16_high(x);
}

// 16 bytes, which are read only if `exists` and zeros otherwise.
__device__ __forceinline__ void copy16(u32 to, const unsigned char* from, bool exists) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :: "r"(to), "l"(from), "r"(exists ? 16 : 0) : "memory");
}

__device__ __forceinline__ void commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

template <int LEFT> __device__ __forceinline__ void wait_groups() {
    asm volatile("cp.async.wait_group %0;" :: "n"(LEFT) : "memory");
}

__device__ __forceinline__ void group_barrier(int group) {
    asm volatile("bar.sync %0, %1;" :: "r"(1 + group), "n"(GROUP_THREADS) : "memory");
}

// Where 2 (4) dims of a row of [rows][HEAD_DIM] fp32 lie, in bytes: 4 rows at one column are in different banks.
__device__ __forceinline__ u32 place2(int slot, int row, int pair) {
    return slot * (HEAD_DIM * 4) + (pair ^ (row & 3) << 2) * 8;
}

__device__ __forceinline__ u32 place4(int slot, int row, int quad) {
    return slot * (HEAD_DIM * 4) + (quad ^ (row & 3) << 1) * 16;
}

// The address in the program `rank` of this cluster that a local address has here.
__device__ __forceinline__ u32 in_peer(u32 local, u32 rank) {
    if (CLUSTER == 1) return local;
    u32 there;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(local), "r"(rank));
    return there;
}

// The mbarrier, of the program that `to` is in, counts the bytes as they come. A program alone stores: st.async is for
// clusters only.
__device__ __forceinline__ void send(u32 to, float2 x, u32 mbarrier) {
    if (CLUSTER == 1)
        asm volatile("st.shared.v2.f32 [%0], {%1, %2};" :: "r"(to), "f"(x.x), "f"(x.y) : "memory");
    else asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];"
                 :: "r"(to), "f"(x.x), "f"(x.y), "r"(mbarrier) : "memory");
}

__device__ __forceinline__ void send(u32 to, float4 x, u32 mbarrier) {
    if (CLUSTER == 1)
        asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};"
                     :: "r"(to), "f"(x.x), "f"(x.y), "f"(x.z), "f"(x.w) : "memory");
    else asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];"
                 :: "r"(to), "f"(x.x), "f"(x.y), "f"(x.z), "f"(x.w), "r"(mbarrier) : "memory");
}

__device__ __forceinline__ void add_weighted(float4& sum, float weight, float4 x) {
    sum.x += weight * x.x;
    sum.y += weight * x.y;
    sum.z += weight * x.z;
    sum.w += weight * x.w;
}

extern "C" __global__ __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(THREADS, RESIDENT) void attend(
    const unsigned char* __restrict__ q,  // [batch, kv_heads, heads, HEAD_DIM]
    const uint2* __restrict__ k_new,      // [batch, kv_heads, HEAD_DIM]
    const uint2* __restrict__ v_new,
    unsigned char* k_cache,  // [batch, kv_heads, slots, HEAD_DIM]
    unsigned char* v_cache,
    int* seq_lens,             // [batch]
    uint2* __restrict__ out,   // as q
    u32* tickets,              // [2 * pairs or more], of sequences and then of pairs: zeros before and after
    float4* sums,              // if SCATTERED, of [pair][program][head]: HEAD_DIM sums. Behind them all: peak, total
    int kv_heads, int heads,   // heads: of a KV head
    int slots, int update,
    int reciprocal,    // 65536 / heads, rounded up
    float score_scale  // log2(e) / sqrt(HEAD_DIM)
) {
    extern __shared__ __align__(1024) unsigned char raw[];
    Shared& shared = *(Shared*)raw;
    const int rank = blockIdx.x, pair = blockIdx.y, sequence = pair / kv_heads;  // pair: of a sequence and a KV head
    const int programs = SCATTERED ? gridDim.x : CLUSTER, stride = programs * CHUNK;
    const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
    const int g = lane / 4, t = lane % 4;  // of the fragments of mma: row g (and g + 8), columns 2 t and 2 t + 1
    const int group = warp % KEY_GROUPS, tile = warp / KEY_GROUPS % ROW_TILES, part = warp / (KEY_GROUPS * ROW_TILES);
    const int row = tile * 16 + g;
    const int member = SCATTERED ? 0 : rank;  // of the cluster: by it the rows are dealt
    const int first_row = FIRST_ROW(member), own_rows = FIRST_ROW(member + 1) - first_row;

    int length;  // Volatile, so that it is asked for first of all.
    asm volatile("ld.relaxed.gpu.global.s32 %0, [%1];" : "=r"(length) : "l"(seq_lens + sequence) : "memory");

    const unsigned char* const q_here = q + (long long)pair * heads * ROW_BYTES;
#pragma unroll
    for (int i = 0; i < ROWS / 16; i++) {
        const int q_row = thread / 16 + i * 16, piece = thread % 16;
        copy16(address(shared.received) + q_row * ROW_BYTES + (piece ^ q_row % 8) * 16,
               q_here + (q_row < heads ? q_row * ROW_BYTES + piece * 16 : 0), q_row < heads);
    }
    commit();

    // A thread copies piece `piece` of keys and values copied_row + 0, 4, 8 and 12 of its group's.
    const int copied_row = (warp / KEY_GROUPS * 32 + lane) / 16, piece = lane % 16;
    const u32 ring = address(shared.ring[group]);
    const u32 copied_to = ring + copied_row * ROW_BYTES + (piece ^ copied_row) * 16;
    const int first_key = rank * CHUNK + group * KEYS;
    const long long first_offset = ((long long)pair * slots + first_key + copied_row) * ROW_BYTES + piece * 16;
    long long offset = first_offset;  // in the caches, of the next piece that this thread copies
    auto copy_chunk = [&](int stage, int keys) {
#pragma unroll
        for (int values = 0; values < 2; values++)
#pragma unroll
            for (int i = 0; i < KEYS; i += ROW_STEP) {
                const bool exists = copied_row + i < keys;
                copy16((copied_to + stage * STAGE_BYTES + (values * KEYS + i) * ROW_BYTES) ^ i % 8 * 16,
                       (values ? v_cache : k_cache) + (exists ? offset + i * ROW_BYTES : 0), exists);
            }
        offset += (long long)stride * ROW_BYTES;
    };
    copy_chunk(0, slots - first_key);  // before the length is known
    commit();

    if (CLUSTER > 1 && thread == 0) {
        const u32 bytes = own_rows * CLUSTER * (HEAD_DIM * 4 + 8);
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(address(&shared.full)) : "memory");
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                     :: "r"(address(&shared.full)), "r"(bytes) : "memory");
    }
    const uint2 new_key = k_new[(long long)pair * 32 + lane], new_value = v_new[(long long)pair * 32 + lane];
    uint2 own_query[WARP_ROWS];
#pragma unroll
    for (int i = 0; i < WARP_ROWS; i++) {
        const int own = warp + i * 8;
        own_query[i] = *((const uint2*)(q_here + (own < own_rows ? first_row + own : 0) * ROW_BYTES) + lane);
    }

    wait_groups<1>();  // the queries are here
    __syncthreads();
    u32 a[HEAD_DIM / 16][4];
#pragma unroll
    for (int k = 0; k < HEAD_DIM / 16; k++)
        ldmatrix4(a[k], address(shared.received) + (tile * 16 + lane % 16) * ROW_BYTES
                            + ((2 * k + lane / 16) ^ lane % 8) * 16);
    if (CLUSTER > 1) {
        // From here on peers may write where the queries were, and one may advance the length. An arrival that releases
        // would wait for the copies that are under way: instead, a store that never is depends on what has been read.
        u32 all = length;
#pragma unroll
        for (int k = 0; k < HEAD_DIM / 16; k++) all ^= a[k][0];
        asm volatile("{\n"
                     ".reg .pred never;\n"
                     "setp.eq.u32 never, %0, 0xdeadbeef;\n"
                     "@never st.shared.u32 [%1], %0;\n"
                     "}" :: "r"(all), "r"(address(&shared.before)) : "memory");
        asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
    }

    int left = length - first_key;  // keys of the sequence from the group's first one of a chunk on
    int chunks = length <= rank * CHUNK ? 0 : (length - rank * CHUNK + stride - 1) / stride;
    if (length < (rank + 1) * CHUNK) {
        wait_groups<0>();
        __syncthreads();  // nothing is on its way any more to where, without a chunk, the sums go
        offset = first_offset;
        if (chunks) copy_chunk(0, left);
        commit();
    }
#pragma unroll
    for (int stage = 1; stage < STAGES; stage++) {
        if (stage < chunks) copy_chunk(stage, left - stage * stride);
        commit();
    }

    // The new key and value, while the chunks are on their way.
    if (update && rank == programs - 1 && warp >= 6) {
        const long long there = ((long long)pair * slots + length) * ROW_BYTES + lane * 8;
        if (warp == 6) *(uint2*)(k_cache + there) = new_key;
        else *(uint2*)(v_cache + there) = new_value;
    }
    if (warp == 7) shared.new_value[lane] = new_value;
#pragma unroll
    for (int i = 0; i < WARP_ROWS; i++) {
        float sum = low_of(own_query[i].x) * low_of(new_key.x) + high_of(own_query[i].x) * high_of(new_key.x)
            + low_of(own_query[i].y) * low_of(new_key.y) + high_of(own_query[i].y) * high_of(new_key.y);
#pragma unroll
        for (int mask = 16; mask; mask /= 2) sum += shuffle_xor(sum, mask);
        if (lane == 0 && warp + i * 8 < own_rows) shared.new_score[warp + i * 8] = sum * score_scale;
    }

    float acc[TILES][4] = {};
    float peak0 = NO_PEAK, peak1 = NO_PEAK, total0 = 0, total1 = 0;  // of rows g and g + 8
    for (int stage = 0; chunks > 0; chunks--) {
        // A row is 256 bytes and lies at a multiple of that, so pieces 2 k and 8 n of it come by an exclusive or.
        const u32 keys_at = ring + stage * STAGE_BYTES + (lane / 16 * 8 + lane % 8) * ROW_BYTES
                                + (lane / 8 % 2 ^ lane % 8) * 16;
        const u32 values_at = ring + stage * STAGE_BYTES + (KEYS + lane % 16) * ROW_BYTES
                                + (lane / 16 ^ lane % 8 ^ part * TILES) * 16;
        wait_groups<STAGES - 1>();
        group_barrier(group);

        float s[2][4] = {};  // by 8 keys
#pragma unroll
        for (int k = 0; k < HEAD_DIM / 16; k++) {
            u32 b[4];
            ldmatrix4(b, keys_at ^ k * 32);
            mma(s[0], a[k], b[0], b[1]);
            mma(s[1], a[k], b[2], b[3]);
        }
        if (left < KEYS) {
#pragma unroll
            for (int i = 0; i < 8; i++)
                if (i / 4 * 8 + 2 * t + i % 2 >= left) s[i / 4][i % 4] = MINUS_INFINITY;
        }
        float most0 = fmaxf(fmaxf(s[0][0], s[0][1]), fmaxf(s[1][0], s[1][1]));
        float most1 = fmaxf(fmaxf(s[0][2], s[0][3]), fmaxf(s[1][2], s[1][3]));
#pragma unroll
        for (int mask = 1; mask <= 2; mask *= 2) {
            most0 = fmaxf(most0, shuffle_xor(most0, mask));
            most1 = fmaxf(most1, shuffle_xor(most1, mask));
        }
        const float new0 = fmaxf(peak0, most0 * score_scale), new1 = fmaxf(peak1, most1 * score_scale);
        const float shrink0 = exp2_fast(peak0 - new0), shrink1 = exp2_fast(peak1 - new1);
        peak0 = new0;
        peak1 = new1;
        total0 *= shrink0;
        total1 *= shrink1;
#pragma unroll
        for (int n = 0; n < TILES; n++) {
            acc[n][0] *= shrink0;
            acc[n][1] *= shrink0;
            acc[n][2] *= shrink1;
            acc[n][3] *= shrink1;
        }

        u32 weight[4];  // the A fragment of P V
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const float x = exp2_fast(s[i][0] * score_scale - new0), y = exp2_fast(s[i][1] * score_scale - new0);
            const float z = exp2_fast(s[i][2] * score_scale - new1), w = exp2_fast(s[i][3] * score_scale - new1);
            total0 += x + y;
            total1 += z + w;
            weight[2 * i] = packed(x, y);
            weight[2 * i + 1] = packed(z, w);
        }
#pragma unroll
        for (int n = 0; n < TILES; n += 2) {
            u32 b[4];
            ldmatrix4_transposed(b, values_at ^ n * 16);
            mma(acc[n], weight, b[0], b[1]);
            mma(acc[n + 1], weight, b[2], b[3]);
        }

        group_barrier(group);  // both warps have read the stage
        if (chunks > STAGES) copy_chunk(stage, left - STAGES * stride);
        commit();
        left -= stride;
        stage = stage + 1 == STAGES ? 0 : stage + 1;
    }
#pragma unroll
    for (int mask = 1; mask <= 2; mask *= 2) {
        total0 += shuffle_xor(total0, mask);
        total1 += shuffle_xor(total1, mask);
    }

    // Over the groups: a group's stages, which it alone has used and uses no more, become the place of its sums.
    unsigned char* const partial = shared.ring[group];
#pragma unroll
    for (int n = 0; n < TILES; n++) {
        const int dims = (part * TILES + n) * 4 + t;
        *(float2*)(partial + place2(row, row, dims)) = make_float2(acc[n][0], acc[n][1]);
        *(float2*)(partial + place2(row + 8, row + 8, dims)) = make_float2(acc[n][2], acc[n][3]);
    }
    if (part == 0 && t == 0) {
        *(float2*)(partial + PARTIAL_BYTES + row * 8) = make_float2(peak0, total0);
        *(float2*)(partial + PARTIAL_BYTES + (row + 8) * 8) = make_float2(peak1, total1);
    }
    __syncthreads();
    if (CLUSTER > 1) asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#if SCATTERED
    float2* const stats = (float2*)(sums + (long long)gridDim.y * programs * heads * 32);
#else
    // Now all programs of this cluster have read the length. The ticket's answer is looked at when all is sent.
    const bool advances = update && rank == 0 && thread == THREADS - 1;
    int before = 0;
    if (advances && kv_heads > 1) before = (int)atomicAdd(tickets + sequence, 1u);

    const u32 received = address(shared.received), received_stat = address(shared.received_stat);
    const u32 full = address(&shared.full);
#endif
#pragma unroll
    for (int i = 0; i < ROWS / 8; i++) {
        const int merged = warp + i * 8;
        if (merged < heads) {
            float2 stat[KEY_GROUPS];
            float peak = NO_PEAK, total = 0;
#pragma unroll
            for (int j = 0; j < KEY_GROUPS; j++) {
                stat[j] = *(const float2*)(shared.ring[j] + PARTIAL_BYTES + merged * 8);
                peak = fmaxf(peak, stat[j].x);
            }
            float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll
            for (int j = 0; j < KEY_GROUPS; j++) {
                const float weight = exp2_fast(stat[j].x - peak);
                total += weight * stat[j].y;
                add_weighted(sum, weight, *(const float4*)(shared.ring[j] + place4(merged, merged, lane)));
            }
#if SCATTERED
            const int there = (pair * programs + rank) * heads + merged;
            sums[there * 32 + lane] = sum;
            if (lane == 0) stats[there] = make_float2(peak, total);
#else
            const int owner = merged * CLUSTER * reciprocal >> 16;  // merged * CLUSTER / heads
            const int there = rank * OWN_ROWS + merged - FIRST_ROW(owner);
            const u32 mbarrier = in_peer(full, owner);
            send(in_peer(received, owner) + place4(there, merged, lane), sum, mbarrier);
            if (lane == 0) send(in_peer(received_stat, owner) + there * 8, make_float2(peak, total), mbarrier);
#endif
        }
    }
#if SCATTERED
    __syncthreads();
    if (thread == 0)
        asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], 1;"
                     : "=r"(shared.before) : "l"(tickets + gridDim.y + pair) : "memory");
    __syncthreads();
    if ((int)shared.before != programs - 1) return;
    // The last of a pair: all of its sums are there, and all have read the length.
    if (thread == THREADS - 1) {
        tickets[gridDim.y + pair] = 0;
        if (update && (kv_heads == 1 || (int)atomicAdd(tickets + sequence, 1u) == kv_heads - 1)) {
            if (kv_heads > 1) tickets[sequence] = 0;
            atomicAdd(seq_lens + sequence, 1);
        }
    }
    // Where there are fewer heads than warps, `parts` warps have each a share of a head's programs. A warp asks at once
    // for all that it reads of 8 programs: the peaks with the sums.
    const int parts = heads >= 8 ? 1 : 8 / heads, first = pair * programs * heads;
    float4* const shares = (float4*)shared.ring;               // [head][part][HEAD_DIM]
    float2* const share_stats = (float2*)shared.received;      // [head][part]: peak, total
    for (int share = warp; share < heads * parts; share += 8) {
        const int merged = share / parts, mine = share % parts;
        float peak = NO_PEAK, total = 0;
        float4 sum = make_float4(0, 0, 0, 0);
        for (int j = mine; j < programs; j += 8 * parts) {
            float2 stat[8];
            float4 x[8];
            const float peak_before = peak;
#pragma unroll
            for (int i = 0; i < 8; i++) {
                const bool exists = j + i * parts < programs;
                const int there = first + (exists ? j + i * parts : mine) * heads + merged;
                stat[i] = __ldcg(stats + there);
                x[i] = __ldcg(sums + there * 32 + lane);
                if (!exists) stat[i].x = MINUS_INFINITY;
            }
#pragma unroll
            for (int i = 0; i < 8; i++) peak = fmaxf(peak, stat[i].x);
            const float rescale = exp2_fast(peak_before - peak);
            total *= rescale;
            sum = make_float4(sum.x * rescale, sum.y * rescale, sum.z * rescale, sum.w * rescale);
#pragma unroll
            for (int i = 0; i < 8; i++) {
                const float weight = exp2_fast(stat[i].x - peak);
                total += weight * stat[i].y;
                add_weighted(sum, weight, x[i]);
            }
        }
        shares[share * 32 + lane] = sum;
        if (lane == 0) share_stats[share] = make_float2(peak, total);
    }
    __syncthreads();
    for (int merged = warp; merged < heads; merged += 8) {
        const float new_score = shared.new_score[merged];
        float peak = new_score;
        for (int j = merged * parts; j < (merged + 1) * parts; j++) peak = fmaxf(peak, share_stats[j].x);
        const uint2 value = shared.new_value[lane];
        float total = exp2_fast(new_score - peak);
        float4 sum = make_float4(total * low_of(value.x), total * high_of(value.x),
                                 total * low_of(value.y), total * high_of(value.y));
        for (int j = merged * parts; j < (merged + 1) * parts; j++) {
            const float weight = exp2_fast(share_stats[j].x - peak);
            total += weight * share_stats[j].y;
            add_weighted(sum, weight, shares[j * 32 + lane]);
        }
        const float inverse = __fdividef(1.0f, total);
        out[((long long)pair * heads + merged) * 32 + lane] =
            make_uint2(packed(sum.x * inverse, sum.y * inverse), packed(sum.z * inverse, sum.w * inverse));
    }
#else
    if (advances && before == kv_heads - 1) {
        if (kv_heads > 1) tickets[sequence] = 0;
        atomicAdd(seq_lens + sequence, 1);
    }

    // Over the programs of the cluster. Nobody ends before all that is sent to it has come. A warp of a program alone
    // has sent to itself: its rows are the ones that it ends.
    if (CLUSTER == 1) __syncwarp();
    else asm volatile("{\n"
                 ".reg .pred done;\n"
                 "AGAIN:\n"
                 "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], 0;\n"
                 "@!done bra AGAIN;\n"
                 "}" :: "r"(full) : "memory");
#pragma unroll
    for (int i = 0; i < WARP_ROWS; i++) {
        const int own = warp + i * 8, merged = first_row + own;
        if (own < own_rows) {
            float2 stat[CLUSTER];
            const uint2 value = shared.new_value[lane];
            const float new_score = shared.new_score[own];
            float peak = new_score;
#pragma unroll
            for (int j = 0; j < CLUSTER; j++) {
                stat[j] = shared.received_stat[j * OWN_ROWS + own];
                peak = fmaxf(peak, stat[j].x);
            }
            float total = exp2_fast(new_score - peak);
            float4 sum = make_float4(total * low_of(value.x), total * high_of(value.x),
                                     total * low_of(value.y), total * high_of(value.y));
            const unsigned char* const sums = (const unsigned char*)shared.received;
#pragma unroll
            for (int j = 0; j < CLUSTER; j++) {
                const float weight = exp2_fast(stat[j].x - peak);
                total += weight * stat[j].y;
                add_weighted(sum, weight, *(const float4*)(sums + place4(j * OWN_ROWS + own, merged, lane)));
            }
            const float inverse = __fdividef(1.0f, total);
            out[((long long)pair * heads + merged) * 32 + lane] =
                make_uint2(packed(sum.x * inverse, sum.y * inverse), packed(sum.z * inverse, sum.w * inverse));
        }
    }
#endif
}
"""


def custom_kernel(data):
    return launch(data)


def launch(data, cluster=None, stages=None, scattered=None):
    """What `custom_kernel` does, with other choices than its own. Raises NoDevice without a Hopper GPU.

    cluster: programs that share the keys of a KV head, 1 to 8. stages: of the ring of keys and values, 2 to 6.
    scattered: as many programs in the place of a cluster, which merge in global memory; 0 for a cluster.
    """
    q, k_new, v_new, k_cache, v_cache, seq_lens, config = data
    if q.device.type != "cuda" or torch.version.hip is not None or torch.cuda.get_device_capability(q.device)[0] != 9:
        raise NoDevice("cuda_cluster needs a Hopper GPU (sm_90): its instructions exist nowhere else")
    batch, q_heads = q.shape[:2]
    kv_heads, slots = k_cache.shape[1:3]
    heads, pairs = q_heads // kv_heads, batch * kv_heads
    if not supports(q, heads, pairs):
        return attend_by_torch(data)
    rows = 16 if heads <= 16 else 32
    multiprocessors = torch.cuda.get_device_properties(q.device).multi_processor_count
    if scattered is None:
        scattered = 0 if cluster else choose_scattered(pairs, heads, slots, multiprocessors)
    cluster = 1 if scattered else cluster or choose_cluster(pairs, multiprocessors)
    programs = scattered or cluster
    stages = stages or choose_stages(rows, pairs * programs, multiprocessors)
    tickets = zeroed_tickets(
        q.device, torch.cuda.current_stream(q.device).cuda_stream, 1 << max(2 * pairs - 1, 1023).bit_length()
    )
    out = torch.empty_like(q)
    sums = out
    if scattered:
        sums = torch.empty(pairs * programs * heads * (HEAD_DIM + 2), dtype=torch.float32, device=q.device)
    kernel(q.dtype, rows, cluster, stages, bool(scattered))(
        *(q, k_new, v_new, k_cache, v_cache, seq_lens, out, tickets, sums, kv_heads, heads, slots),
        int(config["update_cache"]),
        -(-65536 // heads),
        math.log2(math.e) / math.sqrt(HEAD_DIM),
        grid=(programs, pairs),
        block=THREADS,
        shared_bytes=shared_bytes(rows, cluster, stages),
    )
    return out


def supports(q, heads, pairs):
    is_half = q.dtype in (torch.bfloat16, torch.float16)
    return q.shape[2:] == (1, HEAD_DIM) and is_half and heads <= MAX_GROUP and pairs <= MAX_GRID_Y


def choose_cluster(pairs, multiprocessors):
    """Programs for each of so many pairs of a sequence and a KV head."""
    places = 8 * multiprocessors // 11
    if pairs * 2 <= places:
        return min(PORTABLE_CLUSTER, places // pairs)
    return 2 if pairs <= multiprocessors else 1


def choose_scattered(pairs, heads, slots, multiprocessors):
    """Programs for each pair, if twice those of a cluster and many keys make up for a merge in global memory, or 0."""
    programs = min(MOST_SCATTERED, multiprocessors // pairs, MOST_MERGED // heads)
    # By 10 pairs the memory is busy with clusters as well; the fewer there are, the more an idle half costs.
    return programs if programs >= 2 * PORTABLE_CLUSTER and (10 - pairs) * slots >= WORTH_SCATTERING else 0


def choose_stages(rows, programs, multiprocessors):
    """Three where a program is alone on its multiprocessor, which with 32 rows its registers make it."""
    return 3 if rows == 32 or programs <= multiprocessors else 2


@functools.cache
def zeroed_tickets(device, stream, count):
    """By stream: launches of one stream follow each other, so each finds the zeros that the last one left."""
    return torch.zeros(count, dtype=torch.int32, device=device)


@functools.cache
def kernel(dtype, rows, cluster, stages, scattered=False):
    """Made when it is first needed: what harness.hip compiles for every target would compile for this one alone."""
    constants = {"HEAD_DIM": HEAD_DIM, "CHUNK": CHUNK, "KEY_GROUPS": KEY_GROUPS, "THREADS": THREADS}
    choices = {"ROWS": rows, "CLUSTER": cluster, "SCATTERED": int(scattered), "STAGES": stages}
    choices |= {"IS_FP16": int(dtype == torch.float16)}
    # Two programs may have 128 registers a thread, which is enough for 16 rows.
    limits = {"SHARED_BYTES": shared_bytes(rows, cluster, stages), "RESIDENT": 1 if rows == 32 or stages > 3 else 2}
    wide, narrow, counts = ptr(dtype, alignment=16), ptr(dtype, alignment=8), ptr(torch.int32)
    return Module(SOURCE, constants | choices | limits).kernel(
        "attend",
        {
            **{"q": wide, "k_new": narrow, "v_new": narrow, "k_cache": wide, "v_cache": wide},
            **{"seq_lens": counts, "out": narrow, "tickets": counts, "sums": ptr(alignment=16)},
            **{name: int32 for name in ("kv_heads", "heads", "slots", "update", "reciprocal")},
            "score_scale": float32,
        },
    )


def shared_bytes(rows, cluster, stages):
    """sizeof(Shared)."""
    stage = 2 * (CHUNK // KEY_GROUPS) * HEAD_DIM * 2
    sums = HEAD_DIM * 4 + 8  # of a row, with its peak and total
    own_rows = -(-rows // cluster)
    new_token, barrier = HEAD_DIM * 2 + 32 * 4, 8 + 4
    size = KEY_GROUPS * max(stages * stage, rows * sums) + cluster * own_rows * sums + new_token + barrier
    return -(-size // 128) * 128


def attend_by_torch(data):
    """Any shape and dtype, a sequence at a time. Waits for the device, which must tell the lengths."""
    q, k_new, v_new, k_cache, v_cache, seq_lens, config = data
    q_len, out = q.shape[2], torch.empty_like(q)
    for b, length in enumerate(seq_lens.tolist()):
        one, end = slice(b, b + 1), length + q_len
        k, v = (torch.cat([x[one, :, :length], new[one]], 2) for x, new in ((k_cache, k_new), (v_cache, v_new)))
        mask = None
        if config["is_causal"] and q_len > 1:
            mask = torch.ones(q_len, end, dtype=torch.bool, device=q.device).tril(length)
        out[one] = scaled_dot_product_attention(q[one], k, v, attn_mask=mask, enable_gqa=q.shape[1] != k.shape[1])
        if config["update_cache"]:
            k_cache[one, :, length:end], v_cache[one, :, length:end] = k_new[one], v_new[one]
    if config["update_cache"]:
        seq_lens += q_len
    return out
