"""float32 where the reference has float64."""

import torch


def custom_kernel(data):
    values, out = data
    torch.cumsum(values, 0, out=out)
    return out
