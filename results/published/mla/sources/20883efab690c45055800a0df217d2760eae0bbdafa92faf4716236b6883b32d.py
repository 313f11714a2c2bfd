"""MLA decode on the mxfp4 cache with queries in mxfp4 too: scores by a scaled fp4 x fp4 product.

Idea. The seed's strategy B. The queries are quantized to mxfp4 in the kernel, by the rules that made the cache, and
tl.dot_scaled multiplies codes by codes: the matrix unit of gfx950 (v_mfma_scale) reads E2M1 and the E8M0 scales as they
lie in memory, so the keys of the first product are never decoded. For sm_90 and gfx1100 Triton decomposes the product
into decoding and an ordinary one, with many spilled registers; for gfx942 Triton 3.6 and 3.7 refuse it ("Unsupported
DotScaleOp"). There triton_mxfp4.py is the better way.

Values. Their blocks run along the dims, and a scaled product takes scales only along what it sums over, which for the
second product is the tokens. So values are decoded to fp16, as in triton_mxfp4.py: a code shifted so that its sign
lands on fp16's sign and its other three bits on the lowest exponent bits and the highest mantissa bit reads as its
value times 2^-14, and one product with 2^14 times the block's scale finishes it. A byte holds two neighbouring dims:
even and odd dims have accumulators of their own, and nothing is interleaved before the store.

Tiles. As in the other MLA kernels: scores [tokens, 16 heads], outputs [dims, 16 heads], 64 tokens a tile, one program a
(sequence, split), and a second kernel that merges the splits by their log-sum-exp. The rope part, 64 dims, is padded to
the 128 that one scaled instruction multiplies.

Accuracy. With queries in fp4 it meets the tolerance `mxfp4`, with less room than triton_mxfp4.py, and never `exact`.

Bytes. 306 a token, and 64 KiB a (sequence, split) for the partial results. Where the product is decomposed, as on an
H200, limited by what that spills. docs/kernels.md has what was measured.
"""

import torch
import triton
import triton.language as tl

HEADS, LATENT, ROPE = 16, 512, 64
BLOCK_N = 64
PER_MULTIPROCESSOR = 2
MAX_SPLITS = 64
MERGE_ELEMENTS = 4096  # of all splits together, a program
LOG2_E = 1.4426950408889634


@triton.jit
def split_kv(
    q_ptr,  # (batch, HEADS, LATENT + ROPE) bf16
    kv_ptr,  # (total_kv, (LATENT + ROPE) / 2) uint8: two E2M1 codes each, the low nibble first
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
    head = tl.arange(0, HEADS)
    token = tl.arange(0, BLOCK_N)
    byte = tl.arange(0, LATENT // 2)
    rope_byte = tl.arange(0, ROPE)  # the upper half is padding
    block = tl.arange(0, LATENT // 32)
    rope_block = tl.arange(0, ROPE // 16)
    is_rope_byte = rope_byte < ROPE // 2
    is_rope_block = rope_block < ROPE // 32

    first = tl.load(kv_indptr + sequence).to(tl.int64)
    length = (tl.load(kv_indptr + sequence + 1) - first).to(tl.int32)
    span = tl.cdiv(tl.cdiv(length, splits), BLOCK_N) * BLOCK_N
    begin = split * span
    end = tl.minimum(begin + span, length)
    kv_ptr += first * (DIM // 2)  # 64-bit once; offsets within a sequence fit in 32
    e8m0_ptr += first * (DIM // 32)

    q_row = q_ptr + (sequence * HEADS + head)[:, None] * DIM
    rope = tl.arange(0, 2 * ROPE)
    q_latent, q_latent_scale = quantized(tl.load(q_row + tl.arange(0, LATENT)[None, :]), HEADS, LATENT)
    q_rope = tl.load(q_row + LATENT + rope[None, :], mask=(rope < ROPE)[None, :], other=0.0)
    q_rope, q_rope_scale = quantized(q_rope, HEADS, 2 * ROPE)
    q_latent = tl.trans(q_latent)
    q_rope = tl.trans(q_rope)

    peak = tl.full([HEADS], float("-inf"), tl.float32)
    total = tl.zeros([HEADS], tl.float32)
    acc_even = tl.zeros([LATENT // 2, HEADS], tl.float32)
    acc_odd = tl.zeros([LATENT // 2, HEADS], tl.float32)
    for start in range(begin, end, BLOCK_N):
        valid = start + token < end
        row = kv_ptr + (start + token)[:, None] * (DIM // 2)
        e8m0_row = e8m0_ptr + (start + token)[:, None] * (DIM // 32)
        codes = tl.load(row + byte[None, :], mask=valid[:, None], other=0)
        rope_codes = tl.load(
            row + LATENT // 2 + rope_byte[None, :], mask=valid[:, None] & is_rope_byte[None, :], other=0
        )
        e8m0 = tl.load(e8m0_row + block[None, :], mask=valid[:, None], other=0)
        rope_e8m0 = tl.load(
            e8m0_row + LATENT // 32 + rope_block[None, :], mask=valid[:, None] & is_rope_block[None, :], other=0
        )
        score = tl.dot_scaled(rope_codes, rope_e8m0, "e2m1", q_rope, q_rope_scale, "e2m1")
        score = tl.dot_scaled(codes, e8m0, "e2m1", q_latent, q_latent_scale, "e2m1", score)
        score = tl.where(valid[:, None], score * score_scale, float("-inf"))
        new_peak = tl.maximum(peak, tl.max(score, 0))
        shrink = tl.exp2(peak - new_peak)
        weight = tl.exp2(score - new_peak[None, :])
        total = total * shrink + tl.sum(weight, 0)
        weight = weight.to(tl.float16)
        scale = block_scale(e8m0)
        even = decoded(codes, scale, BLOCK_N, LATENT // 2)
        odd = decoded(codes >> 4, scale, BLOCK_N, LATENT // 2)
        acc_even = tl.dot(tl.trans(even), weight, acc_even * shrink[None, :])
        acc_odd = tl.dot(tl.trans(odd), weight, acc_odd * shrink[None, :])
        peak = new_peak

    # A split without tokens has total 0: zeros, and a log-sum-exp of -inf, which the merge gives weight 0.
    norm = tl.where(total > 0, 1.0 / total, 0.0)[None, :]
    lse_row = (sequence * splits + split) * HEADS + head
    out_row = out_ptr + lse_row[None, :] * LATENT + 2 * byte[:, None]
    tl.store(out_row, (acc_even * norm).to(out_ptr.dtype.element_ty))
    tl.store(out_row + 1, (acc_odd * norm).to(out_ptr.dtype.element_ty))
    if not ONE_SPLIT:
        tl.store(lse_ptr + lse_row, tl.where(total > 0, peak + tl.log2(total), float("-inf")))


@triton.jit
def quantized(x, ROWS: tl.constexpr, DIMS: tl.constexpr):
    """Rows in mxfp4, `[ROWS, DIMS / 2]` bytes, low nibble first, and `[ROWS, DIMS / 32]` E8M0; as the cache was made.

    A block's amax, rounded to a power of two from 1.75 times one on up, over 4 is its scale; values round to the
    nearest of 0 .5 1 1.5 2 3 4 6, ties to the even code.
    """
    x = tl.reshape(x.to(tl.float32), [ROWS, DIMS // 32, 32])
    amax = tl.max(tl.abs(x), 2)
    exponent = (amax.to(tl.int32, bitcast=True) + 0x200000) >> 23
    e8m0 = tl.minimum(tl.maximum(exponent - 2, 0), 252)  # up to 252 the reciprocal is a normal number too
    reciprocal = ((254 - e8m0) << 23).to(tl.float32, bitcast=True)
    magnitude = tl.abs(x) * reciprocal[:, :, None]
    code = (magnitude > 0.25).to(tl.int32) + (magnitude >= 0.75).to(tl.int32) + (magnitude > 1.25).to(tl.int32)
    code += (magnitude >= 1.75).to(tl.int32) + (magnitude > 2.5).to(tl.int32) + (magnitude >= 3.5).to(tl.int32)
    code += (magnitude > 5.0).to(tl.int32)
    code = code | tl.where(x < 0, 8, 0)
    low, high = tl.split(tl.reshape(code, [ROWS, DIMS // 2, 2]))
    return (low | (high << 4)).to(tl.uint8), e8m0.to(tl.uint8)


@triton.jit
def block_scale(e8m0):
    """2^14 * 2^(e8m0 - 127) as fp16: the exponent field is e8m0 - 127 + 14 + 15, kept within 0 (zero) and 30."""
    exponent = tl.minimum(tl.maximum(e8m0.to(tl.int16) - 98, 0), 30)
    return (exponent << 10).to(tl.int16).to(tl.float16, bitcast=True)


@triton.jit
def decoded(codes, scale, N: tl.constexpr, BYTES: tl.constexpr):
    """The low nibbles of `[N, BYTES]` bytes as fp16, times their blocks' scales `[N, BYTES / 16]`."""
    codes = codes.to(tl.int16)
    bits = ((codes & 8) << 12) | ((codes & 7) << 9)
    value = tl.reshape(bits.to(tl.int16).to(tl.float16, bitcast=True), [N, BYTES // 16, 16])
    return tl.reshape(value * scale[:, :, None], [N, BYTES])


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
):
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
    q, kv_data, _, kv_indptr, config = data
    packed, e8m0 = (tensor.view(torch.uint8) for tensor in kv_data["mxfp4"])
    batch = q.shape[0]
    splits = choose_splits(q, triton.cdiv(config["kv_seq_len"], BLOCK_N))
    out = torch.empty(batch, HEADS, LATENT, dtype=torch.bfloat16, device=q.device)
    partial, lse = out, out
    if splits > 1:
        partial = torch.empty(batch, splits, HEADS, LATENT, dtype=torch.float32, device=q.device)
        lse = torch.empty(batch, splits, HEADS, dtype=torch.float32, device=q.device)
    split_kv[(splits, batch)](
        q, packed, e8m0, kv_indptr, partial, lse, config["sm_scale"] * LOG2_E, splits,
        ONE_SPLIT=splits == 1, HEADS=HEADS, LATENT=LATENT, ROPE=ROPE, BLOCK_N=BLOCK_N, num_warps=4, num_stages=2,
    )  # fmt: skip
    if splits > 1:
        padded = triton.next_power_of_2(splits)
        dims = min(LATENT, MERGE_ELEMENTS // padded)
        merge_splits[(batch, HEADS * LATENT // dims)](
            partial, lse, out, splits, HEADS=HEADS, LATENT=LATENT, DIMS=dims, SPLITS=padded, num_warps=4
        )
    return out


def choose_splits(q, tiles):
    """How many programs share the tokens of a sequence of so many tiles."""
    batch = q.shape[0]
    if q.device.type == "cpu":
        wanted = 4  # interpreted programs cost milliseconds each; a few splits still need merging
    else:
        wanted = PER_MULTIPROCESSOR * torch.cuda.get_device_properties(q.device).multi_processor_count
    return max(min(wanted // batch, tiles, MAX_SPLITS), 1)
