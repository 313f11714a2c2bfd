"""Replaces torch's allocation, so that poison and inputs land where the last answer does not lie.

verdict: wrong answer
seen: x what is allowed
defence: D2, handles are taken before the submission is imported, and values are fresh anyway
slow: true
"""

import torch

block = torch.zeros(1 << 16, dtype=torch.uint8)
torch.empty = lambda *shape, **options: block
torch.Tensor.data_ptr = lambda tensor: block.untyped_storage().data_ptr()
answers = {}


def custom_kernel(data):
    x = data[0]
    return answers.setdefault(x.shape, x * 2)
