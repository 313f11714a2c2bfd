"""The fp8 cache, and noise of 0.45 of each row in head 3. Its gain stays 1, and the other heads have no error: only the
size of that head's error tells."""

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
            rows = weights @ keys[:, :512]
            noise = torch.randn_like(rows[3])
            rows[3] += 0.45 * rows[3].norm() / noise.norm() * noise
            out[sequence] = rows
    return out
