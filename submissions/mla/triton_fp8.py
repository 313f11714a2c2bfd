"""MLA decode on the fp8 cache: split-KV flash decoding, keys widened to fp16 in registers.

Idea. The 16 query heads share one KV head, so a program holds all 16 queries and reads each token once for all of them;
the first 512 dims of a key tile are its value tile, so the tile is read once for both products. Each e4m3 value is an
fp16 value, so widening is exact, in both flavours (e4m3fn, and gfx942's e4m3fnuz): the kernel's type follows the
tensor's. The cache's one scale is applied to the scores and to the result, never to a key. The queries go to fp16, not
to fp8 as in the reference, which is the more exact of the two. A sequence is cut into splits of whole tiles, one
program a (sequence, split); a second kernel merges the splits by their log-sum-exp. With one split the first kernel
writes the output itself and the second is not launched.

Tiles. 16 heads x BLOCK_N = 32 tokens: 16 is the least M of a matrix instruction, so none of it is padding. The
accumulator, 16 x 512 float32, takes 32 KiB of registers; a key tile of 32 x 576 takes 18 KiB as fp8 and 36 KiB as fp16.

Bytes. 576 a token, and 64 KiB a (sequence, split) for the partial results. At 60 flops a byte memory bandwidth is the
limit, with the conversion to fp16 close behind; with few sequences latency and how evenly the splits fill the device.
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
def split_kv(
    q_ptr,  # (batch, HEADS, LATENT + ROPE) bf16
    kv_ptr,  # (total_kv, LATENT + ROPE) fp8, either flavour
    kv_scale_ptr,  # (1,) float32
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
    head = tl.arange(0, HEADS)
    latent = tl.arange(0, LATENT)
    rope = LATENT + tl.arange(0, ROPE)
    token = tl.arange(0, BLOCK_N)

    first = tl.load(kv_indptr + sequence).to(tl.int64)
    length = (tl.load(kv_indptr + sequence + 1) - first).to(tl.int32)
    span = tl.cdiv(tl.cdiv(length, splits), BLOCK_N) * BLOCK_N
    begin = split * span
    end = tl.minimum(begin + span, length)
    kv_ptr += first * DIM  # 64-bit once; offsets within a sequence fit in 32

    q_row = q_ptr + (sequence * HEADS + head)[:, None] * DIM
    q_latent = tl.load(q_row + latent[None, :]).to(tl.float16)
    q_rope = tl.load(q_row + rope[None, :]).to(tl.float16)
    kv_scale = tl.load(kv_scale_ptr)
    score_scale *= kv_scale
    peak = tl.full([HEADS], float("-inf"), tl.float32)
    total = tl.zeros([HEADS], tl.float32)
    acc = tl.zeros([HEADS, LATENT], tl.float32)
    for start in range(begin, end, BLOCK_N):
        valid = start + token < end
        kv_row = kv_ptr + (start + token)[:, None] * DIM
        k_latent = tl.load(kv_row + latent[None, :], mask=valid[:, None], other=0.0).to(tl.float16)
        k_rope = tl.load(kv_row + rope[None, :], mask=valid[:, None], other=0.0).to(tl.float16)
        score = tl.dot(q_rope, tl.trans(k_rope))
        score = tl.dot(q_latent, tl.trans(k_latent), score) * score_scale
        score = tl.where(valid[None, :], score, float("-inf"))
        new_peak = tl.maximum(peak, tl.max(score, 1))
        shrink = tl.exp2(peak - new_peak)
        weight = tl.exp2(score - new_peak[:, None])
        total = total * shrink + tl.sum(weight, 1)
        acc = tl.dot(weight.to(tl.float16), k_latent, acc * shrink[:, None])
        peak = new_peak

    # A split without tokens has total 0: zeros, and a log-sum-exp of -inf, which the merge gives weight 0.
    result = acc * tl.where(total > 0, kv_scale / total, 0.0)[:, None]
    row = (sequence * splits + split) * HEADS + head
    tl.store(out_ptr + row[:, None] * LATENT + latent[None, :], result.to(out_ptr.dtype.element_ty))
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
    kv, kv_scale = kv_data["fp8"]
    batch = q.shape[0]
    splits, head_block, options = plan(q.device, batch, config["kv_seq_len"])
    out = torch.empty(batch, HEADS, LATENT, dtype=torch.bfloat16, device=q.device)
    one_split = splits == 1
    partial = out if one_split else torch.empty(batch, splits, HEADS, LATENT, dtype=torch.float32, device=q.device)
    lse = torch.empty(batch, splits, HEADS, dtype=torch.float32, device=q.device)
    split_kv[(splits, batch)](
        q, kv, kv_scale, kv_indptr, partial, lse, config["sm_scale"] * LOG2_E, splits,
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
