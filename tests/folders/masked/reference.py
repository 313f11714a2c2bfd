import torch
from utils import close_to


def generate_input(dim: int, nomask: bool, distribution: str, seed: int):
    gen = torch.Generator(device="cuda").manual_seed(seed)
    x = torch.randn(2, dim, dim, device="cuda", generator=gen)
    if distribution == "cauchy":
        x = x / torch.randn(x.shape, device="cuda", generator=gen).abs().clamp(min=0.1)
    mask = torch.randint(0, 2, (2, dim), device="cuda", generator=gen).float()
    if nomask:
        mask = torch.ones_like(mask)
    weights = {
        "norm.weight": torch.randn(dim, device="cuda", generator=gen),
        "to_out.weight": torch.randn(dim, dim, device="cuda", generator=gen),
    }
    return x, mask, weights, {"dim": dim, "nomask": nomask, "bias": None}


def ref_kernel(data):
    x, mask, weights, _config = data
    return (x * mask[..., None] * weights["norm.weight"]) @ weights["to_out.weight"]


check_implementation = close_to(ref_kernel, rtol=1e-3, atol=1e-3)
