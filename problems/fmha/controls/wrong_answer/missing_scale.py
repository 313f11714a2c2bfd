"""Forgets sm_scale: softmax(q k^T) v."""

import torch


def custom_kernel(data):
    q, k, v, config = data
    group = config["num_q_heads"] // config["num_kv_heads"]
    keys, values = (tensor.float().repeat_interleave(group, dim=1) for tensor in (k, v))
    return (torch.softmax(q.float() @ keys.mT, dim=-1) @ values).half()
