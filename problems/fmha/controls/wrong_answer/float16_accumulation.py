"""Adds the weighted values up in float16, key by key; weights and their sum are in float32."""

import torch


def custom_kernel(data):
    q, k, v, config = data
    group = config["num_q_heads"] // config["num_kv_heads"]
    keys, values = (tensor.float().repeat_interleave(group, dim=1) for tensor in (k, v))
    weights = torch.softmax(q.float() @ keys.mT * config["sm_scale"], dim=-1)
    out = torch.zeros_like(q[:, :, 0], dtype=torch.float16)
    for j in range(config["kv_seq_len"]):
        out = (out.float() + weights[:, :, 0, j, None] * values[:, :, j]).half()
    return out[:, :, None]
