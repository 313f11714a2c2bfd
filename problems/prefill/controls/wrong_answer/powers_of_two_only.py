"""Zeros where Hq / Hkv is no power of two."""

import torch


def custom_kernel(data):
    q, k, v, config = data
    group = config["num_q_heads"] // config["num_kv_heads"]
    k, v = (tensor.repeat_interleave(group, dim=2).float() for tensor in (k, v))
    scores = torch.einsum("bnhd,bmhd->bhnm", q.float(), k) * config["sm_scale"]
    if config["causal"]:
        scores.masked_fill_(torch.ones_like(scores, dtype=torch.bool).triu(1), float("-inf"))
    weights = scores.softmax(-1)
    if group & (group - 1):
        weights = torch.zeros_like(weights)
    return torch.einsum("bhnm,bmhd->bnhd", weights, v).to(q.dtype).contiguous()
