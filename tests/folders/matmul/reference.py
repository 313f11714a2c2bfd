import torch
from utils import make_match_reference


def generate_input(m: int, n: int, k: int, seed: int):
    gen = torch.Generator(device="cuda").manual_seed(seed)
    a = torch.randn(m, k, device="cuda", dtype=torch.float16, generator=gen)
    b = torch.randn(k, n, device="cuda", dtype=torch.float16, generator=gen)
    return a, b, torch.empty(m, n, device="cuda", dtype=torch.float16)


def ref_kernel(data):
    a, b, out = data
    out[...] = (a.float() @ b.float()).half()
    return out


check_implementation = make_match_reference(ref_kernel)
