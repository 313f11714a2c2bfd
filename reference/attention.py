"""Attention, exactly: softmax(sm_scale * q k^T) v, in float64 unless told otherwise.

    attention                 dense caches: [B, H, S, D] or [B, S, H, D], GQA, causal with an offset, key lengths,
                              and a chosen subset of query rows
    ragged_decode_attention   MLA decode: ragged sequences of one latent KV head, values a prefix of the keys

Both follow the definition and take no shortcut: the whole row of scores, its maximum, its exponentials, their sum.
Only the memory is bounded: the work is cut along batch, KV head and query row, never along the keys, so cutting
changes no row's arithmetic beyond the summation order inside a matrix product.

`dtype` selects the arithmetic. float64 is the oracle. float32 is for speed on a GPU; its products follow the
process's float32 matmul precision, so leave that at torch's default, "highest": TF32 keeps 10 bits of mantissa.
"""

from itertools import groupby, pairwise
from typing import Literal

import torch
from torch import Tensor

MAX_SCORE_BYTES = 256 << 20
"""Default bound on the bytes of scores alive at once."""


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    sm_scale: float | None = None,
    causal: bool = False,
    causal_offset: int | Tensor = 0,
    kv_lens: Tensor | None = None,
    rows: Tensor | None = None,
    layout: Literal["bhsd", "bshd"] = "bhsd",
    dtype: torch.dtype = torch.float64,
    max_score_bytes: int = MAX_SCORE_BYTES,
) -> Tensor:
    """Attention over a dense batch, query head h reading KV head h // (Hq // Hkv).

    Args:
        q: `[B, Hq, Sq, D]` ("bhsd") or `[B, Sq, Hq, D]` ("bshd"); any float dtype and strides.
        k: `[B, Hkv, Sk, D]` or `[B, Sk, Hkv, D]`.
        v: `[B, Hkv, Sk, Dv]` or `[B, Sk, Hkv, Dv]`.
        sm_scale: factor on the scores; `1 / sqrt(D)` by default.
        causal: query i of batch b sees keys j <= causal_offset[b] + i.
        causal_offset: int, or integer tensor `[B]`: for a cache that holds L tokens before the queries' own, L.
        kv_lens: integer tensor `[B]`; only keys j < kv_lens[b] exist. Past the last key that any row of a batch sees,
            k and v may hold anything, NaN included. All Sk keys by default.
        rows: integer tensor `[R]`, the query rows wanted, in any order: for the gold of a long prefill on sampled
            rows. They keep their own index i for the causal mask. All rows by default.
        layout: of q, k, v and of the result.
        dtype: of the arithmetic and of the result.
        max_score_bytes: no more than this many bytes of scores exist at once. The `dtype` copies of q, k, v and the
            output of a chunk stay under it too, but for one (batch, KV head) pair, which is always copied whole.

    Returns:
        `[B, Hq, Sq or R, Dv]`, or `[B, Sq or R, Hq, Dv]`, of `dtype` on q's device. A row that sees no key is zeros.

    Raises:
        ValueError: shapes that disagree, Hq not a multiple of Hkv, lengths or rows out of range, or a single row of
            scores larger than `max_score_bytes`.
    """
    if layout not in ("bhsd", "bshd"):
        raise ValueError(f"layout is {layout!r}; expected 'bhsd' or 'bshd'")
    if layout == "bshd":
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    batch, q_heads, q_len, head_dim = q.shape
    _, kv_heads, k_len, v_dim = v.shape
    if k.shape != (batch, kv_heads, k_len, head_dim) or v.shape[0] != batch:
        raise ValueError(f"q, k, v do not fit each other as [B, H, S, D]: {(*q.shape,)}, {(*k.shape,)}, {(*v.shape,)}")
    if kv_heads == 0 or q_heads % kv_heads:
        raise ValueError(f"{q_heads} query heads are not a multiple of {kv_heads} KV heads")
    if sm_scale is None:
        sm_scale = head_dim**-0.5

    visible = _visible_keys(batch, q_len, k_len, causal, causal_offset, kv_lens)
    if rows is not None:
        host_rows = rows.to("cpu", torch.int64)
        if host_rows.numel() and (int(host_rows.min()) < 0 or int(host_rows.max()) >= q_len):
            raise ValueError(f"rows lie outside 0..{q_len - 1}")
        visible = visible[:, host_rows]
        q = q.index_select(2, host_rows.to(q.device))
        q_len = host_rows.numel()

    group = q_heads // kv_heads
    shape = (batch, q_heads, q_len, v_dim) if layout == "bhsd" else (batch, q_len, q_heads, v_dim)
    result = torch.zeros(shape, dtype=dtype, device=q.device)
    by_group = (result if layout == "bhsd" else result.transpose(1, 2)).unflatten(1, (kv_heads, group))
    if result.numel() == 0 or k_len == 0:
        return result

    # The G query heads of a KV head are stacked under one another, row-major in the query position: row m of a
    # pair is query m // G, so that a run of rows sees a similar prefix of the keys and the rest can be left out.
    q = q.unflatten(1, (kv_heads, group))
    m_len = q_len * group
    visible = visible.repeat_interleave(group, dim=1)
    batch_step, head_step, m_step = _chunks(batch, kv_heads, m_len, k_len, head_dim + v_dim, dtype, max_score_bytes)
    for b in range(0, batch, batch_step):
        bs = slice(b, b + batch_step)
        end = int(visible[bs].max())
        if end == 0:
            continue
        for h in range(0, kv_heads, head_step):
            hs = slice(h, h + head_step)
            queries = q[bs, hs].to(dtype).transpose(2, 3).flatten(2, 3)
            keys = k[bs, hs, :end].to(dtype)
            values = v[bs, hs, :end].to(dtype)
            unseen = _positions(end, q) >= visible[bs].amax(dim=1).to(q.device)[:, None]
            if bool(unseen.any()):
                # 0 * NaN is NaN: what lies past a sequence's end must not reach the product.
                values = values.masked_fill(unseen[:, None, :, None], 0.0)
            out = torch.zeros(*queries.shape[:3], v_dim, dtype=dtype, device=q.device)
            for m in range(0, m_len, m_step):
                ms = slice(m, m + m_step)
                stop = int(visible[bs, ms].max())
                if stop:
                    seen = visible[bs, ms].to(q.device)[:, None]
                    out[:, :, ms] = _attend(queries[:, :, ms], keys[:, :, :stop], values[:, :, :stop], sm_scale, seen)
            by_group[bs, hs] = out.unflatten(2, (q_len, group)).transpose(2, 3)
    return result


def ragged_decode_attention(
    q: Tensor,
    kv: Tensor,
    qo_indptr: Tensor,
    kv_indptr: Tensor,
    *,
    sm_scale: float,
    v_dim: int,
    causal: bool = False,
    dtype: torch.dtype = torch.float64,
    max_score_bytes: int = MAX_SCORE_BYTES,
) -> Tensor:
    """MLA decode over ragged sequences: every head attends to one latent cache, whose first v_dim dims are the values.

    Per-tensor fp8 needs no dequantized copy of the cache: pass the fp8 tensors as they are with
    `sm_scale * q_scale * kv_scale` and multiply the result by `kv_scale`.

    Args:
        q: `(total_q, H, D)`, any float dtype; sequence b owns rows qo_indptr[b] .. qo_indptr[b + 1] - 1.
        kv: `(total_kv, D)`; sequence b owns rows kv_indptr[b] .. kv_indptr[b + 1] - 1.
        qo_indptr, kv_indptr: `(B + 1,)` integer, from 0 to the totals, never falling.
        sm_scale: factor on the scores; `1 / sqrt(576)` for DeepSeek's MLA.
        v_dim: values are `kv[:, :v_dim]`; 512 for DeepSeek's MLA.
        causal: the n queries of a sequence are its last n tokens, so query i sees keys j <= L - n + i. Otherwise every
            query sees the whole sequence; for n = 1 the two are the same.
        dtype, max_score_bytes: as in `attention`.

    Returns:
        `(total_q, H, v_dim)` of `dtype`. A query whose sequence has no keys is zeros.

    Raises:
        ValueError: shapes that disagree, indptrs that do not cover q and kv, or v_dim greater than D.
    """
    if q.ndim != 3 or kv.ndim != 2 or q.shape[2] != kv.shape[1]:
        raise ValueError(f"expected q (total_q, H, D) and kv (total_kv, D), got {(*q.shape,)} and {(*kv.shape,)}")
    if not 0 < v_dim <= kv.shape[1]:
        raise ValueError(f"v_dim {v_dim} is not within the {kv.shape[1]} dims of the cache")
    q_starts = _starts(qo_indptr, q.shape[0], "qo_indptr")
    kv_starts = _starts(kv_indptr, kv.shape[0], "kv_indptr")
    if len(q_starts) != len(kv_starts):
        raise ValueError(f"qo_indptr has {len(q_starts) - 1} sequences and kv_indptr {len(kv_starts) - 1}")

    result = torch.zeros(q.shape[0], q.shape[1], v_dim, dtype=dtype, device=q.device)
    q_lens, kv_lens = ([end - start for start, end in pairwise(starts)] for starts in (q_starts, kv_starts))
    # Sequences of one length that follow each other are a dense batch.
    first = 0
    for (n, length), run in groupby(zip(q_lens, kv_lens)):
        count = len(list(run))
        if n:
            queries = q[q_starts[first] : q_starts[first + count]].unflatten(0, (count, n))
            keys = kv[kv_starts[first] : kv_starts[first + count]].view(count, length, 1, kv.shape[1])
            out = attention(
                queries,
                keys,
                keys[..., :v_dim],
                sm_scale=sm_scale,
                causal=causal,
                causal_offset=length - n,
                layout="bshd",
                dtype=dtype,
                max_score_bytes=max_score_bytes,
            )
            result[q_starts[first] : q_starts[first + count]] = out.flatten(0, 1)
        first += count
    return result


def _visible_keys(
    batch: int, q_len: int, k_len: int, causal: bool, causal_offset: int | Tensor, kv_lens: Tensor | None
) -> Tensor:
    """How many keys, counted from the first, each query sees: int64 `[B, Sq]` on the CPU."""
    visible = torch.full((batch, q_len), k_len, dtype=torch.int64)
    if kv_lens is not None:
        lens = kv_lens.to("cpu", torch.int64)
        if lens.shape != (batch,) or (batch and (int(lens.min()) < 0 or int(lens.max()) > k_len)):
            raise ValueError(f"kv_lens must be ({batch},) lengths within 0..{k_len}, got {kv_lens.tolist()}")
        visible = torch.minimum(visible, lens[:, None])
    if causal:
        offset = torch.as_tensor(causal_offset).to("cpu", torch.int64)
        if offset.shape not in ((), (batch,)):
            raise ValueError(f"causal_offset must be an int or ({batch},), got shape {(*offset.shape,)}")
        last = offset.expand(batch)[:, None] + torch.arange(q_len)
        visible = torch.minimum(visible, (last + 1).clamp(min=0))
    return visible


def _chunks(
    batch: int, kv_heads: int, m_len: int, k_len: int, dims: int, dtype: torch.dtype, max_score_bytes: int
) -> tuple[int, int, int]:
    """Batches, KV heads and stacked query rows of one chunk: as many as fit, the rows cut first to give way."""
    row_bytes = k_len * dtype.itemsize
    if row_bytes > max_score_bytes:
        raise ValueError(f"one row of {k_len} scores takes {row_bytes} bytes, max_score_bytes is {max_score_bytes}")
    m_step = min(m_len, max_score_bytes // row_bytes)
    pair_bytes = max(m_len * row_bytes, (m_len + k_len) * dims * dtype.itemsize)
    pairs = max(1, max_score_bytes // pair_bytes)
    head_step = min(kv_heads, pairs)
    return max(1, pairs // kv_heads), head_step, m_step


def _attend(q: Tensor, k: Tensor, v: Tensor, sm_scale: float, visible: Tensor) -> Tensor:
    """Softmax attention of one chunk: q `[b, h, M, D]`, k `[b, h, S, D]`, v `[b, h, S, Dv]`, visible `[b, 1, M]`."""
    scores = (q @ k.mT).mul_(sm_scale)
    scores.masked_fill_(_positions(k.shape[2], q) >= visible[..., None], -torch.inf)
    peak = scores.amax(dim=-1, keepdim=True)
    peak.masked_fill_(peak == -torch.inf, 0.0)  # a row with no key: -inf - 0, not -inf + inf
    weights = scores.sub_(peak).exp_()
    total = weights.sum(dim=-1, keepdim=True)
    return (weights @ v).div_(total.masked_fill_(total == 0, 1.0))


def _positions(count: int, like: Tensor) -> Tensor:
    return torch.arange(count, device=like.device)


def _starts(indptr: Tensor, total: int, name: str) -> list[int]:
    starts: list[int] = indptr.tolist()
    if not starts or starts[0] != 0 or starts[-1] != total or any(a > b for a, b in pairwise(starts)):
        raise ValueError(f"{name} must rise from 0 to {total}, got {starts if len(starts) < 10 else starts[-1]}")
    return starts
