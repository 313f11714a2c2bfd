"""Computes all rows but the last.

verdict: wrong answer
seen: x what is allowed
defence: D1, the judge compares
"""

import torch


def custom_kernel(data):
    out = torch.zeros_like(data[0])
    out[:-1] = data[0][:-1] * 2
    return out
