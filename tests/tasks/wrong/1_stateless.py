"""Another function that looks like it."""

import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x):
        return nn.functional.tanh(x)
