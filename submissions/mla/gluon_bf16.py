"""MLA decode on the bf16 cache, for Hopper in Gluon: TMA brings tiles, both products read them where they lie.

Idea. As in triton_bf16.py: all 16 heads of a sequence in one program, scores S^T [tokens, heads] = K Q^T and output
O^T [dims, heads] = V^T P^T, so that nothing of the matrix instructions is padding; a sequence is cut into splits, and a
second kernel merges them. TMA copies tiles of 64 tokens into shared memory, and the warpgroup's instructions read them
there, the second one transposed: the threads compute addresses and softmaxes only, and what they do not keep busy is
the copies, of which two tiles are always under way.

Softmax. The sum over tokens stays apart for each row of the tile until the end: a tile needs one maximum over all warps
and no sum.

Tiles. 64 tokens, the M of a warpgroup's instruction. Latent part, 64 KiB: three in shared memory. Rope part, 8 KiB,
free again as soon as there are scores: one. With the queries that is all of a multiprocessor's shared memory, for one
program.

Bytes. 1152 a token, and 64 KiB a (sequence, split) for the partial results.

Not yet measured on a GPU. Only for Hopper (sm_90): elsewhere see triton_bf16.py.
"""

import torch
import triton
import triton.language as tl
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

from harness.hip import NoDevice

HEADS, LATENT, ROPE = 16, 512, 64
BLOCK_N = 64  # tokens a tile: the M of a warpgroup's matrix instruction
PER_MULTIPROCESSOR = 1
MAX_SPLITS = 64
MERGE_ELEMENTS = 4096  # of all splits together, a program
LOG2_E = 1.4426950408889634
LATENT_DIMS = gl.constexpr(LATENT)
thread_barrier = gl.thread_barrier if hasattr(gl, "thread_barrier") else gl.barrier  # its name since Triton 3.7


@gluon.jit
def load_rope(desc, buffer, full, row, tile, tiles):
    """Ask TMA for the rope part of a tile, if there is one."""
    exists = tile < tiles
    mbarrier.expect(full, desc.block_type.nbytes, pred=exists)
    tma.async_copy_global_to_shared(desc, [row, LATENT_DIMS], full, buffer, exists)


@gluon.jit
def load_latent(desc, ring, full, row, tile, tiles, STAGES: gl.constexpr):
    """Ask TMA for the latent part of a tile, if there is one, into the place that it has in the ring."""
    exists = tile < tiles
    bar = full.index(tile % STAGES)
    mbarrier.expect(bar, desc.block_type.nbytes, pred=exists)
    tma.async_copy_global_to_shared(desc, [row, 0], bar, ring.index(tile % STAGES), exists)


@gluon.jit
def split_kv(
    latent_desc,  # (total_kv, LATENT + ROPE) bf16 in blocks [BLOCK_N, LATENT]
    rope_desc,  # the same in blocks [BLOCK_N, ROPE]
    q_ptr,  # (batch, HEADS, LATENT + ROPE) bf16
    kv_indptr,  # (batch + 1,) int32
    out_ptr,  # (batch, HEADS, LATENT) bf16 if there is one split, else (batch, splits, LATENT, HEADS) float32
    lse_ptr,  # (batch, splits, HEADS) float32, in log2; not written if there is one split
    score_scale,  # sm_scale * log2(e)
    splits,
    ONE_SPLIT: gl.constexpr,
    HEADS: gl.constexpr,
    LATENT: gl.constexpr,
    ROPE: gl.constexpr,
    BLOCK_N: gl.constexpr,
    STAGES: gl.constexpr,
):
    # The merge may take its place on the device now: it waits there for this kernel's end.
    gl.inline_asm_elementwise(
        "griddepcontrol.launch_dependents; // $0", "=r", [], dtype=gl.int32, is_pure=False, pack=1
    )
    DIM: gl.constexpr = LATENT + ROPE
    q_layout: gl.constexpr = gl.BlockedLayout([1, 8], [1, 32], [4, 1], [1, 0])
    r_layout: gl.constexpr = gl.BlockedLayout([1, 2], [1, 32], [4, 1], [1, 0])
    mma_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, HEADS, 16])
    tile_layout: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
    p_smem_layout: gl.constexpr = gl.NVMMASharedLayout(32, 16, 2)

    split = gl.program_id(0)
    sequence = gl.program_id(1)
    first = gl.load(kv_indptr + sequence)
    length = gl.load(kv_indptr + sequence + 1) - first
    q_head = gl.arange(0, HEADS, gl.SliceLayout(1, q_layout))
    q_ptr += sequence.to(gl.int64) * (HEADS * DIM)  # 64-bit once; offsets within a sequence fit in 32
    q_row = q_ptr + q_head * DIM
    q = gl.load(q_row[:, None] + gl.arange(0, LATENT, gl.SliceLayout(0, q_layout))[None, :])
    r_head = gl.arange(0, HEADS, gl.SliceLayout(1, r_layout))
    r_row = q_ptr + r_head * DIM + LATENT
    q_rope = gl.load(r_row[:, None] + gl.arange(0, ROPE, gl.SliceLayout(0, r_layout))[None, :])

    ring = gl.allocate_shared_memory(gl.bfloat16, [STAGES, BLOCK_N, LATENT], latent_desc.layout)
    rope = gl.allocate_shared_memory(gl.bfloat16, [BLOCK_N, ROPE], rope_desc.layout)
    q_smem = gl.allocate_shared_memory(gl.bfloat16, [HEADS, LATENT], tile_layout)
    q_rope_smem = gl.allocate_shared_memory(gl.bfloat16, [HEADS, ROPE], tile_layout)
    p_smem = gl.allocate_shared_memory(gl.bfloat16, [BLOCK_N, HEADS], p_smem_layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    rope_full = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(rope_full, 1)
    for stage in gl.static_range(STAGES):
        mbarrier.init(full.index(stage), 1)
    thread_barrier()

    span = gl.cdiv(gl.cdiv(length, splits), BLOCK_N) * BLOCK_N
    begin = first + split * span
    end = gl.minimum(begin + span, first + length)
    tiles = gl.cdiv(gl.maximum(end - begin, 0), BLOCK_N)
    load_rope(rope_desc, rope, rope_full, begin, 0, tiles)
    for stage in gl.static_range(STAGES):
        load_latent(latent_desc, ring, full, begin + stage * BLOCK_N, stage, tiles, STAGES)
    q_smem.store(q)
    q_rope_smem.store(q_rope)
    fence_async_shared()
    thread_barrier()

    token = gl.arange(0, BLOCK_N, gl.SliceLayout(1, mma_layout))
    peak = gl.full([HEADS], float("-inf"), gl.float32, gl.SliceLayout(0, mma_layout))
    totals = gl.zeros([BLOCK_N, HEADS], gl.float32, mma_layout)  # of each row of the tile
    none = gl.zeros([BLOCK_N, HEADS], gl.float32, mma_layout)
    acc = gl.zeros([LATENT, HEADS], gl.float32, mma_layout)
    for tile in range(tiles):
        slot = tile % STAGES
        mbarrier.wait(rope_full, tile & 1)
        score = warpgroup_mma(rope, q_rope_smem.permute((1, 0)), none, use_acc=False, is_async=True)
        mbarrier.wait(full.index(slot), tile // STAGES & 1)
        score = warpgroup_mma(ring.index(slot), q_smem.permute((1, 0)), score, is_async=True)
        score = warpgroup_mma_wait(0, deps=[score])
        valid = begin + tile * BLOCK_N + token < end
        score = gl.where(valid[:, None], score, float("-inf"))
        new_peak = gl.maximum(peak, gl.max(score, 0) * score_scale)
        shrink = gl.exp2(peak - new_peak)
        weight = gl.exp2(score * score_scale - new_peak[None, :])
        totals = totals * shrink[None, :] + weight
        peak = new_peak
        p_smem.store(weight.to(gl.bfloat16))
        acc = acc * shrink[None, :]
        fence_async_shared()
        thread_barrier()
        acc = warpgroup_mma(ring.index(slot).permute((1, 0)), p_smem, acc, is_async=True)
        load_rope(rope_desc, rope, rope_full, begin + (tile + 1) * BLOCK_N, tile + 1, tiles)  # all have their scores
        acc = warpgroup_mma_wait(0, deps=[acc])
        thread_barrier()  # all warps have read the tile: its place is free
        ahead = tile + STAGES
        load_latent(latent_desc, ring, full, begin + ahead * BLOCK_N, ahead, tiles, STAGES)

    # A split without tokens has total 0: zeros, and a log-sum-exp of -inf, which the merge gives weight 0.
    total = gl.sum(totals, 0)
    acc = acc * gl.where(total > 0, 1.0 / total, 0.0)[None, :]
    row = (sequence * splits + split).to(gl.int64)
    out_ptr += row * (HEADS * LATENT)
    dim = gl.arange(0, LATENT, gl.SliceLayout(1, mma_layout))[:, None]
    head = gl.arange(0, HEADS, gl.SliceLayout(0, mma_layout))
    if ONE_SPLIT:
        gl.store(out_ptr + head[None, :] * LATENT + dim, acc.to(gl.bfloat16))
    else:
        gl.store(out_ptr + dim * HEADS + head[None, :], acc)
        gl.store(lse_ptr + row * HEADS + head, gl.where(total > 0, peak + gl.log2(total), float("-inf")))


@triton.jit
def merge_splits(
    partial_ptr,  # (batch, splits, LATENT, HEADS) float32
    lse_ptr,  # (batch, splits, HEADS) float32, in log2
    out_ptr,  # (batch, HEADS, LATENT) bf16
    splits,
    HEADS: tl.constexpr,
    LATENT: tl.constexpr,
    DIMS: tl.constexpr,  # that a program merges, of all heads
    SPLITS: tl.constexpr,  # splits, rounded up to a power of two
):
    tl.extra.cuda.gdc_wait()
    sequence = tl.program_id(0).to(tl.int64)
    head = tl.arange(0, HEADS)
    dim = tl.program_id(1) * DIMS + tl.arange(0, DIMS)
    split = tl.arange(0, SPLITS)
    exists = split < splits
    row = sequence * splits + split
    lse = tl.load(lse_ptr + row[:, None] * HEADS + head[None, :], mask=exists[:, None], other=float("-inf"))
    cell = dim[:, None] * HEADS + head[None, :]
    partial = tl.load(
        partial_ptr + row[:, None, None] * (LATENT * HEADS) + cell[None, :, :],
        mask=exists[:, None, None],
        other=0.0,
    )
    peak = tl.max(lse, 0)
    weight = tl.exp2(lse - tl.where(peak == float("-inf"), 0.0, peak)[None, :])
    total = tl.sum(weight, 0)
    merged = tl.sum(partial * weight[:, None, :], 0) * tl.where(total > 0, 1.0 / total, 0.0)[None, :]
    place = out_ptr + (sequence * HEADS + head[None, :]) * LATENT + dim[:, None]
    tl.store(place, merged.to(out_ptr.dtype.element_ty))


def custom_kernel(data):
    return launch(data)


def launch(data, stages=3, per_multiprocessor=PER_MULTIPROCESSOR):
    """What `custom_kernel` does, with other choices than its own. Raises NoDevice without a Hopper GPU."""
    q, kv_data, _, kv_indptr, config = data
    if q.device.type != "cuda" or torch.version.hip is not None or torch.cuda.get_device_capability(q.device)[0] != 9:
        raise NoDevice("gluon_bf16 needs a Hopper GPU (sm_90): its instructions exist nowhere else")
    kv = kv_data["bf16"].view(-1, LATENT + ROPE)
    batch, longest = q.shape[0], config["kv_seq_len"]
    out = torch.empty(batch, HEADS, LATENT, dtype=torch.bfloat16, device=q.device)
    if longest == 0:
        return out.zero_()
    splits = choose_splits(q, triton.cdiv(longest, BLOCK_N), per_multiprocessor)
    partial, lse = out, out
    if splits > 1:
        partial = torch.empty(batch, splits, LATENT, HEADS, dtype=torch.float32, device=q.device)
        lse = torch.empty(batch, splits, HEADS, dtype=torch.float32, device=q.device)

    def descriptor(dims):
        block = [BLOCK_N, dims]
        return TensorDescriptor.from_tensor(kv, block, gl.NVMMASharedLayout.get_default_for(block, gl.bfloat16))

    split_kv[(splits, batch)](
        descriptor(LATENT), descriptor(ROPE), q, kv_indptr, partial, lse, config["sm_scale"] * LOG2_E, splits,
        ONE_SPLIT=splits == 1, HEADS=HEADS, LATENT=LATENT, ROPE=ROPE, BLOCK_N=BLOCK_N, STAGES=stages, num_warps=4,
    )  # fmt: skip
    if splits > 1:
        padded = triton.next_power_of_2(splits)
        dims = max(MERGE_ELEMENTS // padded // HEADS, 4)
        merge_splits[(batch, LATENT // dims)](
            partial, lse, out, splits, HEADS=HEADS, LATENT=LATENT, DIMS=dims, SPLITS=padded,
            num_warps=4, launch_pdl=True,
        )  # fmt: skip
    return out


def choose_splits(q, tiles, per_multiprocessor):
    """How many programs share the tokens of a sequence of so many tiles."""
    wanted = per_multiprocessor * torch.cuda.get_device_properties(q.device).multi_processor_count
    return max(min(wanted // q.shape[0], tiles, MAX_SPLITS), 1)
