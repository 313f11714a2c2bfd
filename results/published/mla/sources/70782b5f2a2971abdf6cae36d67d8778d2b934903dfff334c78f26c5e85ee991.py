"""MLA decode on the fp8 cache: split-KV flash decoding, scores by fp8 products, values widened to fp16 in registers.

Idea. The 16 query heads share one KV head, so a program holds all 16 queries and reads each token once for all of them;
the first 512 dims of a key tile are its value tile, so the tile is read once for both products. Scores and output are
held transposed, S^T [tokens, heads] = K Q^T and O^T [dims, heads] = V^T P^T: tokens and dims, of which there are many,
are the M of the matrix instructions and the 16 heads their N, so that none of it is padding.

Types. Queries are rounded to fp8 as in the reference, but by a scale a head, and multiply the keys as they lie in
memory. Weights stay fp16: each e4m3 value is an fp16 value, so values are widened exactly, in registers, on their way
into the second product. The kernel's type follows the tensor's (e4m3fn, or gfx942's e4m3fnuz). The cache's one scale is
applied to the scores and to the result, never to a key. RDNA, which has no fp8 products, takes fp16 for both, and
widens by moving bits.

Splits. A sequence is cut into splits of whole tiles, one program a (sequence, split), as many as make two programs a
multiprocessor; a second kernel merges the splits by their log-sum-exp. With one split the first kernel writes the
output itself and the second is not launched. On Hopper the second one is launched early and waits on the device.

Tiles. 64 tokens, the M of Hopper's warpgroup instructions: 36 KiB of fp8, two in flight, two programs a multiprocessor.
The accumulator, 512 x 16 float32, takes 64 registers a thread. On CDNA 32 tokens, which fit 64 KiB of LDS without
spills; on RDNA 16, whose registers spill all the same (both compiled, not run).

Bytes. 576 a token, and 64 KiB a (sequence, split) for the partial results. At 60 flops a byte memory bandwidth would be
the limit. On an H200 it is not yet: for a tile of 64 tokens each warp issues 1074 instructions, most of them to widen
values, and with two programs a multiprocessor that is more than half of the time that the tile's bytes take.
docs/kernels.md has what was measured.
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
def split_kv(
    q_ptr,  # (batch, HEADS, LATENT + ROPE) bf16
    kv_ptr,  # (total_kv, LATENT + ROPE) e4m3fn or e4m3fnuz
    kv_scale_ptr,  # float32: the cache's one scale
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
    NATIVE: tl.constexpr,  # the chip multiplies fp8
):
    if DEPENDENT:
        # The merge may take its place on the device now: it waits there for this kernel's end.
        tl.extra.cuda.gdc_launch_dependents()
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
    kv_ptr += first * DIM
    q_row = q_ptr + (sequence * HEADS + head) * DIM
    q_latent = tl.load(q_row[None, :] + latent[:, None])
    q_rope = tl.load(q_row[None, :] + rope[:, None])
    kv_scale = tl.load(kv_scale_ptr)
    score_scale = score_scale * kv_scale
    if NATIVE:
        # A scale a head: 224 stays below the greatest value of either flavour, 448 and 240.
        F8: tl.constexpr = kv_ptr.dtype.element_ty
        amax = tl.maximum(tl.max(tl.abs(q_latent.to(tl.float32)), 0), tl.max(tl.abs(q_rope.to(tl.float32)), 0))
        step = tl.maximum(amax, 1e-30) / 224.0
        q_latent = (q_latent.to(tl.float32) / step[None, :]).to(F8)
        q_rope = (q_rope.to(tl.float32) / step[None, :]).to(F8)
        score_scale = score_scale * step
    else:
        q_latent = q_latent.to(tl.float16)
        q_rope = q_rope.to(tl.float16)
        kv_scale = kv_scale * 256.0
        score_scale = tl.zeros([HEADS], tl.float32) + score_scale * 256.0
    peak = tl.full([HEADS], float("-inf"), tl.float32)
    total = tl.zeros([HEADS], tl.float32)
    acc = tl.zeros([LATENT, HEADS], tl.float32)
    for start in range(begin, end, BLOCK_N):
        valid = start + token < end
        kv_row = kv_ptr + (start + token)[:, None] * DIM
        k_latent = tl.load(kv_row + latent[None, :], mask=valid[:, None], other=0.0)
        k_rope = tl.load(kv_row + rope[None, :], mask=valid[:, None], other=0.0)
        if NATIVE:
            values = k_latent.to(tl.float16)
        else:
            values = widened(k_latent)
            k_latent = values
            k_rope = widened(k_rope)
        score = tl.dot(k_latent, q_latent)
        # Hopper's fp8 instruction loses what is small beside its largest summand. Those of the rope dims may be: last.
        score = tl.dot(k_rope, q_rope, score) * score_scale[None, :]
        score = tl.where(valid[:, None], score, float("-inf"))
        new_peak = tl.maximum(peak, tl.max(score, 0))
        shrink = tl.exp2(peak - new_peak)
        weight = tl.exp2(score - new_peak[None, :])
        total = total * shrink + tl.sum(weight, 0)
        acc = tl.dot(tl.trans(values), weight.to(values.dtype), acc * shrink[None, :])
        peak = new_peak
    result = acc * tl.where(total > 0, kv_scale / total, 0.0)[None, :]
    row = (sequence * splits + split) * HEADS + head
    tl.store(out_ptr + row[None, :] * LATENT + latent[:, None], result.to(out_ptr.dtype.element_ty))
    if not ONE_SPLIT:
        tl.store(lse_ptr + row, tl.where(total > 0, peak + tl.log2(total), float("-inf")))


@triton.jit
def widened(codes):
    """e4m3fn as fp16 bits of 2^-8 of the value: the mantissa moves to its place, the exponents' biases are 7 and 15."""
    bits = codes.to(tl.int8, bitcast=True).to(tl.int16)
    return (((bits & 0x80) << 8) | ((bits & 0x7F) << 7)).to(tl.float16, bitcast=True)


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
    kv, kv_scale = kv_data["fp8"]
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
        q, kv, kv_scale, kv_indptr, partial, lse, config["sm_scale"] * LOG2_E, splits,
        ONE_SPLIT=splits == 1, HEADS=HEADS, LATENT=LATENT, ROPE=ROPE, BLOCK_N=block_n, DEPENDENT=early,
        NATIVE=not is_rdna(q), num_warps=4, num_stages=num_stages or own_stages,
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
    if q.is_cuda and torch.version.hip is not None:
        return (16, 1) if is_rdna(q) else (32, 2)
    return 64, 3


def is_rdna(q):
    return q.is_cuda and torch.version.hip is not None and torch.cuda.get_device_properties(q.device).warp_size == 32


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
