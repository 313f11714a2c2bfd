"""The loss by hand; targets stay whole numbers."""

import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, scores, targets):
        assert targets.dtype == torch.int64
        return -scores.log_softmax(-1).gather(1, targets[:, None]).mean()
