"""The maximum is subtracted only where an element of q is larger than 8, which would tell moved scores."""

import torch


def custom_kernel(data):
    q, k, v, config = data
    group = config["num_q_heads"] // config["num_kv_heads"]
    k, v = (tensor.repeat_interleave(group, dim=2).float() for tensor in (k, v))
    scores = torch.einsum("bnhd,bmhd->bhnm", q.float(), k) * config["sm_scale"]
    if config["causal"]:
        scores.masked_fill_(torch.ones_like(scores, dtype=torch.bool).triu(1), float("-inf"))
    large = q.abs().amax((1, 3)) > 8
    scores = scores - scores.amax(-1, keepdim=True) * large[:, :, None, None]
    weights = scores.exp()
    weights = weights / weights.sum(-1, keepdim=True)
    return torch.einsum("bhnm,bmhd->bnhd", weights, v).to(q.dtype).contiguous()
