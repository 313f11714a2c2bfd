"""Unpacks by a table; scales by their strides."""

import torch

from reference import GROUP, VALUES


def custom_kernel(data):
    packed, scales, out = data
    assert packed.dtype is torch.float4_e2m1fn_x2 and not scales.is_contiguous()
    codes = packed.view(torch.uint8)
    table = torch.tensor(VALUES, device=codes.device)
    pairs = torch.stack([table[(codes & 15).long()], table[(codes >> 4).long()]], dim=-1)
    out.copy_((pairs.flatten(1).unflatten(1, (-1, GROUP)).sum(2) * scales.float()).sum(1))
    return out
