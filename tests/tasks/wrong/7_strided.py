"""Reshapes where it should transpose."""

import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x):
        return (x * 3).reshape(x.shape[1], x.shape[0])
