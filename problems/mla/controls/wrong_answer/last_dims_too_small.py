"""The fp8 cache, and the last 32 of the 512 output dims 0.7 of what they should be."""

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
            out[sequence] = weights @ keys[:, :512]
            out[sequence, :, 480:] *= 0.7
    return out
