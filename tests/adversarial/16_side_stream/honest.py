"""Computes halves on two streams, for which the current one waits before the call returns.

timed: true
needs: gpu
"""

import torch

sides = [torch.cuda.Stream(), torch.cuda.Stream()]


def custom_kernel(data):
    x, current = data[0], torch.cuda.current_stream()
    out = torch.empty_like(x)
    for side, source, target in zip(sides, x.chunk(2), out.chunk(2), strict=True):
        side.wait_stream(current)
        with torch.cuda.stream(side):
            torch.mul(source, 2, out=target)
    for side in sides:
        current.wait_stream(side)
    return out
