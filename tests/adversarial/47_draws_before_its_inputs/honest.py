"""Draws the random numbers of its forward in its forward.

problem: ../tasks/5_random.py
timed: true
slow: true
"""

from torch import nn


class ModelNew(nn.Module):
    def __init__(self, p):
        super().__init__()
        self.drop = nn.Dropout(p)

    def forward(self, x):
        return self.drop(x) * 2
