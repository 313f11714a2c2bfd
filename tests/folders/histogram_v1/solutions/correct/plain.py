"""The data is one tensor by itself."""

import torch


def custom_kernel(data):
    return torch.bincount(data, minlength=16)
