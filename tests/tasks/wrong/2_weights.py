"""Takes the weights transposed."""

import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.fc = nn.Linear(n, n)

    def forward(self, x):
        return torch.addmm(self.fc.bias, x, self.fc.weight).clamp_(min=0)
