"""What wrong answers to fmha often are, for the hint of a mismatch report."""

from collections.abc import Iterator

import torch
from torch import Tensor

from harness.judge.mistakes import wrong_scales
from reference.attention import attention

TILE = 16
"""Keys of the tile that a kernel for tensor cores takes, of which all are there only for S = 16."""


def mistakes(data: tuple[Tensor, Tensor, Tensor, dict]) -> Iterator[tuple[str, Tensor]]:
    """What each mistake looks like, and the output `[B, Hq, 1, D]` float64 that it gives."""
    q, k, v, config = data
    q_heads, kv_heads, keys = q.shape[1], k.shape[1], k.shape[2]
    for words, wrong in wrong_scales(config["sm_scale"], config["head_dim"]):
        yield words, attention(q, k, v, sm_scale=wrong)
    if keys > 1:
        yield "the last key were left out", attention(q, k[:, :, :-1], v[:, :, :-1])
        yield "only the first key were taken", attention(q, k[:, :, :1], v[:, :, :1])
    if short := -keys % TILE:
        padded = (torch.nn.functional.pad(x, (0, 0, 0, short)) for x in (k, v))
        yield f"keys beyond the end, up to {TILE}, counted with the score 0", attention(q, *padded)
    if 1 < kv_heads < q_heads:
        heads = torch.arange(q_heads, device=k.device) % kv_heads
        yield "query head h read KV head h % Hkv, not h // (Hq // Hkv)", attention(q, k[:, heads], v[:, heads])
