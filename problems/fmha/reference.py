"""Attention of one query over at most 16 keys, for 30720 sequences at once: inputs, float64 reference, cost.

    q [B, Hq, 1, D]     k, v [B, Hkv, S, D]     bfloat16        out [B, Hq, 1, D] float16

The largest case has 8 GB each of K and V: everything is drawn in place in bfloat16, slice by slice, and the reference
widens a bounded piece of the batch at a time.
"""

import torch
from torch import Tensor

from reference.attention import attention

HEAD_DIMS = (128, 256)
MAX_KV_SEQ_LEN = 16

SHARPNESS = (1.0, 4.0, 16.0, 64.0)
"""Factors on unit-normal queries, a quarter of the rows each, so the scores' standard deviation: from nearly even
weights to a single key, and past exp's range in float32 (88) for a kernel that does not subtract the maximum. Powers
of two, exact in bfloat16."""

ZERO_DIMS = 0.25
"""The chance of each dim of a KV head that its queries are zero there. There equal scores leave keys different."""

SCORES = ("mixed", "equal", "opposed")

OUTLIER = 256.0
"""How much larger the values of one key of each KV head are with values="outliers"."""

OPPOSED, OPPOSED_FROM = 32.0, 4
"""How much larger the values of two keys of each KV head are with scores="opposed", and of how many keys on: those of
two keys alone would leave nothing. Powers of two, exact in bfloat16. A float16 sum that holds one of the two keeps 9
bits behind the binary point (of 16 keys, 2.0 to 4.0), of an output of 0.23."""

_SLICE_ELEMENTS = 1 << 27
_WORKSPACE_SHARE = 4
_WORKSPACE_BYTES = 256 << 20
"""`ref_kernel` works in at most the inputs' bytes over the one, and at most the other, or in one sequence at a time."""


def generate_input(
    *,
    batch_size: int,
    num_q_heads: int,
    num_kv_heads: int,
    head_dim: int,
    kv_seq_len: int,
    seed: int,
    device: str,
    scores: str = "mixed",
    values: str = "normal",
) -> tuple[Tensor, Tensor, Tensor, dict[str, int | float]]:
    """`(q, k, v, config)`.

    q: `[batch_size, num_q_heads, 1, head_dim]` bfloat16: unit normal times one of SHARPNESS a row. All queries of a KV
        head are zero in a quarter of the dims, drawn for each KV head.
    k, v: `[batch_size, num_kv_heads, kv_seq_len, head_dim]` bfloat16, unit normal. With scores="equal" the keys of a
        head are the same where its queries are not zero, and only there: every weight is 1 / kv_seq_len, and the
        output has more bits than bfloat16. With scores="opposed" they are equal as well, and the values of two keys of
        each KV head are OPPOSED times as large and each other's negative, if there are OPPOSED_FROM keys: they cancel,
        and a sum that is kept in less than float32 shows. With values="outliers" the values of one key of each KV head
        are OUTLIER times as large, so that a key shows though it weighs little.
    config: the five sizes by the names above, and `sm_scale` = 1 / sqrt(head_dim).

    Raises ValueError for a size out of range, or query heads that are no multiple of the KV heads.
    """
    q, k, v, config = empty_input(
        batch_size=batch_size,
        num_q_heads=num_q_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        kv_seq_len=kv_seq_len,
        device=device,
        scores=scores,
        values=values,
    )
    generator = torch.Generator(device).manual_seed(seed)
    _draw_normal(q, generator)
    factors = torch.tensor(SHARPNESS, dtype=q.dtype, device=device)
    rows = torch.randperm(batch_size * num_q_heads, generator=generator, device=device)
    q *= factors[rows % len(SHARPNESS)].view(batch_size, num_q_heads, 1, 1)
    _draw_normal(k, generator)
    _draw_normal(v, generator)
    zero = torch.empty(batch_size, num_kv_heads, 1, head_dim, dtype=torch.bool, device=device)
    zero.bernoulli_(ZERO_DIMS, generator=generator)
    q.view(batch_size, num_kv_heads, -1, head_dim).masked_fill_(zero, 0.0)
    if scores != "mixed":
        k.copy_(torch.where(zero, k, k[:, :, :1]))
    if scores == "opposed" and kv_seq_len >= OPPOSED_FROM:
        _oppose_values(v, generator)
    if values == "outliers":
        which = torch.randint(kv_seq_len, (batch_size, num_kv_heads), generator=generator, device=device)
        v *= 1 + (OUTLIER - 1) * torch.nn.functional.one_hot(which, kv_seq_len).to(v.dtype)[..., None]
    return q, k, v, config


def empty_input(
    *,
    batch_size: int,
    num_q_heads: int,
    num_kv_heads: int,
    head_dim: int,
    kv_seq_len: int,
    device: str,
    scores: str = "mixed",
    values: str = "normal",
) -> tuple[Tensor, Tensor, Tensor, dict[str, int | float]]:
    """What `generate_input` returns, with q, k and v not yet written."""
    config = {
        "batch_size": batch_size,
        "num_q_heads": num_q_heads,
        "num_kv_heads": num_kv_heads,
        "head_dim": head_dim,
        "kv_seq_len": kv_seq_len,
    }
    _check(config, scores, values)
    q = torch.empty(batch_size, num_q_heads, 1, head_dim, dtype=torch.bfloat16, device=device)
    kv_shape = (batch_size, num_kv_heads, kv_seq_len, head_dim)
    k, v = (torch.empty(kv_shape, dtype=torch.bfloat16, device=device) for _ in range(2))
    return q, k, v, {**config, "sm_scale": head_dim**-0.5}


def ref_kernel(data: tuple[Tensor, Tensor, Tensor, dict[str, int | float]], rows: Tensor | None = None) -> Tensor:
    """Attention in float64, rounded once to float16: `[batch_size, num_q_heads, 1, head_dim]`.

    With `rows`, sorted numbers of sequences, only theirs.
    """
    q, k, v, config = data
    if rows is not None:
        q, k, v = q[rows], k[rows], v[rows]
    out = torch.empty(q.shape, dtype=torch.float16, device=q.device)
    sequence_bytes = 8 * (3 * q[0].numel() + 2 * k[0].numel())
    workspace = min((q.nbytes + k.nbytes + v.nbytes) // _WORKSPACE_SHARE, _WORKSPACE_BYTES)
    step = max(1, workspace // sequence_bytes)
    for start in range(0, q.shape[0], step):
        piece = slice(start, start + step)
        out[piece] = attention(q[piece], k[piece], v[piece], sm_scale=config["sm_scale"])
    return out


def cost(
    *,
    batch_size: int,
    num_q_heads: int,
    num_kv_heads: int,
    head_dim: int,
    kv_seq_len: int,
    scores: str = "mixed",
    values: str = "normal",
) -> dict[str, dict]:
    """Q, K and V read once and the output written once, 2 bytes each; 4 flops a query head, key and dim.

    Over a single key the weight is 1 and the output is V: neither Q nor K has to be read, nor anything computed.
    """
    row, kv_row = batch_size * num_q_heads * head_dim, batch_size * num_kv_heads * head_dim
    if kv_seq_len == 1:
        return {"bfloat16": {"bytes": 2 * (row + kv_row), "flops": {}}}
    return {
        "bfloat16": {
            "bytes": 2 * (2 * row + 2 * kv_seq_len * kv_row),
            "flops": {"bfloat16": 4 * row * kv_seq_len},
        }
    }


def device_bytes(
    *,
    batch_size: int,
    num_q_heads: int,
    num_kv_heads: int,
    head_dim: int,
    kv_seq_len: int,
    scores: str = "mixed",
    values: str = "normal",
) -> int:
    """What q, k, v and the output take, 2 bytes an element."""
    return 4 * batch_size * head_dim * (num_q_heads + kv_seq_len * num_kv_heads)


def _check(config: dict[str, int], scores: str, values: str) -> None:
    for name, size in config.items():
        if size < 1:
            raise ValueError(f"{name} is {size}; it must be at least 1")
    if config["head_dim"] not in HEAD_DIMS:
        raise ValueError(f"head_dim is {config['head_dim']}; it must be one of {', '.join(map(str, HEAD_DIMS))}")
    if config["kv_seq_len"] > MAX_KV_SEQ_LEN:
        raise ValueError(f"kv_seq_len is {config['kv_seq_len']}; it must be at most {MAX_KV_SEQ_LEN}")
    if config["num_q_heads"] % config["num_kv_heads"]:
        raise ValueError(
            f"{config['num_q_heads']} query heads cannot share {config['num_kv_heads']} KV heads evenly: "
            "num_q_heads must be a multiple of num_kv_heads"
        )
    if scores not in SCORES:
        raise ValueError(f"scores is {scores!r}; it must be one of {', '.join(SCORES)}")
    if values not in ("normal", "outliers"):
        raise ValueError(f"values is {values!r}; it must be normal or outliers")


def _oppose_values(v: Tensor, generator: torch.Generator) -> None:
    """Two keys of each KV head, drawn, get values that are OPPOSED times as large and cancel; in place."""
    batch, heads, keys, head_dim = v.shape
    which = torch.rand(batch, heads, keys, generator=generator, device=v.device).argsort(dim=-1)[..., :2, None]
    one, other = which.expand(-1, -1, -1, head_dim).unbind(dim=2)
    large = OPPOSED * v.gather(2, one[:, :, None])
    v.scatter_(2, one[:, :, None], large)
    v.scatter_(2, other[:, :, None], -large)


def _draw_normal(tensor: Tensor, generator: torch.Generator) -> None:
    for piece in tensor.view(-1).split(_SLICE_ELEMENTS):
        piece.normal_(generator=generator)
