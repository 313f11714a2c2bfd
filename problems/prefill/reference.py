"""Long-context prefill, causal or not, with grouped query heads: inputs, reference, cost.

    q        [B, N, Hq, D]   bf16           query head h reads KV head h // (Hq // Hkv)
    k, v     [B, N, Hkv, D]  bf16           causal: query i sees keys 0 .. i, otherwise all N
    output   [B, N, Hq, D]   bf16           softmax(q k^T / sqrt(D)) v

Unit-normal scores leave a row's running maximum where the first tiles put it, and an online softmax that goes wrong
when the maximum rises is never seen to. `growth` makes it rise: half of the dims of every KV head, chosen at random,
add `growth` log2 units to the scores of each tile of 64 keys over those of the tile before. `scores: shuffled` moves
them to five levels in a random order, so that no key is known to be near a row's maximum. `scores: large` moves all
scores of a row far above zero or far below it. `scores: sink` raises one early key above all others, which together
still weigh. A negative `growth` makes the maximum stand in the first tile, while later ones fall. With `values:
outliers` a key shows though it weighs little.
"""

import math
from typing import Any

import torch
from torch import Tensor

from reference.attention import attention

GROWTH_TILE = 64
"""Keys in a tile of `growth`: the narrowest that kernels commonly take at a time. Wider ones see a steeper rise."""

SCORES = ("plain", "large", "shuffled", "sink")

VALUES = ("normal", "outliers")

OUTLIER = 1024.0
"""How much larger the values of one key of each KV head are with values="outliers". A power of two, exact in bf16."""

SHIFT = 112.0
"""By how much `shuffled` scores are moved at most. exp of it overflows in float32, and exp of its negative is zero."""

LARGE = (SHIFT, 300.0)
"""By how much `large` scores are moved, the second in every other KV head: further below zero than what a kernel may
take for minus infinity."""

SINK = 3.0
"""By how much the sink's score is above the logarithm of the number of keys: the others keep a twentieth of a row."""

OUTER_LEVELS, INNER_LEVELS = (-1.0, -0.5, 0.0), (0.5, 1.0)
"""Levels of `shuffled` scores, in SHIFTs. At either end of the keys lies an outer one, from which to the maximum exp
overflows."""

SPLIT = (2.0, 3.0)
"""A power of two between these is by how much queries hold more than half of what moves a KV head's scores, and keys
less, or the other way round: either looks plain."""

_WORKSPACE_SHARE = 4
_WORKSPACE_BYTES = 256 << 20
"""`ref_kernel` takes so few rows at a time that their float64 queries, scores and outputs stay within the bytes of the
inputs over the one, but at least 256 KiB, and at most the other. On a GPU, where many small kernels take long,
within the other. Float64 copies of one KV head's keys and values come on top."""


def generate_input(
    *,
    batch_size: int,
    seq_len: int,
    num_q_heads: int,
    num_kv_heads: int,
    head_dim: int,
    causal: bool,
    growth: float = 0.0,
    scores: str = "plain",
    values: str = "normal",
    seed: int,
    device: str,
) -> tuple[Tensor, Tensor, Tensor, dict]:
    """`(q, k, v, config)`, unit normal.

    q `[batch_size, seq_len, num_q_heads, head_dim]`, k and v `[batch_size, seq_len, num_kv_heads, head_dim]`, bf16.
    config: the sizes, `causal` and `sm_scale`; it tells neither `growth` nor `scores` nor `values`.
    growth: log2 units by which every query's scores rise from one tile of 64 keys to the next; at most a quarter more.
        If it is negative they fall.
    scores: plain, large, shuffled or sink. Large ones are all moved by 112 or by -112, drawn for each query and head,
        in every other KV head by 300 or -300. A sink is one of the first 64 keys, with a score of log(seq_len) + SINK.
        Shuffled ones lie at five levels, of as many keys each, in an order drawn for each KV head: the first fifth of
        the keys and the last are 112 or more below the highest level.
    values: normal or outliers. With outliers the values of one key of each KV head are OUTLIER times as large. Of every
        other KV head it is one of the half that weighs little where scores grow or fall.

    Raises ValueError for a size below 1, query heads that are no multiple of the KV heads, a growth that is no number,
    an unknown kind of scores or values, or scores of another kind than plain that grow.
    """
    q, k, v, config = empty_input(
        batch_size=batch_size,
        seq_len=seq_len,
        num_q_heads=num_q_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        causal=causal,
        growth=growth,
        scores=scores,
        values=values,
        device=device,
    )
    generator = torch.Generator(device).manual_seed(seed)
    for tensor in (q, k, v):
        _draw_unit_normal(tensor, generator)
    if growth or scores != "plain":
        _move_scores(q, k, growth, scores, generator)
    if values == "outliers":
        drawn = torch.rand((batch_size, num_kv_heads), generator=generator, device=device, dtype=torch.float64)
        for b, places in enumerate(drawn.tolist()):
            for h, place in enumerate(places):
                half = (seq_len + 1) // 2
                first, among = (0, seq_len) if h % 2 else (seq_len - half if growth < 0 else 0, half)
                v[b, first + int(place * among), h] *= OUTLIER
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
    scores: str = "plain",
    values: str = "normal",
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
    _check(config, growth, scores, values)
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
    workspace = min(max(workspace, 1 << 18), _WORKSPACE_BYTES) if q.device.type == "cpu" else _WORKSPACE_BYTES
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
    scores: str = "plain",
    values: str = "normal",
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


def _check(config: dict[str, int], growth: float, scores: str, values: str) -> None:
    for name, size in config.items():
        if size < 1:
            raise ValueError(f"{name} is {size}; it must be at least 1")
    if config["num_q_heads"] % config["num_kv_heads"]:
        raise ValueError(
            f"{config['num_q_heads']} query heads cannot share {config['num_kv_heads']} KV heads evenly: "
            "num_q_heads must be a multiple of num_kv_heads"
        )
    if not math.isfinite(growth):
        raise ValueError(f"growth is {growth}; it must be a number of log2 units")
    if scores not in SCORES:
        raise ValueError(f"scores is {scores!r}; it must be one of {', '.join(SCORES)}")
    if values not in VALUES:
        raise ValueError(f"values is {values!r}; it must be one of {', '.join(VALUES)}")
    if growth and scores != "plain":
        raise ValueError(f"{scores} scores cannot grow: give no growth, or plain scores")


def _draw_unit_normal(tensor: Tensor, generator: torch.Generator) -> None:
    """bf16, rounded from float32: drawn in bf16, a normal has only some 256 magnitudes."""
    for sequence in tensor:
        sequence.copy_(torch.randn(sequence.shape, generator=generator, device=generator.device))


def _move_scores(q: Tensor, k: Tensor, growth: float, scores: str, generator: torch.Generator) -> None:
    """Move all scores, in place, by half of the dims of each KV head: which ones is drawn. By tiles if they grow,
    otherwise to shuffled levels, to that of a sink, or if they are large to one level, with a sign for each query.

    There keys are c + level * u: u has random signs, c is normal and the same for all keys. Queries keep what they have
    across u. So the scores of a level are moved alike, whatever q or k is rounded to.
    """
    batch, seq_len, kv_heads, head_dim = k.shape
    device, per_head = generator.device, (batch, kv_heads)
    dims = max(head_dim // 2, 1)
    chosen = torch.rand((*per_head, head_dim), generator=generator, device=device).argsort(dim=-1) < dims
    signs = 1.0 - 2.0 * torch.randint(2, (*per_head, head_dim), generator=generator, device=device)
    u = torch.where(chosen, signs / dims**0.5, 0.0)
    c = torch.where(chosen, torch.randn((*per_head, head_dim), generator=generator, device=device), 0.0)
    c -= (c * u).sum(-1, keepdim=True) * u

    position = torch.arange(seq_len, device=device)
    if growth:
        levels = (growth * math.log(2.0) * (position // GROWTH_TILE)).expand(*per_head, seq_len)
    elif scores == "large":
        shifts = torch.tensor(LARGE, device=device)[torch.arange(kv_heads, device=device) % len(LARGE)]
        levels = shifts[:, None].expand(*per_head, seq_len)
    elif scores == "sink":
        place = torch.rand((*per_head, 1), generator=generator, device=device) * min(seq_len, GROWTH_TILE)
        levels = (position == place.long()) * (math.log(seq_len) + SINK)
    else:
        levels = SHIFT * _shuffled_levels(per_head, generator)[..., position * 5 // seq_len]
    power = torch.empty(per_head, device=device).uniform_(*SPLIT, generator=generator)
    split = 2.0 ** torch.where(torch.rand(per_head, generator=generator, device=device) < 0.5, power, -power)
    most = float(levels.abs().amax())
    reach = (max(most, 1.0) * head_dim**0.5) ** 0.5
    for b in range(batch):
        for h, queries in enumerate(q[b].unflatten(1, (kv_heads, -1)).unbind(1)):
            along = (levels[b, h] * (head_dim**0.5 / reach / split[b, h]))[:, None] * u[b, h]
            k[b, :, h] = torch.where(chosen[b, h], c[b, h] + along, k[b, :, h])
            wanted = (reach * split[b, h]).expand(queries.shape[:2])
            if growth:
                wanted = wanted * (1.0 + torch.rand(wanted.shape, generator=generator, device=device) / 4)
            elif scores == "large":
                wanted = wanted * (1.0 - 2.0 * torch.randint(2, wanted.shape, generator=generator, device=device))
            own = queries.float()
            queries.copy_(own + (wanted - (own * u[b, h]).sum(-1))[..., None] * u[b, h])


def _shuffled_levels(per_head: tuple[int, int], generator: torch.Generator) -> Tensor:
    """`[B, Hkv, 5]`: OUTER_LEVELS and INNER_LEVELS in random orders, one of the former at each end."""

    def mixed(levels: Tensor) -> Tensor:
        order = torch.rand(levels.shape, generator=generator, device=generator.device).argsort(dim=-1)
        return levels.gather(-1, order)

    outer, inner = (
        torch.tensor(levels, device=generator.device).expand(*per_head, -1) for levels in (OUTER_LEVELS, INNER_LEVELS)
    )
    outer = mixed(outer)
    return torch.cat([outer[..., :1], mixed(torch.cat([outer[..., 1:2], inner], dim=-1)), outer[..., 2:]], dim=-1)
