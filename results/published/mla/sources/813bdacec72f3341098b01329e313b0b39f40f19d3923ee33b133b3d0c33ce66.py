"""MLA decode on the mxfp4 cache, dequantized inside the attention kernel (split-KV flash decoding).

Idea. The seed's strategy A: 4-bit keys go from memory to registers, become fp16 there and feed the matrix units; no
dequantized key is ever written to memory. The 16 query heads share one KV head, so a program holds all 16 queries and
reads each token once for all of them, and the latent part of a key tile is its value tile. Scores and output are held
transposed, [tokens, heads] and [dims, heads]: tokens and dims are the M of the matrix instructions, the 16 heads N.

Decoding. A 32-bit word holds the codes of eight neighbouring dims, and codes I and I + 4 are decoded together, one in
each half. Shifted so that a code's sign lands on fp16's sign and its three other bits on the lowest exponent bits and
the highest mantissa bit, a code reads as its value times 2^-14, E2M1's subnormal 0.5 included; one fp16 product with
2^14 times the block's scale finishes it. No table, no branch. Exact for E8M0 bytes 99 to 128, that is for blocks whose
largest magnitude lies between 2^-26 and 14; unit-normal keys have 125 to 127.

Dims. Nothing is interleaved: for the scores, codes I and I + 4 of all words are one operand of 128 dims, and queries
are loaded in that order; for the output, code I of all words is one of eight tiles of 64 dims with an accumulator of
its own, and the store writes every eighth dim.

Tiles. 64 tokens, the M of Hopper's warpgroup instructions, two stages, two programs a multiprocessor. 32 tokens are
used nowhere: they gave wrong results on an H200 with Triton 3.6.0 (docs/kernels-tried.md).

Bytes. 306 a token, and 64 KiB a (sequence, split) for the partial results. At 114 flops a byte memory bandwidth would
be the limit, but decoding is: 2738 instructions a warp and tile, two and a half times what the fp8 kernel issues for
nearly twice the bytes, so that kernel is the faster one on an H200. docs/kernels.md has what was measured.
"""

import torch
import triton
import triton.language as tl

HEADS, LATENT, ROPE = 16, 512, 64
PER_MULTIPROCESSOR = 2
MAX_SPLITS = 64
MERGE_ELEMENTS = 4096  # of all splits together, a program
LOG2_E = 1.4426950408889634


@triton.jit
def decode(words, I: tl.constexpr):
    """Codes I and I + 4 of each 32-bit word, in its low and its high half: fp16 bits of 2^-14 of their value."""
    sign = (words << (12 - 4 * I)) & -2147450880  # 0x80008000
    if I < 3:
        magnitude = (words << (9 - 4 * I)) & 0x0E000E00
    else:
        magnitude = (words >> 3) & 0x0E000E00
    return sign | magnitude


@triton.jit
def half(bits, scale, P: tl.constexpr, N: tl.constexpr, W: tl.constexpr):
    """The low (P = 0) or high halves of `[N, W / 4, 4]` words, scaled: `[N, W]` fp16."""
    if P == 1:
        bits = bits >> 16
    value = bits.to(tl.int16).to(tl.float16, bitcast=True) * scale[:, :, None]
    return tl.reshape(value, [N, W])


@triton.jit
def both(bits, scale, N: tl.constexpr, W: tl.constexpr):
    """Low and high halves of `[N, W / 4, 4]` words side by side, scaled: `[N, 2 W]` fp16."""
    low = bits.to(tl.int16).to(tl.float16, bitcast=True)
    high = (bits >> 16).to(tl.int16).to(tl.float16, bitcast=True)
    return tl.reshape(tl.join(low, high) * scale[:, :, None, None], [N, 2 * W])


@triton.jit
def block_scale(e8m0):
    """2^14 * 2^(e8m0 - 127) as fp16: the exponent field is e8m0 - 127 + 14 + 15, kept within 0 (zero) and 30."""
    exponent = tl.minimum(tl.maximum(e8m0.to(tl.int16) - 98, 0), 30)
    return (exponent << 10).to(tl.int16).to(tl.float16, bitcast=True)


@triton.jit
def split_kv(
    q_ptr,  # (batch, HEADS, LATENT + ROPE) bf16
    kv_ptr,  # (total_kv, (LATENT + ROPE) / 8) int32: eight E2M1 codes each
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
    DEPENDENT: tl.constexpr,
):
    if DEPENDENT:
        # The merge may take its place on the device now: it waits there for this kernel's end.
        tl.extra.cuda.gdc_launch_dependents()
    split = tl.program_id(0)
    sequence = tl.program_id(1).to(tl.int64)
    DIM: tl.constexpr = LATENT + ROPE
    WORDS: tl.constexpr = LATENT // 8
    ROPE_WORDS: tl.constexpr = ROPE // 8
    BLOCKS: tl.constexpr = DIM // 32
    head = tl.arange(0, HEADS)
    token = tl.arange(0, BLOCK_N)
    block = tl.arange(0, LATENT // 32)
    rope_block = tl.arange(0, ROPE // 32)
    word = block[:, None] * 4 + tl.arange(0, 4)[None, :]
    rope_word = WORDS + rope_block[:, None] * 4 + tl.arange(0, 4)[None, :]

    first = tl.load(kv_indptr + sequence).to(tl.int64)
    length = (tl.load(kv_indptr + sequence + 1) - first).to(tl.int32)
    span = tl.cdiv(tl.cdiv(length, splits), BLOCK_N) * BLOCK_N
    begin = split * span
    end = tl.minimum(begin + span, length)
    kv_ptr += first * (DIM // 8)  # 64-bit once; offsets within a sequence fit in 32
    e8m0_ptr += first * BLOCKS

    q_row = q_ptr + (sequence * HEADS + head)[None, :] * DIM
    pair = tl.arange(0, ROPE_WORDS * 2)[:, None]
    q_rope = q_row + LATENT + pair // 2 * 8 + pair % 2 * 4
    r0 = tl.load(q_rope).to(tl.float16)
    r1 = tl.load(q_rope + 1).to(tl.float16)
    r2 = tl.load(q_rope + 2).to(tl.float16)
    r3 = tl.load(q_rope + 3).to(tl.float16)
    pair = tl.arange(0, WORDS * 2)[:, None]
    q_pair = q_row + pair // 2 * 8 + pair % 2 * 4
    q0 = tl.load(q_pair).to(tl.float16)
    q1 = tl.load(q_pair + 1).to(tl.float16)
    q2 = tl.load(q_pair + 2).to(tl.float16)
    q3 = tl.load(q_pair + 3).to(tl.float16)

    peak = tl.full([HEADS], float("-inf"), tl.float32)
    total = tl.zeros([HEADS], tl.float32)
    acc0 = tl.zeros([WORDS, HEADS], tl.float32)
    acc1 = tl.zeros([WORDS, HEADS], tl.float32)
    acc2 = tl.zeros([WORDS, HEADS], tl.float32)
    acc3 = tl.zeros([WORDS, HEADS], tl.float32)
    acc4 = tl.zeros([WORDS, HEADS], tl.float32)
    acc5 = tl.zeros([WORDS, HEADS], tl.float32)
    acc6 = tl.zeros([WORDS, HEADS], tl.float32)
    acc7 = tl.zeros([WORDS, HEADS], tl.float32)
    for start in range(begin, end, BLOCK_N):
        valid = start + token < end
        row = kv_ptr + (start + token)[:, None, None] * (DIM // 8)
        e8m0_row = e8m0_ptr + (start + token)[:, None] * BLOCKS
        words = tl.load(row + word[None, :, :], mask=valid[:, None, None], other=0)
        rope_words = tl.load(row + rope_word[None, :, :], mask=valid[:, None, None], other=0)
        scale = block_scale(tl.load(e8m0_row + block[None, :], mask=valid[:, None], other=0))
        rope_scale = block_scale(tl.load(e8m0_row + LATENT // 32 + rope_block[None, :], mask=valid[:, None], other=0))
        score = tl.dot(both(decode(rope_words, 0), rope_scale, BLOCK_N, ROPE_WORDS), r0)
        score = tl.dot(both(decode(rope_words, 1), rope_scale, BLOCK_N, ROPE_WORDS), r1, score)
        score = tl.dot(both(decode(rope_words, 2), rope_scale, BLOCK_N, ROPE_WORDS), r2, score)
        score = tl.dot(both(decode(rope_words, 3), rope_scale, BLOCK_N, ROPE_WORDS), r3, score)
        k0 = half(decode(words, 0), scale, 0, BLOCK_N, WORDS)
        k1 = half(decode(words, 1), scale, 0, BLOCK_N, WORDS)
        k2 = half(decode(words, 2), scale, 0, BLOCK_N, WORDS)
        k3 = half(decode(words, 3), scale, 0, BLOCK_N, WORDS)
        k4 = half(decode(words, 0), scale, 1, BLOCK_N, WORDS)
        k5 = half(decode(words, 1), scale, 1, BLOCK_N, WORDS)
        k6 = half(decode(words, 2), scale, 1, BLOCK_N, WORDS)
        k7 = half(decode(words, 3), scale, 1, BLOCK_N, WORDS)
        score = tl.dot(both(decode(words, 0), scale, BLOCK_N, WORDS), q0, score)
        score = tl.dot(both(decode(words, 1), scale, BLOCK_N, WORDS), q1, score)
        score = tl.dot(both(decode(words, 2), scale, BLOCK_N, WORDS), q2, score)
        score = tl.dot(both(decode(words, 3), scale, BLOCK_N, WORDS), q3, score)
        score = tl.where(valid[:, None], score * score_scale, float("-inf"))
        new_peak = tl.maximum(peak, tl.max(score, 0))
        shrink = tl.exp2(peak - new_peak)
        weight = tl.exp2(score - new_peak[None, :])
        total = total * shrink + tl.sum(weight, 0)
        weight = weight.to(tl.float16)
        shrink = shrink[None, :]
        acc0 = tl.dot(tl.trans(k0), weight, acc0 * shrink)
        acc1 = tl.dot(tl.trans(k1), weight, acc1 * shrink)
        acc2 = tl.dot(tl.trans(k2), weight, acc2 * shrink)
        acc3 = tl.dot(tl.trans(k3), weight, acc3 * shrink)
        acc4 = tl.dot(tl.trans(k4), weight, acc4 * shrink)
        acc5 = tl.dot(tl.trans(k5), weight, acc5 * shrink)
        acc6 = tl.dot(tl.trans(k6), weight, acc6 * shrink)
        acc7 = tl.dot(tl.trans(k7), weight, acc7 * shrink)
        peak = new_peak

    # A split without tokens has total 0: zeros, and a log-sum-exp of -inf, which the merge gives weight 0.
    norm = tl.where(total > 0, 1.0 / total, 0.0)[None, :]
    lse_row = (sequence * splits + split) * HEADS + head
    out_row = out_ptr + lse_row[None, :] * LATENT + tl.arange(0, WORDS)[:, None] * 8
    tl.store(out_row, (acc0 * norm).to(out_ptr.dtype.element_ty))
    tl.store(out_row + 1, (acc1 * norm).to(out_ptr.dtype.element_ty))
    tl.store(out_row + 2, (acc2 * norm).to(out_ptr.dtype.element_ty))
    tl.store(out_row + 3, (acc3 * norm).to(out_ptr.dtype.element_ty))
    tl.store(out_row + 4, (acc4 * norm).to(out_ptr.dtype.element_ty))
    tl.store(out_row + 5, (acc5 * norm).to(out_ptr.dtype.element_ty))
    tl.store(out_row + 6, (acc6 * norm).to(out_ptr.dtype.element_ty))
    tl.store(out_row + 7, (acc7 * norm).to(out_ptr.dtype.element_ty))
    if not ONE_SPLIT:
        tl.store(lse_ptr + lse_row, tl.where(total > 0, peak + tl.log2(total), float("-inf")))


@triton.jit
def merge_splits(
    partial_ptr,  # (batch, splits, HEADS, LATENT) float32
    lse_ptr,  # (batch, splits, HEADS) float32, in log2
    out_ptr,  # (batch, HEADS, LATENT) bf16
    splits,
    HEADS: tl.constexpr,
    LATENT: tl.constexpr,
    DIMS: tl.constexpr,  # of one head that a program merges
    SPLITS: tl.constexpr,  # splits, rounded up to a power of two
    DEPENDENT: tl.constexpr,
):
    if DEPENDENT:
        tl.extra.cuda.gdc_wait()
    sequence = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * DIMS // LATENT
    dim = tl.program_id(1) * DIMS % LATENT + tl.arange(0, DIMS)
    split = tl.arange(0, SPLITS)
    row = (sequence * splits + split) * HEADS + head
    exists = split < splits
    lse = tl.load(lse_ptr + row, mask=exists, other=float("-inf"))
    partial = tl.load(partial_ptr + row[:, None] * LATENT + dim[None, :], mask=exists[:, None], other=0.0)
    peak = tl.max(lse, 0)
    weight = tl.exp2(lse - tl.where(peak == float("-inf"), 0.0, peak))
    total = tl.sum(weight, 0)
    merged = tl.sum(partial * weight[:, None], 0) * tl.where(total > 0, 1.0 / total, 0.0)
    tl.store(out_ptr + (sequence * HEADS + head) * LATENT + dim, merged.to(out_ptr.dtype.element_ty))


def custom_kernel(data):
    return launch(data)


def launch(data, block_n=None, num_stages=None, per_multiprocessor=PER_MULTIPROCESSOR):
    """What `custom_kernel` does, with other choices than its own, for tuning."""
    q, kv_data, _, kv_indptr, config = data
    packed, e8m0 = (tensor.view(torch.uint8) for tensor in kv_data["mxfp4"])
    batch, longest = q.shape[0], config["kv_seq_len"]
    own_block_n, own_stages = choose_tile(q)
    block_n = block_n or own_block_n
    splits = choose_splits(q, triton.cdiv(longest, block_n), per_multiprocessor)
    early = starts_early(q.device)
    out = torch.empty(batch, HEADS, LATENT, dtype=torch.bfloat16, device=q.device)
    partial, lse = out, out
    if splits > 1:
        partial = torch.empty(batch, splits, HEADS, LATENT, dtype=torch.float32, device=q.device)
        lse = torch.empty(batch, splits, HEADS, dtype=torch.float32, device=q.device)
    split_kv[(splits, batch)](
        q, packed.view(torch.int32), e8m0, kv_indptr, partial, lse, config["sm_scale"] * LOG2_E, splits,
        ONE_SPLIT=splits == 1, HEADS=HEADS, LATENT=LATENT, ROPE=ROPE, BLOCK_N=block_n, DEPENDENT=early,
        num_warps=4, num_stages=num_stages or own_stages,
    )  # fmt: skip
    if splits > 1:
        padded = triton.next_power_of_2(splits)
        dims = min(LATENT, MERGE_ELEMENTS // padded)
        merge_splits[(batch, HEADS * LATENT // dims)](
            partial, lse, out, splits, HEADS=HEADS, LATENT=LATENT, DIMS=dims, SPLITS=padded, DEPENDENT=early,
            num_warps=4, **({"launch_pdl": True} if early else {}),
        )  # fmt: skip
    return out


def choose_tile(q):
    """Tokens of a tile, and stages of the pipeline that loads them."""
    return (64, 2)


def choose_splits(q, tiles, per_multiprocessor):
    """How many programs share the tokens of a sequence of so many tiles."""
    batch = q.shape[0]
    if q.device.type == "cpu":
        wanted = 4  # interpreted programs cost milliseconds each; a few splits still need merging
    else:
        wanted = per_multiprocessor * torch.cuda.get_device_properties(q.device).multi_processor_count
    return max(min(wanted // batch, tiles, MAX_SPLITS), 1)


def starts_early(device):
    """Whether a kernel may start before the one that it depends on has ended (Hopper's dependent launch)."""
    return device.type == "cuda" and torch.version.hip is None and torch.cuda.get_device_capability(device)[0] >= 9
