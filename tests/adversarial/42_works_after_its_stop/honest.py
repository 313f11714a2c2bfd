"""Computes in a child, and waits for it.

timed: true
"""

import mmap
import os

import torch


def custom_kernel(data):
    x = data[0]
    out = torch.frombuffer(mmap.mmap(-1, x.numel() * 4), dtype=torch.float32).view_as(x)
    child = os.fork()
    if child == 0:
        out.numpy()[:] = 2 * x.numpy()
        os._exit(0)
    os.waitpid(child, 0)
    return out
