"""Takes V from the KV head after the right one."""

import torch


def custom_kernel(data):
    q, k, v, config = data
    group = config["num_q_heads"] // config["num_kv_heads"]
    keys = k.float().repeat_interleave(group, dim=1)
    values = v.float().roll(-1, dims=1).repeat_interleave(group, dim=1)
    weights = torch.softmax(q.float() @ keys.mT * config["sm_scale"], dim=-1)
    return (weights @ values).half()
