"""Keys that weigh less than the thousandth part of the row's heaviest are left out."""

import torch


def custom_kernel(data):
    q, k, v, config = data
    group, length = q.shape[2] // k.shape[2], q.shape[1]
    out = torch.empty_like(q)
    seen = torch.ones(length, length, dtype=torch.bool, device=q.device).tril()
    for b in range(q.shape[0]):
        for h in range(q.shape[2]):
            scores = q[b, :, h].float() @ k[b, :, h // group].float().mT * config["sm_scale"]
            if config["causal"]:
                scores = scores.masked_fill(~seen, -torch.inf)
            weights = scores.softmax(dim=-1)
            weights = weights.masked_fill(weights < 1e-3 * weights.amax(dim=-1, keepdim=True), 0.0)
            out[b, :, h] = (weights @ v[b, :, h // group].float()).to(q.dtype)
    return out
