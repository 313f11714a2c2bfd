"""MLA decode on the fp8 cache in plain torch: queries quantized per tensor as the reference does, float32 arithmetic.

The two scales stay out of the tensors: one factor on the scores, one on the result. Each sequence's keys are widened to
float32 first (576 bytes a token read, 2304 written and then read twice), which costs more than the smaller cache saves:
the point of this file is the reference's arithmetic in the fewest lines.
"""

from itertools import pairwise

import torch


def custom_kernel(data):
    q, kv_data, _, kv_indptr, config = data
    kv, kv_scale = kv_data["fp8"]
    q, q_scale = quantize(q, kv.dtype)
    v_dim = config["v_head_dim"]
    out = torch.zeros(*q.shape[:2], v_dim, dtype=torch.bfloat16, device=q.device)
    starts = kv_indptr.tolist()
    for sequence, (start, end) in enumerate(pairwise(starts)):
        if end > start:
            keys = kv[start:end, 0].float()
            scores = q[sequence].float() @ keys.T * (config["sm_scale"] * q_scale * kv_scale)
            out[sequence] = torch.softmax(scores, dim=-1) @ keys[:, :v_dim] * kv_scale
    return out


def quantize(x, dtype):
    """x as fp8 of the cache's flavour, and its scale: amax / the flavour's largest value."""
    limit = torch.finfo(dtype).max
    scale = x.abs().amax().float().clamp(min=1e-12) / limit
    return (x.float() / scale).clamp(-limit, limit).to(dtype), scale
