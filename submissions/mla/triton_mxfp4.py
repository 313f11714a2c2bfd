"""MLA decode on the mxfp4 cache, dequantized inside the attention kernel (split-KV flash decoding).

Idea. The seed's strategy A: 4-bit keys go from memory to registers, become fp16 there and feed the matrix units; no
dequantized key is ever written to memory. The 16 query heads share one KV head, so a program holds all 16 queries and
reads each token once for all of them, and the latent part of a key tile is its value tile.

Decoding. A 16-bit word holds the codes of four neighbouring dims. Shifted so that a code's sign lands on fp16's sign
and its three other bits on the lowest exponent bits and the highest mantissa bit, a code reads as its value times
2^-14, E2M1's subnormal 0.5 included; one fp16 product with 2^14 times the block's scale finishes it. No table, no
branch.
Exact for E8M0 bytes 99 to 128, that is for blocks whose largest magnitude lies between 2^-26 and 14; unit-normal keys
have 125 to 127. The four dims of a word stay in four tiles: dim 4 w + j of every word in tile j, queries, keys and
accumulators alike, so nothing is ever interleaved; the store writes every fourth dim.

Tiles. 16 heads x BLOCK_N = 32 tokens x 4 tiles of 128 + 16 dims: 16 is the least M and K of a matrix instruction.
The accumulators, 16 x 512 float32, take 32 KiB of registers; a decoded key tile takes 36 KiB of shared memory.

Bytes. 306 a token, and 64 KiB a (sequence, split) for the partial results. At 114 flops a byte memory bandwidth would
be the limit, but decoding costs some five integer and fp16 operations a pair of values and comes close to it.
Not yet measured on a GPU.
"""

import torch
import triton
import triton.language as tl

HEADS, LATENT, ROPE = 16, 512, 64
BLOCK_N = 32
MAX_SPLITS = 64
LOG2_E = 1.4426950408889634


@triton.jit
def decode(words, scale, J: tl.constexpr):
    """Value of code J of each 16-bit word, in fp16; `scale` holds 2^14 times the block's scale."""
    code = (words >> (4 * J)).to(tl.int16)
    bits = ((code & 7) << 9) | ((code & 8) << 12)
    return bits.to(tl.int16).to(tl.float16, bitcast=True) * scale


@triton.jit
def block_scale(e8m0):
    """2^14 * 2^(e8m0 - 127) as fp16: the exponent field is e8m0 - 127 + 14 + 15, kept within 0 (zero) and 30."""
    exponent = tl.minimum(tl.maximum(e8m0.to(tl.int16) - 98, 0), 30)
    return (exponent << 10).to(tl.int16).to(tl.float16, bitcast=True)


@triton.jit
def split_kv(
    q_ptr,  # (batch, HEADS, LATENT + ROPE) bf16
    kv_ptr,  # (total_kv, (LATENT + ROPE) / 4) int16: four E2M1 codes each
    e8m0_ptr,  # (total_kv, (LATENT + ROPE) / 32) uint8
    kv_indptr,  # (batch + 1,) int32
    out_ptr,  # (batch, HEADS, LATENT) bf16 if there is one split, else (batch, splits, HEADS, LATENT) float32
    lse_ptr,  # (batch, splits, HEADS) float32, in log2; not written if there is one split
    score_scale,  # sm_scale * log2(e)
    splits,
    ONE_SPLIT: tl.constexpr,
    HEADS: tl.constexpr,
    LATENT: tl.constexpr,
    ROPE: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    split = tl.program_id(0)
    sequence = tl.program_id(1).to(tl.int64)
    DIM: tl.constexpr = LATENT + ROPE
    WORDS: tl.constexpr = DIM // 4
    BLOCKS: tl.constexpr = DIM // 32
    head = tl.arange(0, HEADS)
    latent = tl.arange(0, LATENT // 4)
    rope = LATENT // 4 + tl.arange(0, ROPE // 4)
    token = tl.arange(0, BLOCK_N)

    first = tl.load(kv_indptr + sequence).to(tl.int64)
    length = (tl.load(kv_indptr + sequence + 1) - first).to(tl.int32)
    span = tl.cdiv(tl.cdiv(length, splits), BLOCK_N) * BLOCK_N
    begin = split * span
    end = tl.minimum(begin + span, length)
    kv_ptr += first * WORDS  # 64-bit once; offsets within a sequence fit in 32
    e8m0_ptr += first * BLOCKS

    q_row = q_ptr + (sequence * HEADS + head)[:, None] * DIM
    q0 = tl.load(q_row + 4 * latent[None, :]).to(tl.float16)
    q1 = tl.load(q_row + 4 * latent[None, :] + 1).to(tl.float16)
    q2 = tl.load(q_row + 4 * latent[None, :] + 2).to(tl.float16)
    q3 = tl.load(q_row + 4 * latent[None, :] + 3).to(tl.float16)
    r0 = tl.load(q_row + 4 * rope[None, :]).to(tl.float16)
    r1 = tl.load(q_row + 4 * rope[None, :] + 1).to(tl.float16)
    r2 = tl.load(q_row + 4 * rope[None, :] + 2).to(tl.float16)
    r3 = tl.load(q_row + 4 * rope[None, :] + 3).to(tl.float16)
    peak = tl.full([HEADS], float("-inf"), tl.float32)
    total = tl.zeros([HEADS], tl.float32)
    acc0 = tl.zeros([HEADS, LATENT // 4], tl.float32)
    acc1 = tl.zeros([HEADS, LATENT // 4], tl.float32)
    acc2 = tl.zeros([HEADS, LATENT // 4], tl.float32)
    acc3 = tl.zeros([HEADS, LATENT // 4], tl.float32)
    for start in range(begin, end, BLOCK_N):
        valid = start + token < end
        kv_row = kv_ptr + (start + token)[:, None] * WORDS
        e8m0_row = e8m0_ptr + (start + token)[:, None] * BLOCKS
        words = tl.load(kv_row + latent[None, :], mask=valid[:, None], other=0)
        rope_words = tl.load(kv_row + rope[None, :], mask=valid[:, None], other=0)
        scale = block_scale(tl.load(e8m0_row + latent[None, :] // 8, mask=valid[:, None], other=0))
        rope_scale = block_scale(tl.load(e8m0_row + rope[None, :] // 8, mask=valid[:, None], other=0))
        k0 = decode(words, scale, 0)
        k1 = decode(words, scale, 1)
        k2 = decode(words, scale, 2)
        k3 = decode(words, scale, 3)
        score = tl.dot(r0, tl.trans(decode(rope_words, rope_scale, 0)))
        score = tl.dot(r1, tl.trans(decode(rope_words, rope_scale, 1)), score)
        score = tl.dot(r2, tl.trans(decode(rope_words, rope_scale, 2)), score)
        score = tl.dot(r3, tl.trans(decode(rope_words, rope_scale, 3)), score)
        score = tl.dot(q0, tl.trans(k0), score)
        score = tl.dot(q1, tl.trans(k1), score)
        score = tl.dot(q2, tl.trans(k2), score)
        score = tl.dot(q3, tl.trans(k3), score)
        score = tl.where(valid[None, :], score * score_scale, float("-inf"))
        new_peak = tl.maximum(peak, tl.max(score, 1))
        shrink = tl.exp2(peak - new_peak)
        weight = tl.exp2(score - new_peak[:, None])
        total = total * shrink + tl.sum(weight, 1)
        half = weight.to(tl.float16)
        acc0 = tl.dot(half, k0, acc0 * shrink[:, None])
        acc1 = tl.dot(half, k1, acc1 * shrink[:, None])
        acc2 = tl.dot(half, k2, acc2 * shrink[:, None])
        acc3 = tl.dot(half, k3, acc3 * shrink[:, None])
        peak = new_peak

    # A split without tokens has total 0: zeros, and a log-sum-exp of -inf, which the merge gives weight 0.
    norm = tl.where(total > 0, 1.0 / total, 0.0)[:, None]
    row = (sequence * splits + split) * HEADS + head
    out_row = out_ptr + row[:, None] * LATENT + 4 * latent[None, :]
    tl.store(out_row, (acc0 * norm).to(out_ptr.dtype.element_ty))
    tl.store(out_row + 1, (acc1 * norm).to(out_ptr.dtype.element_ty))
    tl.store(out_row + 2, (acc2 * norm).to(out_ptr.dtype.element_ty))
    tl.store(out_row + 3, (acc3 * norm).to(out_ptr.dtype.element_ty))
    if not ONE_SPLIT:
        tl.store(lse_ptr + row, tl.where(total > 0, peak + tl.log2(total), float("-inf")))


@triton.jit
def merge_splits(
    partial_ptr,  # (batch, splits, HEADS, LATENT) float32
    lse_ptr,  # (batch, splits, HEADS) float32, in log2
    out_ptr,  # (batch, HEADS, LATENT) bf16
    splits,
    HEADS: tl.constexpr,
    LATENT: tl.constexpr,
    HEAD_BLOCK: tl.constexpr,
    SPLIT_BLOCK: tl.constexpr,
):
    sequence = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * HEAD_BLOCK + tl.arange(0, HEAD_BLOCK)
    latent = tl.arange(0, LATENT)
    split = tl.arange(0, SPLIT_BLOCK)
    row = sequence * splits * HEADS + head
    lse = tl.load(lse_ptr + row[None, :] + split[:, None] * HEADS, mask=(split < splits)[:, None], other=float("-inf"))
    peak = tl.max(lse, 0)
    peak = tl.where(peak == float("-inf"), 0.0, peak)
    total = tl.sum(tl.exp2(lse - peak[None, :]), 0)
    acc = tl.zeros([HEAD_BLOCK, LATENT], tl.float32)
    for index in range(splits):
        weight = tl.exp2(tl.load(lse_ptr + row + index * HEADS) - peak)
        acc += weight[:, None] * tl.load(partial_ptr + (row + index * HEADS)[:, None] * LATENT + latent[None, :])
    acc *= tl.where(total > 0, 1.0 / total, 0.0)[:, None]
    tl.store(out_ptr + (sequence * HEADS + head)[:, None] * LATENT + latent[None, :], acc.to(out_ptr.dtype.element_ty))


def custom_kernel(data):
    q, kv_data, _, kv_indptr, config = data
    packed, e8m0 = kv_data["mxfp4"]
    batch = q.shape[0]
    splits, head_block, options = plan(q.device, batch, config["kv_seq_len"])
    out = torch.empty(batch, HEADS, LATENT, dtype=torch.bfloat16, device=q.device)
    one_split = splits == 1
    partial = out if one_split else torch.empty(batch, splits, HEADS, LATENT, dtype=torch.float32, device=q.device)
    lse = torch.empty(batch, splits, HEADS, dtype=torch.float32, device=q.device)
    split_kv[(splits, batch)](
        q, packed.view(torch.int16), e8m0, kv_indptr, partial, lse, config["sm_scale"] * LOG2_E, splits,
        ONE_SPLIT=one_split, HEADS=HEADS, LATENT=LATENT, ROPE=ROPE, BLOCK_N=BLOCK_N, **options,
    )  # fmt: skip
    if not one_split:
        merge_splits[(batch, HEADS // head_block)](
            partial, lse, out, splits,
            HEADS=HEADS, LATENT=LATENT, HEAD_BLOCK=head_block, SPLIT_BLOCK=triton.next_power_of_2(splits), num_warps=4,
        )  # fmt: skip
    return out


def plan(device, batch, longest):
    """Splits a sequence, heads a merging program, and launch options of `split_kv` for `device`.

    As many programs as are resident at once (by registers one a multiprocessor), so that they end together; at least a
    tile each. Eight warps keep sm_90 from spilling; gfx9, with 512 registers a thread, wants four. On a CPU, where
    programs are interpreted, as few as still take every path.
    """
    tiles = max(triton.cdiv(longest, BLOCK_N), 1)
    if device.type == "cpu":
        return min(max(4 // batch, 1), tiles), HEADS, {}
    programs = torch.cuda.get_device_properties(device).multi_processor_count
    options = {"num_warps": 4 if torch.version.hip else 8, "num_stages": 2}
    return min(max(programs // batch, 1), tiles, MAX_SPLITS), 1, options
