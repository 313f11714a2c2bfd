"""The fp8 cache; even heads are a tenth too large and odd ones a tenth too small, which no mean over heads shows."""

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
            out[sequence, ::2] *= 1.1
            out[sequence, 1::2] *= 0.9
    return out
