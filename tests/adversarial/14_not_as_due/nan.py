"""Returns NaN, which is not greater than any limit.

verdict: wrong answer
seen: NaN
defence: D1, the judge compares
"""

import torch


def custom_kernel(data):
    return torch.full_like(data[0], float("nan"))
