"""The fp8 cache; the lighter half of the keys counts twice in even heads and not at all in odd ones."""

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
            lighter = weights < weights.median(dim=-1, keepdim=True).values
            weights[::2] *= 1 + lighter[::2].float()
            weights[1::2] *= 1 - lighter[1::2].float()
            out[sequence] = weights @ keys[:, :512]
    return out
