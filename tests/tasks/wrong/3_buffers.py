"""Normalises by the running means, and not by the batch's own."""

import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.norm = nn.BatchNorm1d(n)
        self.register_buffer("shift", torch.randn(n))

    def forward(self, x):
        mean, var = self.norm.running_mean, self.norm.running_var
        return (x - mean) * torch.rsqrt(var + self.norm.eps) * self.norm.weight + self.norm.bias + self.shift
