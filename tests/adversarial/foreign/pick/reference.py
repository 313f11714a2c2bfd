"""The row with the largest sum."""

import torch
from utils import make_match_reference


def generate_input(rows: int, seed: int):
    gen = torch.Generator(device="cuda").manual_seed(seed)
    return torch.randn(rows, 64, device="cuda", generator=gen)


def ref_kernel(data):
    return data[data.sum(1).argmax()].clone()


check_implementation = make_match_reference(ref_kernel)
