"""FlashAttention forward in Triton: one program a tile of queries of one head, exact online softmax, scores in log2.

Idea
    A program holds BLOCK_M queries and its float32 accumulator in registers and walks over the keys BLOCK_N at a time:
    S = Q K^T, running maximum, P = exp2(S - max), O = O * exp2(old - new) + P V. The accumulator is rescaled on every
    tile, whatever the maximum does. Tiles that every query of the program sees whole go through a loop without masks;
    then come the tiles on the diagonal, or the one that N cuts short.

Order of the programs
    Heads run fastest and tiles of queries slowest, the last tile first: a causal tile's work grows with its position,
    so the heavy ones start while there is room and the light ones fill the gaps at the end. Neighbouring programs take
    heads of different KV heads, head = (x % Hkv) * G + x // Hkv. Chips that deal programs out to their dies in turn
    (8 on MI300X and MI355X) then keep the queries of one KV head, where Hkv is 8, on one die and its keys in one L2.
    On one die that order makes all KV heads' keys pass through the L2 at once: from 8192 keys on, Hopper takes the
    heads as they come, so that the G programs that share keys run together.

Tiles
    Per step a program reads BLOCK_N keys and values, 4 D BLOCK_N bytes, and does 4 D BLOCK_M BLOCK_N flops: BLOCK_M
    flops a byte. 128 queries ask 7.7 TB/s of the L2 for 990 TFLOP/s, and of HBM, where a KV head's G programs go along
    together, a G-th of that. The registers bound BLOCK_M and BLOCK_N: O (BLOCK_M x D), S and P (BLOCK_M x BLOCK_N) are
    spread over the program's threads. The shared memory bounds BLOCK_N times the pipeline's stages.
    On Hopper K and V come through TMA, 128 x 64 in two stages, so that two programs fit a multiprocessor and one's
    softmax runs beside the other's products: of 4 warps each for long sequences; of 8 warps held to 128 registers a
    thread for short ones.

What limits it
    Matrix cores wait for the softmax between two products: within a program nothing overlaps one tile's exponentials
    with the next one's products, as FlashAttention-3 and HipKittens do by hand; only a second program does. On a chip
    without asynchronous copies the loads of K and V wait too. docs/kernels.md has what was measured.
"""

import math

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

LOG2_E = math.log2(math.e)
LONG = 8192  # keys, from which on Hopper takes another order and other tiles


@triton.jit
def _attend_tiles(
    out, total, peak, q, k_rows, v_rows, batch, kv_head, rows, start, stop, seq_len, scale,
    KV_ROW, BLOCK_N: tl.constexpr, D: tl.constexpr, CAUSAL: tl.constexpr, MASKED: tl.constexpr, TMA: tl.constexpr,
):  # fmt: skip
    """Add the keys start .. stop - 1 to a program's softmax, whole tiles at a time.

    k_rows, v_rows: where the KV head's first key and value lie, or with TMA descriptors of all of K and V. rows: the
    queries' positions. scale: 1 / sqrt(D) in log2 units, in which `peak` is too.
    """
    in_tile = tl.arange(0, BLOCK_N)
    offsets = in_tile[:, None] * KV_ROW + tl.arange(0, D)[None, :]
    for first in range(start, stop, BLOCK_N):
        keys = first + in_tile
        tile = tl.cast(first, tl.int64) * KV_ROW
        exists = (keys < seq_len)[:, None]
        if TMA:
            k = k_rows.load([batch, first, kv_head * D]).reshape([BLOCK_N, D])
        elif MASKED:
            k = tl.load(k_rows + tile + offsets, mask=exists, other=0.0)
        else:
            k = tl.load(k_rows + tile + offsets)
        scores = tl.dot(q, tl.trans(k))
        if MASKED:
            visible = (keys < seq_len)[None, :]
            if CAUSAL:
                visible = visible & (keys[None, :] <= rows[:, None])
            scores = tl.where(visible, scores, float("-inf"))
        # Scaling (by a positive number) after the maximum leaves one fused multiply-add a score.
        raised = tl.maximum(peak, tl.max(scores, 1) * scale)
        weights = tl.exp2(scores * scale - raised[:, None])
        factor = tl.exp2(peak - raised)
        total = total * factor + tl.sum(weights, 1)
        if TMA:
            v = v_rows.load([batch, first, kv_head * D]).reshape([BLOCK_N, D])
        elif MASKED:
            v = tl.load(v_rows + tile + offsets, mask=exists, other=0.0)
        else:
            v = tl.load(v_rows + tile + offsets)
        out = tl.dot(weights.to(v.dtype), v, out * factor[:, None])
        peak = raised
    return out, total, peak


@triton.jit(do_not_specialize=["seq_len", "HQ", "HKV"])
def _prefill(
    Q, K, V, Out, scale, seq_len, HQ, HKV, D: tl.constexpr, CAUSAL: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, TMA: tl.constexpr, GROUPED: tl.constexpr,
):  # fmt: skip
    """Grid (B * HQ, tiles of queries). BLOCK_M is a multiple of BLOCK_N. GROUPED: neighbours share a KV head.

    The length and the heads are run-time values, so that one compiled kernel serves any number of them.
    """
    batch = tl.program_id(0) // HQ
    x = tl.program_id(0) % HQ
    if GROUPED:
        head = x
        kv_head = x // (HQ // HKV)
    else:
        kv_head = x % HKV
        head = kv_head * (HQ // HKV) + x // HKV
    first_row = (tl.num_programs(1) - 1 - tl.program_id(1)) * BLOCK_M

    rows = first_row + tl.arange(0, BLOCK_M)
    exists = (rows < seq_len)[:, None]
    offsets = tl.arange(0, BLOCK_M)[:, None] * (HQ * D) + tl.arange(0, D)[None, :]
    # A tensor may pass 2^31 elements, and so the start of a tile; within a tile offsets are small.
    tokens = batch.to(tl.int64) * seq_len
    q_tile = (tokens + first_row) * (HQ * D) + head * D
    q = tl.load(Q + q_tile + offsets, mask=exists, other=0.0)
    if TMA:
        k_rows = K
        v_rows = V
    else:
        k_rows = K + tokens * (HKV * D) + kv_head * D
        v_rows = V + tokens * (HKV * D) + kv_head * D

    out = tl.zeros([BLOCK_M, D], tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    peak = tl.full([BLOCK_M], float("-inf"), tl.float32)
    if CAUSAL:
        whole = first_row
        stop = tl.minimum(first_row + BLOCK_M, seq_len)
    else:
        whole = seq_len // BLOCK_N * BLOCK_N
        stop = seq_len
    # Key 0 is in the first tile and visible to every row: `peak` is finite from then on.
    out, total, peak = _attend_tiles(
        out, total, peak, q, k_rows, v_rows, batch, kv_head, rows, 0, whole, seq_len, scale,
        HKV * D, BLOCK_N, D, CAUSAL, False, TMA,
    )  # fmt: skip
    out, total, peak = _attend_tiles(
        out, total, peak, q, k_rows, v_rows, batch, kv_head, rows, whole, stop, seq_len, scale,
        HKV * D, BLOCK_N, D, CAUSAL, True, TMA,
    )  # fmt: skip
    tl.store(Out + q_tile + offsets, (out / total[:, None]).to(Out.dtype.element_ty), mask=exists)


def _tiles(seq_len, head_dim, on_gpu):
    """Tile sizes and compiler options for the chip that is here: the largest tiles whose registers do not spill. On
    Hopper those for long sequences spill, and are faster all the same."""
    if not on_gpu:
        return {"BLOCK_M": 64, "BLOCK_N": 64}
    target = triton.runtime.driver.active.get_current_target()
    wide = head_dim > 64
    if target.backend == "cuda":
        if target.arch < 90:
            return {"BLOCK_M": 128, "BLOCK_N": 64, "num_warps": 8, "num_stages": 2}
        hopper = {"BLOCK_M": 128, "BLOCK_N": 64, "num_stages": 2, "TMA": True}
        if seq_len < LONG:
            return hopper | {"num_warps": 8, "maxnreg": 128}
        return hopper | {"num_warps": 4, "GROUPED": True}
    if target.arch.startswith("gfx9"):
        short = wide and target.arch != "gfx950"
        return {"BLOCK_M": 256, "BLOCK_N": 32 if short else 64, "num_warps": 8, "num_stages": 2, "waves_per_eu": 2}
    return {"BLOCK_M": 64 if wide else 128, "BLOCK_N": 32, "num_warps": 8, "num_stages": 1}


def custom_kernel(data):
    q = data[0]
    return launch(data, **_tiles(q.shape[1], q.shape[3], q.is_cuda))


def launch(data, BLOCK_M, BLOCK_N, TMA=False, GROUPED=False, **options):
    """What `custom_kernel` does, with these tiles, order and compiler options."""
    q, k, v, config = data
    out = torch.empty_like(q)
    batch, seq_len, q_heads, head_dim = q.shape
    kv_heads = k.shape[2]
    grid = (batch * q_heads, triton.cdiv(seq_len, BLOCK_M))
    if TMA:
        k, v = (
            TensorDescriptor.from_tensor(x.view(batch, seq_len, kv_heads * head_dim), [1, BLOCK_N, head_dim])
            for x in (k, v)
        )
    _prefill[grid](
        q, k, v, out, config["sm_scale"] * LOG2_E, seq_len, q_heads, kv_heads,
        D=head_dim, CAUSAL=config["causal"], BLOCK_M=BLOCK_M, BLOCK_N=BLOCK_N, TMA=TMA, GROUPED=GROUPED, **options,
    )  # fmt: skip
    return out
