"""Four splits of each sequence, averaged instead of weighted by their log-sum-exp."""

import torch


def custom_kernel(data):
    q, kv_data, _, kv_indptr, config = data
    out = torch.zeros(q.shape[0], 16, 512, dtype=torch.bfloat16, device=q.device)
    starts = kv_indptr.tolist()
    for sequence in range(q.shape[0]):
        keys = kv_data["bf16"][starts[sequence] : starts[sequence + 1], 0].float()
        parts = [part for part in keys.tensor_split(4) if len(part)]
        for part in parts:
            weights = torch.softmax(q[sequence].float() @ part.T * config["sm_scale"], dim=-1)
            out[sequence] += (weights @ part[:, :512] / len(parts)).bfloat16()
    return out
