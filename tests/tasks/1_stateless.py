"""No weights."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x):
        return x / (1 + x.abs())


rows = 8
dim = 32


def get_inputs():
    return [torch.randn(rows, dim)]


def get_init_inputs():
    return []
