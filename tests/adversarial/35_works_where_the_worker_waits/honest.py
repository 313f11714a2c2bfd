"""Has its own way to sleep: it waits for a thread, inside its call.

problem: attend
timed: true
"""

import threading
import time

import torch


def custom_kernel(data):
    waiting = threading.Thread(target=time.sleep, args=(0.001,))
    waiting.start()
    q, k, v = data
    out = torch.softmax(q @ k.transpose(1, 2) / q.shape[-1] ** 0.5, dim=-1) @ v
    waiting.join()
    return out
