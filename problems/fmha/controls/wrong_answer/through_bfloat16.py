"""Rounds the output to bfloat16 on its way to float16: what torch's attention in bfloat16 and a cast would give."""

import torch


def custom_kernel(data):
    q, k, v, config = data
    group = config["num_q_heads"] // config["num_kv_heads"]
    keys, values = (tensor.float().repeat_interleave(group, dim=1) for tensor in (k, v))
    weights = torch.softmax(q.float() @ keys.mT * config["sm_scale"], dim=-1)
    return (weights @ values).to(torch.bfloat16).to(torch.float16)
