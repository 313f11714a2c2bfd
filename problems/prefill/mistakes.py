"""What wrong answers to prefill often are, for the hint of a mismatch report."""

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from harness.judge.mistakes import MOST_SCORES, not_rescaled, wrong_maximum, wrong_scales
from reference.attention import attention

BLOCKS = (16, 32, 64, 128)
"""Keys that kernels take at a time."""


def mistakes(data: tuple[Tensor, Tensor, Tensor, dict]) -> Iterator[tuple[str, Tensor]]:
    """What each mistake looks like, and the output `[B, N, Hq, D]` float64 it gives, NaN for a row without keys."""
    q, k, v, config = data
    keys, q_heads, kv_heads = k.shape[1], q.shape[2], k.shape[2]
    causal, scale = config["causal"], config["sm_scale"]
    attend = partial(attention, sm_scale=scale, causal=causal, layout="bshd")
    for words, wrong in wrong_scales(scale, config["head_dim"]):
        yield words, attend(q, k, v, sm_scale=wrong)
    if causal:
        own_hidden = attend(q, k, v, causal_offset=-1)
        own_hidden[:, 0] = torch.nan
        yield "the causal mask hid each query's own key: < where <= is due", own_hidden
        yield "the causal mask showed one key too many", attend(q, k, v, causal_offset=1)
    yield f"there were {'no' if causal else 'a'} causal mask", attend(q, k, v, causal=not causal)
    if 1 < kv_heads < q_heads:
        heads = torch.arange(q_heads, device=k.device) % kv_heads
        yield "query head h read KV head h % Hkv, not h // (Hq // Hkv)", attend(q, k[:, :, heads], v[:, :, heads])
    if keys > 1:
        yield "the last key were left out", _over_some(attend, data, keys - 1)
    for block in BLOCKS:
        if keys % block and keys > block:
            yield (
                f"the last, partial block of {block} keys were left out",
                _over_some(attend, data, keys // block * block),
            )
    if q.shape[0] * q_heads * keys * keys <= MOST_SCORES:
        yield from _of_the_maximum(data)
    for block in BLOCKS if not causal else ():
        if short := -keys % block:
            padded = (torch.nn.functional.pad(x, (0, 0, 0, 0, 0, short)) for x in (k, v))
            yield f"keys beyond the end, up to a multiple of {block}, counted with the score 0", attend(q, *padded)


def _of_the_maximum(data: tuple[Tensor, Tensor, Tensor, dict]) -> Iterator[tuple[str, Tensor]]:
    """The mistakes at the maximum, and at one that rises by the keys that kernels take at a time."""
    q, k, v, config = data
    group = q.shape[2] // k.shape[2]
    queries, keys, values = (x.transpose(1, 2).double() for x in (q, k, v))
    keys, values = (x.repeat_interleave(group, dim=1) for x in (keys, values))
    scores = queries @ keys.mT * config["sm_scale"]
    places = torch.arange(scores.shape[-1], device=q.device)
    if config["causal"]:
        scores.masked_fill_(places > places[:, None], -torch.inf)
    for words, wrong in wrong_maximum(scores.softmax(-1) @ values, scores.logsumexp(-1)):
        yield words, wrong.transpose(1, 2)
    for block in BLOCKS:
        ends = ((places // block + 1) * block - 1).clamp(max=len(places) - 1)
        for words, wrong in not_rescaled(scores, values, ends, f"a block of {block} keys"):
            yield words, wrong.transpose(1, 2)


def _over_some(attend: partial, data: tuple[Tensor, Tensor, Tensor, dict], count: int) -> Tensor:
    """Attention over the first `count` keys alone."""
    q, k, v, _ = data
    return attend(q, k, v, kv_lens=torch.full((k.shape[0],), count))
