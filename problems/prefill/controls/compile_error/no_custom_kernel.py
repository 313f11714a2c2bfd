"""Defines `prefill`, but no `custom_kernel`."""

import torch


def prefill(data):
    return torch.empty_like(data[0])
