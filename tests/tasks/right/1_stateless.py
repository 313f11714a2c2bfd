"""torch's own function for it."""

import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x):
        return nn.functional.softsign(x)
