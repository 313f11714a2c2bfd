"""FlashMLA beside the bundled kernels: prepared calls. Empty if the package `flash_mla` is not installed.

PyPI has a wheel, `sgl-flash-mla`. Its dense decoding for Hopper is that of FlashMLA before that project dropped it. The
first call of a case also plans it. Only for Hopper GPUs.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import warnings
from typing import Any

import torch
from flash_attention_3 import Call, on_hopper
from torch import Tensor

from reference.quantization import quantize_fp8

PAGE = 64
"""The page size of its dense decoding."""


@functools.cache
def package() -> Any:
    """The package, or None if it is missing or not for this GPU."""
    if not (on_hopper() and importlib.util.find_spec("flash_mla")):
        return None
    try:
        found = importlib.import_module("flash_mla")
    except (ImportError, OSError, RuntimeError) as error:
        warnings.warn(f"FlashMLA is not a rival, for it cannot be imported: {error}", stacklevel=2)
        return None
    return found if found.has_legacy() else None


def mla(q: Tensor, bf16: Tensor, fp8: tuple[Tensor, Tensor], v_dim: int, scale: float) -> dict[str, Call]:
    """Calls for sequences of one length: q (batch, heads, dim), caches (batch * length, 1, dim) and the scale of the
    fp8 one. Queries for it are quantized within the call."""
    if package() is None:
        return {}
    batch, heads, dim = q.shape
    length = len(bf16) // batch
    if length % PAGE:
        return {}
    pages = torch.arange(batch * length // PAGE, dtype=torch.int32, device=q.device).view(batch, -1)
    lengths = torch.full((batch,), length, dtype=torch.int32, device=q.device)
    attend = functools.partial(
        package().flash_mla_with_kvcache,
        block_table=pages,
        cache_seqlens=lengths,
        head_dim_v=v_dim,
        softmax_scale=scale,
        use_legacy=True,
    )
    plan, plan_fp8 = (package().get_mla_metadata()[0] for _ in range(2))
    codes, factor = fp8

    def of_bf16() -> Tensor:
        return attend(q[:, None], bf16.view(-1, PAGE, 1, dim), tile_scheduler_metadata=plan)[0][:, 0]

    def of_fp8() -> Tensor:
        if plan_fp8.tile_scheduler_metadata is None:
            planned = package().get_mla_decoding_metadata(lengths, heads, 1, is_fp8_kvcache=True, use_legacy=True)
            plan_fp8.tile_scheduler_metadata, plan_fp8.num_splits = planned
        queries, q_factor = quantize_fp8(q, codes.dtype)
        return attend(
            queries[:, None],
            codes.view(-1, PAGE, 1, dim),
            tile_scheduler_metadata=plan_fp8,
            is_fp8_kvcache=True,
            descale_q=q_factor.view(1),
            descale_k=factor.view(1),
        )[0][:, 0]

    return {"FlashMLA": of_bf16, "FlashMLA, fp8": of_fp8}
