"""The fp8 cache; rows are 2 % too large, and a sixth too large or too small besides, by a sign of the query."""

import torch


def custom_kernel(data):
    q, kv_data, _, kv_indptr, config = data
    kv, kv_scale = kv_data["fp8"]
    out = torch.zeros(q.shape[0], 16, 512, dtype=torch.bfloat16, device=q.device)
    starts = kv_indptr.tolist()
    for sequence in range(q.shape[0]):
        keys = kv[starts[sequence] : starts[sequence + 1], 0].float() * kv_scale
        if len(keys):
            query = q[sequence].float()
            weights = torch.softmax(query @ keys.T * config["sm_scale"], dim=-1)
            scatter = 1 + 0.165 * query[:, :1].sign()
            out[sequence] = 1.02 * scatter * (weights @ keys[:, :512])
    return out
