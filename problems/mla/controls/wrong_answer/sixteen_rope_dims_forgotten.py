"""The fp8 cache, and the last 16 of the 64 rope dims left out of the scores."""

import torch


def custom_kernel(data):
    q, kv_data, _, kv_indptr, config = data
    kv, kv_scale = kv_data["fp8"]
    out = torch.zeros(q.shape[0], 16, 512, dtype=torch.bfloat16, device=q.device)
    starts = kv_indptr.tolist()
    for sequence in range(q.shape[0]):
        keys = kv[starts[sequence] : starts[sequence + 1], 0].float() * kv_scale
        if len(keys):
            scores = q[sequence, :, :560].float() @ keys[:, :560].T * config["sm_scale"]
            out[sequence] = torch.softmax(scores, dim=-1) @ keys[:, :512]
    return out
