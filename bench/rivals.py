"""What a user of PyTorch would use instead of the bundled kernels: prepared calls for one case of each problem.

    prepare("prefill", data)  ─►  {"SDPA, cuDNN": call, "SDPA, flash": call}      a call returns the problem's output

Preparing may wait for the device (it reads kv_decode's lengths). A call does not, as in a model that keeps the lengths
on the host. Only FlashInfer's first call waits, because it plans. A backend that does not support the shape raises when
called.

torch.compile is told that shapes stay (`dynamic=False`) and compiles for each. By default it would use code for any
shape from the second shape on, which takes up to eight times as long (kv_replicate, 127 dims: 268 or 2258 us on an
H200).

FlashAttention-3, FlashInfer and FlashMLA are rivals if they are installed (flash_attention_3.py, flash_infer.py,
flashmla.py).
"""

from __future__ import annotations

import functools
from typing import Any

import flash_attention_3
import flash_infer
import flashmla
import torch
from flash_attention_3 import Call
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

BACKENDS = {
    "SDPA, cuDNN": SDPBackend.CUDNN_ATTENTION,
    "SDPA, flash": SDPBackend.FLASH_ATTENTION,
    "SDPA, efficient": SDPBackend.EFFICIENT_ATTENTION,
}


def prepare(problem: str, data: Any) -> dict[str, Call]:
    torch.compiler.reset()  # otherwise a function's ninth shape would not be compiled
    return {
        "kv_replicate": kv_replicate,
        "fmha": fmha,
        "kv_decode": kv_decode,
        "mla": mla,
        "prefill": prefill,
    }[problem](*data)


def kv_replicate(k: Tensor, v: Tensor, k_out: Tensor, v_out: Tensor, config: dict[str, Any]) -> dict[str, Call]:
    group = config["num_q_heads"] // config["num_kv_heads"]

    def repeat_interleave() -> tuple[Tensor, Tensor]:
        k_out.copy_(k.repeat_interleave(group, dim=2))
        v_out.copy_(v.repeat_interleave(group, dim=2))
        return k_out, v_out

    def expand_copy() -> tuple[Tensor, Tensor]:
        for x, out in ((k, k_out), (v, v_out)):
            out.unflatten(2, (-1, group)).copy_(x.unsqueeze(3).expand(-1, -1, -1, group, -1))
        return k_out, v_out

    return {
        "repeat_interleave": repeat_interleave,
        "expand, copy": expand_copy,
        "torch.compile": functools.partial(compiled_replicate, k, v, k_out, v_out),
    }


@torch.compile(dynamic=False)
def compiled_replicate(k: Tensor, v: Tensor, k_out: Tensor, v_out: Tensor) -> tuple[Tensor, Tensor]:
    group = k_out.shape[2] // k.shape[2]
    k_out.copy_(k.repeat_interleave(group, dim=2))
    v_out.copy_(v.repeat_interleave(group, dim=2))
    return k_out, v_out


def fmha(q: Tensor, k: Tensor, v: Tensor, config: dict[str, Any]) -> dict[str, Call]:
    """SDPA returns its inputs' dtype, and the problem asks for float16. So Q, K and V are converted first."""
    scale, gqa = config["sm_scale"], config["num_q_heads"] != config["num_kv_heads"]

    def sdpa(backend: SDPBackend) -> Tensor:
        with sdpa_kernel(backend):
            return scaled_dot_product_attention(q.half(), k.half(), v.half(), scale=scale, enable_gqa=gqa)

    calls = {name: functools.partial(sdpa, backend) for name, backend in BACKENDS.items()}
    return calls | {"torch.compile": functools.partial(compiled_rows, q, k, v, scale)}


@torch.compile(dynamic=False)
def compiled_rows(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """One query per head, with as many KV heads as query heads."""
    weights = torch.softmax((q.float() * k.float()).sum(-1) * scale, dim=-1)
    return (weights.unsqueeze(-1) * v.float()).sum(2, keepdim=True).half()


def kv_decode(
    q: Tensor, k_new: Tensor, v_new: Tensor, k_cache: Tensor, v_cache: Tensor, seq_lens: Tensor, config: dict[str, Any]
) -> dict[str, Call]:
    """For sequences of one length, as the ranked cases have. One new position needs no causal mask."""
    length = int(seq_lens.max())
    end = length + q.shape[2]

    def sdpa(backend: SDPBackend) -> Tensor:
        k_cache[:, :, length:end] = k_new
        v_cache[:, :, length:end] = v_new
        seq_lens.add_(q.shape[2])
        with sdpa_kernel(backend):
            return scaled_dot_product_attention(
                q, k_cache[:, :, :end], v_cache[:, :, :end], enable_gqa=q.shape[1] != k_cache.shape[1]
            )

    calls: dict[str, Call] = {name: functools.partial(sdpa, backend) for name, backend in BACKENDS.items()}
    given = (q, k_new, v_new, k_cache, v_cache, seq_lens, length)
    return calls | flash_attention_3.kv_decode(*given, config["is_causal"]) | flash_infer.kv_decode(*given)


def mla(q: Tensor, kv_data: dict[str, Any], _: Tensor, indptr: Tensor, config: dict[str, Any]) -> dict[str, Call]:
    """On the bf16 cache, for sequences of one length. For SDPA the 16 heads, which share their keys, are 16 queries."""
    batch, v_dim, scale = q.shape[0], config["v_head_dim"], config["sm_scale"]
    kv = kv_data["bf16"].view(batch, -1, q.shape[2])

    def sdpa(backend: SDPBackend) -> Tensor:
        k = kv.unsqueeze(1)
        with sdpa_kernel(backend):
            return scaled_dot_product_attention(q.unsqueeze(1), k, k[..., :v_dim], scale=scale)[:, 0]

    calls: dict[str, Call] = {name: functools.partial(sdpa, backend) for name, backend in BACKENDS.items()}
    calls["matmul"] = functools.partial(latent_attention, q, kv, v_dim, scale)
    calls["torch.compile"] = functools.partial(compiled_latent_attention, q, kv, v_dim, scale)
    calls |= flash_attention_3.mla(q, kv, v_dim, scale) | flash_infer.mla(q, kv, v_dim, scale)
    return calls | flashmla.mla(q, kv_data["bf16"], kv_data["fp8"], v_dim, scale)


def latent_attention(q: Tensor, kv: Tensor, v_dim: int, scale: float) -> Tensor:
    weights = torch.softmax((q @ kv.mT).float() * scale, dim=-1)
    return weights.to(q.dtype) @ kv[..., :v_dim]


compiled_latent_attention = torch.compile(latent_attention, dynamic=False)


def prefill(q: Tensor, k: Tensor, v: Tensor, config: dict[str, Any]) -> dict[str, Call]:
    causal, scale = config["causal"], config["sm_scale"]
    heads_first = [x.transpose(1, 2) for x in (q, k, v)]

    def sdpa(backend: SDPBackend) -> Tensor:
        with sdpa_kernel(backend):
            out = scaled_dot_product_attention(*heads_first, is_causal=causal, scale=scale, enable_gqa=True)
        return out.transpose(1, 2)

    calls: dict[str, Call] = {name: functools.partial(sdpa, backend) for name, backend in list(BACKENDS.items())[:2]}
    given = (q, k, v, causal, scale)
    return calls | flash_attention_3.prefill(*given) | flash_infer.prefill(*given)
