"""MLA decode by AMD's aiter: its persistent fp8 kernel, in assembly, which is the one to beat on gfx942 and gfx950.

Idea. `mla_decode_fwd` with fp8 queries on the fp8 cache (mla_a8w8_qh16_qseqlen1_gqaratio16_ps), in pages of one token
and 32 splits, after a plan of which workgroup takes which part of which sequence. Queries are quantized with one scale
for all heads, as the kernel wants it. What else it wants, and where that is written, is in reference/aiter.py, which
calls it for the reference; here it is called as a model would, so that it can be judged beside what is to replace it.

Every call plans anew and reads the lengths on the host, since aiter must not see a sequence without keys: a short case
is mostly that. Where aiter or its GPU is missing the file is not judged. aiter is not on PyPI:
https://github.com/ROCm/aiter

Bytes. 576 a token. What limits it is not known: see docs/kernels.md for what has run.
"""

import inspect

import torch

from harness.hip import NoDevice

SPLITS = 32
KV_GRANULARITY = 16  # tokens, of which the plan makes its parts
BUFFERS = [  # of the plan, in the order of get_mla_metadata_info_v1 and under the names of mla_decode_fwd
    "work_meta_data", "work_indptr", "work_info_set", "reduce_indptr", "reduce_final_map", "reduce_partial_map",
]  # fmt: skip


def custom_kernel(data):
    return decode(find_aiter(data[0]), data)


def find_aiter(q):
    """AMD's package. Raises NoDevice without it, or without its GPU."""
    if torch.version.hip is None or not q.is_cuda:
        raise NoDevice("aiter_fp8 needs an AMD GPU, and AMD's aiter (https://github.com/ROCm/aiter)")
    try:
        import aiter.mla
    except Exception as error:  # importing it builds kernels, which can fail in any way
        raise NoDevice(f"aiter_fp8 needs AMD's aiter (https://github.com/ROCm/aiter, not PyPI's): {error}") from error
    return aiter


def decode(aiter, data):
    q, kv_data, _, kv_indptr, config = data
    kv, kv_scale = kv_data["fp8"]
    q, q_scale = quantize(q, kv.dtype)
    held = kv_indptr.diff() > 0
    out = torch.zeros(*q.shape[:2], config["v_head_dim"], dtype=torch.bfloat16, device=q.device)
    count = int(held.sum())
    if not count:
        return out
    if count < len(held):  # without empty sequences, which own no rows of the cache
        q = q.view(torch.uint8)[held].view(q.dtype)  # as bytes: not every torch indexes fp8
        kv_indptr = torch.cat([kv_indptr[:1], kv_indptr[1:][held]])
    part = out if count == len(held) else out[held]
    qo_indptr = torch.arange(count + 1, dtype=torch.int32, device=q.device)  # one query a sequence
    last_page_lens = torch.ones(count, dtype=torch.int32, device=q.device)
    aiter.mla.mla_decode_fwd(
        q, kv.view(-1, 1, 1, kv.shape[-1]), part, qo_indptr, kv_indptr,
        torch.arange(kv.shape[0], dtype=torch.int32, device=q.device), last_page_lens, 1,
        page_size=1, nhead_kv=1, sm_scale=config["sm_scale"], logit_cap=0.0, num_kv_splits=SPLITS,
        q_scale=q_scale, kv_scale=kv_scale, intra_batch_mode=True,
        **plan(aiter, q, kv, qo_indptr, kv_indptr, last_page_lens),
    )  # fmt: skip
    if part is not out:
        out[held] = part
    return out


def plan(aiter, q, kv, qo_indptr, kv_indptr, last_page_lens):
    """Which workgroup takes which part: the six buffers that `mla_decode_fwd` reads."""
    heads = q.shape[1]
    info = aiter.get_mla_metadata_info_v1(
        len(kv_indptr) - 1, 1, heads, q.dtype, kv.dtype,
        is_sparse=False, fast_mode=False, num_kv_splits=SPLITS, intra_batch_mode=True,
    )  # fmt: skip
    buffers = {
        name: torch.empty(shape, dtype=dtype, device=q.device)
        for name, (shape, dtype) in zip(BUFFERS, info, strict=True)
    }
    parameters = inspect.signature(aiter.get_mla_metadata_v1).parameters
    parts = ["_nope", "_rope"] if "dtype_q_nope" in parameters else [""]  # newer sources tell the two apart
    dtypes = {f"dtype_{name}{part}": x.dtype for name, x in (("q", q), ("kv", kv)) for part in parts}
    order = ["work_meta_data", "work_info_set", "work_indptr", *BUFFERS[3:]]  # not the one of the info
    aiter.get_mla_metadata_v1(
        qo_indptr, kv_indptr, last_page_lens, heads, 1, True, *(buffers[name] for name in order),
        page_size=1, kv_granularity=KV_GRANULARITY, max_seqlen_qo=1, uni_seqlen_qo=1, fast_mode=False,
        max_split_per_batch=SPLITS, intra_batch_mode=True, **dtypes,
    )  # fmt: skip
    return buffers


def quantize(x, dtype):
    """x as fp8 of the cache's flavour, and its scale, of shape (1,): amax / the flavour's largest value."""
    limit = torch.finfo(dtype).max
    scale = (x.abs().amax().float().clamp(min=1e-12) / limit).reshape(1)
    return (x.float() / scale).clamp(-limit, limit).to(dtype), scale
