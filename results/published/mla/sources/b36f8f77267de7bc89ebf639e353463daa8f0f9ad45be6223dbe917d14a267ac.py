"""MLA decode on the bf16 cache, for Hopper in Gluon: TMA brings tiles, both products read them where they lie.

Idea. As in triton_bf16.py: all 16 heads of a sequence in one program, scores S^T [tokens, heads] = K Q^T and output
O^T [dims, heads] = V^T P^T, so that nothing of the matrix instructions is padding; a sequence is cut into splits, whose
programs wait for each other and merge a share of the dims each, as in gluon_fp8.py. TMA copies tiles of 64 tokens into
shared memory, and the warpgroup's instructions read them there, the second one transposed: the threads compute
addresses and softmaxes only.

Softmax. The sum over tokens stays apart for each row of the tile until the end: a tile needs one maximum over all warps
and no sum.

Tiles. 64 tokens, the M of a warpgroup's instruction. The latent part is copied as four panels of 128 dims, 16 KiB, into
the slots of a ring: a panel's slot is free again, and the next tile's copy into it begins, as soon as its own product
with the weights is done. Rope part, 8 KiB, free again as soon as there are scores: one. Five slots, two programs a
multiprocessor: one computes while the other's copies are under way, which pays down to 2 tiles a program. Two
warpgroups, an option, share the heads of the scores and the dims of the output, which shortens the way through a tile
but reads its keys twice from shared memory.

Bytes. 1152 a token, and 64 KiB a (sequence, split) for the partial results. Limited by memory bandwidth from 64 x 8192
on; below that by what comes once however much there is to read: launch, first and last tile, and merge.

Short caches, up to 1024 tokens and at least 32 multiprocessors a sequence: a kernel of its own, in CUDA C++ (SHORT), in
which a cluster of 16 programs shares a sequence and merges through shared memory; gluon_fp8.py tells of it. Here the
queries come by bulk copies, too, and ahead of the tokens. Two warps share 16 tokens, every other one each: two tokens
lie side by side as they were copied, and those of a warp have to lie in different banks. Partial results are rounded to
bf16 there, as the output is.

docs/kernels.md has what was measured, docs/kernels-tried.md what was slower. Only for Hopper (sm_90): elsewhere see
triton_bf16.py.
"""

import functools

import torch
import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from harness.hip import LaunchError, Module, NoDevice, float32, int32, ptr

HEADS, LATENT, ROPE = 16, 512, 64
BLOCK_N = 64  # tokens a tile: the M of a warpgroup's matrix instruction
LEAST_TILES = 2  # a program, where two programs run on a multiprocessor
MAX_SPLITS = 64
LOG2_E = 1.4426950408889634
LATENT_DIMS = gl.constexpr(LATENT)
SHORT_TOKENS, CLUSTER, SHORT_SHARED_BYTES = 1024, 16, 116352
thread_barrier = gl.thread_barrier if hasattr(gl, "thread_barrier") else gl.barrier  # its name since Triton 3.7


@gluon.jit
def load_rope(desc, buffer, full, row, tile, tiles):
    """Ask TMA for the rope part of a tile, if there is one."""
    exists = tile < tiles
    mbarrier.expect(full, desc.block_type.nbytes, pred=exists)
    tma.async_copy_global_to_shared(desc, [row, LATENT_DIMS], full, buffer, exists)


@gluon.jit
def load_panel(desc, ring, full, begin, panel, tiles, SLOTS: gl.constexpr, PANELS: gl.constexpr):
    """Ask TMA for one of a split's panels, counted over its tiles, if there is one, into the slot that it has."""
    exists = panel < tiles * PANELS
    bar = full.index(panel % SLOTS)
    place = [begin + panel // PANELS * desc.block_shape[0], panel % PANELS * desc.block_shape[1]]
    mbarrier.expect(bar, desc.block_type.nbytes, pred=exists)
    tma.async_copy_global_to_shared(desc, place, bar, ring.index(panel % SLOTS), exists)


@gluon.jit
def add_scores(score, ring, q_smem, full, panel, SLOTS: gl.constexpr, PANEL: gl.constexpr):
    """Wait for a panel, and begin to add its part of the scores."""
    mbarrier.wait(full.index(panel % SLOTS), panel // SLOTS & 1)
    return warpgroup_mma(ring.index(panel % SLOTS), q_smem.index(PANEL).permute((1, 0)), score, is_async=True)


@gluon.jit
def attend_values(acc, ring, p_smem, panel, SLOTS: gl.constexpr):
    return warpgroup_mma(ring.index(panel % SLOTS).permute((1, 0)), p_smem, acc, is_async=True)


@gluon.jit
def store_panel(out_ptr, acc, factor, PANEL: gl.constexpr, ONE_SPLIT: gl.constexpr,
                HEADS: gl.constexpr, LATENT: gl.constexpr):  # fmt: skip
    """128 dims of the output. Partial results lie [dims, heads], as registers hold them; the output [heads, dims]."""
    layout: gl.constexpr = acc.type.layout
    dim = PANEL * acc.shape[0] + gl.arange(0, acc.shape[0], gl.SliceLayout(1, layout))[:, None]
    head = gl.arange(0, HEADS, gl.SliceLayout(0, layout))[None, :]
    if ONE_SPLIT:
        gl.store(out_ptr + head * LATENT + dim, (acc * factor).to(gl.bfloat16))
    else:
        gl.store(out_ptr + dim * HEADS + head, acc * factor)


@gluon.jit
def wait_for_all(counter_ptr, enough):
    """Until all programs of the sequence have stored their partial results; true of their stores, too."""
    thread_barrier()
    gl.atomic_add(counter_ptr, 1, sem="release", scope="gpu")
    gl.inline_asm_elementwise(
        """
        {
            .reg .pred p;
            .reg .b32 thread;
            .reg .b64 count;
            mov.u32 thread, %tid.x;
            setp.ge.u32 p, thread, 32;
            @p bra DONE;
        AGAIN:
            ld.acquire.gpu.global.b64 count, [$1];
            setp.lt.s64 p, count, $2;
            @p bra AGAIN;
        DONE:
            mov.b32 $0, 0;
        }
        """,
        "=r,l,l",
        [counter_ptr.to(gl.int64, bitcast=True), enough],
        dtype=gl.int32,
        is_pure=False,
        pack=1,
    )
    thread_barrier()


@gluon.jit
def merge_slice(partial_ptr, lse_ptr, out_ptr, sequence, split, splits,
                SPLITS: gl.constexpr, DIMS: gl.constexpr, HEADS: gl.constexpr, LATENT: gl.constexpr,
                WARPS: gl.constexpr):  # fmt: skip
    """DIMS dims of all heads, of which each program of a sequence takes others. A thread has one head, all splits."""
    layout: gl.constexpr = gl.BlockedLayout([SPLITS, 1, 1], [1, 2, 16], [1, WARPS, 1], [2, 1, 0])
    by_head: gl.constexpr = gl.SliceLayout(1, layout)
    head = gl.arange(0, HEADS, gl.SliceLayout(0, by_head))
    other = gl.arange(0, SPLITS, gl.SliceLayout(1, by_head))
    row = sequence.to(gl.int64) * splits
    lse = gl.load(lse_ptr + row * HEADS + (other[:, None] * HEADS + head[None, :]), mask=(other < splits)[:, None],
                  other=float("-inf"))  # fmt: skip
    peak = gl.max(lse, 0)
    weight = gl.exp2(lse - gl.where(peak == float("-inf"), 0.0, peak)[None, :])
    total = gl.sum(weight, 0)
    weight = weight * gl.where(total > 0, 1.0 / total, 0.0)[None, :]

    dim = split * DIMS + gl.arange(0, DIMS, gl.SliceLayout(0, gl.SliceLayout(2, layout)))
    other = gl.arange(0, SPLITS, gl.SliceLayout(1, gl.SliceLayout(2, layout)))
    cell = gl.expand_dims(dim[None, :] * HEADS, 2) + gl.expand_dims(head[None, :], 1)
    place = row * (LATENT * HEADS) + gl.expand_dims(other[:, None] * (LATENT * HEADS), 2) + cell
    exists = gl.expand_dims((other < splits)[:, None], 2)
    partial = gl.load(partial_ptr + place, mask=exists, other=0.0)
    merged = gl.sum(partial * gl.expand_dims(weight, 1), 0)
    out_layout: gl.constexpr = gl.SliceLayout(0, layout)
    dim = split * DIMS + gl.arange(0, DIMS, gl.SliceLayout(1, out_layout))[:, None]
    head = gl.arange(0, HEADS, gl.SliceLayout(0, out_layout))[None, :]
    gl.store(out_ptr + sequence.to(gl.int64) * (HEADS * LATENT) + head * LATENT + dim, merged.to(gl.bfloat16))


@gluon.jit
def attend(
    panel_desc,  # (total_kv, LATENT + ROPE) bf16 in blocks [BLOCK_N, LATENT / 4]
    rope_desc,  # the same in blocks [BLOCK_N, ROPE]
    q_ptr,  # (batch, HEADS, LATENT + ROPE) bf16
    kv_indptr,  # (batch + 1,) int32; not read if UNIFORM
    out_ptr,  # (batch, HEADS, LATENT) bf16
    partial_ptr,  # (batch, splits, LATENT, HEADS) float32; this and the next two: if there are several splits
    lse_ptr,  # (batch, splits, HEADS) float32, in log2
    counter_ptr,  # (batch,) int64: how many programs of this stream with so many splits have come to the merge
    score_scale,  # sm_scale * log2(e)
    longest,
    splits,
    UNIFORM: gl.constexpr,  # every sequence has `longest` tokens
    SPLITS: gl.constexpr,  # splits, rounded up to a power of two
    DIMS: gl.constexpr,  # that a program merges
    ONE_SPLIT: gl.constexpr,
    HEADS: gl.constexpr,
    LATENT: gl.constexpr,
    ROPE: gl.constexpr,
    BLOCK_N: gl.constexpr,
    SLOTS: gl.constexpr,
    WARPGROUPS: gl.constexpr,  # each computes the scores of its share of the heads, and its share of the output's dims
):
    PANELS: gl.constexpr = 4
    WIDTH: gl.constexpr = LATENT // PANELS
    DIM: gl.constexpr = LATENT + ROPE
    q_layout: gl.constexpr = gl.BlockedLayout([1, 1, 8], [1, 4, 8], [4, WARPGROUPS, 1], [2, 1, 0])
    r_layout: gl.constexpr = gl.BlockedLayout([1, 2], [1, 32], [4 * WARPGROUPS, 1], [1, 0])
    s_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, WARPGROUPS], [16, HEADS // WARPGROUPS, 16])
    o_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4 * WARPGROUPS, 1], [16, HEADS, 16])
    tile_layout: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
    p_smem_layout: gl.constexpr = gl.NVMMASharedLayout(32, 16, 2)

    split = gl.program_id(0)
    sequence = gl.program_id(1)
    if UNIFORM:
        first = sequence * longest
        length = longest
    else:
        first = gl.load(kv_indptr + sequence)
        length = gl.load(kv_indptr + sequence + 1) - first
    span = gl.cdiv(gl.cdiv(length, splits), BLOCK_N) * BLOCK_N
    begin = first + split * span
    end = gl.minimum(begin + span, first + length)
    tiles = gl.cdiv(gl.maximum(end - begin, 0), BLOCK_N)

    q_ptr += sequence.to(gl.int64) * (HEADS * DIM)  # 64-bit once; offsets within a sequence fit in 32
    head_of: gl.constexpr = gl.SliceLayout(0, gl.SliceLayout(2, q_layout))
    block_of: gl.constexpr = gl.SliceLayout(1, gl.SliceLayout(2, q_layout))
    column_of: gl.constexpr = gl.SliceLayout(0, gl.SliceLayout(1, q_layout))
    q_place = 64 * gl.arange(0, LATENT // 64, block_of)[:, None, None]
    q_place += DIM * gl.arange(0, HEADS, head_of)[None, :, None]
    q_place += gl.arange(0, 64, column_of)[None, None, :]
    q = gl.load(q_ptr + q_place)
    r_head = gl.arange(0, HEADS, gl.SliceLayout(1, r_layout))
    r_row = q_ptr + r_head * DIM + LATENT
    q_rope = gl.load(r_row[:, None] + gl.arange(0, ROPE, gl.SliceLayout(0, r_layout))[None, :])
    ring = gl.allocate_shared_memory(gl.bfloat16, [SLOTS, BLOCK_N, WIDTH], panel_desc.layout)
    rope = gl.allocate_shared_memory(gl.bfloat16, [BLOCK_N, ROPE], rope_desc.layout)
    q_smem = gl.allocate_shared_memory(gl.bfloat16, [LATENT // 64, HEADS, 64], gl.NVMMASharedLayout(128, 16, 3))
    q_panels = q_smem._reinterpret(gl.bfloat16, [PANELS, HEADS, WIDTH], tile_layout)
    q_rope_smem = gl.allocate_shared_memory(gl.bfloat16, [HEADS, ROPE], tile_layout)
    p_smem = gl.allocate_shared_memory(gl.bfloat16, [BLOCK_N, HEADS], p_smem_layout)
    full = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], mbarrier.MBarrierLayout())
    rope_full = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(rope_full, 1)
    for slot in gl.static_range(SLOTS):
        mbarrier.init(full.index(slot), 1)
    thread_barrier()

    load_rope(rope_desc, rope, rope_full, begin, 0, tiles)
    for slot in gl.static_range(SLOTS):
        load_panel(panel_desc, ring, full, begin, slot, tiles, SLOTS, PANELS)
    if not ONE_SPLIT:
        # A launch adds `splits`, and cannot end without this program: so far tells how many there will be.
        so_far = gl.load(counter_ptr + sequence, volatile=True)
        enough = so_far - so_far % splits + splits
    q_smem.store(q)
    q_rope_smem.store(q_rope)
    fence_async_shared()
    thread_barrier()

    token = gl.arange(0, BLOCK_N, gl.SliceLayout(1, s_layout))
    peak = gl.full([HEADS], float("-inf"), gl.float32, gl.SliceLayout(0, s_layout))
    totals = gl.zeros([BLOCK_N, HEADS], gl.float32, s_layout)  # of each row of the tile
    none = gl.zeros([BLOCK_N, HEADS], gl.float32, s_layout)
    acc0 = gl.zeros([WIDTH, HEADS], gl.float32, o_layout)
    acc1 = gl.zeros([WIDTH, HEADS], gl.float32, o_layout)
    acc2 = gl.zeros([WIDTH, HEADS], gl.float32, o_layout)
    acc3 = gl.zeros([WIDTH, HEADS], gl.float32, o_layout)
    for tile in range(tiles):
        panel = tile * PANELS
        mbarrier.wait(rope_full, tile & 1)
        score = warpgroup_mma(rope, q_rope_smem.permute((1, 0)), none, use_acc=False, is_async=True)
        score = add_scores(score, ring, q_panels, full, panel, SLOTS, 0)
        score = add_scores(score, ring, q_panels, full, panel + 1, SLOTS, 1)
        score = add_scores(score, ring, q_panels, full, panel + 2, SLOTS, 2)
        score = add_scores(score, ring, q_panels, full, panel + 3, SLOTS, 3)
        score = warpgroup_mma_wait(0, deps=[score])
        valid = begin + tile * BLOCK_N + token < end
        score = gl.where(valid[:, None], score, float("-inf"))
        new_peak = gl.maximum(peak, gl.max(score, 0) * score_scale)
        base = gl.where(new_peak == float("-inf"), 0.0, new_peak)  # -inf - -inf would be NaN
        shrink = gl.exp2(peak - base)
        weight = gl.exp2(score * score_scale - base[None, :])
        totals = totals * shrink[None, :] + weight
        peak = new_peak
        p_smem.store(weight.to(gl.bfloat16))
        shrink = gl.convert_layout(shrink, gl.SliceLayout(0, o_layout))[None, :]
        acc0 = acc0 * shrink
        acc1 = acc1 * shrink
        acc2 = acc2 * shrink
        acc3 = acc3 * shrink
        fence_async_shared()
        thread_barrier()
        acc0 = attend_values(acc0, ring, p_smem, panel, SLOTS)
        acc1 = attend_values(acc1, ring, p_smem, panel + 1, SLOTS)
        acc2 = attend_values(acc2, ring, p_smem, panel + 2, SLOTS)
        acc3 = attend_values(acc3, ring, p_smem, panel + 3, SLOTS)
        load_rope(rope_desc, rope, rope_full, begin + (tile + 1) * BLOCK_N, tile + 1, tiles)  # all have their scores
        ahead = panel + SLOTS
        acc0 = warpgroup_mma_wait(3, deps=[acc0])
        thread_barrier()  # all warps have read the panel: its slot is free
        load_panel(panel_desc, ring, full, begin, ahead, tiles, SLOTS, PANELS)
        acc1 = warpgroup_mma_wait(2, deps=[acc1])
        thread_barrier()
        load_panel(panel_desc, ring, full, begin, ahead + 1, tiles, SLOTS, PANELS)
        acc2 = warpgroup_mma_wait(1, deps=[acc2])
        thread_barrier()
        load_panel(panel_desc, ring, full, begin, ahead + 2, tiles, SLOTS, PANELS)
        acc3 = warpgroup_mma_wait(0, deps=[acc3])
        thread_barrier()
        load_panel(panel_desc, ring, full, begin, ahead + 3, tiles, SLOTS, PANELS)

    # A split without tokens has total 0: zeros, and a log-sum-exp of -inf, which the merge gives weight 0.
    total = gl.sum(totals, 0)
    factor = gl.convert_layout(gl.where(total > 0, 1.0 / total, 0.0), gl.SliceLayout(0, o_layout))[None, :]
    row = (sequence * splits + split).to(gl.int64)
    place = out_ptr + row * (HEADS * LATENT) if ONE_SPLIT else partial_ptr + row * (HEADS * LATENT)
    store_panel(place, acc0, factor, 0, ONE_SPLIT, HEADS, LATENT)
    store_panel(place, acc1, factor, 1, ONE_SPLIT, HEADS, LATENT)
    store_panel(place, acc2, factor, 2, ONE_SPLIT, HEADS, LATENT)
    store_panel(place, acc3, factor, 3, ONE_SPLIT, HEADS, LATENT)
    if not ONE_SPLIT:
        head = gl.arange(0, HEADS, gl.SliceLayout(0, s_layout))
        gl.store(lse_ptr + row * HEADS + head, gl.where(total > 0, peak + gl.log2(total), float("-inf")))
        wait_for_all(counter_ptr + sequence, enough)
        if split * DIMS < LATENT:
            merge_slice(partial_ptr, lse_ptr, out_ptr, sequence, split, splits,
                        SPLITS, DIMS, HEADS, LATENT, 4 * WARPGROUPS)  # fmt: skip


SHORT = r"""
#define HEADS 16
#define LATENT 512
#define DIM 576
#define CLUSTER 16
#define TOKENS 64  // at most, of a program
#define THREADS 256
#define TOKEN_BYTES (2 * DIM)
#define PAIR_BYTES (2 * TOKEN_BYTES + 16)  // of tokens or heads, in shared memory
#define AT_TOKEN(token) ((token) / 2 * PAIR_BYTES + (token) % 2 * TOKEN_BYTES)
#define TOKEN_OF(warp, i) ((warp) / 2 * 16 + 2 * (i) + (warp) % 2)  // these 8 at one column lie in 8 x 4 banks
#define WEIGHT_ROW 144  // bytes: rows start in other banks
#define SLICE (LATENT / CLUSTER)  // dims that a program merges
#define HALF_ROW (SLICE / 2 * 2)  // bytes, of 16-bit values of half of a slice
#define HALF_BYTES (HEADS * HALF_ROW + 64)  // a source's 16 dims of each head; the other 16 lie in other banks
#define ONES 0x3f803f80u
#define MINUS_INFINITY __builtin_bit_cast(float, 0xff800000u)

typedef unsigned u32;

struct __align__(128) Shared {
    unsigned char tile[TOKENS / 2 * PAIR_BYTES];
    unsigned char q[HEADS / 2 * PAIR_BYTES];
    float peak[HEADS][8];  // of a warp's tokens
    unsigned char weight[HEADS * WEIGHT_ROW];
    unsigned char part[CLUSTER][2][HALF_BYTES];  // [source][half of the dims][head]
    float2 stat[CLUSTER][HEADS];  // a source's peak and total
    unsigned long long has_q[8], has_tile[8], has_stats, has_parts;  // barriers
};
static_assert(sizeof(Shared) == SHARED_BYTES, "as much as is asked for");

__device__ __forceinline__ u32 address(const void* p) { return (u32)__cvta_generic_to_shared(p); }

__device__ __forceinline__ void ldmatrix4(u32* r, u32 from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(from) : "memory");
}

__device__ __forceinline__ void ldmatrix4_transposed(u32* r, u32 from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(from) : "memory");
}

__device__ __forceinline__ void mma(float* c, const u32* a, u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ u32 packed(float low, float high) {
    u32 x;
    asm("cvt.rn.bf16x2.f32 %0, %2, %1;" : "=r"(x) : "f"(low), "f"(high));
    return x;
}

// What to subtract from scores whose maximum this is: without a token, or with scores of -inf alone, weights are 0.
__device__ __forceinline__ float base_of(float peak) { return peak == MINUS_INFINITY ? 0.0f : peak; }

// The address of what lies there in the shared memory of another program of the cluster.
__device__ __forceinline__ u32 in_peer(u32 local, u32 rank) {
    u32 there;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(local), "r"(rank));
    return there;
}

// True in one thread of the warp; unlike with `lane == 0` the compiler knows that it is one.
__device__ __forceinline__ bool elected() {
    u32 mine;
    asm volatile("{\n"
                 ".reg .pred p;\n"
                 "elect.sync _|p, 0xffffffff;\n"
                 "selp.u32 %0, 1, 0, p;\n"
                 "}" : "=r"(mine));
    return mine;
}

__device__ __forceinline__ void init(void* barrier) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(address(barrier)) : "memory");
}

// What was initialised may be used by copies and peers.
__device__ __forceinline__ void publish() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

__device__ __forceinline__ void expect(void* barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                 :: "r"(address(barrier)), "r"(bytes) : "memory");
}

__device__ __forceinline__ void copy(void* to, const void* from, u32 bytes, void* barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                 :: "r"(address(to)), "l"(from), "r"(bytes), "r"(address(barrier)) : "memory");
}

__device__ __forceinline__ void wait_for_copy(void* barrier) {
    asm volatile("{\n"
                 ".reg .pred done;\n"
                 "AGAIN:\n"
                 "mbarrier.test_wait.parity.shared::cta.b64 done, [%0], 0;\n"
                 "@!done bra AGAIN;\n"
                 "}" :: "r"(address(barrier)) : "memory");
}

__device__ __forceinline__ void wait_for_peers(void* barrier) {
    asm volatile("{\n"
                 ".reg .pred done;\n"
                 "AGAIN:\n"
                 "mbarrier.test_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], 0;\n"
                 "@!done bra AGAIN;\n"
                 "}" :: "r"(address(barrier)) : "memory");
}

// A cluster of programs a sequence: grid (CLUSTER, batch), at most CLUSTER * TOKENS tokens each.
extern "C" __global__ __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(THREADS) void attend_short(
    const unsigned char* __restrict__ kv,  // [total tokens, DIM]
    const u32* __restrict__ q,             // [batch, HEADS, DIM] bf16
    const u32* __restrict__ kv_indptr,     // [batch + 1]; not read if every sequence has `uniform` tokens, not 0
    u32* __restrict__ out,                 // [batch, HEADS, LATENT] bf16
    u32 uniform,
    float score_scale  // sm_scale * log2(e)
) {
    extern __shared__ __align__(128) unsigned char raw[];
    Shared& shared = *(Shared*)raw;
    const u32 thread = threadIdx.x, lane = thread % 32, g = lane / 4, t = lane % 4;
    const u32 warp = __shfl_sync(~0u, thread / 32, 0);  // so that the compiler knows it to be the same in all lanes
    const u32 rank = blockIdx.x, sequence = blockIdx.y;
    u32 first = sequence * uniform, length = uniform;
    if (!uniform) {
        first = kv_indptr[sequence];
        length = kv_indptr[sequence + 1] - first;
    }
    // A warp copies 2 heads and 8 tokens and has barriers for them, so that no copy waits for another warp.
    const u32 span = (length + CLUSTER - 1) / CLUSTER, begin = min(rank * span, length);
    const u32 tokens = min(span, length - begin);
    const u32 mine = min(tokens - min(8 * warp, tokens), 8u);
    if (elected()) {
        init(&shared.has_q[warp]);
        init(&shared.has_tile[warp]);
        publish();
        expect(&shared.has_q[warp], 2 * TOKEN_BYTES);
        copy(shared.q + warp * PAIR_BYTES, q + (sequence * HEADS + 2 * warp) * (DIM / 2), 2 * TOKEN_BYTES,
             &shared.has_q[warp]);
        expect(&shared.has_tile[warp], mine * TOKEN_BYTES);
        const unsigned char* const from = kv + (unsigned long long)(first + begin + 8 * warp) * TOKEN_BYTES;
        unsigned char* const to = shared.tile + warp * (4 * PAIR_BYTES);
#pragma unroll
        for (u32 i = 0; i < 8; i += 2)
            if (i < mine)
                copy(to + AT_TOKEN(i), from + i * TOKEN_BYTES, min(mine - i, 2u) * TOKEN_BYTES,
                     &shared.has_tile[warp]);
        if (warp == 0) {
            init(&shared.has_stats);
            init(&shared.has_parts);
            publish();
            expect(&shared.has_stats, sizeof(Shared::stat));
            expect(&shared.has_parts, CLUSTER * HEADS * SLICE * 2);
        }
    }
    __syncwarp();
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");  // peers may use its barriers
    // Rows without a token are values with weight 0 as well, and 0 times anything is not always 0.
#pragma unroll 1
    for (u32 i = mine * (TOKEN_BYTES / 16) + lane; i < 8 * (TOKEN_BYTES / 16); i += 32) {
        const u32 token = 8 * warp + i / (TOKEN_BYTES / 16);
        *(uint4*)(shared.tile + AT_TOKEN(token) + i % (TOKEN_BYTES / 16) * 16) = make_uint4(0, 0, 0, 0);
    }

    __syncthreads();  // barriers and rows without a token are seen by all

    // Scores of 8 tokens.
    float x[4];
    {
        u32 a[36][4];
        // Row g is head 2 g and row g + 8 head 2 g + 1, for the sake of the banks.
        const u32 query = address(shared.q) + lane % 8 * PAIR_BYTES + lane / 8 % 2 * TOKEN_BYTES + lane / 16 * 16;
        wait_for_copy(&shared.has_q[lane % 8]);
        __syncwarp();
#pragma unroll
        for (u32 k = 0; k < 36; k++) ldmatrix4(a[k], query + k * 32);
        wait_for_copy(&shared.has_tile[warp / 2 * 2 + lane % 2]);
        __syncwarp();
        const u32 key = address(shared.tile) + AT_TOKEN(TOKEN_OF(warp, lane % 8)) + lane / 8 * 16;
        float s[4][4] = {};  // of every fourth 16 dims: one long chain would be slower
#pragma unroll
        for (u32 k = 0; k < 36; k += 2) {
            u32 b[4];
            ldmatrix4(b, key + k * 32);
            mma(s[k % 4], a[k], b[0], b[1]);
            mma(s[k % 4 + 1], a[k + 1], b[2], b[3]);
        }
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            const float sum = (s[0][i] + s[1][i]) + (s[2][i] + s[3][i]);
            x[i] = TOKEN_OF(warp, 2 * t + i % 2) < tokens ? sum * score_scale : MINUS_INFINITY;
        }
    }

    // Softmax of rows g and g + 8.
    float peak0 = fmaxf(x[0], x[1]), peak1 = fmaxf(x[2], x[3]);
#pragma unroll
    for (int mask = 1; mask <= 2; mask *= 2) {
        peak0 = fmaxf(peak0, shuffle_xor(peak0, mask));
        peak1 = fmaxf(peak1, shuffle_xor(peak1, mask));
    }
    if (t == 0) {
        shared.peak[g][warp] = peak0;
        shared.peak[g + 8][warp] = peak1;
    }
    __syncthreads();
    {
        const float4 a = *(float4*)shared.peak[g], b = *(float4*)(shared.peak[g] + 4);
        const float4 c = *(float4*)shared.peak[g + 8], d = *(float4*)(shared.peak[g + 8] + 4);
        peak0 = fmaxf(fmaxf(fmaxf(a.x, a.y), fmaxf(a.z, a.w)), fmaxf(fmaxf(b.x, b.y), fmaxf(b.z, b.w)));
        peak1 = fmaxf(fmaxf(fmaxf(c.x, c.y), fmaxf(c.z, c.w)), fmaxf(fmaxf(d.x, d.y), fmaxf(d.z, d.w)));
    }
    const float base0 = base_of(peak0), base1 = base_of(peak1);
    unsigned char* const weight_at = shared.weight + g * WEIGHT_ROW + warp * 16 + t * 4;
    *(u32*)weight_at = packed(exp2_fast(x[0] - base0), exp2_fast(x[1] - base0));
    *(u32*)(weight_at + 8 * WEIGHT_ROW) = packed(exp2_fast(x[2] - base1), exp2_fast(x[3] - base1));
    __syncthreads();

    // Output: a warp has 64 dims, 32 for either of two programs that merge them.
    const u32 value = address(shared.tile) + AT_TOKEN(TOKEN_OF(lane / 8 % 2, lane % 8)) + warp * 128 + lane / 16 * 16;
    u32 weight[TOKENS / 16][4];
#pragma unroll
    for (u32 k = 0; k < TOKENS / 16; k++)
        ldmatrix4(weight[k], address(shared.weight) + lane % 16 * WEIGHT_ROW + k * 32 + lane / 16 * 16);
    float total[4] = {};
#pragma unroll
    for (u32 half = 0; half < 2; half++) {
        float acc[4][4] = {};  // of 16 dims, and of 16 of the other program's
#pragma unroll
        for (u32 k = 0; k < TOKENS / 16; k++) {
#pragma unroll
            for (u32 n = 0; n < 4; n += 2) {
                u32 v[4];  // tokens 0..7 and 8..15 of 8 dims, and of the 8 after them
                ldmatrix4_transposed(v, value + k * (8 * PAIR_BYTES) + half * 32 + n * 32);
                mma(acc[n], weight[k], v[0], v[1]);
                mma(acc[n + 1], weight[k], v[2], v[3]);
            }
        }
        if (half == 0) {
#pragma unroll
            for (u32 k = 0; k < TOKENS / 16; k++) mma(total, weight[k], ONES, ONES);
            asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");  // all have begun
            const u32 to = 2 * warp + t / 2;
            asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];"
                         :: "r"(in_peer(address(&shared.stat[rank][g + t % 2 * 8]), to)), "f"(t % 2 ? peak1 : peak0),
                            "f"(t % 2 ? total[2] : total[0]), "r"(in_peer(address(&shared.has_stats), to)) : "memory");
        }
        // 16 bytes a lane and row: two neighbouring lanes, which have 8 for either program, exchange one.
        const u32 to = 2 * warp + t % 2, barrier = in_peer(address(&shared.has_parts), to);
        const bool odd = t % 2;
#pragma unroll
        for (u32 row = 0; row < 2; row++) {
            u32 word[2][2];
#pragma unroll
            for (u32 i = 0; i < 2; i++) {
                const float *lower = acc[2 * i] + 2 * row, *upper = acc[2 * i + 1] + 2 * row;
                word[i][0] = packed(lower[0], lower[1]);
                word[i][1] = packed(upper[0], upper[1]);
            }
            const u32 low = __shfl_xor_sync(~0u, odd ? word[0][0] : word[1][0], 1);
            const u32 high = __shfl_xor_sync(~0u, odd ? word[0][1] : word[1][1], 1);
            const u32 there = in_peer(address(shared.part[rank][half]) + (g + 8 * row) * HALF_ROW + t / 2 * 16, to);
            asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, [%5];"
                         :: "r"(there), "r"(odd ? low : word[0][0]), "r"(odd ? high : word[0][1]),
                         "r"(odd ? word[1][0] : low), "r"(odd ? word[1][1] : high), "r"(barrier) : "memory");
        }
    }

    // The merge: 16 threads a row.
    const u32 row = thread / 16, of_row = thread % 16;
    float weights[CLUSTER], totals[CLUSTER], top = MINUS_INFINITY, whole = 0, even = 0, odd = 0;
    wait_for_peers(&shared.has_stats);
#pragma unroll
    for (u32 i = 0; i < CLUSTER; i++) {
        const float2 stat = shared.stat[i][row];
        top = fmaxf(top, weights[i] = stat.x);
        totals[i] = stat.y;
    }
#pragma unroll
    for (u32 i = 0; i < CLUSTER; i++)
        whole += totals[i] * (weights[i] = exp2_fast(weights[i] - base_of(top)));
    wait_for_peers(&shared.has_parts);
#pragma unroll
    for (u32 i = 0; i < CLUSTER; i++) {
        const u32 y = *(u32*)(shared.part[i][of_row / 8] + row * HALF_ROW + of_row % 8 * 4);
        even += __builtin_bit_cast(float, y << 16) * weights[i];
        odd += __builtin_bit_cast(float, y & 0xffff0000u) * weights[i];
    }
    const float factor = whole != 0 ? __fdividef(1.0f, whole) : 0.0f;
    // Of 16 dims a lane had sent 2 t, + 1 and 8 + 2 t, + 1 side by side.
    const u32 head = row % 8 * 2 + row / 8, pair = of_row / 8 * 8 + of_row % 2 * 4 + of_row % 8 / 2;
    u32* const to = out + (sequence * HEADS + head) * (LATENT / 2) + rank * (SLICE / 2);
    to[pair] = packed(even * factor, odd * factor);
}
"""


@functools.cache
def attend_short():
    """Made when it is first called: no other compiler than NVIDIA's takes it."""
    types = {
        "kv": ptr(alignment=16),
        "q": ptr(torch.bfloat16, alignment=16),
        "kv_indptr": ptr(torch.int32),
        "out": ptr(torch.bfloat16),
        "uniform": int32,
        "score_scale": float32,
    }
    return Module(SHORT, {"SHARED_BYTES": SHORT_SHARED_BYTES}).kernel("attend_short", types)


without_clusters = set()  # devices that have refused one of 16


def launch_short(device, *arguments, batch):
    """Whether the kernel for short caches is under way. Clusters of 16 are more than every chip has to grant, and a
    part of one (MIG) may have none."""
    if device in without_clusters:
        return False
    try:
        attend_short()(*arguments, grid=(CLUSTER, batch), block=256, shared_bytes=SHORT_SHARED_BYTES)
    except LaunchError:
        without_clusters.add(device)
    return device not in without_clusters


def custom_kernel(data):
    return launch(data)


def launch(data, slots=5, warpgroups=1, per_multiprocessor=None, least_tiles=LEAST_TILES, short=True):
    """What `custom_kernel` does, with other choices than its own. Raises NoDevice without a Hopper GPU."""
    q, kv_data, _, kv_indptr, config = data
    if q.device.type != "cuda" or torch.version.hip is not None or torch.cuda.get_device_capability(q.device)[0] != 9:
        raise NoDevice("gluon_bf16 needs a Hopper GPU (sm_90): its instructions exist nowhere else")
    kv = kv_data["bf16"].view(-1, LATENT + ROPE)
    batch, longest = q.shape[0], config["kv_seq_len"]
    out = torch.empty(batch, HEADS, LATENT, dtype=torch.bfloat16, device=q.device)
    if longest == 0:
        return out.zero_()
    uniform = kv.shape[0] == batch * longest
    if short and longest <= SHORT_TOKENS and 2 * CLUSTER * batch <= multiprocessors(q):
        arguments = kv, q, kv_indptr, out, longest if uniform else 0, config["sm_scale"] * LOG2_E
        if launch_short(q.device, *arguments, batch=batch):
            return out
    splits = choose_splits(q, triton.cdiv(longest, BLOCK_N), per_multiprocessor, least_tiles)
    partial, lse, counter = out, out, out
    if splits > 1:
        partial = torch.empty(batch, splits, LATENT, HEADS, dtype=torch.float32, device=q.device)
        lse = torch.empty(batch, splits, HEADS, dtype=torch.float32, device=q.device)
        counter = counters(q.device, torch.cuda.current_stream(q.device).cuda_stream, splits)

    def descriptor(dims):
        block = [BLOCK_N, dims]
        return TensorDescriptor.from_tensor(kv, block, gl.NVMMASharedLayout.get_default_for(block, gl.bfloat16))

    attend[(splits, batch)](
        descriptor(LATENT // 4), descriptor(ROPE), q, kv_indptr, out, partial, lse, counter,
        config["sm_scale"] * LOG2_E, longest, splits, UNIFORM=uniform,
        SPLITS=triton.next_power_of_2(splits), DIMS=triton.next_power_of_2(max(triton.cdiv(LATENT, splits), 8)),
        ONE_SPLIT=splits == 1, HEADS=HEADS, LATENT=LATENT, ROPE=ROPE, BLOCK_N=BLOCK_N, SLOTS=slots,
        WARPGROUPS=warpgroups, num_warps=4 * warpgroups, launch_cooperative_grid=splits > 1,
    )  # fmt: skip
    return out


@functools.cache
def counters(device, stream, splits):
    """One a sequence, of which there are at most as many as programs at a time: two a multiprocessor."""
    count = 2 * torch.cuda.get_device_properties(device).multi_processor_count
    return torch.zeros(count, dtype=torch.int64, device=device)


def choose_splits(q, tiles, per_multiprocessor, least_tiles):
    """How many programs share the tokens of a sequence of so many tiles. If several, all of all sequences fit on the
    device at once: they wait for each other."""
    for each in [per_multiprocessor] if per_multiprocessor else [2, 1]:
        splits = max(min(each * multiprocessors(q) // q.shape[0], tiles, MAX_SPLITS), 1)
        if tiles >= least_tiles * splits:
            break
    return triton.cdiv(tiles, triton.cdiv(tiles, splits))  # without those that would be empty


def multiprocessors(q):
    return torch.cuda.get_device_properties(q.device).multi_processor_count
