"""Float32 throughout, KV heads matched by reshaping the queries, rounded once at the end."""

import torch


def custom_kernel(data):
    q, k, v, config = data
    batch, q_heads, _, head_dim = q.shape
    grouped = q.float().view(batch, config["num_kv_heads"], -1, head_dim)
    weights = torch.softmax(grouped @ k.float().mT * config["sm_scale"], dim=-1)
    return (weights @ v.float()).view(batch, q_heads, 1, head_dim).half()
