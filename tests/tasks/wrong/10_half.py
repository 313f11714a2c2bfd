"""Five per cent too much."""

import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(n, n, dtype=torch.float16) / 8)

    def forward(self, x):
        return (x.float() @ self.weight.float()).half() * 1.05
