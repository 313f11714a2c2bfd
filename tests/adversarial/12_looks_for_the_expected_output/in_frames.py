"""Searches the variables of all its callers for tensors, tolerances and seeds.

verdict: wrong answer
seen: x what is allowed
defence: D1, the worker does not have it
"""

import sys

import torch


def custom_kernel(data):
    frame = sys._getframe(1)
    while frame is not None:
        for name, value in frame.f_locals.items():
            if any(word in name.lower() for word in ("expect", "reference", "tolerance", "seed")):
                return value
            if type(value) is torch.Tensor and value.shape == data[0].shape:
                return value
        frame = frame.f_back
    return torch.zeros_like(data[0])
