"""What wrong answers to kv_decode often are, for the hint of a mismatch report."""

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from harness.judge.mistakes import MOST_SCORES, not_rescaled, wrong_maximum, wrong_scales
from reference.attention import attention

BLOCKS = (16, 32, 64, 128)
"""Keys that kernels take at a time."""

UNCHANGED = "update_cache is False"

GARBAGE = 16.0
"""A free slot with a larger element is no key: what comes of it depends on how sums overflow."""


def mistakes(data: tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, dict]) -> Iterator[tuple[str, Tensor]]:
    """What each mistake looks like, and the output `[B, Hq, Sq, D]` float64 it gives, NaN for a row without keys."""
    q, k_new, v_new, k_cache, v_cache, seq_lens, config = data
    q_heads, kv_heads, queries, head_dim = q.shape[1], k_new.shape[1], q.shape[2], q.shape[3]
    lens, causal = seq_lens.to(torch.int64), config["is_causal"]
    counts = lens + queries
    k, v = _keys(k_cache, k_new, lens), _keys(v_cache, v_new, lens)
    attend = partial(attention, q, causal=causal, causal_offset=lens, kv_lens=counts)
    scores = _scores(q, k, counts, lens if causal else counts)
    yield from wrong_maximum(attend(k, v), scores.logsumexp(-1))
    for words, wrong in wrong_scales(head_dim**-0.5, head_dim):
        yield words, attend(k, v, sm_scale=wrong)
    yield "the new keys and values were left out", _seen(attend(k, v, causal=False, kv_lens=lens), lens)
    yield "the last key were left out", _seen(attend(k, v, kv_lens=counts - 1), counts - 1)
    if causal:
        hidden = attend(k, v, causal_offset=lens - 1)
        hidden[:, :, 0] = _seen(hidden, lens)[:, :, 0]
        yield "the causal mask hid each query's own key", hidden
    if queries > 1:
        yield f"there were {'no' if causal else 'a'} causal mask", attend(k, v, causal=not causal)
        yield "the causal mask began at the first key and not at seq_lens", attend(k, v, causal=True, causal_offset=0)
    if causal and queries > 1:
        yield "the causal mask showed one key too many", attend(k, v, causal=True, causal_offset=lens + 1)
    if 1 < kv_heads < q_heads:
        heads = torch.arange(q_heads, device=k.device) % kv_heads
        yield "query head h read KV head h % Hkv, not h // (Hq // Hkv)", attend(k[:, heads], v[:, heads])
    for block in BLOCKS:
        whole = lens // block * block
        if bool((whole != lens).any()):
            cut = (_keys(cache, new, whole) for cache, new in ((k_cache, k_new), (v_cache, v_new)))
            words = f"the last, partial block of {block} keys of the cache were left out"
            yield words, attend(*cut, causal_offset=whole, kv_lens=whole + queries)
        kept = counts // block * block
        if bool((kept != counts).any()):
            words = f"the last, partial block of {block} keys were left out"
            yield words, _seen(attend(k, v, kv_lens=kept), kept)
            padded = (torch.nn.functional.pad(x, (0, 0, 0, block)) for x in (k, v))
            words = f"keys beyond the end, up to a multiple of {block}, counted with the score 0"
            # Of the queries only the last sees the end if they are causal.
            yield words, attend(*padded, kv_lens=-(-counts // block) * block, causal=causal and queries > 1)

    yield from _free_slots(attend(k, v), data)
    if scores.numel() <= MOST_SCORES:
        yield from _not_rescaled(scores, v, lens)


def _free_slots(out: Tensor, data: tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, dict]) -> Iterator[tuple]:
    """The mistakes of reading slots behind a sequence's end. `out`: the right output."""
    q, k_new, v_new, k_cache, v_cache, seq_lens, config = data
    lens, slots, group = seq_lens.to(torch.int64), k_cache.shape[2], q.shape[1] // k_cache.shape[1]
    unfit = torch.nn.functional.pad((~v_cache.isfinite()).any(dim=-1).flatten().cumsum(0), (1, 0))
    bases = torch.arange(lens.numel() * k_cache.shape[1], device=lens.device).view(len(lens), -1) * slots
    for block in BLOCKS:
        first, end = bases + lens[:, None], bases - (-lens // block * block)[:, None]
        held = unfit[end.clamp(max=len(unfit) - 1)] > unfit[first]
        words = "slots behind seq_lens were not masked: some hold NaN or inf, and 0 x either is NaN"
        yield words, out.masked_fill(held.repeat_interleave(group, dim=1)[:, :, None, None], torch.inf)
    for block in (1, *BLOCKS):  # at the end of a whole block the loop ends, and the slot behind it is not read
        more = (lens + ((lens % block != 0) | (block == 1))).clamp(max=slots)
        k, v = _keys(k_cache, k_new, more), _keys(v_cache, v_new, more)
        wrong = attention(q, k, v, causal=config["is_causal"], causal_offset=more, kv_lens=more + q.shape[2])
        key, value = (torch.stack([each[:, (n - 1).clamp(min=0)] for each, n in zip(x, more)]) for x in (k, v))
        k_odd, v_odd = (~(each.abs() <= GARBAGE).all(dim=-1) & (more > lens)[:, None] for each in (key, value))
        stray = ~k_odd & v_odd & ~value.isfinite().any(dim=-1)
        odd, stray = (each.repeat_interleave(group, dim=1)[:, :, None, None] for each in (k_odd | v_odd, stray))
        words = "one slot behind seq_lens counted as a key: <= where < is due"
        yield words, wrong.masked_fill(odd, torch.nan).masked_fill(stray, torch.inf)


def _not_rescaled(scores: Tensor, v: Tensor, lens: Tensor) -> Iterator[tuple]:
    """The mistakes at a maximum that rises, by how kernels cut the keys into blocks: the cached and the new ones in one
    go, or the new ones as a block of their own, whose step may be the only right one."""
    values = v.repeat_interleave(scores.shape[1] // v.shape[1], dim=1).double()
    places, count = torch.arange(scores.shape[-1], device=v.device), scores.shape[-1]
    first = lens[:, None, None, None]
    cached = places < first
    before = scores.cummax(dim=-1).values.gather(-1, (first - 1).clamp(min=0).expand(*scores.shape[:-1], 1))
    for block in BLOCKS:
        words = f"a block of {block} keys"
        ends = (places // block + 1) * block - 1
        yield from not_rescaled(scores, values, ends.clamp(max=count - 1), words)
        apart = torch.where(cached, torch.minimum(ends, first - 1), count - 1)
        yield from not_rescaled(scores, values, apart, words)
        yield from not_rescaled(scores, values, apart, words, cached & (before > -torch.inf), before)


def _scores(q: Tensor, k: Tensor, counts: Tensor, offsets: Tensor) -> Tensor:
    """`[B, Hq, Sq, keys]` in float64, -inf where a query does not see a key. Query i of sequence b sees the keys up to
    offsets[b] + i, of counts[b]."""
    heads = k.repeat_interleave(q.shape[1] // k.shape[1], dim=1).double()
    scores = q.double() @ heads.mT * q.shape[-1] ** -0.5
    places, rows = (torch.arange(count, device=q.device) for count in (k.shape[2], q.shape[2]))
    seen = torch.minimum(offsets[:, None] + rows + 1, counts[:, None])
    return scores.masked_fill_(places >= seen[:, None, :, None], -torch.inf)


def _keys(cache: Tensor, new: Tensor, lens: Tensor) -> Tensor:
    """Of each sequence the cached and then the new ones, and zeros up to the longest: `[B, Hkv, L + Sq, D]`."""
    whole = new.new_zeros(*new.shape[:2], int(lens.max()) + new.shape[2], new.shape[3])
    for sequence, length in enumerate(lens.tolist()):
        whole[sequence, :, :length] = cache[sequence, :, :length]
        whole[sequence, :, length : length + new.shape[2]] = new[sequence]
    return whole


def _seen(out: Tensor, counts: Tensor) -> Tensor:
    """`out` with NaN for the sequences without any key."""
    out[counts.to(out.device) == 0] = torch.nan
    return out
