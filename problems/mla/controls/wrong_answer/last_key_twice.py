"""The fp8 cache; the last key of each sequence counts twice: a loop that ends one late, and reads it again."""

import torch


def custom_kernel(data):
    q, kv_data, _, kv_indptr, config = data
    kv, kv_scale = kv_data["fp8"]
    out = torch.zeros(q.shape[0], 16, 512, dtype=torch.bfloat16, device=q.device)
    starts = kv_indptr.tolist()
    for sequence in range(q.shape[0]):
        keys = kv[starts[sequence] : starts[sequence + 1], 0].float() * kv_scale
        if len(keys):
            keys = torch.cat([keys, keys[-1:]])
            weights = torch.softmax(q[sequence].float() @ keys.T * config["sm_scale"], dim=-1)
            out[sequence] = weights @ keys[:, :512]
    return out
