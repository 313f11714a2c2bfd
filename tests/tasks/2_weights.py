"""A layer with weights."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.fc = nn.Linear(n, n)

    def forward(self, x):
        return torch.relu(self.fc(x))


rows = 8
dim = 32


def get_inputs():
    return [torch.rand(rows, dim)]


def get_init_inputs():
    return [dim]
