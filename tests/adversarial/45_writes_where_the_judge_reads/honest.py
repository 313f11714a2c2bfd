"""Computes into memory of its own that it keeps.

timed: true
"""

import torch

kept: dict = {}


def custom_kernel(data):
    x = data[0]
    if x.shape not in kept:
        kept[x.shape] = torch.empty_like(x)
    return torch.mul(x, 2, out=kept[x.shape])
