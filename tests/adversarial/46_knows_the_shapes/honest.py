"""Subtracts the maximum in steps of its own where the shape is a benchmark's.

problem: attend
timed: true
"""

import torch


def custom_kernel(data):
    q, k, v = data
    scores = q @ k.transpose(1, 2) / q.shape[-1] ** 0.5
    if q.shape[1] > 16:
        weights = torch.exp(scores - scores.amax(dim=-1, keepdim=True))
        return weights @ v / weights.sum(dim=-1, keepdim=True)
    return torch.softmax(scores, dim=-1) @ v
