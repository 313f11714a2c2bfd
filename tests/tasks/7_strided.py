"""An output that is not contiguous."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x):
        return (x * 3).transpose(0, 1)


rows = 8
dim = 32


def get_inputs():
    return [torch.randn(rows, dim)]


def get_init_inputs():
    return []
