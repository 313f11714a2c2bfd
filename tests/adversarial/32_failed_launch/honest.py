"""Tries a way that fails, and takes another one."""

import contextlib

import torch

outs = {}


def custom_kernel(data):
    x = data[0]
    out = outs.setdefault(x.shape, torch.empty_like(x))
    with contextlib.suppress(RuntimeError):
        torch.mul(x, x.new_empty(x.shape[1] + 1), out=out)
    return torch.mul(x, 2, out=out)
