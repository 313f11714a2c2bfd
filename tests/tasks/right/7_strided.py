"""A view of what was computed."""

import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x):
        return x.mul(3).T
