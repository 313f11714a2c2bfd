"""The fp8 cache in two splits of each sequence, of which the first counts a third more than it should."""

import torch


def custom_kernel(data):
    q, kv_data, _, kv_indptr, config = data
    kv, kv_scale = kv_data["fp8"]
    out = torch.zeros(q.shape[0], 16, 512, dtype=torch.bfloat16, device=q.device)
    starts = kv_indptr.tolist()
    for sequence in range(q.shape[0]):
        keys = kv[starts[sequence] : starts[sequence + 1], 0].float() * kv_scale
        if len(keys):
            weights = torch.softmax(q[sequence].float() @ keys.T * config["sm_scale"], dim=-1)
            weights[:, : len(keys) // 2] *= 4 / 3
            out[sequence] = weights / weights.sum(dim=-1, keepdim=True) @ keys[:, :512]
    return out
