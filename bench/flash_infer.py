"""FlashInfer beside the bundled kernels: prepared calls. Empty if the package `flashinfer` is not installed.

It may compile a module, and it plans a case, which waits for the device. Both happen in a rival's first call, so a
failure there affects that rival alone. Only for Hopper GPUs.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import math
import warnings
from collections.abc import Callable
from typing import Any

import torch
from flash_attention_3 import Call, on_hopper
from torch import Tensor

WORKSPACE_BYTES = 256 << 20
"""What its wrappers are given for the parts of a split; they recommend 128 MiB."""


@functools.cache
def package() -> Any:
    """The package, or None where there is none or not for this GPU."""
    if not (on_hopper() and importlib.util.find_spec("flashinfer")):
        return None
    try:
        return importlib.import_module("flashinfer")
    except (ImportError, OSError, RuntimeError) as error:
        warnings.warn(f"FlashInfer is not a rival, for it cannot be imported: {error}", stacklevel=2)
        return None


def planned(plan: Callable[[], Call]) -> Call:
    """A call that is planned by the first one."""
    once = functools.cache(plan)
    return lambda: once()()


def workspace() -> Tensor:
    return torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device="cuda")


def kv_decode(
    q: Tensor, k_new: Tensor, v_new: Tensor, k_cache: Tensor, v_cache: Tensor, seq_lens: Tensor, length: int
) -> dict[str, Call]:
    """For one query a sequence. The CUDA cores take groups of up to 8 query heads, 1, 2, 3, 4 or 8.

    On tensor cores its kernel "fa2", which packs a group's heads into a tile and splits the keys, as "fa3" does not.
    """
    if package() is None or q.shape[2] != 1:
        return {}
    batch, q_heads, _, dim = q.shape
    kv_heads, slots = k_cache.shape[1:3]
    page = math.gcd(slots, 64)
    count = -(-(length + 1) // page)
    caches = (overlapping_pages(k_cache, page), overlapping_pages(v_cache, page))

    def plan(tensor_cores: bool) -> Call:
        sequence = torch.arange(batch, dtype=torch.int32)
        tiles = (sequence[:, None] * (kv_heads * slots // page) + torch.arange(count, dtype=torch.int32)).flatten()
        first = torch.arange(batch + 1, dtype=torch.int32) * count
        in_last = torch.full_like(sequence, length + 1 - (count - 1) * page)
        wrapper = package().BatchDecodeWithPagedKVCacheWrapper(
            workspace(), "HND", use_tensor_cores=tensor_cores, backend="fa2" if tensor_cores else "auto"
        )
        wrapper.plan(first, tiles, in_last, q_heads, kv_heads, dim, page, q_data_type=q.dtype, sm_scale=dim**-0.5)
        where = [x.to(q.device) for x in (sequence, torch.full_like(sequence, length))]
        pages = [x.to(q.device) for x in (tiles, first, in_last)]

        def attend() -> Tensor:
            package().append_paged_kv_cache(k_new[:, :, 0], v_new[:, :, 0], *where, caches, *pages, "HND")
            seq_lens.add_(1)
            return wrapper.run(q[:, :, 0], caches).unsqueeze(2)

        return attend

    calls = {"FlashInfer, tensor cores": planned(functools.partial(plan, True))}
    if q_heads // kv_heads in (1, 2, 3, 4, 8):
        calls["FlashInfer, CUDA cores"] = planned(functools.partial(plan, False))
    return calls


def overlapping_pages(cache: Tensor, page: int) -> Tensor:
    """A contiguous [B, H, S, D] as [pages, H, page, D], with page b · H · S / page + i for tile i of sequence b."""
    batch, heads, slots, dim = cache.shape
    pages = ((batch - 1) * heads + 1) * slots // page
    return cache.as_strided((pages, heads, page, dim), (page * dim, slots * dim, dim, 1))


def mla(q: Tensor, kv: Tensor, v_dim: int, scale: float) -> dict[str, Call]:
    return {"FlashInfer": planned(functools.partial(plan_mla, q, kv, v_dim, scale))} if package() else {}


def plan_mla(q: Tensor, kv: Tensor, v_dim: int, scale: float) -> Call:
    batch, heads, dim = q.shape
    length = kv.shape[1]
    page = math.gcd(length, 64)
    latent_q, rope_q = q.split([v_dim, dim - v_dim], dim=-1)
    latent, rope = kv.view(-1, page, dim).split([v_dim, dim - v_dim], dim=-1)
    queries = torch.arange(batch + 1, dtype=torch.int32)
    pages = torch.arange(batch * length // page, dtype=torch.int32)
    wrapper = package().mla.BatchMLAPagedAttentionWrapper(workspace())
    wrapper.plan(
        queries,
        queries * (length // page),
        pages,
        torch.full((batch,), length, dtype=torch.int32),
        heads,
        v_dim,
        dim - v_dim,
        page,
        False,  # causal
        scale,
        q.dtype,
        kv.dtype,
    )
    return lambda: wrapper.run(latent_q, rope_q, latent, rope)


def prefill(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float) -> dict[str, Call]:
    return {"FlashInfer": planned(functools.partial(plan_prefill, q, k, v, causal, scale))} if package() else {}


def plan_prefill(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float) -> Call:
    batch, seq_len, q_heads, dim = q.shape
    first = torch.arange(batch + 1, dtype=torch.int32) * seq_len
    wrapper = package().BatchPrefillWithRaggedKVCacheWrapper(workspace())
    wrapper.plan(first, first, q_heads, k.shape[2], dim, causal=causal, sm_scale=scale, q_data_type=q.dtype)
    return lambda: wrapper.run(*(x.flatten(0, 1) for x in (q, k, v))).view_as(q)
