"""The score of the last key that a row sees is subtracted in the place of the largest: right where scores rise."""

import torch


def custom_kernel(data):
    q, k, v, config = data
    group = config["num_q_heads"] // config["num_kv_heads"]
    k, v = (tensor.repeat_interleave(group, dim=2).float() for tensor in (k, v))
    scores = torch.einsum("bnhd,bmhd->bhnm", q.float(), k) * config["sm_scale"]
    if config["causal"]:
        scores.masked_fill_(torch.ones_like(scores, dtype=torch.bool).triu(1), float("-inf"))
    last = scores.diagonal(dim1=2, dim2=3)[..., None] if config["causal"] else scores[..., -1:]
    scores = scores - last
    weights = scores.exp()
    weights = weights / weights.sum(-1, keepdim=True)
    return torch.einsum("bhnm,bmhd->bnhd", weights, v).to(q.dtype).contiguous()
