"""Starts from zeros and computes every row."""

import torch


def custom_kernel(data):
    out = torch.zeros_like(data[0])
    for row, x in zip(out, data[0], strict=True):
        row.copy_(x * 2)
    return out
