"""Triton: flash-decoding. The keys of a sequence are split over programs, the append is fused, a second kernel merges.

Idea. Decoding reads every cached key and value once and does little with them, so all that counts is to keep the whole
memory system busy and to read nothing twice.

  attend_split    grid (B, Hkv, splits * row tiles): one program attends with one tile of rows to one stretch of the
                  L + Sq keys of one KV head: its new keys, which it also writes to their slots, are loaded first and
                  attended to last, its cached ones in between. Leaves a normalised partial output and the log2 of its
                  softmax denominator, or, where the keys are not split, the output.
  merge_splits    grid (B * Hkv, row tiles, dim tiles): weighs the partial outputs together, and advances seq_lens.
  advance_lengths where there is nothing to merge.

Rows. The G = Hq / Hkv query heads that share a KV head, times Sq positions, are the rows of one tile (row r is head
r // Sq, position r % Sq), so that keys and values are read once for all of them. Up to 32 rows go in tiles of 16 (the
least tl.dot takes), more in tiles of 64, or of as many as fit beside the keys. float32 takes 16, except at D = 128 on
CUDA. Every tile after the first reads the keys again, from L2.

Keys. 32 a block at D = 128 in 16 bits, 8 KiB of keys and 8 KiB of values, and three stages of them. Blocks are small
for an H200: four programs fit a multiprocessor, so that one's copies run under another's softmax, and a block that a
sequence's end cuts short wastes little. CDNA takes 64 keys and two stages, which fit in 64 KiB of LDS, and RDNA 16
keys: with 32 registers are spilled.

Scores are held transposed, [keys, rows], and the output as [D, rows]: the many keys are spread over the warps and the
few rows are not copied to each of them.

Splits. Enough for about three programs a multiprocessor, at most 64, chosen from the capacity of the cache: the host
does not know the lengths without waiting for the device. Each program cuts its stretch from its sequence's own length.

Races. attend_split reads cache slots below L and writes slots from L on, so the append needs no ordering against any
read; the programs of row tile 0 write, each its own stretch. seq_lens changes in a second kernel, after all have read
it; on Hopper that one is launched early and waits on the device, which saves the gap between two kernels.
Slots past L hold garbage, NaN included: their loads are masked, because 0 * NaN is NaN.

float32 goes through IEEE products (input_precision="ieee"); TF32 would miss the tolerance.

Bytes a cached key and KV head: 4 D in 16 bits, read once. Limited by memory bandwidth; short caches by the two launches
and the merge. Causal masking skips no work: for long prompts (Sq in the hundreds) use a prefill kernel. docs/kernels.md
has what was measured.

Compiled kernels are few. Heads, lengths, D, the mask and the append are run-time arguments, and tiles have few sizes.
So a model that meets many shapes seldom waits for a compiler. Only large tiles have D as a constant.

`attention_with_kv_cache` is the same thing as a function that a model can call.
"""

import torch
import triton
import triton.language as tl

LOG2_E = 1.4426950408889634
MAX_SPLITS = 64
PROGRAMS_PER_MULTIPROCESSOR = 3
MERGE_ELEMENTS = 8192  # of all splits together, an interpreted program
MERGED_SPLITS = (16, 32, MAX_SPLITS)  # that a program of the merge has room for
TILES_BYTES = 57344  # of queries, keys and values: of the 64 KiB of LDS that CDNA 3 has, the rest is for weights
FEW_ROWS = 32  # up to which tiles are of 16 rows; two of them read the keys twice, but split them less
CPU_SPLITS = 2  # interpreted programs cost milliseconds each; two splits still need merging


def custom_kernel(data):
    q, k_new, v_new, k_cache, v_cache, seq_lens, config = data
    return decode(q, k_new, v_new, k_cache, v_cache, seq_lens, config["is_causal"], config["update_cache"])


def launch(data, **choices):
    """What `custom_kernel` does, with other choices than its own, for tuning."""
    q, k_new, v_new, k_cache, v_cache, seq_lens, config = data
    return decode(q, k_new, v_new, k_cache, v_cache, seq_lens, config["is_causal"], config["update_cache"], **choices)


def attention_with_kv_cache(
    query,
    key,
    value,
    past_key_value=None,
    seq_lens=None,
    cache_max_len=4096,
    update_cache=True,
    is_causal=False,
    num_query_heads=None,
    num_kv_heads=None,
):
    """Attention of new queries over a KV cache and their own keys and values, which are then appended to it.

        seq_lens = torch.zeros(batch, dtype=torch.int32, device=device)
        out, cache = attention_with_kv_cache(q, k, v, None, seq_lens, cache_max_len=4096, is_causal=True)
        out, cache = attention_with_kv_cache(q, k, v, cache, seq_lens, is_causal=True)  # the same tensors, one longer

    Args:
        query: `[B, Hq, Sq, D]`, float32, float16 or bfloat16. Head h reads KV head h // (Hq // Hkv).
        key, value: `[B, Hkv, Sq, D]`, of query's dtype.
        past_key_value: `(k_cache, v_cache)`, each `[B, Hkv, S_max, D]` and contiguous, appended to in place. None
            starts an empty cache of `cache_max_len` slots, uninitialised.
        seq_lens: integer `[B]`, the keys that each sequence has in the cache; advanced by Sq in place with
            `update_cache`. None means none without a cache, and with one that all of its slots are taken, so that
            nothing can be appended: keep a tensor of your own when decoding.
        cache_max_len: slots of a cache started here. A cache that is given has its own.
        update_cache: append. Otherwise the new keys are attended to just the same, but nothing is written.
        is_causal: query i sees the cache and new keys 0 .. i; otherwise the cache and all new keys.
        num_query_heads, num_kv_heads: if given, they must be those of the tensors.

    Returns:
        `(output, (k_cache, v_cache))`, or `(output, None)` without `update_cache`; output `[B, Hq, Sq, D]` of query's
        dtype, scores scaled by 1 / sqrt(D).

    Raises:
        ValueError: tensors that do not fit each other, or an append past the end of a cache. Lengths live on the
        device, so finding that out waits for it; `custom_kernel` trusts its caller and does not.
    """
    batch, q_heads, q_len, head_dim = query.shape
    kv_heads = key.shape[1]
    if key.shape != (batch, kv_heads, q_len, head_dim) or value.shape != key.shape or q_heads % kv_heads:
        raise ValueError(
            f"query, key and value do not fit each other as [B, H, Sq, D]: "
            f"{tuple(query.shape)}, {tuple(key.shape)}, {tuple(value.shape)}"
        )
    for name, said, found in (("query", num_query_heads, q_heads), ("kv", num_kv_heads, kv_heads)):
        if said is not None and said != found:
            raise ValueError(f"num_{name}_heads is {said}, but the tensors have {found}")
    if past_key_value is not None:
        k_cache, v_cache = past_key_value
        slots = k_cache.shape[2]
    else:
        slots = cache_max_len if update_cache else 0
        k_cache, v_cache = (key.new_empty(batch, kv_heads, slots, head_dim) for _ in range(2))
    for cache in (k_cache, v_cache):
        if cache.shape != (batch, kv_heads, slots, head_dim) or cache.dtype != key.dtype:
            raise ValueError(
                f"a cache of {tuple(cache.shape)}, {cache.dtype}, does not fit keys of {tuple(key.shape)}, {key.dtype}"
            )
        if not cache.is_contiguous():
            raise ValueError("the caches must be contiguous: they are written in place")
    if seq_lens is None:
        full = slots if past_key_value is not None else 0
        seq_lens = torch.full((batch,), full, dtype=torch.int32, device=query.device)
    if seq_lens.shape != (batch,):
        raise ValueError(f"seq_lens must be ({batch},), not {tuple(seq_lens.shape)}")
    longest, appended = int(seq_lens.max()), q_len if update_cache else 0
    if longest + appended > slots:
        raise ValueError(
            f"the KV cache overflows: a sequence holds {longest} keys, {appended} are to be appended, "
            f"and there is room for {slots}"
        )
    query, key, value = query.contiguous(), key.contiguous(), value.contiguous()
    output = decode(query, key, value, k_cache, v_cache, seq_lens, is_causal, update_cache)
    return output, (k_cache, v_cache) if update_cache else None


def decode(
    q,
    k_new,
    v_new,
    k_cache,
    v_cache,
    seq_lens,
    is_causal,
    update_cache,
    block_n=None,
    num_stages=None,
    per_multiprocessor=PROGRAMS_PER_MULTIPROCESSOR,
):
    """All tensors contiguous; the caller has seen to it that an append fits."""
    batch, q_heads, q_len, head_dim = q.shape
    kv_heads, slots = k_cache.shape[1:3]
    rows = q_heads // kv_heads * q_len
    block_d = max(16, triton.next_power_of_2(head_dim))
    own_block_n, own_stages = choose_keys(q, block_d)
    block_n = block_n or own_block_n
    block_m = 16 if rows <= FEW_ROWS else most_rows(q, block_d, block_n)
    row_tiles = triton.cdiv(rows, block_m)
    splits = choose_splits(q, batch * kv_heads * row_tiles, triton.cdiv(slots + q_len, block_n), per_multiprocessor)
    early = starts_early(q.device)
    follower = {"DEPENDENT": early, "num_warps": 4, **({"launch_pdl": True} if early else {})}

    out = torch.empty_like(q)
    partial, lse = out, out
    if splits > 1:
        partial = torch.empty((batch * kv_heads, splits, rows, head_dim), dtype=torch.float32, device=q.device)
        lse = torch.empty((batch * kv_heads, splits, rows), dtype=torch.float32, device=q.device)
    attend_split[(batch, kv_heads, splits * row_tiles)](
        q,
        k_new,
        v_new,
        k_cache,
        v_cache,
        seq_lens,
        partial,
        lse,
        LOG2_E / head_dim**0.5,
        slots,
        q_len,
        rows,
        splits,
        head_dim,
        is_causal,
        update_cache,
        BLOCK_M=block_m,
        BLOCK_N=block_n,
        BLOCK_D=block_d,
        CONSTANT_D=head_dim if block_m > 16 else 0,  # a large tile needs the registers that it saves
        BLOCK_NEW=block_n if q_len > 16 else 16,
        FEW_NEW=q_len <= 16,
        ONE_SPLIT=splits == 1,
        DEPENDENT=early,
        num_warps=4,
        num_stages=num_stages or own_stages,
    )
    if splits > 1:
        merged = choose_merge(q.device, splits, rows, block_d)
        grid = (batch * kv_heads, triton.cdiv(rows, merged["BLOCK_R"]), triton.cdiv(head_dim, merged["BLOCK_D"]))
        merge_splits[grid](
            partial,
            lse,
            out,
            seq_lens,
            splits,
            q_len,
            rows,
            kv_heads,
            head_dim,
            update_cache,
            **merged,
            **follower,
        )
    elif update_cache:
        advance_lengths[(triton.cdiv(batch, 128),)](seq_lens, batch, q_len, BLOCK=128, **follower)
    return out


def choose_keys(q, block_d):
    """Keys of a tile, and stages of the pipeline that loads them."""
    key_bytes, stages = 8192, 3
    if on_hip(q):
        key_bytes, stages = 16384 if is_cdna(q) else 4096, 2
    return max(16, min(64, key_bytes // (block_d * q.element_size()))), stages


def most_rows(q, block_d, block_n):
    """Rows of a tile: 64, or fewer where their queries would not fit beside a tile of keys and one of values."""
    if q.dtype == torch.float32 and (block_d < 128 or on_hip(q)):
        return 16  # more would be slower on Hopper, and take seconds to compile for AMD's chips
    room = TILES_BYTES // (block_d * q.element_size()) - 2 * block_n
    return max(16, min(64, 1 << max(room, 1).bit_length() - 1))


def on_hip(q):
    return torch.version.hip is not None and q.is_cuda


def is_cdna(q):
    return on_hip(q) and torch.cuda.get_device_properties(q.device).warp_size == 64


def starts_early(device):
    """Whether a kernel may start before the one that it depends on has ended (Hopper's dependent launch)."""
    return device.type == "cuda" and torch.version.hip is None and torch.cuda.get_device_capability(device)[0] >= 9


def choose_splits(q, programs, blocks, per_multiprocessor):
    """How many programs share the keys of one KV head, given `programs` without splitting and `blocks` of keys."""
    if q.device.type == "cpu":
        return min(CPU_SPLITS, blocks)
    wanted = per_multiprocessor * torch.cuda.get_device_properties(q.device).multi_processor_count
    return max(1, min(wanted // programs, blocks, MAX_SPLITS))


def choose_merge(device, splits, rows, block_d):
    """Rows, splits and dims that a program merges. On a GPU there are few choices, whatever the shape: each is a kernel
    to compile. Interpreted programs are as large as they may be for an emulated chip's LDS."""
    if device.type == "cpu":
        block_s = triton.next_power_of_2(splits)
        block_r = min(triton.next_power_of_2(rows), max(1, MERGE_ELEMENTS // (block_s * block_d)))
        return {"BLOCK_R": block_r, "BLOCK_S": block_s, "BLOCK_D": block_d}
    block_s = next(size for size in MERGED_SPLITS if size >= splits)
    return {"BLOCK_R": MAX_SPLITS // block_s, "BLOCK_S": block_s, "BLOCK_D": 128}


@triton.jit(do_not_specialize=["slots", "q_len", "rows", "splits", "causal", "update"])
def attend_split(
    q_ptr,  # [B, Hq, Sq, D]
    k_new_ptr,  # [B, Hkv, Sq, D]
    v_new_ptr,
    k_cache_ptr,  # [B, Hkv, slots, D]
    v_cache_ptr,
    seq_lens_ptr,  # [B]
    out_ptr,  # [B * Hkv, splits, G * Sq, D] float32; with one split [B, Hq, Sq, D] of q's dtype
    lse_ptr,  # [B * Hkv, splits, G * Sq] float32, in units of log2; -inf where no key was seen
    scale,  # log2(e) / sqrt(D)
    slots,
    q_len,
    rows,  # G * Sq
    splits,
    head_dim,
    causal,
    update,  # write the new keys and values to the caches
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    CONSTANT_D: tl.constexpr,  # head_dim, or 0
    BLOCK_NEW: tl.constexpr,
    FEW_NEW: tl.constexpr,  # Sq is at most BLOCK_NEW
    ONE_SPLIT: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    if DEPENDENT:
        # The merge may take its place on the device now: it waits there for this kernel's end.
        tl.extra.cuda.gdc_launch_dependents()
    D = CONSTANT_D if CONSTANT_D > 0 else head_dim
    # Everything waits for the length: it is asked for first, and no division comes before it.
    length = tl.load(seq_lens_ptr + tl.program_id(0)).to(tl.int32)
    pair = tl.program_id(0).to(tl.int64) * tl.num_programs(1) + tl.program_id(1)  # int64: caches pass 2^31 elements
    split = tl.program_id(2) % splits
    tile = tl.program_id(2) // splits

    stretch = tl.cdiv(tl.cdiv(length + q_len, splits), BLOCK_N) * BLOCK_N
    begin = split * stretch
    end = tl.minimum(begin + stretch, length + q_len)

    row = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    is_row = row < rows
    last_new = tl.where(causal != 0, row % q_len, q_len)  # the last new key that a row sees
    dim = tl.arange(0, BLOCK_D)
    is_dim = dim < D
    n = tl.arange(0, BLOCK_N)
    q_offset = row[None, :] * D + dim[:, None]
    q_ptr += pair * rows * D
    q = tl.load(q_ptr + q_offset, mask=is_row[None, :] & is_dim[:, None], other=0.0)

    acc = tl.zeros([BLOCK_D, BLOCK_M], tl.float32)
    # Finite, so that a row that has seen no key yet computes exp2(-inf - m) = 0 and not exp2(-inf + inf).
    m = tl.full([BLOCK_M], -1e30, tl.float32)
    l = tl.zeros([BLOCK_M], tl.float32)

    k_new_ptr += pair * q_len * D
    v_new_ptr += pair * q_len * D
    k_cache_ptr += pair * slots * D
    v_cache_ptr += pair * slots * D
    cached_end = tl.minimum(end, length)
    new_begin = tl.maximum(begin - length, 0)
    new_end = end - length
    new = tl.arange(0, BLOCK_NEW)
    if FEW_NEW:
        # Asked for before the cached keys, so that nobody waits for them afterwards.
        is_new = (new >= new_begin) & (new < new_end)
        new_offset = new[:, None] * D + dim[None, :]
        new_mask = is_new[:, None] & is_dim[None, :]
        k_new = tl.load(k_new_ptr + new_offset, mask=new_mask, other=0.0)
        v_new = tl.load(v_new_ptr + new_offset, mask=new_mask, other=0.0)
        if update:
            append(k_cache_ptr, v_cache_ptr, k_new, v_new, length + new, slots, dim, new_mask & (tile == 0), D)

    for start in range(begin, cached_end, BLOCK_N):
        is_key = start + n < cached_end
        offset = (start + n)[:, None] * D + dim[None, :]
        mask = is_key[:, None] & is_dim[None, :]
        k = tl.load(k_cache_ptr + offset, mask=mask, other=0.0)
        v = tl.load(v_cache_ptr + offset, mask=mask, other=0.0)
        acc, m, l = attend_block(q, k, v, is_key[:, None], scale, acc, m, l)

    if FEW_NEW:
        if new_end > 0:
            seen = is_new[:, None] & (new[:, None] <= last_new[None, :])
            acc, m, l = attend_block(q, k_new, v_new, seen, scale, acc, m, l)
    else:
        for start in range(new_begin, new_end, BLOCK_NEW):
            is_new = start + new < new_end
            offset = (start + new)[:, None] * D + dim[None, :]
            mask = is_new[:, None] & is_dim[None, :]
            k = tl.load(k_new_ptr + offset, mask=mask, other=0.0)
            v = tl.load(v_new_ptr + offset, mask=mask, other=0.0)
            if update:
                append(k_cache_ptr, v_cache_ptr, k, v, length + start + new, slots, dim, mask & (tile == 0), D)
            seen = is_new[:, None] & (start + new[:, None] <= last_new[None, :])
            acc, m, l = attend_block(q, k, v, seen, scale, acc, m, l)

    saw_any = l > 0
    l = tl.where(saw_any, l, 1.0)
    acc = acc / l[None, :]
    out_mask = is_row[None, :] & is_dim[:, None]
    if ONE_SPLIT:
        out_ptr += pair * rows * D
        tl.store(out_ptr + q_offset, acc.to(out_ptr.dtype.element_ty), mask=out_mask)
    else:
        first_row = (pair * splits + split) * rows
        lse = tl.where(saw_any, m + tl.log2(l), float("-inf"))
        tl.store(lse_ptr + first_row + row, lse, mask=is_row)
        out_ptr += first_row * D
        tl.store(out_ptr + q_offset, acc, mask=saw_any[None, :] & out_mask)


@triton.jit
def append(k_cache_ptr, v_cache_ptr, k, v, slot, slots, dim, mask, D):
    offset = slot[:, None] * D + dim[None, :]
    mask = mask & (slot < slots)[:, None]
    tl.store(k_cache_ptr + offset, k, mask=mask)
    tl.store(v_cache_ptr + offset, v, mask=mask)


@triton.jit
def attend_block(q, k, v, seen, scale, acc, m, l):
    """One step of the online softmax. q `[D, M]`, k and v `[N, D]`, seen `[N, 1 or M]`, acc `[D, M]`, m and l `[M]`;
    scores in units of log2."""
    s = tl.dot(k, q, input_precision="ieee") * scale
    s = tl.where(seen, s, float("-inf"))
    m_next = tl.maximum(m, tl.max(s, 0))
    p = tl.exp2(s - m_next[None, :])
    rescale = tl.exp2(m - m_next)
    l = l * rescale + tl.sum(p, 0)
    acc = tl.dot(tl.trans(v), p.to(v.dtype), acc * rescale[None, :], input_precision="ieee")
    return acc, m_next, l


@triton.jit(do_not_specialize=["splits", "q_len", "rows", "kv_heads", "update"])
def merge_splits(
    partial_ptr,
    lse_ptr,
    out_ptr,  # [B, Hq, Sq, D]
    seq_lens_ptr,
    splits,
    q_len,
    rows,
    kv_heads,
    D,
    update,
    BLOCK_R: tl.constexpr,
    BLOCK_S: tl.constexpr,
    BLOCK_D: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    if DEPENDENT:
        tl.extra.cuda.gdc_wait()
    pair = tl.program_id(0).to(tl.int64)
    row = tl.program_id(1) * BLOCK_R + tl.arange(0, BLOCK_R)
    split = tl.arange(0, BLOCK_S)
    dim = tl.program_id(2) * BLOCK_D + tl.arange(0, BLOCK_D)

    part = (pair * splits + split)[None, :] * rows + row[:, None]
    lse = tl.load(lse_ptr + part, mask=(row < rows)[:, None] & (split < splits)[None, :], other=float("-inf"))
    saw_any = lse > float("-inf")  # where not, attend_split left the partial output as it found it
    partial = tl.load(
        partial_ptr + part[:, :, None] * D + dim[None, None, :],
        mask=saw_any[:, :, None] & (dim < D)[None, None, :],
        other=0.0,
    )
    # The first split always has a key to see, so the maximum is finite in every row that exists.
    peak = tl.where(row < rows, tl.max(lse, 1), 0.0)
    weight = tl.exp2(lse - peak[:, None])
    total = tl.where(row < rows, tl.sum(weight, 1), 1.0)
    out = tl.sum(partial * weight[:, :, None], 1) / total[:, None]

    out_ptr += pair * rows * D
    offset = row[:, None] * D + dim[None, :]
    tl.store(out_ptr + offset, out.to(out_ptr.dtype.element_ty), mask=(row < rows)[:, None] & (dim < D)[None, :])

    if update:
        if (tl.program_id(0) % kv_heads == 0) & (tl.program_id(1) + tl.program_id(2) == 0):
            length_ptr = seq_lens_ptr + tl.program_id(0) // kv_heads
            tl.store(length_ptr, tl.load(length_ptr) + q_len)


@triton.jit(do_not_specialize=["batch", "q_len"])
def advance_lengths(seq_lens_ptr, batch, q_len, BLOCK: tl.constexpr, DEPENDENT: tl.constexpr):
    if DEPENDENT:
        tl.extra.cuda.gdc_wait()
    sequence = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    length = tl.load(seq_lens_ptr + sequence, mask=sequence < batch)
    tl.store(seq_lens_ptr + sequence, length + q_len, mask=sequence < batch)
