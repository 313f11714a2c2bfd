"""torch's own pair."""

import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x):
        return tuple(x.max(dim=1))
