"""The fp8 cache, and of each row only the values of the better half of the keys; the denominators are of all."""

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
            least = weights.topk((len(keys) + 1) // 2, dim=-1).values[:, -1:]
            out[sequence] = weights.masked_fill(weights < least, 0.0) @ keys[:, :512]
    return out
