"""FlashAttention-3 beside the bundled kernels: prepared calls. Empty if it is not installed.

Uses the library that $FLASH_ATTENTION_3 names (the _C.so that xformers ships); a libcudart.so.12 beside it is loaded
first. Without that variable, uses the package flash_attn_interface. Only for Hopper GPUs.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import importlib.util
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

NAME = "FlashAttention-3"

Call = Callable[[], Any]


@functools.cache
def operators() -> Any:
    """FlashAttention-3's operators, or None where there are none for this GPU."""
    library = os.environ.get("FLASH_ATTENTION_3")
    if not (on_hopper() and (library or importlib.util.find_spec("flash_attn_interface"))):
        return None
    try:
        if library:
            runtime = Path(library).with_name("libcudart.so.12")
            if runtime.exists():
                ctypes.CDLL(str(runtime))
            torch.ops.load_library(library)
        else:
            importlib.import_module("flash_attn_interface")
        torch.ops.flash_attn_3.fwd  # noqa: B018 - raises AttributeError where it is not registered
    except (ImportError, OSError, RuntimeError, AttributeError) as error:
        warnings.warn(f"{NAME} is not a rival, for it cannot be loaded: {error.__cause__ or error}", stacklevel=2)
        return None
    return torch.ops.flash_attn_3


def on_hopper() -> bool:
    return torch.version.cuda is not None and torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == 9


def kv_decode(
    q: Tensor,
    k_new: Tensor,
    v_new: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    seq_lens: Tensor,
    length: int,
    causal: bool,
) -> dict[str, Call]:
    """With an append of its own, and with one by torch, after which it needs no lengths from the device.

    Its views end with the last key, for it multiplies the masked values of a tile by 0, and past the end may be NaN.
    """
    if operators() is None:
        return {}
    end = length + q.shape[2]
    fwd = operators().fwd
    queries, keys, values, new_keys, new_values = (
        x.transpose(1, 2) for x in (q, k_cache[:, :, :end], v_cache[:, :, :end], k_new, v_new)
    )
    options = {"softmax_scale": q.shape[3] ** -0.5, "is_causal": causal, "num_splits": 0}

    def own_append() -> Tensor:
        out = fwd(queries, keys, values, k_new=new_keys, v_new=new_values, seqused_k=seq_lens, **options)[0]
        seq_lens.add_(q.shape[2])
        return out.transpose(1, 2)

    def torch_append() -> Tensor:
        k_cache[:, :, length:end] = k_new
        v_cache[:, :, length:end] = v_new
        seq_lens.add_(q.shape[2])
        return fwd(queries, keys, values, **options)[0].transpose(1, 2)

    return {NAME: own_append, f"{NAME}, append by torch": torch_append}


def mla(q: Tensor, kv: Tensor, v_dim: int, scale: float) -> dict[str, Call]:
    """To it the keys are the rope dims alone, and the scores of the others come of `q_v` and the values."""
    if operators() is None:
        return {}
    latent_q, rope_q = q.unsqueeze(1).split([v_dim, q.shape[2] - v_dim], dim=-1)
    latent, rope = kv.unsqueeze(2).split([v_dim, q.shape[2] - v_dim], dim=-1)
    fwd = operators().fwd
    return {NAME: lambda: fwd(rope_q, rope, latent, q_v=latent_q, softmax_scale=scale, num_splits=0)[0][:, 0]}


def prefill(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float) -> dict[str, Call]:
    if operators() is None:
        return {}
    fwd = operators().fwd
    return {NAME: lambda: fwd(q, k, v, softmax_scale=scale, is_causal=causal, num_splits=1)[0]}
