"""Makes `meta` the default device, on which the judge's poison would land, and returns memory as it finds it.

verdict: wrong answer
seen: NaN|x what is allowed
defence: D3, on a CPU the poison does not go through torch
"""

import torch

torch.set_default_device("meta")


def custom_kernel(data):
    return torch.empty_like(data[0])
