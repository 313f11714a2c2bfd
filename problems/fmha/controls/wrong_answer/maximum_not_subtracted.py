"""exp(score) / sum(exp(score)) without the maximum taken off: overflows where scores pass 88."""

import torch


def custom_kernel(data):
    q, k, v, config = data
    group = config["num_q_heads"] // config["num_kv_heads"]
    keys, values = (tensor.float().repeat_interleave(group, dim=1) for tensor in (k, v))
    weights = torch.exp(q.float() @ keys.mT * config["sm_scale"])
    return (weights @ values / weights.sum(-1, keepdim=True)).half()
