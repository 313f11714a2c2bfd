"""Returns at once; a thread computes the answer a little later.

verdict: wrong answer
seen: NaN|x what is allowed
defence: D3, the output is copied when the time is up
"""

import threading
import time

import torch


def compute(x, out):
    time.sleep(0.02)
    torch.mul(x, 2, out=out)


def custom_kernel(data):
    out = torch.empty_like(data[0])
    threading.Thread(target=compute, args=(data[0], out)).start()
    return out
