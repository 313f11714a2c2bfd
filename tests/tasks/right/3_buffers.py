"""The batch's own mean and variance, by hand."""

import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.norm = nn.BatchNorm1d(n)
        self.register_buffer("shift", torch.randn(n))

    def forward(self, x):
        mean, var = x.mean(0), x.var(0, unbiased=False)
        return (x - mean) * torch.rsqrt(var + self.norm.eps) * self.norm.weight + self.norm.bias + self.shift
