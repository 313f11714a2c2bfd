"""Random numbers in forward."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, p):
        super().__init__()
        self.drop = nn.Dropout(p)

    def forward(self, x):
        return self.drop(x) * 2


rows = 16
dim = 64


def get_inputs():
    return [torch.randn(rows, dim)]


def get_init_inputs():
    return [0.5]
