"""Long-context prefill, causal or not, with grouped query heads: inputs, reference, cost.

    q        [B, N, Hq, D]   bf16           query head h reads KV head h // (Hq // Hkv)
    k, v     [B, N, Hkv, D]  bf16           causal: query i sees keys 0 .. i, otherwise all N
    output   [B, N, Hq, D]   bf16           softmax(q k^T / sqrt(D)) v

Unit-normal scores leave a row's running maximum where the first tiles put it, and an online softmax that goes wrong
when the maximum rises is never seen to. `growth` makes it rise: one channel of every KV head, chosen at random, adds
`growth` log2 units to the scores of each tile of 64 keys over those of the tile before.
"""

import math
from typing import Any

import torch
from torch import Tensor

from reference.attention import attention

GROWTH_TILE = 64
"""Keys in a tile of `growth`: the narrowest that kernels commonly take at a time. Wider ones see a steeper rise."""

_WORKSPACE_SHARE = 4
_WORKSPACE_BYTES = 256 << 20
"""`ref_kernel` takes so few rows at a time that their float64 queries, scores and outputs stay within the bytes of the
inputs over the one, but at least 256 KiB, and at most the other. Float64 copies of one KV head's keys and values come
on top."""


def generate_input(
    *,
    batch_size: int,
    seq_len: int,
    num_q_heads: int,
    num_kv_heads: int,
    head_dim: int,
    causal: bool,
    growth: float = 0.0,
    seed: int,
    device: str,
) -> tuple[Tensor, Tensor, Tensor, dict]:
    """`(q, k, v, config)`, unit normal.

    q `[batch_size, seq_len, num_q_heads, head_dim]`, k and v `[batch_size, seq_len, num_kv_heads, head_dim]`, bf16.
    config: the sizes, `causal` and `sm_scale`; it does not tell `growth`.
    growth: log2 units by which every query's scores rise from one tile of 64 keys to the next; at most a quarter more.

    Raises ValueError for a size below 1, query heads that are no multiple of the KV heads, or a negative growth.
    """
    q, k, v, config = empty_input(
        batch_size=batch_size,
        seq_len=seq_len,
        num_q_heads=num_q_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        causal=causal,
        growth=growth,
        device=device,
    )
    generator = torch.Generator(device).manual_seed(seed)
    for tensor in (q, k, v):
        _draw_unit_normal(tensor, generator)
    if growth:
        _raise_scores(q, k, growth, generator)
    return q, k, v, config


def empty_input(
    *,
    batch_size: int,
    seq_len: int,
    num_q_heads: int,
    num_kv_heads: int,
    head_dim: int,
    causal: bool,
    growth: float = 0.0,
    device: str,
) -> tuple[Tensor, Tensor, Tensor, dict]:
    """What `generate_input` returns, with q, k and v not yet written."""
    config = {
        "batch_size": batch_size,
        "seq_len": seq_len,
        "num_q_heads": num_q_heads,
        "num_kv_heads": num_kv_heads,
        "head_dim": head_dim,
    }
    _check(config, growth)
    q, k, v = (
        torch.empty(batch_size, seq_len, heads, head_dim, dtype=torch.bfloat16, device=device)
        for heads in (num_q_heads, num_kv_heads, num_kv_heads)
    )
    return q, k, v, {**config, "causal": causal, "sm_scale": head_dim**-0.5}


def ref_kernel(data: tuple[Tensor, Tensor, Tensor, dict], rows: Tensor | None = None) -> Tensor:
    """Attention in float64, rounded once to bf16: `[B, N, Hq, D]`, or `[B, R, Hq, D]` for R row numbers in `rows`."""
    q, k, v, config = data
    batch, seq_len, q_heads, head_dim = q.shape
    kv_heads = k.shape[2]
    group = q_heads // kv_heads
    wanted = torch.arange(seq_len) if rows is None else rows.cpu()
    out = torch.empty(batch, len(wanted), q_heads, head_dim, dtype=q.dtype, device=q.device)
    workspace = (q.nbytes + k.nbytes + v.nbytes) // _WORKSPACE_SHARE
    workspace = min(max(workspace, 1 << 18), _WORKSPACE_BYTES)
    step = max(1, workspace // (8 * group * 3 * (head_dim + seq_len)))
    for b in range(batch):
        for h in range(kv_heads):
            shared = slice(h * group, (h + 1) * group)
            for start in range(0, len(wanted), step):
                piece = slice(start, start + step)
                out[b, piece, shared] = attention(
                    q[b : b + 1, :, shared],
                    k[b : b + 1, :, h : h + 1],
                    v[b : b + 1, :, h : h + 1],
                    sm_scale=config["sm_scale"],
                    causal=config["causal"],
                    rows=wanted[piece],
                    layout="bshd",
                    max_score_bytes=max(workspace, 8 * seq_len),
                )[0].to(q.dtype)
    return out


def cost(
    *,
    batch_size: int,
    seq_len: int,
    num_q_heads: int,
    num_kv_heads: int,
    head_dim: int,
    causal: bool,
    growth: float = 0.0,
) -> dict[str, dict]:
    """q, k and v read once and the output written once; two products of 2·D flops a visible pair of query and key.

    A causal row i has i + 1 visible keys, diagonal included: N·(N + 1) / 2 pairs in all. The softmax is not counted.
    """
    pairs = seq_len * (seq_len + 1) // 2 if causal else seq_len * seq_len
    elements = 2 * batch_size * seq_len * head_dim * (num_q_heads + num_kv_heads)
    return {"bf16": {"bytes": 2 * elements, "flops": {"bfloat16": 4 * batch_size * num_q_heads * head_dim * pairs}}}


def device_bytes(**case: Any) -> int:
    """What q, k, v and the output take: each is read or written once, so as many bytes as `cost` counts."""
    return cost(**case)["bf16"]["bytes"]


def _check(config: dict[str, int], growth: float) -> None:
    for name, size in config.items():
        if size < 1:
            raise ValueError(f"{name} is {size}; it must be at least 1")
    if config["num_q_heads"] % config["num_kv_heads"]:
        raise ValueError(
            f"{config['num_q_heads']} query heads cannot share {config['num_kv_heads']} KV heads evenly: "
            "num_q_heads must be a multiple of num_kv_heads"
        )
    if not 0 <= growth < math.inf:
        raise ValueError(f"growth is {growth}; it must be a number of log2 units, at least 0")


def _draw_unit_normal(tensor: Tensor, generator: torch.Generator) -> None:
    """bf16, rounded from float32: drawn in bf16, a normal has only some 256 magnitudes."""
    for sequence in tensor:
        sequence.copy_(torch.randn(sequence.shape, generator=generator, device=generator.device))


def _raise_scores(q: Tensor, k: Tensor, growth: float, generator: torch.Generator) -> None:
    """Overwrite one channel a (batch, KV head), of random place and sign, so that q k^T / sqrt(D) rises by tiles."""
    batch, seq_len, kv_heads, head_dim = k.shape
    device = generator.device
    channel = torch.randint(head_dim, (batch, kv_heads), generator=generator, device=device)
    sign = 1.0 - 2.0 * torch.randint(2, (batch, 1, kv_heads, 1), generator=generator, device=device)
    tile = torch.arange(seq_len, device=device).div(GROWTH_TILE, rounding_mode="floor")
    rise = sign * (growth * math.log(2.0) * tile)[None, :, None, None]
    k.scatter_(3, channel[:, None, :, None].expand(batch, seq_len, kv_heads, 1), rise.to(k.dtype))

    group = q.shape[2] // kv_heads
    channel, sign = channel.repeat_interleave(group, dim=1), sign.repeat_interleave(group, dim=2)
    factor = 1.0 + torch.rand((*q.shape[:3], 1), generator=generator, device=device) / 4
    weight = sign * head_dim**0.5 * factor
    q.scatter_(3, channel[:, None, :, None].expand(*q.shape[:3], 1), weight.to(q.dtype))
