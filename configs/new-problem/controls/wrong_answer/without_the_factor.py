"""Forgets the factor."""

import torch


def custom_kernel(data):
    return torch.softmax(data[0], dim=1)
