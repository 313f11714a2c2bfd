"""Ignores that its computation failed and returns the memory of the call before.

verdict: wrong answer
seen: a benchmark case is wrong
defence: D2, fresh values in every call
timed: true
"""

import contextlib

import torch

outs, calls = {}, 0


def compute(x, out):
    global calls
    calls += x.shape[0] == 64
    if calls > 2:
        raise RuntimeError("out of resources: shared memory")
    torch.mul(x, 2, out=out)


def custom_kernel(data):
    x = data[0]
    out = outs.setdefault(x.shape, torch.empty_like(x))
    with contextlib.suppress(RuntimeError):
        compute(x, out)
    return out
