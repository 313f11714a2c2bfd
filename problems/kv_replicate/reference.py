"""Replicating the KV heads of MQA and GQA for every query head that shares them: inputs, reference, cost.

    k, v          [B, S, Hkv, D]      heads 0, 1, ..
    k_out, v_out  [B, S, Hq, D]       0, 0, .., 1, 1, ..        Hq / Hkv copies of each

Nothing is computed, so every bit counts: the inputs are bit patterns, with NaNs of all payloads among them, and a
kernel that sends them through arithmetic or through another format is found out. The output buffers come filled with
random bits too, so that a row left out is seen.
"""

from typing import Any

import torch
from torch import Tensor

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

_INTEGERS = {2: torch.int16, 4: torch.int32}
_EXPONENT = {torch.float32: 0x7F800000, torch.bfloat16: 0x7F80, torch.float16: 0x7C00}
"""IEEE 754 and bfloat16: all ones is NaN or infinity, all zeros a subnormal or zero."""

_SLICE = 1 << 24
"""Elements drawn at a time: bounds what exists beside the tensors themselves to some 300 MB."""


def generate_input(
    *,
    batch_size: int,
    seq_len: int,
    num_kv_heads: int,
    num_q_heads: int,
    head_dim: int,
    dtype: str,
    seed: int,
    device: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, dict[str, int]]:
    """`(k, v, k_out, v_out, config)`.

    k, v: `[batch_size, seq_len, num_kv_heads, head_dim]`: half unit normal, the rest random bits, of which a
        quarter each is made NaN or infinite and subnormal or zero.
    k_out, v_out: `[batch_size, seq_len, num_q_heads, head_dim]`, random bits.
    config: the five sizes by the names above.

    Raises ValueError for a size below 1, query heads that are no multiple of the KV heads, or an unknown dtype.
    """
    k, v, k_out, v_out, config = empty_input(
        batch_size=batch_size,
        seq_len=seq_len,
        num_kv_heads=num_kv_heads,
        num_q_heads=num_q_heads,
        head_dim=head_dim,
        dtype=dtype,
        device=device,
    )
    generator = torch.Generator(device).manual_seed(seed)
    for tensor in (k, v):
        _draw_values(tensor, generator)
    for tensor in (k_out, v_out):
        _draw_bits(tensor, generator)
    return k, v, k_out, v_out, config


def empty_input(
    *,
    batch_size: int,
    seq_len: int,
    num_kv_heads: int,
    num_q_heads: int,
    head_dim: int,
    dtype: str,
    device: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, dict[str, int]]:
    """What `generate_input` returns, with the tensors not yet written."""
    config = {
        "batch_size": batch_size,
        "seq_len": seq_len,
        "num_kv_heads": num_kv_heads,
        "num_q_heads": num_q_heads,
        "head_dim": head_dim,
    }
    _check(config, dtype)
    rows, element = (batch_size, seq_len), DTYPES[dtype]
    k, v = (torch.empty(*rows, num_kv_heads, head_dim, dtype=element, device=device) for _ in range(2))
    k_out, v_out = (torch.empty(*rows, num_q_heads, head_dim, dtype=element, device=device) for _ in range(2))
    return k, v, k_out, v_out, config


def ref_kernel(data: tuple[Tensor, Tensor, Tensor, Tensor, dict[str, int]]) -> tuple[Tensor, Tensor]:
    """Write k_out and v_out as the contract says, `out[..., h, :] = in[..., h // (Hq / Hkv), :]`, and return them."""
    k, v, k_out, v_out, config = data
    group = config["num_q_heads"] // config["num_kv_heads"]
    for source, target in ((k, k_out), (v, v_out)):
        # A copy within one dtype moves bits; the broadcast axis is the copy within the group.
        target.unflatten(2, (config["num_kv_heads"], group)).copy_(source.unsqueeze(3))
    return k_out, v_out


def cost(
    *, batch_size: int, seq_len: int, num_kv_heads: int, num_q_heads: int, head_dim: int, dtype: str
) -> dict[str, dict]:
    """K and V read once, both outputs written once; no arithmetic."""
    elements = batch_size * seq_len * head_dim * (num_kv_heads + num_q_heads)
    return {dtype: {"bytes": 2 * elements * DTYPES[dtype].itemsize, "flops": {}}}


def device_bytes(**case: Any) -> int:
    """What k, v and the two outputs take: each is read or written once, so as many bytes as `cost` counts."""
    return cost(**case)[case["dtype"]]["bytes"]


def _check(config: dict[str, int], dtype: str) -> None:
    if dtype not in DTYPES:
        raise ValueError(f"dtype is {dtype!r}; it must be one of {', '.join(DTYPES)}")
    for name, size in config.items():
        if size < 1:
            raise ValueError(f"{name} is {size}; it must be at least 1")
    if config["num_q_heads"] % config["num_kv_heads"]:
        raise ValueError(
            f"{config['num_q_heads']} query heads cannot share {config['num_kv_heads']} KV heads evenly: "
            "num_q_heads must be a multiple of num_kv_heads"
        )


def _draw_values(tensor: Tensor, generator: torch.Generator) -> None:
    exponent = _EXPONENT[tensor.dtype]
    for values in tensor.view(-1).split(_SLICE):
        _draw_bits(values, generator)
        bits = values.view(_INTEGERS[values.itemsize])
        kind = torch.empty(values.shape, dtype=torch.uint8, device=values.device)
        kind.random_(0, 256, generator=generator)
        normal = torch.empty(values.shape, device=values.device).normal_(generator=generator).to(values.dtype)
        special = torch.where(kind < 32, bits | exponent, bits & ~exponent)  # NaN with a random payload | subnormal
        special = torch.where(kind % 8 == 0, special & ~_mantissa(exponent), special)  # ±infinity | ±0
        bits.copy_(torch.where(kind < 64, special, bits))
        values.copy_(torch.where(kind >= 128, normal, values))


def _mantissa(exponent: int) -> int:
    """The bits below the exponent's."""
    return (exponent & -exponent) - 1


def _draw_bits(tensor: Tensor, generator: torch.Generator) -> None:
    """Every bit of `tensor` random: drawn as 64-bit words."""
    raw = tensor.view(-1).view(torch.uint8)
    whole = raw.numel() // 8 * 8
    step = 8 * _SLICE // 4
    for start in range(0, whole, step):
        piece = raw[start : min(start + step, whole)]
        words = torch.empty(piece.numel() // 8, dtype=torch.int64, device=raw.device)
        piece.copy_(words.random_(-(2**63), None, generator=generator).view(torch.uint8))
    raw[whole:].random_(0, 256, generator=generator)
