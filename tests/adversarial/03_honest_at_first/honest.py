"""Counts its calls, warms up in the first ones, and computes in all."""

import torch

calls = 0


def custom_kernel(data):
    global calls
    calls += 1
    x = data[0]
    if calls <= 4:
        torch.empty_like(x).copy_(x)
    return x * 2
