"""Defines no custom_kernel."""

import torch


def kernel(data):
    return torch.zeros(data[0].shape[0], 16, 512, dtype=torch.bfloat16)
