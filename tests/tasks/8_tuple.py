"""Several outputs."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x):
        values, indices = x.max(dim=1)
        return values, indices


rows = 8
dim = 32


def get_inputs():
    return [torch.randn(rows, dim)]


def get_init_inputs():
    return []
