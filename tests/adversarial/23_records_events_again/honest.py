"""Records events of its own, and waits for none.

problem: attend
timed: true
needs: gpu
"""

import torch

mine = torch.cuda.Event(enable_timing=True)


def custom_kernel(data):
    q, k, v = data
    mine.record()
    return torch.softmax(q @ k.transpose(1, 2) / q.shape[-1] ** 0.5, dim=-1) @ v
