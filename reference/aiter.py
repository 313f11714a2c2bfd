"""The adapter to AMD's aiter: MLA decode on its persistent assembly kernels.

Nothing in this module has run on AMD hardware. Its calls are written against aiter's published sources, and its tests
hold them against a stand-in with the same signatures:

- ROCm/aiter, aiter/mla.py, `mla_decode_fwd(q, kv_buffer, o, qo_indptr, kv_indptr, kv_indices, kv_last_page_lens,
  max_seqlen_q, page_size=1, nhead_kv=1, sm_scale=None, logit_cap=0.0, num_kv_splits=None, ..., work_meta_data=None,
  work_indptr=None, work_info_set=None, reduce_indptr=None, reduce_final_map=None, reduce_partial_map=None,
  q_scale=None, kv_scale=None, intra_batch_mode=False, ...)` writes `o`; it is persistent when work_meta_data is given.
- ROCm/aiter, aiter/ops/attention.py, `get_mla_metadata_info_v1` returns (shape, dtype) of six buffers and
  `get_mla_metadata_v1` fills them. It takes them as work_metadata, work_info_set, work_indptr, while the info lists
  work_indptr second. The dtypes were `dtype_q`, `dtype_kv` until they became `dtype_q_nope`, `dtype_q_rope`,
  `dtype_kv_nope`, `dtype_kv_rope`; the newest sources accept both spellings. Sources older than page sizes lack
  `kv_last_page_lens` there and are refused.
- gpu-mode/reference-kernels, problems/amd_202602/mixed-mla/reference.py calls them with page_size 1, 32 splits,
  kv_granularity 16, fast_mode False, intra_batch_mode True, is_causal True, and fp8 scales of shape (1,); so do we.
  It passes whole sequence lengths as kv_last_page_lens; a page of one token holds 1, as in aiter's
  op_tests/test_mla_persistent.py and as here.

Kernels by (q, kv) dtype, by the problem's own table: fp8 + fp8 mla_a8w8_qh16_qseqlen1_gqaratio16_ps, bf16 + fp8
mla_a16w8_qh16_m16x4_n16x1_coex0_mask1_ps, bf16 + bf16 mla_a16w16_qh16_m16x4_n16x1_coex0_mask1_ps. There is no a8w16.
"""

import importlib
import importlib.util
import inspect
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from reference.quantization import fp8_dtype

PAGE_SIZE = 1
NUM_KV_SPLITS = 32
KV_GRANULARITY = 16

_METADATA_BUFFERS = (
    "work_meta_data",
    "work_indptr",
    "work_info_set",
    "reduce_indptr",
    "reduce_final_map",
    "reduce_partial_map",
)


@dataclass(frozen=True)
class AiterStatus:
    """What `find_aiter` found: the module if it can be used, and one sentence that says so or why not."""

    module: ModuleType | None
    reason: str


def find_aiter() -> AiterStatus:
    """Look for a usable AMD aiter. Imports it only on a ROCm torch with a GPU, and never raises."""
    if not _is_present():
        return AiterStatus(None, "AMD's aiter is not installed (https://github.com/ROCm/aiter; not on PyPI).")
    if not _looks_like_amd():
        return AiterStatus(
            None, "The aiter installed here is PyPI's async-iterator package, not AMD's (it has no aiter.mla)."
        )
    if torch.version.hip is None:
        return AiterStatus(None, "AMD's aiter is installed, but this torch is not a ROCm build.")
    if not torch.cuda.is_available():
        return AiterStatus(None, "AMD's aiter is installed, but torch sees no AMD GPU.")
    try:
        module = importlib.import_module("aiter")
        importlib.import_module("aiter.mla")
        missing = _missing_api(module)
    except Exception as error:  # an import that builds kernels can fail in any way
        cause = " ".join(f"{type(error).__name__}: {error}".split()).rstrip(".")
        return AiterStatus(None, f"AMD's aiter is installed, but importing it failed: {cause}.")
    if missing:
        return AiterStatus(None, f"This aiter does not fit the adapter: it lacks {', '.join(missing)}.")
    return AiterStatus(module, f"AMD's aiter {getattr(module, '__version__', '(no version)')} is usable.")


def mla_decode(
    aiter: Any,
    q: Tensor,
    kv: Tensor,
    qo_indptr: Tensor,
    kv_indptr: Tensor,
    *,
    sm_scale: float,
    v_dim: int,
    q_scale: Tensor | None = None,
    kv_scale: Tensor | None = None,
) -> Tensor:
    """MLA decode by `aiter.mla.mla_decode_fwd`, persistent mode, page size 1, 32 KV splits.

    The kernel is chosen by the dtypes of q and kv: fp8 + fp8, bf16 + fp8 or bf16 + bf16. It masks causally, the queries
    of a sequence being its last tokens; with one query a sequence, the decode case, that masks nothing. aiter never
    sees a sequence without keys: those are left out of the call and their queries are zeros.

    Args:
        aiter: the module from `find_aiter`.
        q: `(total_q, H, D)` bf16 or the device's fp8.
        kv: `(total_kv, 1, D)` bf16 or the device's fp8, contiguous.
        qo_indptr, kv_indptr: `(B + 1,)` int32 on q's device. Every sequence has the same number of queries.
        sm_scale: factor on the scores.
        v_dim: values are the first v_dim dims of kv.
        q_scale, kv_scale: float32 with one element; required for an fp8 operand, refused for a bf16 one.

    Returns:
        `(total_q, H, v_dim)` bf16.

    Raises:
        ValueError: fp8 q with bf16 kv, any other pair of dtypes, a scale that is missing or not wanted, indptrs that
            are not int32, or sequences with different numbers of queries.
    """
    _check_dtypes(q, kv, q_scale, kv_scale)
    for name, indptr in (("qo_indptr", qo_indptr), ("kv_indptr", kv_indptr)):
        if indptr.dtype != torch.int32:
            raise ValueError(f"{name} must be int32 for aiter, got {indptr.dtype}")
    q_lens = qo_indptr.diff()
    kv_lens = kv_indptr.diff()
    out = torch.zeros(q.shape[0], q.shape[1], v_dim, dtype=torch.bfloat16, device=q.device)
    if out.numel() == 0 or not bool((kv_lens > 0).any()):
        return out
    q_len = int(q_lens[0])
    if not bool((q_lens == q_len).all()):
        raise ValueError(f"aiter's decode wants as many queries in every sequence, got {q_lens.tolist()}")

    if bool((kv_lens > 0).all()):
        _decode(aiter, q, kv, out, qo_indptr, kv_indptr, q_len, sm_scale, q_scale, kv_scale)
        return out
    full = kv_lens > 0
    full_rows = full.repeat_interleave(q_len)
    count = int(full.sum())
    part = out[full_rows]
    part_qo_indptr = torch.arange(count + 1, dtype=torch.int32, device=q.device) * q_len
    part_kv_indptr = torch.cat([kv_indptr[:1], kv_indptr[1:][full]])  # empty sequences own no rows of kv
    # Indexing runs on bytes: not every torch indexes fp8.
    part_q = q.contiguous().view(torch.uint8)[full_rows].view(q.dtype)
    _decode(aiter, part_q, kv, part, part_qo_indptr, part_kv_indptr, q_len, sm_scale, q_scale, kv_scale)
    out[full_rows] = part
    return out


def _decode(
    aiter: Any,
    q: Tensor,
    kv: Tensor,
    out: Tensor,
    qo_indptr: Tensor,
    kv_indptr: Tensor,
    q_len: int,
    sm_scale: float,
    q_scale: Tensor | None,
    kv_scale: Tensor | None,
) -> None:
    """Plan and run one decode over sequences that all have keys, into `out`."""
    total_kv, kv_heads, head_dim = kv.shape
    kv_last_page_lens = torch.ones(len(kv_indptr) - 1, dtype=torch.int32, device=q.device)
    aiter.mla.mla_decode_fwd(
        q.contiguous(),
        kv.view(total_kv, PAGE_SIZE, kv_heads, head_dim),
        out,
        qo_indptr,
        kv_indptr,
        torch.arange(total_kv, dtype=torch.int32, device=q.device),
        kv_last_page_lens,
        q_len,
        page_size=PAGE_SIZE,
        nhead_kv=kv_heads,
        sm_scale=sm_scale,
        logit_cap=0.0,
        num_kv_splits=NUM_KV_SPLITS,
        q_scale=q_scale,
        kv_scale=kv_scale,
        intra_batch_mode=True,
        **_metadata(aiter, q, kv, qo_indptr, kv_indptr, kv_last_page_lens, q_len),
    )


def _metadata(
    aiter: Any, q: Tensor, kv: Tensor, qo_indptr: Tensor, kv_indptr: Tensor, kv_last_page_lens: Tensor, q_len: int
) -> dict[str, Tensor]:
    """The persistent kernel's work plan, under the names that `mla_decode_fwd` gives its six buffers."""
    heads, kv_heads = q.shape[1], kv.shape[1]
    info = aiter.get_mla_metadata_info_v1(
        len(kv_indptr) - 1,
        q_len,
        heads,
        q.dtype,
        kv.dtype,
        is_sparse=False,
        fast_mode=False,
        num_kv_splits=NUM_KV_SPLITS,
        intra_batch_mode=True,
    )
    plan = {
        name: torch.empty(shape, dtype=dtype, device=q.device)
        for name, (shape, dtype) in zip(_METADATA_BUFFERS, info, strict=True)
    }
    if "dtype_q" in inspect.signature(aiter.get_mla_metadata_v1).parameters:
        dtypes = {"dtype_q": q.dtype, "dtype_kv": kv.dtype}
    else:
        dtypes = {
            "dtype_q_nope": q.dtype,
            "dtype_q_rope": q.dtype,
            "dtype_kv_nope": kv.dtype,
            "dtype_kv_rope": kv.dtype,
        }
    aiter.get_mla_metadata_v1(
        qo_indptr,
        kv_indptr,
        kv_last_page_lens,
        heads // kv_heads,
        kv_heads,
        True,  # is_causal
        plan["work_meta_data"],
        plan["work_info_set"],
        plan["work_indptr"],
        plan["reduce_indptr"],
        plan["reduce_final_map"],
        plan["reduce_partial_map"],
        page_size=PAGE_SIZE,
        kv_granularity=KV_GRANULARITY,
        max_seqlen_qo=q_len,
        uni_seqlen_qo=q_len,
        fast_mode=False,
        max_split_per_batch=NUM_KV_SPLITS,
        intra_batch_mode=True,
        **dtypes,
    )
    return plan


def _check_dtypes(q: Tensor, kv: Tensor, q_scale: Tensor | None, kv_scale: Tensor | None) -> None:
    fp8 = fp8_dtype(q.device)
    pair = (q.dtype, kv.dtype)
    if pair == (fp8, torch.bfloat16):
        raise ValueError("aiter has no kernel for fp8 q with bf16 kv (a8w16); use fp8+fp8, bf16+fp8 or bf16+bf16")
    if pair not in ((fp8, fp8), (torch.bfloat16, fp8), (torch.bfloat16, torch.bfloat16)):
        raise ValueError(
            f"aiter's MLA decode takes bf16 or this device's fp8 ({fp8}), got q {pair[0]} and kv {pair[1]}"
        )
    for name, tensor, scale in (("q", q, q_scale), ("kv", kv, kv_scale)):
        if tensor.dtype == torch.bfloat16 and scale is not None:
            raise ValueError(f"{name}_scale is given but {name} is bf16, which has no scale")
        if tensor.dtype == fp8 and (scale is None or scale.dtype != torch.float32 or scale.numel() != 1):
            raise ValueError(f"{name} is fp8 and needs {name}_scale, a float32 tensor with one element")


def _is_present() -> bool:
    return sys.modules.get("aiter") is not None or importlib.util.find_spec("aiter") is not None


def _looks_like_amd() -> bool:
    """AMD's aiter has a module `mla` and PyPI's has not; told from the files, since importing AMD's builds kernels."""
    loaded = sys.modules.get("aiter")
    if loaded is not None:
        return hasattr(loaded, "mla") and hasattr(loaded, "dtypes")
    spec = importlib.util.find_spec("aiter")
    folders = spec.submodule_search_locations if spec else None
    return any((Path(folder) / "mla.py").is_file() for folder in folders or ())


def _missing_api(aiter: Any) -> list[str]:
    """The functions and parameters the adapter uses that this aiter does not have."""
    wanted = {
        "mla.mla_decode_fwd": ("num_kv_splits", "q_scale", "kv_scale", "intra_batch_mode", *_METADATA_BUFFERS),
        "get_mla_metadata_info_v1": ("is_sparse", "fast_mode", "num_kv_splits", "intra_batch_mode"),
        "get_mla_metadata_v1": ("kv_last_page_lens", "page_size", "max_split_per_batch", "intra_batch_mode"),
    }
    missing = []
    for path, parameters in wanted.items():
        function = aiter
        for name in path.split("."):
            function = getattr(function, name, None)
        if function is None:
            missing.append(path)
        else:
            known = inspect.signature(function).parameters
            missing += [f"{path}({name}=)" for name in parameters if name not in known]
    return missing
