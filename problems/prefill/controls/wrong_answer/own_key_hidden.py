"""Hides a causal query's own key from it, but for the first query's."""

import torch


def custom_kernel(data):
    q, k, v, config = data
    group = config["num_q_heads"] // config["num_kv_heads"]
    k, v = (tensor.repeat_interleave(group, dim=2).float() for tensor in (k, v))
    scores = torch.einsum("bnhd,bmhd->bhnm", q.float(), k) * config["sm_scale"]
    if config["causal"]:
        hidden = torch.ones_like(scores, dtype=torch.bool).triu(0)
        hidden[..., 0, 0] = False
        scores.masked_fill_(hidden, float("-inf"))
    return torch.einsum("bhnm,bmhd->bnhd", scores.softmax(-1), v).to(q.dtype).contiguous()
