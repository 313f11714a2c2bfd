"""Reads the bytes of a by rows."""

import torch


def custom_kernel(data):
    a, b, scale, out = data
    by_rows = torch.as_strided(a.view(torch.uint8), a.shape, (a.shape[1], 1)).view(a.dtype)
    out[...] = ((by_rows.float() * scale) @ b.float().T).bfloat16()
    return out
