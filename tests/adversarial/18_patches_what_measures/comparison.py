"""Replaces everything that compares tensors by functions that always agree, and returns zeros.

verdict: wrong answer
seen: x what is allowed
defence: D1, the judge compares in a process of its own
"""

import statistics

import torch

torch.allclose = torch.equal = torch.isclose = torch.Tensor.allclose = torch.Tensor.equal = lambda *_, **__: True
torch.testing.assert_close = lambda *_, **__: None
torch.Tensor.__ne__ = lambda *_: torch.tensor(False)
statistics.median = statistics.fmean = lambda values: 1e-9


def custom_kernel(data):
    return torch.zeros_like(data[0])
