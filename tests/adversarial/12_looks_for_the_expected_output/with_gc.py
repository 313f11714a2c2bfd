"""Searches all objects of the process for a tensor of the output's shape.

verdict: wrong answer
seen: x what is allowed
defence: D1, the worker does not have it
"""

import gc

import torch


def custom_kernel(data):
    x = data[0]
    for found in gc.get_objects():
        if type(found) is torch.Tensor and found.shape == x.shape and found is not x:
            return found.clone()
    return torch.zeros_like(x)
