"""Returns zeros."""

import torch


def custom_kernel(data):
    return torch.zeros_like(data[0], dtype=torch.float16)
