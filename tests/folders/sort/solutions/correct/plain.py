"""torch's own."""

import torch


def custom_kernel(data):
    return torch.sort(data[0]).values
