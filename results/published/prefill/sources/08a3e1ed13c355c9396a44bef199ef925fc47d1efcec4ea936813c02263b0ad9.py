"""FlashAttention forward for Hopper in Gluon: a warp that loads, two warpgroups that attend, softmax beside products.

Idea
    After FlashAttention-3 (Shah et al., 2024). Hopper's matrix instructions run on their own while the warps that
    issued them do something else, and a copy unit (TMA) moves whole tiles. A program is three partitions of warps:

        producer     one warp      asks TMA for queries, keys and values, as soon as their buffers are free
        consumers    two of four   64 queries each, independent of each other: S = Q K^T, softmax, O = O + P V

    A consumer issues the next tile's S = Q K^T, then this tile's O + P V, and computes the next tile's softmax while
    the second product runs. What it waits for alone, the other consumer fills.

        keys, values       ring of STAGES tiles each, with a barrier for "full" (TMA's bytes) and one for "empty" (both
                           consumers have read it)
        queries            one tile of 64 a consumer; the output goes through the same memory back to TMA

Tiles
    128 queries and 128 keys. A consumer's S (64 x 128) and O (64 x 128) are 64 float32 registers a thread each, P 32.
    Of shared memory, at D = 128: 32 KiB of queries, 64 KiB a stage.

Turns
    Below 8192 queries the consumers issue their products in turn (ALTERNATE), so that one's softmax falls beside the
    other's products, and a program, one a multiprocessor, works through many tiles of queries. From there on, each tile
    of queries has a program of its own and the consumers find their rhythm by themselves; there the softmax's sum is
    stored to shared memory, read by nobody, which keeps the compiler from moving the softmax behind the product that
    it is to run beside. Each was the faster of the two for its lengths.

Order
    Keys from the last tile, the one on the diagonal or cut short, to the first: only the first step of a program needs
    a mask. Heavy tiles (late in a causal sequence) first. Neighbouring programs take heads of different KV heads.

What limits it
    Of 128 x 128 scores the exponentials alone (16 a clock and multiprocessor) take half as long as the two products
    (4096 flops a clock), and maxima, scaling and conversion come on top: what is lost is where the two do not overlap,
    and, for short sequences, the diagonal's half-empty tiles and the programs' ends.

Measured on an NVIDIA H200, 2026-11-20 (docs/kernels.md has every case)
    56 % of the floor, which is 989 TFLOP/s, geometric mean of the ranked cases: 45 % at 1024 queries, 62 % at 65536.

Only for Hopper (sm_90): elsewhere see triton_flash.py.
"""

import math

import torch
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

LOG2_E = math.log2(math.e)
LONG = 8192  # queries, from which on the consumers take no turns
ROWS = gl.constexpr(64)  # queries a consumer: the M of a warpgroup's matrix instruction
CONSUMERS = gl.constexpr(2)
thread_barrier = gl.thread_barrier if hasattr(gl, "thread_barrier") else gl.barrier  # its name since Triton 3.7


@gluon.jit
def attend_tile(
    q_smem, k_ring, v_ring, q_full, q_empty, k_full, k_empty, v_full, v_empty, turns, pins, out_desc,
    consumer, step, turn, first_row, batch, column, key_tiles, seq_len, scale,
    D: gl.constexpr, BLOCK_N: gl.constexpr, STAGES: gl.constexpr, CAUSAL: gl.constexpr,
    ALTERNATE: gl.constexpr,
):  # fmt: skip
    """One consumer's 64 queries against all their keys. `step` counts its key tiles, `turn` its query tiles."""
    s_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    o_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D, 16])
    p_layout: gl.constexpr = gl.DotOperandLayout(0, o_layout, 2)
    q_tile = q_smem.index(consumer)
    q = q_tile.reshape([ROWS, D])

    mbarrier.wait(q_full, turn & 1)
    stage = step % STAGES
    phase = step // STAGES & 1
    mbarrier.wait(k_full.index(stage), phase)
    zeros = gl.zeros([ROWS, BLOCK_N], gl.float32, s_layout)
    scores = warpgroup_mma(q, k_ring.index(stage).reshape([BLOCK_N, D]).permute((1, 0)), zeros, use_acc=False)
    thread_barrier()
    mbarrier.arrive(k_empty.index(stage))

    key = (key_tiles - 1) * BLOCK_N + gl.arange(0, BLOCK_N, gl.SliceLayout(0, s_layout))
    visible = (key < seq_len)[None, :]
    if CAUSAL:
        row = first_row + gl.arange(0, ROWS, gl.SliceLayout(1, s_layout))
        visible = visible & (key[None, :] <= row[:, None])
    scores = gl.where(visible, scores, float("-inf"))
    peak = gl.max(scores, 1) * scale
    weights = gl.exp2(scores * scale - peak[:, None])
    total = gl.sum(weights, 1)
    p = gl.convert_layout(weights.to(gl.bfloat16), p_layout)
    out = gl.zeros([ROWS, D], gl.float32, o_layout)

    for _ in range(key_tiles - 1):
        v_stage = stage
        v_phase = phase
        step += 1
        stage = step % STAGES
        phase = step // STAGES & 1
        mbarrier.wait(k_full.index(stage), phase)
        if ALTERNATE:
            mbarrier.wait(turns.index(consumer), (step - turn - 1 + consumer + 1) & 1)
        scores_token = warpgroup_mma(
            q, k_ring.index(stage).reshape([BLOCK_N, D]).permute((1, 0)), zeros, use_acc=False, is_async=True
        )
        mbarrier.wait(v_full.index(v_stage), v_phase)
        out_token = warpgroup_mma(p, v_ring.index(v_stage).reshape([BLOCK_N, D]), out, is_async=True)
        if ALTERNATE:
            mbarrier.arrive(turns.index(1 - consumer))
        scores = warpgroup_mma_wait(1, deps=[scores_token])
        thread_barrier()
        mbarrier.arrive(k_empty.index(stage))

        raised = gl.maximum(peak, gl.max(scores, 1) * scale)
        weights = gl.exp2(scores * scale - raised[:, None])
        factor = gl.exp2(peak - raised)
        total = total * factor + gl.sum(weights, 1)
        if not ALTERNATE:
            pins.index(consumer).store(total)
        peak = raised
        # The new weights go through the wait too, or the compiler would move their computation behind it.
        next_p = gl.convert_layout(weights.to(gl.bfloat16), p_layout)
        out, _, p = warpgroup_mma_wait(0, deps=[out_token, p, next_p])
        thread_barrier()
        mbarrier.arrive(v_empty.index(v_stage))
        out = out * gl.convert_layout(factor, gl.SliceLayout(1, o_layout))[:, None]

    mbarrier.wait(v_full.index(stage), phase)
    out = warpgroup_mma(p, v_ring.index(stage).reshape([BLOCK_N, D]), out)
    thread_barrier()
    mbarrier.arrive(v_empty.index(stage))
    out = out / gl.convert_layout(total, gl.SliceLayout(1, o_layout))[:, None]

    q.store(out.to(gl.bfloat16))  # all of this consumer's products with Q are over
    fence_async_shared()
    thread_barrier()
    tma.async_copy_shared_to_global(out_desc, [batch, first_row, column], q_tile)
    tma.store_wait(0)
    thread_barrier()
    mbarrier.arrive(q_empty)
    return step + 1


@gluon.jit
def consume(
    q_smem, k_ring, v_ring, q_full, q_empty, k_full, k_empty, v_full, v_empty, turns, pins, out_desc,
    consumer, seq_len, scale, tiles,
    HQ: gl.constexpr, HKV: gl.constexpr, D: gl.constexpr, BLOCK_N: gl.constexpr, STAGES: gl.constexpr,
    CAUSAL: gl.constexpr, ALTERNATE: gl.constexpr,
):  # fmt: skip
    heads = tiles // gl.cdiv(seq_len, CONSUMERS * ROWS)
    step = 0
    turn = 0
    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        batch, head, _, first_row, key_tiles = place(tile, heads, seq_len, HQ, HKV, BLOCK_N, CAUSAL)
        step = attend_tile(
            q_smem, k_ring, v_ring, q_full, q_empty, k_full, k_empty, v_full, v_empty, turns, pins, out_desc,
            consumer, step, turn, first_row + consumer * ROWS, batch, head * D, key_tiles, seq_len, scale,
            D, BLOCK_N, STAGES, CAUSAL, ALTERNATE,
        )  # fmt: skip
        turn += 1  # noqa: SIM113


@gluon.jit
def produce(
    q_smem, k_ring, v_ring, q_full, q_empty, k_full, k_empty, v_full, v_empty, q_desc, k_desc, v_desc, seq_len,
    tiles, HQ: gl.constexpr, HKV: gl.constexpr, D: gl.constexpr, BLOCK_N: gl.constexpr, STAGES: gl.constexpr,
    CAUSAL: gl.constexpr,
):  # fmt: skip
    heads = tiles // gl.cdiv(seq_len, CONSUMERS * ROWS)
    step = 0
    turn = 0
    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        batch, head, kv_head, first_row, key_tiles = place(tile, heads, seq_len, HQ, HKV, BLOCK_N, CAUSAL)
        mbarrier.wait(q_empty, turn & 1 ^ 1)
        mbarrier.expect(q_full, CONSUMERS * q_desc.block_type.nbytes)
        tma.async_copy_global_to_shared(q_desc, [batch, first_row, head * D], q_full, q_smem.index(0))
        tma.async_copy_global_to_shared(q_desc, [batch, first_row + ROWS, head * D], q_full, q_smem.index(1))
        for done in range(key_tiles):
            key = (key_tiles - 1 - done) * BLOCK_N
            stage = step % STAGES
            free = step // STAGES & 1 ^ 1
            mbarrier.wait(k_empty.index(stage), free)
            mbarrier.expect(k_full.index(stage), k_desc.block_type.nbytes)
            tma.async_copy_global_to_shared(k_desc, [batch, key, kv_head * D], k_full.index(stage), k_ring.index(stage))
            mbarrier.wait(v_empty.index(stage), free)
            mbarrier.expect(v_full.index(stage), v_desc.block_type.nbytes)
            tma.async_copy_global_to_shared(v_desc, [batch, key, kv_head * D], v_full.index(stage), v_ring.index(stage))
            step += 1
        turn += 1  # noqa: SIM113


@gluon.jit
def place(
    tile, heads, seq_len, HQ: gl.constexpr, HKV: gl.constexpr, BLOCK_N: gl.constexpr, CAUSAL: gl.constexpr
):  # fmt: skip
    """Where the work of one tile of queries lies: batch, head, KV head, first query, tiles of keys."""
    q_tiles = gl.cdiv(seq_len, CONSUMERS * ROWS)
    q_tile = q_tiles - 1 - tile // heads
    x = tile % heads
    batch = x // HQ
    kv_head = x % HQ % HKV
    head = kv_head * (HQ // HKV) + x % HQ // HKV
    first_row = q_tile * (CONSUMERS * ROWS)
    keys = seq_len
    if CAUSAL:
        keys = gl.minimum(first_row + CONSUMERS * ROWS, seq_len)
    return batch, head, kv_head, first_row, gl.cdiv(keys, BLOCK_N)


@gluon.jit
def prefill(
    q_desc, k_desc, v_desc, out_desc, scale, seq_len, tiles,
    HQ: gl.constexpr, HKV: gl.constexpr, D: gl.constexpr, BLOCK_N: gl.constexpr, STAGES: gl.constexpr,
    CAUSAL: gl.constexpr, ALTERNATE: gl.constexpr,
):  # fmt: skip
    q_smem = gl.allocate_shared_memory(gl.bfloat16, [CONSUMERS, 1, ROWS, D], q_desc.layout)
    k_ring = gl.allocate_shared_memory(gl.bfloat16, [STAGES, 1, BLOCK_N, D], k_desc.layout)
    v_ring = gl.allocate_shared_memory(gl.bfloat16, [STAGES, 1, BLOCK_N, D], v_desc.layout)
    q_full = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    q_empty = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    k_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    k_empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    v_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    v_empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    turns = gl.allocate_shared_memory(gl.int64, [CONSUMERS, 1], mbarrier.MBarrierLayout())
    pins = gl.allocate_shared_memory(gl.float32, [CONSUMERS, ROWS], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    mbarrier.init(turns.index(0), 1)
    mbarrier.init(turns.index(1), 1)
    mbarrier.init(q_full, 1)
    mbarrier.init(q_empty, CONSUMERS)
    for stage in gl.static_range(STAGES):
        mbarrier.init(k_full.index(stage), 1)
        mbarrier.init(k_empty.index(stage), CONSUMERS)
        mbarrier.init(v_full.index(stage), 1)
        mbarrier.init(v_empty.index(stage), CONSUMERS)
    gl.warp_specialize(
        [
            (consume, (
                q_smem, k_ring, v_ring, q_full, q_empty, k_full, k_empty, v_full, v_empty, turns, pins, out_desc,
                0, seq_len, scale, tiles, HQ, HKV, D, BLOCK_N, STAGES, CAUSAL, ALTERNATE,
            )),
            (consume, (
                q_smem, k_ring, v_ring, q_full, q_empty, k_full, k_empty, v_full, v_empty, turns, pins, out_desc,
                1, seq_len, scale, tiles, HQ, HKV, D, BLOCK_N, STAGES, CAUSAL, ALTERNATE,
            )),
            (produce, (
                q_smem, k_ring, v_ring, q_full, q_empty, k_full, k_empty, v_full, v_empty, q_desc, k_desc, v_desc,
                seq_len, tiles, HQ, HKV, D, BLOCK_N, STAGES, CAUSAL,
            )),
        ],
        [4, 1],
        [240, 24],
    )  # fmt: skip


def custom_kernel(data):
    return launch(data, ALTERNATE=data[0].shape[1] < LONG)


def launch(data, ALTERNATE, BLOCK_N=128, STAGES=2):
    """What `custom_kernel` does, with or without turns. Raises NoDevice without a Hopper GPU."""
    q, k, v, config = data
    if q.device.type != "cuda" or torch.version.hip is not None or torch.cuda.get_device_capability(q.device)[0] != 9:
        raise NoDevice("gluon_hopper needs a Hopper GPU (sm_90): its instructions exist nowhere else")
    batch, seq_len, q_heads, head_dim = q.shape
    kv_heads = k.shape[2]
    out = torch.empty_like(q)

    def descriptor(x, rows):
        block = [1, rows, head_dim]
        layout = gl.NVMMASharedLayout.get_default_for(block, gl.bfloat16)
        return TensorDescriptor.from_tensor(x.view(batch, seq_len, -1), block, layout)

    tiles = batch * q_heads * -(-seq_len // (64 * 2))
    programs = torch.cuda.get_device_properties(q.device).multi_processor_count if ALTERNATE else tiles
    prefill[(min(tiles, programs),)](
        descriptor(q, 64), descriptor(k, BLOCK_N), descriptor(v, BLOCK_N), descriptor(out, 64),
        config["sm_scale"] * LOG2_E, seq_len, tiles,
        HQ=q_heads, HKV=kv_heads, D=head_dim, BLOCK_N=BLOCK_N, STAGES=STAGES, CAUSAL=config["causal"],
        ALTERNATE=ALTERNATE, num_warps=4,
    )  # fmt: skip
    return out
