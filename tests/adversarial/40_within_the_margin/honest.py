"""Is as short, and says so."""

import torch


def custom_kernel(data):
    return torch.add(data[0], data[0])
