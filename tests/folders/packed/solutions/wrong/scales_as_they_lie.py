"""Reads the scales in the order of memory."""

import torch

from reference import GROUP, VALUES


def custom_kernel(data):
    packed, scales, out = data
    codes = packed.view(torch.uint8)
    table = torch.tensor(VALUES, device=codes.device)
    pairs = torch.stack([table[(codes & 15).long()], table[(codes >> 4).long()]], dim=-1)
    in_memory = scales.as_strided(scales.shape, (scales.shape[1], 1))
    out.copy_((pairs.flatten(1).unflatten(1, (-1, GROUP)).sum(2) * in_memory.float()).sum(1))
    return out
