"""Computes in as many threads as there are processors, which torch keeps.

problem: attend
timed: true
"""

import torch

torch.set_num_threads(2)


def custom_kernel(data):
    q, k, v = data
    return torch.softmax(q @ k.transpose(1, 2) / q.shape[-1] ** 0.5, dim=-1) @ v
