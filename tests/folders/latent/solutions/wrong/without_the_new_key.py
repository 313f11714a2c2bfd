"""Attends to what was in the cache before."""

import torch


def custom_kernel(data):
    config, x, cache = data
    keys = torch.cat([cache.data[:, : cache.length], x @ config.down], dim=1) @ cache.up.weight.T
    old = keys[:, :-1]
    return torch.softmax(x @ old.mT / 4, dim=-1) @ old, keys
