"""Returns zeros.

verdict: wrong answer
seen: x what is allowed
defence: D1, the judge compares
"""

import torch


def custom_kernel(data):
    return torch.zeros_like(data[0])
