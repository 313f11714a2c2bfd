"""Writes to its input."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x):
        x += 1
        return x.mul_(2)


rows = 8
dim = 32


def get_inputs():
    return [torch.randn(rows, dim)]


def get_init_inputs():
    return []
