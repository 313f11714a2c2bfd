"""Asks for empty memory and fills it."""

import torch


def custom_kernel(data):
    return torch.mul(data[0], 2, out=torch.empty_like(data[0]))
