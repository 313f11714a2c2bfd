"""FlashAttention forward for Hopper in CUDA: as gluon_hopper.py, with a softmax that looks for no maximum.

Idea
    After FlashAttention-3 (Shah et al., 2024), as gluon_hopper.py: the matrix instructions (wgmma) run on their own
    while the warps that issued them compute a softmax, and the copy unit (TMA) moves whole tiles. Two things differ.
    The softmax has fewer instructions (below), and barriers are those that are needed: a warp, not a warpgroup, says
    that it has read a tile.

    A program, one a multiprocessor, works through many tiles of queries. It is three warpgroups:

        warpgroup 0     warp 0         asks TMA for queries, keys and values, as soon as their buffers are free
                        warp 1         asks TMA to store what the consumers left in shared memory
        warpgroups 1, 2  consumers     64 queries each of every tile: S = Q K^T, softmax, O = O + P V

        keys, values    rings of K_STAGES and V_STAGES tiles; each tile has a barrier "full" (TMA's bytes) and one
                        "empty" (8 warps have read it)
        queries         two slots; a tile's output goes through the memory of its queries

Softmax
    An online softmax looks for the maximum of every step's scores. This one takes weights relative to the maximum of a
    tile's first step, 2^(s - peak), whatever comes later. Float32 and bfloat16 have the same exponents, so a weight
    of 2^50 is as exact as one of 1/2, and so are sums: scaling by a power of two changes no digit, and what is below
    2^-126 of the first peak is lost against the first step's sum, which is at least 1.

    It goes wrong only where weights overflow. So each step looks at its sums: where one reaches LIMIT (2^60, or is
    infinite or NaN), the warp finds the true maximum, scales O and the sums, and weighs the step again. Sums of 2^16
    keys below 2^60 are far from overflow, at 2^128. Scores of unit normal inputs never get there; growing ones do, and
    cost as much as an online softmax.

    Of 64 x 128 scores that leaves a thread 64 multiply-adds, 64 exponentials, 66 additions and 32 conversions.

Steps
    A consumer issues the next S = Q K^T, then this O + P V, and computes the next softmax while the latter runs.
    What it waits for alone, the other consumer fills. The last product of a tile of queries runs beside the first
    scores of the next tile, so that nothing stands still between tiles either. A store of the softmax's sum, which
    never is (`pin`), keeps ptxas from moving the softmax behind the product that it is to run beside. Weights are
    packed to bfloat16 once that product has read those of the step before: ptxas would otherwise wait for every
    matrix instruction.

Tiles
    128 queries and 128 keys. A thread of a consumer has 64 float32 registers of S (64 x 128), D / 2 of O (64 x D), and
    32 of P. Of shared memory, at D = 128: 64 KiB of queries, 32 KiB a tile of keys or values. All of it lies as wgmma
    and TMA share it: columns of 64 bfloat16 (128 bytes), 8 rows every 1024 bytes, their 16-byte pieces permuted.

Order
    As in gluon_hopper.py. Keys from the last tile, the one on the diagonal or cut short, to the first: only the first
    step needs a mask. Heavy tiles (late in a causal sequence) first, every other round of tiles dealt backwards. So it
    goes within a section: of as many pairs (sequence, KV head) as have SECTION_BYTES of keys and values, which stay in
    the L2 cache.

What limits it
    The matrix instructions: for long sequences they are under way 9/10 of the time (ncu, H100). For short ones, the
    diagonal's half-empty tiles, and the first and last steps of each program. docs/kernels.md has what was measured.

Bytes
    A tile of 128 queries reads the keys and values before its end once, 4 D bytes a key: 128 flops a byte.

For bfloat16 and D of 64 and 128; anything else goes to SDPA. Only for Hopper (sm_90): elsewhere see triton_flash.py.
"""

import math

import torch
from torch.nn.functional import scaled_dot_product_attention

from harness.hip import Module, NoDevice, float32, int32, tensor_map

LOG2_E = math.log2(math.e)
HEAD_DIMS = (64, 128)
THREADS = 384
ROWS = 64  # queries a consumer: the M of wgmma
BLOCK_M = 2 * ROWS  # queries a tile
BLOCK_N = 128  # keys a tile
K_STAGES = 2
V_STAGES = 3
COLUMN = 64  # bfloat16 in the 128 bytes that are swizzled
SECTION_BYTES = 8 << 20  # of the 50 to 60 MB of L2 a part: each half of the chip keeps copies of its own

SOURCE = r"""
typedef unsigned int u32;
typedef unsigned long long u64;

#define COLUMNS (HEAD_DIM / COLUMN)
#define S_REGISTERS (BLOCK_N / 2)
#define O_REGISTERS (HEAD_DIM / 2)
#define P_REGISTERS (BLOCK_N / 4)
#define Q_BYTES (ROWS * HEAD_DIM * 2)
#define KV_BYTES (BLOCK_N * HEAD_DIM * 2)
#define CONSUMER_WARPS 8
#define LIMIT 0x1p60f
#define MINUS_INFINITY __int_as_float(0xff800000)
#define INLINE __device__ __forceinline__

struct alignas(64) TensorMap { u64 words[16]; };

struct Place { int first_row, key_tiles, head, batch; };  // of a tile of queries; no key tiles: there is none

struct alignas(1024) Shared {
    unsigned char q[2][2][Q_BYTES];  // slot, consumer
    unsigned char k[K_STAGES][KV_BYTES];
    unsigned char v[V_STAGES][KV_BYTES];
    u64 q_full[2], q_empty[2], out_full[2];
    u64 k_full[K_STAGES], k_empty[K_STAGES], v_full[V_STAGES], v_empty[V_STAGES];
    Place place[2];
};
static_assert(sizeof(Shared) == SHARED_BYTES, "as much as the host asks for");

// Which tile of a ring is next, and how often, modulo 2, the ring has been gone through.
template <int STAGES> struct Ring {
    int stage, phase;
    INLINE void advance() {
        if (++stage == STAGES) {
            stage = 0;
            phase ^= 1;
        }
    }
};

extern __shared__ __align__(1024) unsigned char raw[];

// Not by __cvta_generic_to_shared: NVRTC adds in 64 bits then, and does so again in every step.
INLINE u32 address(const void* p) {
    u32 base;
    asm("mov.u32 %0, raw;" : "=r"(base));
    return base + (u32)((const unsigned char*)p - raw);
}

// Barriers

INLINE void init(u64& barrier, int count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(address(&barrier)), "r"(count) : "memory");
}

INLINE void arrive(u64& barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(address(&barrier)) : "memory");
}

INLINE void arrive_and_expect(u64& barrier, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                 :: "r"(address(&barrier)), "r"(bytes) : "memory");
}

// Without a branch: ptxas waits for all matrix instructions where there is one between them.
INLINE void arrive_if(u32 barrier, bool yes) {
    asm volatile("{\n"
                 ".reg .pred yes;\n"
                 "setp.ne.b32 yes, %1, 0;\n"
                 "@yes mbarrier.arrive.shared::cta.b64 _, [%0];\n"
                 "}" :: "r"(barrier), "r"((int)yes) : "memory");
}

INLINE void wait(u32 barrier, int phase) {
    asm volatile("{\n"
                 ".reg .pred done;\n"
                 "AGAIN_%=:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
                 "@!done bra AGAIN_%=;\n"
                 "}" :: "r"(barrier), "r"(phase) : "memory");
}

// The copy unit

INLINE void load(const TensorMap& map, void* to, u64& barrier, int dim, int row, int batch) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4, %5}], [%2];"
                 :: "r"(address(to)), "l"(&map), "r"(address(&barrier)), "r"(dim), "r"(row), "r"(batch) : "memory");
}

INLINE void store(const TensorMap& map, const void* from, int dim, int row, int batch) {
    asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%1, {%2, %3, %4}], [%0];"
                 :: "r"(address(from)), "l"(&map), "r"(dim), "r"(row), "r"(batch) : "memory");
}

// Matrix instructions. NAMES_n and ALL_n(x), which the host writes: "%0, .." and "+f"(x[0]), .. of n registers.

// Of a tile whose 8 rows take 1024 bytes. column_bytes: from a column of 64 to the next, where an operand has several.
INLINE u64 descriptor(u32 at, int column_bytes) {
    const u64 swizzle_128 = 1ull << 62;
    return swizzle_128 | (u64)(1024 >> 4) << 32 | (u64)(column_bytes >> 4) << 16 | (at >> 4 & 0x3fff);
}

INLINE u64 moved(u64 descriptor, int bytes) { return descriptor + (bytes >> 4); }

// d (64 x 128) = a b^T, or more: d += a b^T. a, b: in shared memory, 16 columns.
INLINE void multiply_shared(float (&d)[64], u64 a, u64 b, int more) {
    asm volatile("{\n"
                 ".reg .pred more;\n"
                 "setp.ne.b32 more, %66, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" NAMES_64 "}, %64, %65, more, 1, 1, 0, 0;\n"
                 "}" : ALL_64(d) : "l"(a), "l"(b), "r"(more));
}

// d (64 x HEAD_DIM) = a b, or more: d += a b. a: 16 columns in 4 registers; b: in shared memory, 16 rows.
INLINE void multiply_registers(float (&d)[64], const u32* a, u64 b, int more) {
    asm volatile("{\n"
                 ".reg .pred more;\n"
                 "setp.ne.b32 more, %69, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" NAMES_64 "}, {%64, %65, %66, %67}, %68, "
                 "more, 1, 1, 1;\n"
                 "}" : ALL_64(d) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(more));
}

INLINE void multiply_registers(float (&d)[32], const u32* a, u64 b, int more) {
    asm volatile("{\n"
                 ".reg .pred more;\n"
                 "setp.ne.b32 more, %37, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" NAMES_32 "}, {%32, %33, %34, %35}, %36, "
                 "more, 1, 1, 1;\n"
                 "}" : ALL_32(d) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(more));
}

INLINE void fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
INLINE void commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Until at most LEFT groups are under way. d: what may be read then.
template <int LEFT> INLINE void finish(float (&d)[64]) {
    asm volatile("wgmma.wait_group.sync.aligned %64;" : ALL_64(d) : "n"(LEFT) : "memory");
}

template <int LEFT> INLINE void finish(float (&d)[32]) {
    asm volatile("wgmma.wait_group.sync.aligned %32;" : ALL_32(d) : "n"(LEFT) : "memory");
}

INLINE void issue_scores(float (&s)[S_REGISTERS], u64 q, u64 k) {
#pragma unroll
    for (int i = 0; i < HEAD_DIM / 16; i++) {
        const int column = i / 4, bytes = i % 4 * 32;
        multiply_shared(s, moved(q, column * (ROWS * 128) + bytes), moved(k, column * (BLOCK_N * 128) + bytes), i > 0);
    }
    commit();
}

INLINE void issue_out(float (&o)[O_REGISTERS], const u32 (&p)[P_REGISTERS], u64 v, int more) {
#pragma unroll
    for (int i = 0; i < BLOCK_N / 16; i++) multiply_registers(o, p + 4 * i, moved(v, i * (16 * 128)), i ? 1 : more);
    commit();
}

// Softmax. Of a warp's 16 rows a thread has row lane / 4 (s[0], s[1], s[4], s[5], ..) and row lane / 4 + 8 (s[2], ..),
// and of every 8 keys 2, from lane % 4 * 2 on.

struct Pair { float first, second; };  // of a thread's two rows

INLINE u32 packed(float low, float high) {
    u32 y;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
    return y;
}

INLINE float quad_max(float x) {
    x = fmaxf(x, shuffle_xor(x, 1));
    return fmaxf(x, shuffle_xor(x, 2));
}

INLINE float quad_sum(float x) {
    x += shuffle_xor(x, 1);
    return x + shuffle_xor(x, 2);
}

INLINE void mask(float (&s)[S_REGISTERS], int row, int first_key, int seq_len) {
    const int first = first_key + threadIdx.x % 4 * 2;
    const int last0 = (CAUSAL ? min(seq_len - 1, row) : seq_len - 1) - first;
    const int last1 = (CAUSAL ? min(seq_len - 1, row + 8) : seq_len - 1) - first;
#pragma unroll
    for (int i = 0; i < S_REGISTERS; i++) {
        const int key = i / 4 * 8 + i % 2;
        if (key > (i % 4 < 2 ? last0 : last1)) s[i] = MINUS_INFINITY;
    }
}

INLINE Pair peaks_of(const float (&s)[S_REGISTERS], float scale) {
    float m0 = fmaxf(s[0], s[1]), m1 = fmaxf(s[2], s[3]), n0 = fmaxf(s[4], s[5]), n1 = fmaxf(s[6], s[7]);
#pragma unroll
    for (int i = 8; i < S_REGISTERS; i += 8) {
        m0 = fmaxf(m0, fmaxf(s[i], s[i + 1]));
        m1 = fmaxf(m1, fmaxf(s[i + 2], s[i + 3]));
        n0 = fmaxf(n0, fmaxf(s[i + 4], s[i + 5]));
        n1 = fmaxf(n1, fmaxf(s[i + 6], s[i + 7]));
    }
    return {quad_max(fmaxf(m0, n0)) * scale, quad_max(fmaxf(m1, n1)) * scale};
}

// Weights w, and their sums over this thread's keys.
INLINE Pair weigh(float (&w)[S_REGISTERS], const float (&s)[S_REGISTERS], float scale, Pair peak) {
    float a0 = 0, a1 = 0, b0 = 0, b1 = 0;
#pragma unroll
    for (int i = 0; i < S_REGISTERS; i += 4) {
        a0 += w[i] = exp2_fast(fmaf(s[i], scale, -peak.first));
        b0 += w[i + 1] = exp2_fast(fmaf(s[i + 1], scale, -peak.first));
        a1 += w[i + 2] = exp2_fast(fmaf(s[i + 2], scale, -peak.second));
        b1 += w[i + 3] = exp2_fast(fmaf(s[i + 3], scale, -peak.second));
    }
    return {a0 + b0, a1 + b1};
}

INLINE void pack(u32 (&p)[P_REGISTERS], const float (&w)[S_REGISTERS]) {
#pragma unroll
    for (int i = 0; i < P_REGISTERS; i++) p[i] = packed(w[2 * i], w[2 * i + 1]);
}

// The sums have to be computed before what comes next: a store that never is depends on them.
INLINE void pin(Pair sum, u32 somewhere) {
    asm volatile("{\n"
                 ".reg .pred never;\n"
                 "setp.eq.f32 never, %0, 0fDEADBEEF;\n"
                 "@never st.shared.f32 [%1], %0;\n"
                 "}" :: "f"(sum.first + sum.second), "r"(somewhere) : "memory");
}

// Roles

// A program's tile in a round: every other round deals backwards, or the first programs would always get the heavier.
INLINE int nth_tile(int turn) {
    return turn * gridDim.x + (turn & 1 ? gridDim.x - 1 - blockIdx.x : blockIdx.x);
}

INLINE Place place_of(int tile, int seq_len, int section, int pairs, int kv_heads, int group, int& kv_head) {
    const int q_tiles = (seq_len + BLOCK_M - 1) / BLOCK_M, tiles_of_section = section * group * q_tiles;
    const int first_pair = tile / tiles_of_section * section;
    const int heads = min(section, pairs - first_pair) * group;  // the last section may have fewer
    const int x = tile % tiles_of_section, first_row = (q_tiles - 1 - x / heads) * BLOCK_M;
    const int pair = first_pair + x % heads / group;
    const int keys = CAUSAL ? min(first_row + BLOCK_M, seq_len) : seq_len;
    kv_head = pair % kv_heads;
    return {first_row, (keys + BLOCK_N - 1) / BLOCK_N, kv_head * group + x % heads % group, pair / kv_heads};
}

INLINE void produce(Shared& shared, const TensorMap& q, const TensorMap& k, const TensorMap& v, int seq_len, int tiles,
                    int section, int pairs, int kv_heads, int group) {
    Ring<K_STAGES> k_ring = {0, 1};  // as if gone through once: they are empty
    Ring<V_STAGES> v_ring = {0, 1};
    for (int turn = 0;; turn++) {
        const int slot = turn & 1, tile = nth_tile(turn);
        wait(address(&shared.q_empty[slot]), turn >> 1 & 1 ^ 1);
        if (tile >= tiles) {
            shared.place[slot].key_tiles = 0;
            arrive(shared.q_full[slot]);
            break;
        }
        int kv_head;
        const Place place = place_of(tile, seq_len, section, pairs, kv_heads, group, kv_head);
        shared.place[slot] = place;
        arrive_and_expect(shared.q_full[slot], 2 * Q_BYTES);
        for (int consumer = 0; consumer < 2; consumer++)
            for (int c = 0; c < COLUMNS; c++)
                load(q, shared.q[slot][consumer] + c * (ROWS * 128), shared.q_full[slot],
                     place.head * HEAD_DIM + c * COLUMN, place.first_row + consumer * ROWS, place.batch);
#pragma unroll 1
        for (int i = place.key_tiles - 1; i >= 0; i--) {
            u64& k_full = shared.k_full[k_ring.stage];
            wait(address(&shared.k_empty[k_ring.stage]), k_ring.phase);
            arrive_and_expect(k_full, KV_BYTES);
            for (int c = 0; c < COLUMNS; c++)
                load(k, shared.k[k_ring.stage] + c * (BLOCK_N * 128), k_full, kv_head * HEAD_DIM + c * COLUMN,
                     i * BLOCK_N, place.batch);
            k_ring.advance();
            u64& v_full = shared.v_full[v_ring.stage];
            wait(address(&shared.v_empty[v_ring.stage]), v_ring.phase);
            arrive_and_expect(v_full, KV_BYTES);
            for (int c = 0; c < COLUMNS; c++)
                load(v, shared.v[v_ring.stage] + c * (BLOCK_N * 128), v_full, kv_head * HEAD_DIM + c * COLUMN,
                     i * BLOCK_N, place.batch);
            v_ring.advance();
        }
    }
}

INLINE void save(Shared& shared, const TensorMap& out, int seq_len, int tiles) {
    for (int turn = 0; nth_tile(turn) < tiles; turn++) {
        const int slot = turn & 1;
        wait(address(&shared.out_full[slot]), turn >> 1 & 1);
        const Place place = shared.place[slot];
        for (int consumer = 0; consumer < 2; consumer++)
            for (int c = 0; c < COLUMNS; c++)
                if (place.first_row + consumer * ROWS < seq_len)
                    store(out, shared.q[slot][consumer] + c * (ROWS * 128), place.head * HEAD_DIM + c * COLUMN,
                          place.first_row + consumer * ROWS, place.batch);
        asm volatile("cp.async.bulk.commit_group;" ::: "memory");
        asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
        arrive(shared.q_empty[slot]);
    }
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

INLINE void consume(Shared& shared, int consumer, int warp, int lane, float scale, int seq_len) {
    const bool elected = lane == 0;
    const int own_row = consumer * ROWS + warp * 16 + lane / 4;  // and 8 more, of the tile's
    const u64 q_slots = descriptor(address(shared.q[0][consumer]), 16);
    const u64 k_tiles = descriptor(address(shared.k[0]), 16);
    const u64 v_tiles = descriptor(address(shared.v[0]), BLOCK_N * 128);
    const u32 k_full = address(shared.k_full), k_empty = address(shared.k_empty);
    const u32 v_full = address(shared.v_full), v_empty = address(shared.v_empty);
    Ring<K_STAGES> k_ring = {0, 0};
    Ring<V_STAGES> v_ring = {0, 0};
    float s[S_REGISTERS], w[S_REGISTERS], o[O_REGISTERS];
    u32 p[P_REGISTERS];

    wait(address(&shared.q_full[0]), 0);
    int first_row = shared.place[0].first_row, key_tiles = shared.place[0].key_tiles;
    wait(k_full, 0);
    fence();
    issue_scores(s, q_slots, k_tiles);
    finish<0>(s);
    arrive_if(k_empty, elected);
    k_ring.advance();
    mask(s, first_row + own_row, (key_tiles - 1) * BLOCK_N, seq_len);
    Pair peak = peaks_of(s, scale);
    Pair total = weigh(w, s, scale, peak);
    pack(p, w);

    for (int turn = 0;; turn++) {
        const int slot = turn & 1;
        const u64 q = moved(q_slots, slot * (2 * Q_BYTES));
        int more_values = 0;
        for (int left = key_tiles - 1; left > 0; left--, more_values = 1) {
            wait(k_full + k_ring.stage * 8, k_ring.phase);
            fence();
            issue_scores(s, q, moved(k_tiles, k_ring.stage * KV_BYTES));
            wait(v_full + v_ring.stage * 8, v_ring.phase);
            issue_out(o, p, moved(v_tiles, v_ring.stage * KV_BYTES), more_values);
            finish<1>(s);
            arrive_if(k_empty + k_ring.stage * 8, elected);
            k_ring.advance();

            Pair factor = {1, 1};
            Pair sum = weigh(w, s, scale, peak);
            const bool again = __any_sync(~0u, !(sum.first < LIMIT && sum.second < LIMIT));
            if (again) {
                const Pair now = peaks_of(s, scale), before = peak;
                peak = {fmaxf(before.first, now.first), fmaxf(before.second, now.second)};
                factor = {exp2_fast(before.first - peak.first), exp2_fast(before.second - peak.second)};
                total = {total.first * factor.first, total.second * factor.second};
                sum = weigh(w, s, scale, peak);
            }
            total = {total.first + sum.first, total.second + sum.second};
            pin(total, k_full);
            finish<0>(o);
            arrive_if(v_empty + v_ring.stage * 8, elected);
            v_ring.advance();
            if (again) {
#pragma unroll
                for (int i = 0; i < O_REGISTERS; i++) o[i] *= i % 4 < 2 ? factor.first : factor.second;
            }
            pack(p, w);
        }

        // The first scores of the next tile, beside the last values of this one. After the last tile they are of
        // whatever lies there, and unused.
        wait(address(&shared.q_full[slot ^ 1]), (turn + 1) >> 1 & 1);
        first_row = shared.place[slot ^ 1].first_row;
        key_tiles = shared.place[slot ^ 1].key_tiles;
        if (key_tiles > 0) wait(k_full + k_ring.stage * 8, k_ring.phase);
        fence();
        issue_scores(s, moved(q_slots, (slot ^ 1) * (2 * Q_BYTES)), moved(k_tiles, k_ring.stage * KV_BYTES));
        wait(v_full + v_ring.stage * 8, v_ring.phase);
        issue_out(o, p, moved(v_tiles, v_ring.stage * KV_BYTES), more_values);
        finish<1>(s);
        arrive_if(k_empty + k_ring.stage * 8, elected);
        k_ring.advance();
        mask(s, first_row + own_row, (key_tiles - 1) * BLOCK_N, seq_len);
        peak = peaks_of(s, scale);
        const Pair sum = weigh(w, s, scale, peak);
        pin(sum, k_full);
        finish<0>(o);
        arrive_if(v_empty + v_ring.stage * 8, elected);
        v_ring.advance();

        const float inverse0 = __fdividef(1.0f, quad_sum(total.first));
        const float inverse1 = __fdividef(1.0f, quad_sum(total.second));
        // All warps of this consumer are done with these queries: the output takes their place.
        asm volatile("bar.sync %0, 128;" :: "r"(1 + consumer) : "memory");
        const int row = warp * 16 + lane % 16;
        const u32 to = address(shared.q[slot][consumer]) + row * 128;
#pragma unroll
        for (int i = 0; i < O_REGISTERS; i += 8) {
            const u32 at = to + i / 32 * (ROWS * 128) + ((i / 4 % 8 + lane / 16 ^ row % 8) * 16);
            asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};"
                         :: "r"(at), "r"(packed(o[i] * inverse0, o[i + 1] * inverse0)),
                            "r"(packed(o[i + 2] * inverse1, o[i + 3] * inverse1)),
                            "r"(packed(o[i + 4] * inverse0, o[i + 5] * inverse0)),
                            "r"(packed(o[i + 6] * inverse1, o[i + 7] * inverse1)) : "memory");
        }
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");  // TMA is to see what was stored
        __syncwarp();
        arrive_if(address(&shared.out_full[slot]), elected);
        if (key_tiles == 0) break;
        total = sum;
        pack(p, w);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) prefill(
    const __grid_constant__ TensorMap q,  // [batch, seq_len, heads * HEAD_DIM]
    const __grid_constant__ TensorMap k,
    const __grid_constant__ TensorMap v,
    const __grid_constant__ TensorMap out,
    float scale,  // log2(e) times the softmax's
    int seq_len,
    int tiles,    // of queries, of all heads
    int section,  // pairs (sequence, KV head) that are worked through together
    int pairs, int kv_heads,
    int group     // query heads of a KV head
) {
    Shared& shared = *(Shared*)raw;
    const int warpgroup = __shfl_sync(~0u, threadIdx.x / 128, 0), warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
    if (threadIdx.x == 0) {
        for (int slot = 0; slot < 2; slot++) {
            init(shared.q_full[slot], 1);
            init(shared.q_empty[slot], 1);
            init(shared.out_full[slot], CONSUMER_WARPS);
        }
        for (int stage = 0; stage < K_STAGES; stage++) {
            init(shared.k_full[stage], 1);
            init(shared.k_empty[stage], CONSUMER_WARPS);
        }
        for (int stage = 0; stage < V_STAGES; stage++) {
            init(shared.v_full[stage], 1);
            init(shared.v_empty[stage], CONSUMER_WARPS);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    }
    __syncthreads();

    if (warpgroup == 0) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
        if (warp == 0 && lane == 0) produce(shared, q, k, v, seq_len, tiles, section, pairs, kv_heads, group);
        if (warp == 1 && lane == 0) save(shared, out, seq_len, tiles);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
        consume(shared, warpgroup - 1, warp, lane, scale, seq_len);
    }
}
"""


def shared_bytes(head_dim):
    """The size of `Shared`."""
    tiles = (4 * ROWS + (K_STAGES + V_STAGES) * BLOCK_N) * head_dim * 2
    barriers = 8 * (6 + 2 * K_STAGES + 2 * V_STAGES)
    return -(-(tiles + barriers + 32) // 1024) * 1024


def registers(count):
    """Macros with the operands of a matrix instruction: `count` registers of an array."""
    return {
        f"NAMES_{count}": '"' + ", ".join(f"%{i}" for i in range(count)) + '"',
        f"ALL_{count}(x)": ", ".join(f'"+f"(x[{i}])' for i in range(count)),
    }


def kernel(head_dim, causal):
    sizes = {"ROWS": ROWS, "BLOCK_M": BLOCK_M, "BLOCK_N": BLOCK_N, "COLUMN": COLUMN, "THREADS": THREADS}
    sizes |= {"K_STAGES": K_STAGES, "V_STAGES": V_STAGES, "SHARED_BYTES": shared_bytes(head_dim)}
    defines = {"HEAD_DIM": head_dim, "CAUSAL": int(causal), **sizes, **registers(32), **registers(64)}
    of_queries = tensor_map(torch.bfloat16, box=(1, ROWS, COLUMN), swizzle=128)
    of_keys = tensor_map(torch.bfloat16, box=(1, BLOCK_N, COLUMN), swizzle=128)
    maps = {"q": of_queries, "k": of_keys, "v": of_keys, "out": of_queries}
    numbers = dict.fromkeys(("seq_len", "tiles", "section", "pairs", "kv_heads", "group"), int32)
    return Module(SOURCE, defines, targets=("sm_90",)).kernel("prefill", {**maps, "scale": float32, **numbers})


KERNELS = {(head_dim, causal): kernel(head_dim, causal) for head_dim in HEAD_DIMS for causal in (False, True)}


def custom_kernel(data):
    return launch(data)


def launch(data, section_bytes=SECTION_BYTES):
    """What `custom_kernel` does, with another choice than its own. Raises NoDevice without a Hopper GPU.

    section_bytes: of the keys and values that are worked through together.
    """
    q, k, v, config = data
    if q.device.type != "cuda" or torch.version.hip is not None or torch.cuda.get_device_capability(q.device)[0] != 9:
        raise NoDevice("cuda_hopper needs a Hopper GPU (sm_90): its instructions exist nowhere else")
    batch, seq_len, q_heads, head_dim = q.shape
    kv_heads = k.shape[2]
    if q.dtype != torch.bfloat16 or head_dim not in HEAD_DIMS:
        return attend_by_torch(data)
    out = torch.empty_like(q)
    tiles = batch * q_heads * -(-seq_len // BLOCK_M)
    section = min(max(section_bytes // (seq_len * head_dim * 4), 1), batch * kv_heads)
    programs = torch.cuda.get_device_properties(q.device).multi_processor_count
    KERNELS[head_dim, bool(config["causal"])](
        *(x.view(batch, seq_len, -1) for x in (q, k, v, out)),
        config["sm_scale"] * LOG2_E,
        *(seq_len, tiles, section, batch * kv_heads, kv_heads, q_heads // kv_heads),
        grid=min(tiles, programs),
        block=THREADS,
        shared_bytes=shared_bytes(head_dim),
    )
    return out


def attend_by_torch(data):
    """Attention of what the kernel is not made for."""
    q, k, v, config = data
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    out = scaled_dot_product_attention(
        q, k, v, is_causal=config["causal"], scale=config["sm_scale"], enable_gqa=q.shape[1] != k.shape[1]
    )
    return out.transpose(1, 2).contiguous()
