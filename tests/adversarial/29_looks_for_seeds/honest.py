"""Seeds a generator of its own."""

import os

import torch

generator = torch.Generator().manual_seed(len(os.environ))


def custom_kernel(data):
    torch.randn(4, generator=generator)
    return data[0] * 2
