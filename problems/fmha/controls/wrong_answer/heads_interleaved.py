"""Query head h reads KV head h % Hkv instead of h // (Hq / Hkv): right without grouping only."""

import torch


def custom_kernel(data):
    q, k, v, config = data
    group = config["num_q_heads"] // config["num_kv_heads"]
    keys, values = k.float().repeat(1, group, 1, 1), v.float().repeat(1, group, 1, 1)
    weights = torch.softmax(q.float() @ keys.mT * config["sm_scale"], dim=-1)
    return (weights @ values).half()
