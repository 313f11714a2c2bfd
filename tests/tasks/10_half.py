"""float16, where less is exact."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(n, n, dtype=torch.float16) / 8)

    def forward(self, x):
        return x @ self.weight


rows = 8
dim = 64


def get_inputs():
    return [torch.randn(rows, dim, dtype=torch.float16)]


def get_init_inputs():
    return [dim]
