"""MLA decode on the fp8 cache, for Hopper in Gluon: TMA brings tiles, values are widened on their way to the registers.

Idea. As in triton_fp8.py: all 16 heads of a sequence in one program, scores S^T [tokens, heads] = K Q^T and output
O^T [dims, heads] = V^T P^T, so that nothing of the matrix instructions is padding; a sequence is cut into splits. What
differs is what Triton does not let one say:

    keys      TMA copies a tile of 64 tokens into shared memory, where the fp8 instruction reads it: no thread computes
              an address
    values    the fp8 instruction cannot read V^T from a tile with dims in a row, and fp16 values must come from
              registers. ldmatrix transposes 16-bit elements: taking two neighbouring dims as one element, a register
              gets tokens t, t + 1 of dims d, d + 1. One byte permutation and two conversions make of these four bytes
              the fp16 pairs (t, t + 1) of d and of d + 1, as the instruction wants them: 3 instructions for 4 values.
              Even and odd dims have accumulators of their own.
    softmax   the sum over tokens stays apart for each row of the tile until the end: a tile needs one maximum over all
              warps and no sum

Types. Queries are rounded to fp8 by a scale a head; weights are fp16, and values, each of which is an fp16 value, too.

Tiles. 64 tokens, 36 KiB, two a program, two programs a multiprocessor: while one computes the other's copies are under
way, and its own next tile too. Where that leaves a program fewer than 4 tiles there is one a multiprocessor: less to
merge.

One launch. All programs are on the device at once, so those of a sequence wait for each other: each stores its partial
result, raises the sequence's counter, and merges a share of the dims when all have come. A thread of the merge has one
head and all splits, so nothing crosses a thread. Counters are never set back: what a program finds at its begin tells
how far they are to rise.

Begin. The first tile is asked for before all else, and where every sequence has the same length without a look at
kv_indptr, which lies in cold memory; the second one when the queries are there, so that the programs' first tiles, all
under way at the same time, come the sooner.

Bytes. 576 a token, and 32 KiB a (sequence, split) for the partial results: fp16, in units of the cache's scale, since a
mean of values is at most the greatest of them, 448. Limited by memory bandwidth from 64 x 8192 on; below that by what
comes once however much there is to read: launch, first and last tile, and merge.

Short caches, up to 1024 tokens and at least 32 multiprocessors a sequence: a kernel of its own, in CUDA C++ (SHORT),
where the device grants clusters of 16. A cluster shares a sequence, and each of its programs asks for its tokens, at
most 64, at once. They are too few for a warpgroup's instruction to pay, so both products are mma.sync's, with heads as
rows and keys widened as values are, and queries are fp16. A warp scores 8 tokens, which it has copied itself, so it
waits for no other's, and the softmax needs one maximum over all warps. Weights stay as they are, to be divided in the
merge by their sum, which is one more column of the second product. Partial results go straight into the shared memory
of the programs that merge them, and once all have begun nobody waits for more than those: st.async counts bytes on the
receiver's barrier. Each warp sends to two programs at a time, so that all 16 receive all the time.

docs/kernels.md has what was measured, docs/kernels-tried.md what was slower. Only for Hopper (sm_90): elsewhere see
triton_fp8.py.
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
LEAST_TILES = 4  # a program, where two programs run on a multiprocessor
MAX_SPLITS = 64
LOG2_E = 1.4426950408889634
SHORT_TOKENS, CLUSTER, SHORT_SHARED_BYTES = 1024, 16, 79616
thread_barrier = gl.thread_barrier if hasattr(gl, "thread_barrier") else gl.barrier  # its name since Triton 3.7


@gluon.jit
def load_tile(latent_desc, rope_desc, ring, rope_ring, full, row, tile, tiles, STAGES: gl.constexpr):
    """Ask TMA for a tile, if there is one, into the place that it has in the ring."""
    slot = tile % STAGES
    exists = tile < tiles
    bar = full.index(slot)
    mbarrier.expect(bar, latent_desc.block_type.nbytes + rope_desc.block_type.nbytes, pred=exists)
    tma.async_copy_global_to_shared(rope_desc, [row, latent_desc.block_shape[1]], bar, rope_ring.index(slot), exists)
    tma.async_copy_global_to_shared(latent_desc, [row, 0], bar, ring.index(slot), exists)


@gluon.jit
def attend_values(panel, p, even, odd):
    """Add P V of 128 dims, as 64 pairs of dims: `panel` [tokens, 64] of two bytes each, `p` [tokens, heads]."""
    acc_layout: gl.constexpr = even.type.layout
    pairs = panel.permute((1, 0)).load(gl.DotOperandLayout(0, acc_layout, 2))
    v_even, v_odd = gl.inline_asm_elementwise(
        """
        {
            .reg .b32 t;
            .reg .b16 low, high;
            prmt.b32 t, $2, 0, 0x3120;
            mov.b32 {low, high}, t;
            cvt.rn.f16x2.e4m3x2 $0, low;
            cvt.rn.f16x2.e4m3x2 $1, high;
        }
        """,
        "=r,=r,r",
        [pairs],
        dtype=(gl.float16, gl.float16),
        is_pure=True,
        pack=2,
    )
    even = warpgroup_mma(v_even, p, even, is_async=True)
    odd = warpgroup_mma(v_odd, p, odd, is_async=True)
    return even, odd


@gluon.jit
def packed_bf16(low, high):
    """Two float32 tensors as one of int32, each of two bf16."""
    return gl.inline_asm_elementwise(
        "cvt.rn.bf16x2.f32 $0, $2, $1;", "=r,f,f", [low, high], dtype=gl.int32, is_pure=True, pack=1
    )


@gluon.jit
def packed_fp16(low, high):
    """The same of two fp16."""
    return gl.inline_asm_elementwise(
        "cvt.rn.f16x2.f32 $0, $2, $1;", "=r,f,f", [low, high], dtype=gl.int32, is_pure=True, pack=1
    )


@gluon.jit
def store_panel(out_ptr, even, odd, factor, PANEL: gl.constexpr, ONE_SPLIT: gl.constexpr,
                HEADS: gl.constexpr, LATENT: gl.constexpr):  # fmt: skip
    """128 dims of the output. Partial results lie [pairs of dims, heads], about as registers hold them."""
    layout: gl.constexpr = even.type.layout
    pair = 64 * PANEL + gl.arange(0, 64, gl.SliceLayout(1, layout))[:, None]
    head = gl.arange(0, HEADS, gl.SliceLayout(0, layout))[None, :]
    even = even * factor
    odd = odd * factor
    words = out_ptr.to(gl.pointer_type(gl.int32), bitcast=True)
    if ONE_SPLIT:
        gl.store(words + head * (LATENT // 2) + pair, packed_bf16(even, odd))
    else:
        gl.store(words + pair * HEADS + head, packed_fp16(even, odd))


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
def merge_slice(partial_ptr, lse_ptr, out_ptr, kv_scale, sequence, split, splits,
                SPLITS: gl.constexpr, PAIRS: gl.constexpr, HEADS: gl.constexpr, LATENT: gl.constexpr):  # fmt: skip
    """PAIRS pairs of dims of all heads, of which each program of a sequence takes others.

    A thread has one head and all splits.
    """
    layout: gl.constexpr = gl.BlockedLayout([SPLITS, 1, 1], [1, 2, 16], [1, 4, 1], [2, 1, 0])
    by_head: gl.constexpr = gl.SliceLayout(1, layout)
    head = gl.arange(0, HEADS, gl.SliceLayout(0, by_head))
    other = gl.arange(0, SPLITS, gl.SliceLayout(1, by_head))
    row = sequence.to(gl.int64) * splits
    lse = gl.load(lse_ptr + row * HEADS + (other[:, None] * HEADS + head[None, :]), mask=(other < splits)[:, None],
                  other=float("-inf"))  # fmt: skip
    peak = gl.max(lse, 0)
    weight = gl.exp2(lse - gl.where(peak == float("-inf"), 0.0, peak)[None, :])
    total = gl.sum(weight, 0)
    weight = weight * gl.where(total > 0, kv_scale / total, 0.0)[None, :]

    pair = split * PAIRS + gl.arange(0, PAIRS, gl.SliceLayout(0, gl.SliceLayout(2, layout)))
    other = gl.arange(0, SPLITS, gl.SliceLayout(1, gl.SliceLayout(2, layout)))
    cell = gl.expand_dims(pair[None, :] * HEADS, 2) + gl.expand_dims(head[None, :], 1)
    place = row * (LATENT // 2 * HEADS) + gl.expand_dims(other[:, None] * (LATENT // 2 * HEADS), 2) + cell
    exists = gl.expand_dims((other < splits)[:, None], 2)
    words = gl.load(partial_ptr.to(gl.pointer_type(gl.uint32), bitcast=True) + place, mask=exists, other=0)
    weight = gl.expand_dims(weight, 1)
    even = gl.sum(words.to(gl.uint16).to(gl.float16, bitcast=True).to(gl.float32) * weight, 0)
    odd = gl.sum((words >> 16).to(gl.uint16).to(gl.float16, bitcast=True).to(gl.float32) * weight, 0)
    out_layout: gl.constexpr = gl.SliceLayout(0, layout)
    pair = split * PAIRS + gl.arange(0, PAIRS, gl.SliceLayout(1, out_layout))[:, None]
    head = gl.arange(0, HEADS, gl.SliceLayout(0, out_layout))[None, :]
    place = sequence.to(gl.int64) * (HEADS * LATENT // 2) + head * (LATENT // 2) + pair
    gl.store(out_ptr.to(gl.pointer_type(gl.int32), bitcast=True) + place, packed_bf16(even, odd))


@gluon.jit
def attend(
    latent_desc,  # (total_kv, LATENT + ROPE) e4m3fn in blocks [BLOCK_N, LATENT]
    rope_desc,  # the same in blocks [BLOCK_N, ROPE]
    q_ptr,  # (batch, HEADS, LATENT + ROPE) bf16
    kv_scale_ptr,  # float32: the cache's one scale
    kv_indptr,  # (batch + 1,) int32; not read if UNIFORM
    out_ptr,  # (batch, HEADS, LATENT) bf16
    partial_ptr,  # (batch, splits, LATENT / 2, HEADS, 2) fp16; this and the next two: if there are several splits
    lse_ptr,  # (batch, splits, HEADS) float32, in log2
    counter_ptr,  # (batch,) int64: how many programs of this stream with so many splits have come to the merge
    score_scale,  # sm_scale * log2(e)
    longest,
    splits,
    UNIFORM: gl.constexpr,  # every sequence has `longest` tokens
    ONE_SPLIT: gl.constexpr,
    SPLITS: gl.constexpr,  # splits, rounded up to a power of two
    PAIRS: gl.constexpr,  # of dims, that a program merges
    HEADS: gl.constexpr,
    LATENT: gl.constexpr,
    ROPE: gl.constexpr,
    BLOCK_N: gl.constexpr,
    STAGES: gl.constexpr,
):
    gl.static_assert(LATENT == 512)
    F8: gl.constexpr = latent_desc.dtype
    PANELS: gl.constexpr = LATENT // 128
    DIM: gl.constexpr = LATENT + ROPE
    q_layout: gl.constexpr = gl.BlockedLayout([1, 8], [1, 32], [4, 1], [1, 0])
    r_layout: gl.constexpr = gl.BlockedLayout([1, 2], [1, 32], [4, 1], [1, 0])
    s_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, HEADS, 32])
    o_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, HEADS, 16])
    q_smem_layout: gl.constexpr = gl.NVMMASharedLayout(128, 8, 2)
    r_smem_layout: gl.constexpr = gl.NVMMASharedLayout(64, 8, 2)
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

    ring = gl.allocate_shared_memory(F8, [STAGES, BLOCK_N, LATENT], latent_desc.layout)
    rope_ring = gl.allocate_shared_memory(F8, [STAGES, BLOCK_N, ROPE], rope_desc.layout)
    panels = ring._reinterpret(gl.int16, [STAGES * PANELS, BLOCK_N, 64], gl.NVMMASharedLayout(128, 16, 2))
    q_smem = gl.allocate_shared_memory(F8, [HEADS, LATENT], q_smem_layout)
    q_rope_smem = gl.allocate_shared_memory(F8, [HEADS, ROPE], r_smem_layout)
    p_smem = gl.allocate_shared_memory(gl.float16, [BLOCK_N, HEADS], p_smem_layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        mbarrier.init(full.index(stage), 1)
    thread_barrier()
    load_tile(latent_desc, rope_desc, ring, rope_ring, full, begin, 0, tiles, STAGES)

    q_head = gl.arange(0, HEADS, gl.SliceLayout(1, q_layout))
    q_ptr += sequence.to(gl.int64) * (HEADS * DIM)  # 64-bit once; offsets within a sequence fit in 32
    q_row = q_ptr + q_head * DIM
    q = gl.load(q_row[:, None] + gl.arange(0, LATENT, gl.SliceLayout(0, q_layout))[None, :])
    r_head = gl.arange(0, HEADS, gl.SliceLayout(1, r_layout))
    r_row = q_ptr + r_head * DIM + LATENT
    q_rope = gl.load(r_row[:, None] + gl.arange(0, ROPE, gl.SliceLayout(0, r_layout))[None, :])
    kv_scale = gl.load(kv_scale_ptr)
    if not ONE_SPLIT:
        # A launch adds `splits`, and cannot end without this program: so far tells how many there will be.
        so_far = gl.load(counter_ptr + sequence, volatile=True)
        enough = so_far - so_far % splits + splits

    # 224 stays below e4m3's greatest value, 448.
    q = q.to(gl.float32)
    q_rope = q_rope.to(gl.float32)
    amax = gl.max(gl.abs(q), 1)
    amax = gl.maximum(amax, gl.convert_layout(gl.max(gl.abs(q_rope), 1), amax.type.layout))
    step = gl.maximum(amax, 1e-30) / 224.0
    inverse = 1.0 / step
    q_smem.store((q * inverse[:, None]).to(F8))
    # The others only now: the first tile comes the sooner, since all programs begin at the same time.
    for stage in gl.static_range(1, STAGES):
        load_tile(latent_desc, rope_desc, ring, rope_ring, full, begin + stage * BLOCK_N, stage, tiles, STAGES)
    q_rope_smem.store((q_rope * gl.convert_layout(inverse, gl.SliceLayout(1, r_layout))[:, None]).to(F8))
    fence_async_shared()
    score_scale = gl.convert_layout(step, gl.SliceLayout(0, s_layout)) * (score_scale * kv_scale)
    thread_barrier()

    token = gl.arange(0, BLOCK_N, gl.SliceLayout(1, s_layout))
    peak = gl.full([HEADS], float("-inf"), gl.float32, gl.SliceLayout(0, s_layout))
    totals = gl.zeros([BLOCK_N, HEADS], gl.float32, s_layout)  # of each row of the tile
    none = gl.zeros([BLOCK_N, HEADS], gl.float32, s_layout)
    acc0 = gl.zeros([64, HEADS], gl.float32, o_layout)
    acc1 = gl.zeros([64, HEADS], gl.float32, o_layout)
    acc2 = gl.zeros([64, HEADS], gl.float32, o_layout)
    acc3 = gl.zeros([64, HEADS], gl.float32, o_layout)
    acc4 = gl.zeros([64, HEADS], gl.float32, o_layout)
    acc5 = gl.zeros([64, HEADS], gl.float32, o_layout)
    acc6 = gl.zeros([64, HEADS], gl.float32, o_layout)
    acc7 = gl.zeros([64, HEADS], gl.float32, o_layout)
    for tile in range(tiles):
        slot = tile % STAGES
        mbarrier.wait(full.index(slot), tile // STAGES & 1)
        # The fp8 instruction loses what is small beside its largest summand. Those of the rope dims may be large: last.
        score = warpgroup_mma(ring.index(slot), q_smem.permute((1, 0)), none, use_acc=False, is_async=True)
        score = warpgroup_mma(rope_ring.index(slot), q_rope_smem.permute((1, 0)), score, is_async=True)
        score = warpgroup_mma_wait(0, deps=[score])
        valid = begin + tile * BLOCK_N + token < end
        score = gl.where(valid[:, None], score, float("-inf"))
        new_peak = gl.maximum(peak, gl.max(score, 0) * score_scale)
        shrink = gl.exp2(peak - new_peak)
        weight = gl.exp2(score * score_scale[None, :] - new_peak[None, :])
        totals = totals * shrink[None, :] + weight
        peak = new_peak
        p_smem.store(weight.to(gl.float16))
        shrink = gl.convert_layout(shrink, gl.SliceLayout(0, o_layout))[None, :]
        acc0 = acc0 * shrink
        acc1 = acc1 * shrink
        acc2 = acc2 * shrink
        acc3 = acc3 * shrink
        acc4 = acc4 * shrink
        acc5 = acc5 * shrink
        acc6 = acc6 * shrink
        acc7 = acc7 * shrink
        fence_async_shared()
        thread_barrier()
        acc0, acc1 = attend_values(panels.index(slot * PANELS), p_smem, acc0, acc1)
        acc2, acc3 = attend_values(panels.index(slot * PANELS + 1), p_smem, acc2, acc3)
        acc4, acc5 = attend_values(panels.index(slot * PANELS + 2), p_smem, acc4, acc5)
        acc6, acc7 = attend_values(panels.index(slot * PANELS + 3), p_smem, acc6, acc7)
        acc0, acc1, acc2, acc3, acc4, acc5, acc6, acc7 = warpgroup_mma_wait(
            0, deps=[acc0, acc1, acc2, acc3, acc4, acc5, acc6, acc7]
        )
        thread_barrier()  # all warps have read the tile: its place is free
        later = tile + STAGES
        load_tile(latent_desc, rope_desc, ring, rope_ring, full, begin + later * BLOCK_N, later, tiles, STAGES)

    # A split without tokens has total 0: zeros, and a log-sum-exp of -inf, which the merge gives weight 0.
    total = gl.sum(totals, 0)
    factor = gl.where(total > 0, (kv_scale if ONE_SPLIT else 1.0) / total, 0.0)
    factor = gl.convert_layout(factor, gl.SliceLayout(0, o_layout))[None, :]
    row = (sequence * splits + split).to(gl.int64)
    place = out_ptr + row * (HEADS * LATENT) if ONE_SPLIT else partial_ptr + row * (HEADS * LATENT)
    store_panel(place, acc0, acc1, factor, 0, ONE_SPLIT, HEADS, LATENT)
    store_panel(place, acc2, acc3, factor, 1, ONE_SPLIT, HEADS, LATENT)
    store_panel(place, acc4, acc5, factor, 2, ONE_SPLIT, HEADS, LATENT)
    store_panel(place, acc6, acc7, factor, 3, ONE_SPLIT, HEADS, LATENT)
    if not ONE_SPLIT:
        head = gl.arange(0, HEADS, gl.SliceLayout(0, s_layout))
        gl.store(lse_ptr + row * HEADS + head, gl.where(total > 0, peak + gl.log2(total), float("-inf")))
        wait_for_all(counter_ptr + sequence, enough)
        if split * PAIRS < LATENT // 2:
            merge_slice(partial_ptr, lse_ptr, out_ptr, kv_scale, sequence, split, splits,
                        SPLITS, PAIRS, HEADS, LATENT)  # fmt: skip


SHORT = r"""
#define HEADS 16
#define LATENT 512
#define DIM 576
#define CLUSTER 16
#define TOKENS 64  // at most, of a program
#define THREADS 256
#define TOKEN_BYTES DIM
#define PAIR_BYTES (2 * TOKEN_BYTES + 16)  // of tokens, in shared memory: 8 of them at one column lie in 8 x 4 banks
#define AT_TOKEN(token) ((token) / 2 * PAIR_BYTES + (token) % 2 * TOKEN_BYTES)
#define Q_ROW (2 * DIM + 16)  // bytes, of fp16: 8 rows at one column lie in 8 x 4 banks
#define EARLY 20  // of the 36 fragments of the queries: those that are read before the tokens are there
#define WEIGHT_ROW 144  // bytes: rows start in other banks
#define SLICE (LATENT / CLUSTER)  // dims that a program merges
#define HALF_ROW (SLICE / 2 * 2)  // bytes, of 16-bit values of half of a slice
#define HALF_BYTES (HEADS * HALF_ROW + 64)  // a source's 16 dims of each head; the other 16 lie in other banks
#define ONES 0x3c003c00u
#define MINUS_INFINITY __builtin_bit_cast(float, 0xff800000u)

typedef unsigned u32;

struct __align__(128) Shared {
    unsigned char tile[TOKENS / 2 * PAIR_BYTES];
    unsigned char q[HEADS * Q_ROW];
    float peak[HEADS][8];  // of a warp's tokens
    unsigned char weight[HEADS * WEIGHT_ROW];
    unsigned char part[CLUSTER][2][HALF_BYTES];  // [source][half of the dims][head]
    float2 stat[CLUSTER][HEADS];  // a source's peak and total
    float scale[HEADS];
    unsigned long long has_tile[8], has_stats, has_parts;  // barriers
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
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ u32 packed(float low, float high) {
    u32 x;
    asm("cvt.rn.f16x2.f32 %0, %2, %1;" : "=r"(x) : "f"(low), "f"(high));
    return x;
}

__device__ __forceinline__ u32 packed_bf16(float low, float high) {
    u32 x;
    asm("cvt.rn.bf16x2.f32 %0, %2, %1;" : "=r"(x) : "f"(low), "f"(high));
    return x;
}

// Four dims of a token as two fp16 pairs.
__device__ __forceinline__ void widen_row(u32 bytes, u32& first, u32& second) {
    asm("{\n"
        ".reg .b16 low, high;\n"
        "mov.b32 {low, high}, %2;\n"
        "cvt.rn.f16x2.e4m3x2 %0, low;\n"
        "cvt.rn.f16x2.e4m3x2 %1, high;\n"
        "}" : "=r"(first), "=r"(second) : "r"(bytes));
}

// Two tokens of two dims that lie side by side: as fp16 pairs of the one dim and of the other.
__device__ __forceinline__ void widen_column(u32 bytes, u32& even, u32& odd) {
    asm("{\n"
        ".reg .b32 t;\n"
        ".reg .b16 low, high;\n"
        "prmt.b32 t, %2, 0, 0x3120;\n"
        "mov.b32 {low, high}, t;\n"
        "cvt.rn.f16x2.e4m3x2 %0, low;\n"
        "cvt.rn.f16x2.e4m3x2 %1, high;\n"
        "}" : "=r"(even), "=r"(odd) : "r"(bytes));
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
    const float* __restrict__ kv_scale_ptr,  // of the whole cache
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
    // Two heads a warp: 144 pieces of 16 bytes, four a lane, and a fifth for half of the lanes.
    const uint4* const q_row = (const uint4*)q + (sequence * HEADS + 2 * warp) * (DIM / 8) + lane;
    uint4 words[5];
    const float kv_scale = *kv_scale_ptr;
#pragma unroll
    for (u32 i = 0; i < 5; i++) words[i] = i < 4 || lane < 16 ? q_row[i * 32] : make_uint4(0, 0, 0, 0);
    // A warp copies 8 tokens and has a barrier for them, so that no copy waits for another warp.
    const u32 span = (length + CLUSTER - 1) / CLUSTER, begin = min(rank * span, length);
    const u32 tokens = min(span, length - begin);
    const u32 mine = min(tokens - min(8 * warp, tokens), 8u);
    if (elected()) {
        init(&shared.has_tile[warp]);
        publish();
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

    // Queries to fp16, as fractions of the head's greatest.
    float most0 = 0, most1 = 0;
#pragma unroll
    for (u32 i = 0; i < 5; i++) {
        const u32 x[4] = {words[i].x, words[i].y, words[i].z, words[i].w};
        u32 most = 0;  // without their signs they compare as integers
#pragma unroll
        for (u32 j = 0; j < 4; j++) most = max(most, max(x[j] << 16 & 0x7fff0000u, x[j] & 0x7fff0000u));
        const float greatest = __builtin_bit_cast(float, most);
        if (i * 32 + lane < 72) most0 = fmaxf(most0, greatest);
        else most1 = fmaxf(most1, greatest);
    }
#pragma unroll
    for (int mask = 16; mask; mask /= 2) {
        most0 = fmaxf(most0, shuffle_xor(most0, mask));
        most1 = fmaxf(most1, shuffle_xor(most1, mask));
    }
    most0 = fmaxf(most0, 1e-30f);
    most1 = fmaxf(most1, 1e-30f);
    const float inverse0 = __fdividef(1.0f, most0), inverse1 = __fdividef(1.0f, most1);
#pragma unroll
    for (u32 i = 0; i < 5; i++) {
        const bool second = i * 32 + lane >= 72;
        const float inverse = second ? inverse1 : inverse0;
        const u32 x[4] = {words[i].x, words[i].y, words[i].z, words[i].w};
        u32 y[4];
#pragma unroll
        for (u32 j = 0; j < 4; j++) {
            const float low = __builtin_bit_cast(float, x[j] << 16);
            const float high = __builtin_bit_cast(float, x[j] & 0xffff0000u);
            y[j] = packed(low * inverse, high * inverse);
        }
        // Of 16 dims first 0, 1, 4, 5, 8, 9, 12, 13: as ldmatrix deals them out, lane t has 4 t to 4 t + 3, as of a
        // key's bytes.
        const u32 piece = i * 32 + lane;
        unsigned char* const to =
            shared.q + 2 * warp * Q_ROW + (second ? Q_ROW - 2 * DIM : 0) + piece / 2 * 32 + piece % 2 * 8;
        if (i < 4 || lane < 16) {
            *(uint2*)to = make_uint2(y[0], y[2]);
            *(uint2*)(to + 16) = make_uint2(y[1], y[3]);
        }
    }
    if (lane == 0) {
        shared.scale[2 * warp] = most0 * score_scale * kv_scale;
        shared.scale[2 * warp + 1] = most1 * score_scale * kv_scale;
    }
    __syncthreads();

    // Scores of 8 tokens.
    float x[4];
    {
        u32 a[36][4], bytes[9][4];
        const u32 query = address(shared.q) + lane % 16 * Q_ROW + lane / 16 * 16;
#pragma unroll
        for (u32 k = 0; k < EARLY; k++) ldmatrix4(a[k], query + k * 32);
        const float scale0 = shared.scale[g], scale1 = shared.scale[g + 8];
        wait_for_copy(&shared.has_tile[warp]);
        const u32 key = address(shared.tile) + AT_TOKEN(8 * warp + lane % 8) + lane / 8 * 16;
#pragma unroll
        for (u32 k = 0; k < 36; k++) {
            if (k % 4 == 0) ldmatrix4(bytes[k / 4], key + k * 16);
            if (k >= EARLY) ldmatrix4(a[k], query + k * 32);
        }
        float s[4][4] = {};  // of every fourth 16 dims: one long chain would be slower
#pragma unroll
        for (u32 k = 0; k < 36; k++) {
            u32 b0, b1;
            widen_row(bytes[k / 4][k % 4], b0, b1);
            mma(s[k % 4], a[k], b0, b1);
        }
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            const float sum = (s[0][i] + s[1][i]) + (s[2][i] + s[3][i]);
            x[i] = 8 * warp + 2 * t + i % 2 < tokens ? sum * (i < 2 ? scale0 : scale1) : MINUS_INFINITY;
        }
    }

    // Softmax of heads g and g + 8.
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
    const u32 value = address(shared.tile) + AT_TOKEN(lane % 16) + warp * 64 + lane / 16 * 32;
    u32 weight[TOKENS / 16][4];
#pragma unroll
    for (u32 k = 0; k < TOKENS / 16; k++)
        ldmatrix4(weight[k], address(shared.weight) + lane % 16 * WEIGHT_ROW + k * 32 + lane / 16 * 16);
    float total[4] = {};
#pragma unroll
    for (u32 half = 0; half < 2; half++) {
        float acc[4][4] = {};  // of 16 dims the even and the odd ones, and of 16 of the other program's
#pragma unroll
        for (u32 k = 0; k < TOKENS / 16; k++) {
            u32 v[4], even0, odd0, even1, odd1;  // tokens 0..7 and 8..15 of the one and of the other 16
            ldmatrix4_transposed(v, value + k * (8 * PAIR_BYTES) + half * 16);
            widen_column(v[0], even0, odd0);
            widen_column(v[1], even1, odd1);
            mma(acc[0], weight[k], even0, even1);
            mma(acc[1], weight[k], odd0, odd1);
            widen_column(v[2], even0, odd0);
            widen_column(v[3], even1, odd1);
            mma(acc[2], weight[k], even0, even1);
            mma(acc[3], weight[k], odd0, odd1);
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
                const float *even_dims = acc[2 * i] + 2 * row, *odd_dims = acc[2 * i + 1] + 2 * row;
                word[i][0] = packed(even_dims[0], odd_dims[0]);
                word[i][1] = packed(even_dims[1], odd_dims[1]);
            }
            const u32 low = __shfl_xor_sync(~0u, odd ? word[0][0] : word[1][0], 1);
            const u32 high = __shfl_xor_sync(~0u, odd ? word[0][1] : word[1][1], 1);
            const u32 there = in_peer(address(shared.part[rank][half]) + (g + 8 * row) * HALF_ROW + t / 2 * 16, to);
            asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, [%5];"
                         :: "r"(there), "r"(odd ? low : word[0][0]), "r"(odd ? high : word[0][1]),
                         "r"(odd ? word[1][0] : low), "r"(odd ? word[1][1] : high), "r"(barrier) : "memory");
        }
    }

    // The merge: 16 threads a head.
    const u32 head = thread / 16, of_head = thread % 16;
    float weights[CLUSTER], totals[CLUSTER], top = MINUS_INFINITY, whole = 0, even = 0, odd = 0;
    wait_for_peers(&shared.has_stats);
#pragma unroll
    for (u32 i = 0; i < CLUSTER; i++) {
        const float2 stat = shared.stat[i][head];
        top = fmaxf(top, weights[i] = stat.x);
        totals[i] = stat.y;
    }
#pragma unroll
    for (u32 i = 0; i < CLUSTER; i++)
        whole += totals[i] * (weights[i] = exp2_fast(weights[i] - base_of(top)));
    wait_for_peers(&shared.has_parts);
#pragma unroll
    for (u32 i = 0; i < CLUSTER; i++) {
        const u32 y = *(u32*)(shared.part[i][of_head / 8] + head * HALF_ROW + of_head % 8 * 4);
        even += float16_value((unsigned short)y) * weights[i];
        odd += float16_value((unsigned short)(y >> 16)) * weights[i];
    }
    const float factor = whole != 0 ? __fdividef(kv_scale, whole) : 0.0f;
    u32* const to = out + (sequence * HEADS + head) * (LATENT / 2) + rank * (SLICE / 2);
    to[of_head] = packed_bf16(even * factor, odd * factor);
}
"""


@functools.cache
def attend_short():
    """Made when it is first called: no other compiler than NVIDIA's takes it."""
    types = {
        "kv": ptr(alignment=16),
        "q": ptr(torch.bfloat16, alignment=16),
        "kv_scale": ptr(torch.float32),
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


def launch(data, stages=2, per_multiprocessor=None, least_tiles=LEAST_TILES, short=True):
    """What `custom_kernel` does, with other choices than its own. Raises NoDevice without a Hopper GPU."""
    q, kv_data, _, kv_indptr, config = data
    if q.device.type != "cuda" or torch.version.hip is not None or torch.cuda.get_device_capability(q.device)[0] != 9:
        raise NoDevice("gluon_fp8 needs a Hopper GPU (sm_90): its instructions exist nowhere else")
    kv, kv_scale = kv_data["fp8"]
    kv = kv.view(-1, LATENT + ROPE)
    batch, longest = q.shape[0], config["kv_seq_len"]
    out = torch.empty(batch, HEADS, LATENT, dtype=torch.bfloat16, device=q.device)
    if longest == 0:
        return out.zero_()
    uniform = kv.shape[0] == batch * longest
    if short and longest <= SHORT_TOKENS and 2 * CLUSTER * batch <= multiprocessors(q):
        arguments = kv, q, kv_scale, kv_indptr, out, longest if uniform else 0, config["sm_scale"] * LOG2_E
        if launch_short(q.device, *arguments, batch=batch):
            return out
    splits = choose_splits(q, triton.cdiv(longest, BLOCK_N), per_multiprocessor, least_tiles)
    partial, lse, counter = out, out, out
    if splits > 1:
        partial = torch.empty(batch, splits, LATENT // 2, HEADS, 2, dtype=torch.float16, device=q.device)
        lse = torch.empty(batch, splits, HEADS, dtype=torch.float32, device=q.device)
        counter = counters(q.device, torch.cuda.current_stream(q.device).cuda_stream, splits)

    def descriptor(dims):
        block = [BLOCK_N, dims]
        return TensorDescriptor.from_tensor(kv, block, gl.NVMMASharedLayout.get_default_for(block, gl.float8e4nv))

    attend[(splits, batch)](
        descriptor(LATENT), descriptor(ROPE), q, kv_scale, kv_indptr, out, partial, lse, counter,
        config["sm_scale"] * LOG2_E, longest, splits, UNIFORM=uniform, ONE_SPLIT=splits == 1,
        SPLITS=triton.next_power_of_2(splits), PAIRS=triton.next_power_of_2(max(triton.cdiv(LATENT // 2, splits), 4)),
        HEADS=HEADS, LATENT=LATENT, ROPE=ROPE, BLOCK_N=BLOCK_N, STAGES=stages, num_warps=4,
        launch_cooperative_grid=splits > 1,
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
