"""Over the wrong axis."""

import torch


def custom_kernel(data):
    return torch.softmax(data[1]["scale"] * data[0], dim=0)
