"""What wrong answers to kv_decode often are, for the hint of a mismatch report."""

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from harness.judge.mistakes import no_maximum, wrong_scales
from reference.attention import attention

BLOCKS = (16, 32, 64, 128)
"""Keys that kernels take at a time."""


def mistakes(data: tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, dict]) -> Iterator[tuple[str, Tensor]]:
    """What each mistake looks like, and the output `[B, Hq, Sq, D]` float64 it gives, NaN for a row without keys."""
    q, k_new, v_new, k_cache, v_cache, seq_lens, config = data
    q_heads, kv_heads, queries, head_dim = q.shape[1], k_new.shape[1], q.shape[2], q.shape[3]
    lens, causal = seq_lens.to(torch.int64), config["is_causal"]
    counts = lens + queries
    k, v = _keys(k_cache, k_new, lens), _keys(v_cache, v_new, lens)
    attend = partial(attention, q, causal=causal, causal_offset=lens, kv_lens=counts)
    yield from no_maximum(attend(k, v), _log_sums(q, k, counts, lens if causal else counts))
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


def _log_sums(q: Tensor, k: Tensor, counts: Tensor, offsets: Tensor) -> Tensor:
    """`[B, Hq, Sq]`: the logarithm of the sum of exponentials of each row's scores. Query i of sequence b sees the keys
    up to offsets[b] + i, of counts[b]."""
    heads = k.repeat_interleave(q.shape[1] // k.shape[1], dim=1).double()
    scores = q.double() @ heads.mT * q.shape[-1] ** -0.5
    places, rows = (torch.arange(count, device=q.device) for count in (k.shape[2], q.shape[2]))
    seen = torch.minimum(offsets[:, None] + rows + 1, counts[:, None])
    return scores.masked_fill_(places >= seen[:, None, :, None], -torch.inf).logsumexp(-1)


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
