import torch
from utils import make_match_reference


def generate_input(size: int, seed: int):
    gen = torch.Generator(device="cuda").manual_seed(seed)
    a, b = (torch.randn(size, size, device="cuda", dtype=torch.float16, generator=gen) for _ in range(2))
    return a, b, torch.empty(size, size, device="cuda", dtype=torch.float16)


def ref_kernel(data):
    a, b, out = data
    out[...] = a + b
    return out


check_implementation = make_match_reference(ref_kernel, rtol=1e-3, atol=1e-3)
