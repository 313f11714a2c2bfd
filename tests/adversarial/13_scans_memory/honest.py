"""Works in a large piece of memory that it asked for."""

import torch


def custom_kernel(data):
    x = data[0]
    workspace = torch.empty(1 << 22, dtype=x.dtype, device=x.device)
    block = workspace[: x.numel()].view_as(x)
    return torch.mul(x, 2, out=block).clone()
