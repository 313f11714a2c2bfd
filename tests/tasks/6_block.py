"""A block of several layers, as in level 3."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.attend = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)
        self.norm = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x):
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.attend(self.norm(x)).chunk(3, -1)
        )
        scores = (q @ k.transpose(-1, -2)) / q.shape[-1] ** 0.5
        x = x + self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))
        return x + self.mlp(x)


rows = 2
tokens = 8
dim = 16
heads = 4


def get_inputs():
    return [torch.randn(rows, tokens, dim)]


def get_init_inputs():
    return [dim, heads]
