"""Returns memory shared with a child process, which computes the answer a little later.

verdict: wrong answer
seen: x what is allowed
defence: D3, the output is copied when the time is up
"""

import mmap
import os
import time

import torch


def custom_kernel(data):
    x = data[0]
    out = torch.frombuffer(mmap.mmap(-1, x.numel() * 4), dtype=torch.float32).view_as(x)
    if os.fork() == 0:
        time.sleep(0.02)
        out.numpy()[:] = 2 * x.numpy()
        os._exit(0)
    return out
