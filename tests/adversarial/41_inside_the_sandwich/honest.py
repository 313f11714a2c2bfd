"""Computes for as long, on the stream that it is given.

timed: true
needs: nvidia
at least ms: 0.4
"""

import torch

CYCLES = 1_000_000  # at least 0.4 ms: no GPU is clocked at 2.5 GHz


def custom_kernel(data):
    torch.cuda._sleep(CYCLES)
    return data[0] * 2
