"""Right values, stored with the heads before the sequences."""

import torch


def custom_kernel(data):
    q, kv_data, _, kv_indptr, config = data
    out = torch.zeros(16, q.shape[0], 512, dtype=torch.bfloat16, device=q.device).transpose(0, 1)
    starts = kv_indptr.tolist()
    for sequence in range(q.shape[0]):
        keys = kv_data["bf16"][starts[sequence] : starts[sequence + 1], 0].float()
        if len(keys):
            weights = torch.softmax(q[sequence].float() @ keys.T * config["sm_scale"], dim=-1)
            out[sequence] = weights @ keys[:, :512]
    return out
