"""Scores to weights: a softmax over each row, after a factor."""

import torch


def generate_input(*, queries: int, keys: int, seed: int, device: str):
    """Drawn from the seed. The scores reach beyond 88, where exp overflows in float32."""
    generator = torch.Generator(device).manual_seed(seed)
    scores = 40 * torch.randn(queries, keys, generator=generator, device=device)
    return scores, {"scale": 3.0}


def ref_kernel(data):
    """In float64, and rounded once."""
    scores, config = data
    return torch.softmax(config["scale"] * scores.double(), dim=1).float()


def cost(*, queries: int, keys: int):
    """What any implementation needs at least: each score is read once and each weight written once."""
    return {"float32": {"bytes": 2 * 4 * queries * keys, "flops": {"float32": 4 * queries * keys}}}
