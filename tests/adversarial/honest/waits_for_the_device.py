"""Waits for the GPU in the middle of every call, and looks at what it computed.

timed: true
needs: gpu
"""

import torch


def custom_kernel(data):
    largest = data[0].abs().max().item()
    torch.cuda.synchronize()
    return data[0] * (2 if largest >= 0 else 3)
