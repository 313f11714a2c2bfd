"""FlashAttention forward for Hopper in Gluon: a warp that loads, two warpgroups that attend, softmax beside products.

Idea
    After FlashAttention-3 (Shah et al., 2024). Hopper's matrix instructions run on their own while the warps that
    issued them do something else, and a copy unit (TMA) moves whole tiles. A program, one a multiprocessor, works
    through many tiles of queries. It is four partitions of warps:

        producer     one warp      asks TMA for queries, keys and values, as soon as their buffers are free
        consumers    two of four   64 queries each of every tile: S = Q K^T, softmax, O = O + P V
        saver        one warp      asks TMA to store what the consumers left in shared memory

        keys, values       rings of STAGES and V_STAGES tiles, with a barrier for each that is "full" (TMA's bytes), and
                           one a step for both that are "empty": the consumers have read the newer keys, older values
        queries            two tiles, each 64 rows a consumer; a tile's output goes through the memory of its queries

Steps
    A consumer issues the next S = Q K^T, then this O + P V, and computes the next softmax while the latter runs.
    What it waits for alone, the other consumer fills. The last product of a tile of queries runs beside the first
    scores of the next tile, so that nothing stands still between tiles either; there, once a tile, the consumers issue
    their products in a fixed order, or they come to do the same thing at the same time. A store of the
    softmax's sum, which never is (`pin`), keeps ptxas from moving the softmax behind the product that it is to run
    beside.

    Gluon has all warps of a consumer meet before an arrival, and after it before their next access to shared memory.
    So a step has one arrival: at its end, or with a third tile of values as soon as there are scores.

Tiles
    128 queries and 128 keys. A consumer's S (64 x 128) and O (64 x 128) are 64 float32 registers a thread each, P 32.
    Of shared memory, at D = 128: 64 KiB of queries, 32 KiB a tile of keys or values.

Forms
    Lengths and heads are arguments at run time. A new shape needs a new compilation only if D or the mask differs.

Order
    Keys from the last tile, the one on the diagonal or cut short, to the first: only the first step of a tile needs a
    mask. Heavy tiles (late in a causal sequence) first; every other round of tiles is dealt backwards, or where a
    program gets 62 tiles the first would have 3 % more work than the last. So it goes within a
    section: of as many pairs (sequence, KV head) as have SECTION_BYTES of keys and values, which stay in the L2 cache.

What limits it
    Sampled back to back, power. Of 128 x 128 scores the exponentials (16 a clock and multiprocessor) take half as long
    as the two products (4096 flops a clock), and maxima, scaling and conversion come on top: what is lost is where the
    two do not overlap, and, for short sequences, the diagonal's half-empty tiles. docs/kernels.md has what was
    measured.

Bytes
    A tile of 128 queries reads the keys and values before its end once, 4 D bytes a key: 128 flops a byte.

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
ROWS = gl.constexpr(64)  # queries a consumer: the M of a warpgroup's matrix instruction
CONSUMERS = gl.constexpr(2)
BLOCK_N = 128  # keys a tile
V_STAGES = 3
SECTION_BYTES = 8 << 20  # of the 60 MB of L2 a part: each half of the chip keeps copies of its own
thread_barrier = gl.thread_barrier if hasattr(gl, "thread_barrier") else gl.barrier  # its name since Triton 3.7


@gluon.jit
def first_softmax(scores, first_row, key_tiles, seq_len, scale, BLOCK_N: gl.constexpr, CAUSAL: gl.constexpr):
    """Peaks, weights and their sums of a tile of queries' first step, the only one with a mask."""
    layout: gl.constexpr = scores.type.layout
    key = (key_tiles - 1) * BLOCK_N + gl.arange(0, BLOCK_N, gl.SliceLayout(0, layout))
    if CAUSAL:
        last = gl.minimum(first_row + gl.arange(0, ROWS, gl.SliceLayout(1, layout)), seq_len - 1)
        visible = key[None, :] <= last[:, None]
    else:
        visible = (key < seq_len)[None, :]
    scores = gl.where(visible, scores, float("-inf"))
    peak = gl.max(scores, 1) * scale
    weights = gl.exp2(scores * scale - peak[:, None])
    return peak, weights, gl.sum(weights, 1)


@gluon.jit
def pin(x):
    """x, which has to be computed before what is asked for next: a store that never is depends on it."""
    return gl.inline_asm_elementwise(
        """
        {
            .reg .pred never;
            mov.b32 $0, $1;
            setp.eq.u32 never, $1, 0xffffdead;
            @never st.shared.u32 [$1], $1;
        }
        """,
        "=r,r",
        [x],
        dtype=gl.float32,
        is_pure=False,
        pack=1,
    )


@gluon.jit
def consume(
    q_smem, k_ring, v_ring, q_full, out_full, k_full, v_full, empty, order,
    consumer, seq_len, scale, tiles, section,
    HQ, HKV, D: gl.constexpr, BLOCK_N: gl.constexpr, STAGES: gl.constexpr,
    V_STAGES: gl.constexpr, CAUSAL: gl.constexpr,
):  # fmt: skip
    """One consumer's 64 queries of each tile. `step` counts its key tiles, `turn` its query tiles."""
    s_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    o_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D, 16])
    p_layout: gl.constexpr = gl.DotOperandLayout(0, o_layout, 2)
    pairs = pair_count(tiles, seq_len, HQ, HKV)
    zeros = gl.zeros([ROWS, BLOCK_N], gl.float32, s_layout)
    turns_due = turn_count(tiles)
    step = 0

    place_of_first = place(nth_tile(0), pairs, section, seq_len, HQ, HKV, BLOCK_N, CAUSAL)
    first_row = place_of_first[3] + consumer * ROWS
    key_tiles = place_of_first[4]
    mbarrier.wait(q_full.index(0), 0)
    mbarrier.wait(k_full.index(0), 0)
    keys = k_ring.index(0).reshape([BLOCK_N, D]).permute((1, 0))
    scores = warpgroup_mma(q_smem.index(consumer).reshape([ROWS, D]), keys, zeros, use_acc=False)
    thread_barrier()
    mbarrier.arrive(empty.index(0))
    peak, weights, total = first_softmax(scores, first_row, key_tiles, seq_len, scale, BLOCK_N, CAUSAL)
    p = gl.convert_layout(weights.to(gl.bfloat16), p_layout)

    for turn in range(turns_due):
        slot = turn & 1
        q = q_smem.index(slot * CONSUMERS + consumer).reshape([ROWS, D])
        out = gl.zeros([ROWS, D], gl.float32, o_layout)
        for _ in range(key_tiles - 1):
            v_stage = step % V_STAGES
            v_phase = step // V_STAGES & 1
            step += 1
            stage = step % STAGES
            mbarrier.wait(k_full.index(stage), step // STAGES & 1)
            keys = k_ring.index(stage).reshape([BLOCK_N, D]).permute((1, 0))
            scores_token = warpgroup_mma(q, keys, zeros, use_acc=False, is_async=True)
            mbarrier.wait(v_full.index(v_stage), v_phase)
            out_token = warpgroup_mma(p, v_ring.index(v_stage).reshape([BLOCK_N, D]), out, is_async=True)
            scores = warpgroup_mma_wait(1, deps=[scores_token])
            if V_STAGES > STAGES:
                thread_barrier()  # of all warps: they have read these keys, and the values of the step before
                mbarrier.arrive(empty.index(stage))

            raised = gl.maximum(peak, gl.max(scores, 1) * scale)
            weights = gl.exp2(scores * scale - raised[:, None])
            factor = gl.exp2(peak - raised)
            total = total * factor + gl.sum(weights, 1)
            total = pin(total)
            peak = raised
            # The new weights go through the wait too, or the compiler would move their computation behind it.
            next_p = gl.convert_layout(weights.to(gl.bfloat16), p_layout)
            out, _, p = warpgroup_mma_wait(0, deps=[out_token, p, next_p])
            if V_STAGES == STAGES:
                thread_barrier()  # of all warps: they have read these keys and values
                mbarrier.arrive(empty.index(stage))
            out = out * gl.convert_layout(factor, gl.SliceLayout(1, o_layout))[:, None]

        v_stage = step % V_STAGES
        v_phase = step // V_STAGES & 1
        # The first scores of the next tile, beside the last values of this one.
        more = turn + 1 < turns_due  # after the last tile these scores are of whatever lies there, and unused
        following = nth_tile(gl.minimum(turn + 1, turns_due - 1))
        place_of_next = place(following, pairs, section, seq_len, HQ, HKV, BLOCK_N, CAUSAL)
        first_row = place_of_next[3] + consumer * ROWS
        key_tiles = place_of_next[4]
        mbarrier.wait(q_full.index(slot ^ 1), (turn + 1) // 2 & 1, pred=more)
        next_q = q_smem.index((slot ^ 1) * CONSUMERS + consumer).reshape([ROWS, D])
        step += 1
        stage = step % STAGES
        mbarrier.wait(k_full.index(stage), step // STAGES & 1, pred=more)
        mbarrier.wait(order.index(consumer), (turn + 1 + consumer) & 1)
        keys = k_ring.index(stage).reshape([BLOCK_N, D]).permute((1, 0))
        scores_token = warpgroup_mma(next_q, keys, zeros, use_acc=False, is_async=True)
        mbarrier.wait(v_full.index(v_stage), v_phase)
        out_token = warpgroup_mma(p, v_ring.index(v_stage).reshape([BLOCK_N, D]), out, is_async=True)
        mbarrier.arrive(order.index(1 - consumer))
        scores = warpgroup_mma_wait(1, deps=[scores_token])
        if V_STAGES > STAGES:
            thread_barrier()
            mbarrier.arrive(empty.index(stage))
        peak, weights, next_total = first_softmax(scores, first_row, key_tiles, seq_len, scale, BLOCK_N, CAUSAL)
        next_total = pin(next_total)
        next_p = gl.convert_layout(weights.to(gl.bfloat16), p_layout)
        out, _used, p = warpgroup_mma_wait(0, deps=[out_token, p, next_p])
        if V_STAGES == STAGES:
            thread_barrier()
            mbarrier.arrive(empty.index(stage))

        out = out * gl.convert_layout(1.0 / total, gl.SliceLayout(1, o_layout))[:, None]
        q.store(out.to(gl.bfloat16))  # all of this consumer's products with these queries are over
        fence_async_shared()
        thread_barrier()
        mbarrier.arrive(out_full.index(slot))
        total = next_total


@gluon.jit
def save(
    q_smem, q_empty, out_full, out_desc, seq_len, tiles, section,
    HQ, HKV, D: gl.constexpr, BLOCK_N: gl.constexpr, CAUSAL: gl.constexpr,
):  # fmt: skip
    pairs = pair_count(tiles, seq_len, HQ, HKV)
    for turn in range(turn_count(tiles)):
        batch, head, _, first_row, _ = place(nth_tile(turn), pairs, section, seq_len, HQ, HKV, BLOCK_N, CAUSAL)
        slot = turn & 1
        mbarrier.wait(out_full.index(slot), turn // 2 & 1)
        tma.async_copy_shared_to_global(out_desc, [batch, first_row, head * D], q_smem.index(slot * CONSUMERS))
        tma.async_copy_shared_to_global(
            out_desc, [batch, first_row + ROWS, head * D], q_smem.index(slot * CONSUMERS + 1)
        )
        tma.store_wait(0)
        mbarrier.arrive(q_empty.index(slot))


@gluon.jit
def produce(
    q_smem, k_ring, v_ring, q_full, q_empty, k_full, v_full, empty, q_desc, k_desc, v_desc, seq_len,
    tiles, section, HQ, HKV, D: gl.constexpr, BLOCK_N: gl.constexpr,
    STAGES: gl.constexpr, V_STAGES: gl.constexpr, CAUSAL: gl.constexpr,
):  # fmt: skip
    pairs = pair_count(tiles, seq_len, HQ, HKV)
    step = 0
    for turn in range(turn_count(tiles)):
        batch, head, kv_head, first_row, key_tiles = place(
            nth_tile(turn), pairs, section, seq_len, HQ, HKV, BLOCK_N, CAUSAL
        )
        slot = turn & 1
        full = q_full.index(slot)
        mbarrier.wait(q_empty.index(slot), turn // 2 & 1 ^ 1)
        mbarrier.expect(full, CONSUMERS * q_desc.block_type.nbytes)
        tma.async_copy_global_to_shared(q_desc, [batch, first_row, head * D], full, q_smem.index(slot * CONSUMERS))
        tma.async_copy_global_to_shared(
            q_desc, [batch, first_row + ROWS, head * D], full, q_smem.index(slot * CONSUMERS + 1)
        )
        for done in range(key_tiles):
            key = (key_tiles - 1 - done) * BLOCK_N
            stage = step % STAGES
            mbarrier.expect(k_full.index(stage), k_desc.block_type.nbytes)
            tma.async_copy_global_to_shared(k_desc, [batch, key, kv_head * D], k_full.index(stage), k_ring.index(stage))
            # Until these values' place is free, and the next keys'.
            before = step + STAGES - 1
            mbarrier.wait(empty.index(before % STAGES), before // STAGES & 1 ^ 1, pred=step > 0)
            stage = step % V_STAGES
            mbarrier.expect(v_full.index(stage), v_desc.block_type.nbytes)
            tma.async_copy_global_to_shared(v_desc, [batch, key, kv_head * D], v_full.index(stage), v_ring.index(stage))
            step += 1


@gluon.jit
def turn_count(tiles):
    """How many tiles of queries this program gets."""
    rounds = tiles // gl.num_programs(0)
    return rounds + (nth_tile(rounds) < tiles).to(gl.int32)


@gluon.jit
def nth_tile(turn):
    """Its tile in a round: every other round deals backwards, or the first programs would always get the heavier."""
    ahead = gl.program_id(0)
    back = gl.num_programs(0) - 1 - ahead
    return turn * gl.num_programs(0) + gl.where(turn % 2 == 0, ahead, back)


@gluon.jit
def pair_count(tiles, seq_len, HQ, HKV):
    """Of a sequence and a KV head."""
    return tiles // (gl.cdiv(seq_len, CONSUMERS * ROWS) * (HQ // HKV))


@gluon.jit
def place(
    tile, pairs, section, seq_len, HQ, HKV, BLOCK_N: gl.constexpr, CAUSAL: gl.constexpr
):  # fmt: skip
    """Where the work of one tile of queries lies: batch, head, KV head, first query, tiles of keys."""
    group = HQ // HKV
    q_tiles = gl.cdiv(seq_len, CONSUMERS * ROWS)
    tiles_of_section = section * group * q_tiles
    first_pair = tile // tiles_of_section * section
    heads = gl.minimum(section, pairs - first_pair) * group  # the last section may have fewer
    x = tile % tiles_of_section
    q_tile = q_tiles - 1 - x // heads
    pair = first_pair + x % heads // group
    kv_head = pair % HKV
    first_row = q_tile * (CONSUMERS * ROWS)
    keys = seq_len
    if CAUSAL:
        keys = gl.minimum(first_row + CONSUMERS * ROWS, seq_len)
    return pair // HKV, kv_head * group + x % heads % group, kv_head, first_row, gl.cdiv(keys, BLOCK_N)


@gluon.jit(do_not_specialize=["seq_len", "tiles", "section", "HQ", "HKV"])
def prefill(
    q_desc, k_desc, v_desc, out_desc, scale, seq_len, tiles, section,
    HQ, HKV, D: gl.constexpr, BLOCK_N: gl.constexpr, STAGES: gl.constexpr,
    V_STAGES: gl.constexpr, CAUSAL: gl.constexpr,
):  # fmt: skip
    q_smem = gl.allocate_shared_memory(gl.bfloat16, [2 * CONSUMERS, 1, ROWS, D], q_desc.layout)
    k_ring = gl.allocate_shared_memory(gl.bfloat16, [STAGES, 1, BLOCK_N, D], k_desc.layout)
    v_ring = gl.allocate_shared_memory(gl.bfloat16, [V_STAGES, 1, BLOCK_N, D], v_desc.layout)
    q_full = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    q_empty = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    out_full = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    k_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    v_full = gl.allocate_shared_memory(gl.int64, [V_STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    order = gl.allocate_shared_memory(gl.int64, [CONSUMERS, 1], mbarrier.MBarrierLayout())
    for each in gl.static_range(2):
        mbarrier.init(order.index(each), 1)
        mbarrier.init(q_full.index(each), 1)
        mbarrier.init(q_empty.index(each), 1)
        mbarrier.init(out_full.index(each), CONSUMERS)
    for stage in gl.static_range(STAGES):
        mbarrier.init(k_full.index(stage), 1)
        mbarrier.init(empty.index(stage), CONSUMERS)
    for stage in gl.static_range(V_STAGES):
        mbarrier.init(v_full.index(stage), 1)
    gl.warp_specialize(
        [
            (consume, (
                q_smem, k_ring, v_ring, q_full, out_full, k_full, v_full, empty, order,
                0, seq_len, scale, tiles, section, HQ, HKV, D, BLOCK_N, STAGES, V_STAGES, CAUSAL,
            )),
            (consume, (
                q_smem, k_ring, v_ring, q_full, out_full, k_full, v_full, empty, order,
                1, seq_len, scale, tiles, section, HQ, HKV, D, BLOCK_N, STAGES, V_STAGES, CAUSAL,
            )),
            (produce, (
                q_smem, k_ring, v_ring, q_full, q_empty, k_full, v_full, empty, q_desc, k_desc, v_desc,
                seq_len, tiles, section, HQ, HKV, D, BLOCK_N, STAGES, V_STAGES, CAUSAL,
            )),
            (save, (q_smem, q_empty, out_full, out_desc, seq_len, tiles, section, HQ, HKV, D, BLOCK_N, CAUSAL)),
        ],
        [4, 1, 1],
        [240, 24, 24],
    )  # fmt: skip


def custom_kernel(data):
    return launch(data)


def launch(data, v_stages=V_STAGES, section_bytes=SECTION_BYTES):
    """What `custom_kernel` does, with other choices than its own. Raises NoDevice without a Hopper GPU.

    v_stages: of the ring of values, 2 or 3. section_bytes: of the keys and values that are worked through together.
    """
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
    section = min(max(section_bytes // (seq_len * head_dim * 4), 1), batch * kv_heads)
    programs = torch.cuda.get_device_properties(q.device).multi_processor_count
    prefill[(min(tiles, programs),)](
        descriptor(q, 64), descriptor(k, BLOCK_N), descriptor(v, BLOCK_N), descriptor(out, 64),
        config["sm_scale"] * LOG2_E, seq_len, tiles, section,
        HQ=q_heads, HKV=kv_heads, D=head_dim, BLOCK_N=BLOCK_N, STAGES=2, V_STAGES=v_stages,
        CAUSAL=config["causal"], num_warps=4,
    )  # fmt: skip
    return out
