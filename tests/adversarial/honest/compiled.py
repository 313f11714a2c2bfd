"""Compiles itself with torch.compile.

problem: attend
timed: true
slow: true
needs: compiler
"""

import torch


@torch.compile(dynamic=False)
def attend(q, k, v):
    return torch.softmax(q @ k.transpose(1, 2) / q.shape[-1] ** 0.5, dim=-1) @ v


def custom_kernel(data):
    return attend(*data)
