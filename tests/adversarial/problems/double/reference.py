"""Every element of a matrix, doubled."""

import torch


def generate_input(*, rows: int, cols: int, seed: int, device: str):
    generator = torch.Generator(device).manual_seed(seed)
    return torch.randn(rows, cols, generator=generator, device=device), {"factor": 2.0}


def ref_kernel(data):
    x, config = data
    return x * config["factor"]


def cost(*, rows: int, cols: int):
    return {"float32": {"bytes": 8 * rows * cols, "flops": {"float32": rows * cols}}}
