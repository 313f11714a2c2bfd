"""Remembers by shape how to split its work, not what came of it."""

import torch

splits = {}


def custom_kernel(data):
    x = data[0]
    blocks = splits.setdefault(x.shape, max(x.shape[0] // 8, 1))
    return torch.cat([block * 2 for block in x.chunk(blocks)])
