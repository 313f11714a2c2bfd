"""MLA decode on the bf16 cache: split-KV flash decoding, all 16 heads of a sequence in one tile.

Idea. The 16 query heads share one KV head, so a program holds all 16 queries and reads each token once for all of them;
the first 512 dims of a key tile are its value tile, so the tile is read once for both products. Scores are held
transposed, S^T [tokens, heads] = K Q^T, and so is the output, O^T [dims, heads] = V^T P^T: tokens and dims, of which
there are many, are the M of the matrix instructions and the 16 heads their N, so that none of it is padding. A sequence
is cut into splits of whole tiles, one program a (sequence, split); a second kernel merges the splits by their
log-sum-exp. With one split the first kernel writes the output itself and the second is not launched. On Hopper the
second one is launched early and waits on the device, which saves the gap between two kernels.

Tiles. 32 tokens: a key tile of 32 x 576 bf16 takes 36 KiB, and with two in flight and the queries two programs fit a
multiprocessor: one's copies run under the other's softmax. 64 tokens make both products warpgroup instructions, but
leave room for one program. On CDNA one tile in flight less, in 64 KiB of LDS without spills; on RDNA 16 tokens, whose
registers spill all the same (both compiled, not run).

Splits. As many as make two programs a multiprocessor. Where the sequences alone do that, those of 8192 tokens and more
are cut in two nevertheless: the last programs to start are then half as long.

Bytes. 1152 a token, and 64 KiB a (sequence, split) for the partial results. At 30 flops a byte it is bound by memory
bandwidth; with few sequences by latency and by how evenly the splits fill the device. docs/kernels.md has what was
measured.
"""

import torch
import triton
import triton.language as tl

HEADS, LATENT, ROPE = 16, 512, 64
PER_MULTIPROCESSOR = 2
MAX_SPLITS = 64
LONG = 8192  # tokens; from here on a sequence is split even where there are sequences enough
MERGE_ELEMENTS = 4096  # of all splits together, a program
LOG2_E = 1.4426950408889634


@triton.jit
def split_kv(
    q_ptr,  # (batch, HEADS, LATENT + ROPE) bf16
    kv_ptr,  # (total_kv, LATENT + ROPE) bf16
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
    peak = tl.full([HEADS], float("-inf"), tl.float32)
    total = tl.zeros([HEADS], tl.float32)
    acc = tl.zeros([LATENT, HEADS], tl.float32)
    for start in range(begin, end, BLOCK_N):
        valid = start + token < end
        kv_row = kv_ptr + (start + token)[:, None] * DIM
        k_latent = tl.load(kv_row + latent[None, :], mask=valid[:, None], other=0.0)
        k_rope = tl.load(kv_row + rope[None, :], mask=valid[:, None], other=0.0)
        score = tl.dot(k_rope, q_rope)
        score = tl.dot(k_latent, q_latent, score) * score_scale
        score = tl.where(valid[:, None], score, float("-inf"))
        new_peak = tl.maximum(peak, tl.max(score, 0))
        base = tl.where(new_peak == float("-inf"), 0.0, new_peak)  # -inf - -inf would be NaN
        shrink = tl.exp2(peak - base)
        weight = tl.exp2(score - base[None, :])
        total = total * shrink + tl.sum(weight, 0)
        acc = tl.dot(tl.trans(k_latent), weight.to(k_latent.dtype), acc * shrink[None, :])
        peak = new_peak
    result = acc * tl.where(total > 0, 1.0 / total, 0.0)[None, :]
    row = (sequence * splits + split) * HEADS + head
    tl.store(out_ptr + row[None, :] * LATENT + latent[:, None], result.to(out_ptr.dtype.element_ty))
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
    kv = kv_data["bf16"]
    batch, longest = q.shape[0], config["kv_seq_len"]
    own_block_n, own_stages = choose_tile(q)
    block_n = block_n or own_block_n
    splits = choose_splits(q, triton.cdiv(longest, block_n), per_multiprocessor)
    if longest >= LONG and splits == 1 and q.device.type != "cpu":
        splits = 2
    early = starts_early(q.device)
    out = torch.empty(batch, HEADS, LATENT, dtype=torch.bfloat16, device=q.device)
    partial, lse = out, out
    if splits > 1:
        partial = torch.empty(batch, splits, HEADS, LATENT, dtype=torch.float32, device=q.device)
        lse = torch.empty(batch, splits, HEADS, dtype=torch.float32, device=q.device)
    split_kv[(splits, batch)](
        q, kv, kv_indptr, partial, lse, config["sm_scale"] * LOG2_E, splits,
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
    if q.is_cuda and torch.version.hip is not None:
        return (16, 1) if torch.cuda.get_device_properties(q.device).warp_size == 32 else (32, 2)
    return 32, 3


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
