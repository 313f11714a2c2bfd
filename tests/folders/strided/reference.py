import torch
from utils import close_to


def generate_input(m: int, n: int, k: int, seed: int):
    gen = torch.Generator(device="cuda").manual_seed(seed)
    a = torch.randn(k, m, device="cuda", generator=gen).to(torch.float8_e4m3fnuz)
    b = torch.randn(k, n, device="cuda", generator=gen).to(torch.float8_e4m3fnuz)
    scale = torch.rand(2 * k, device="cuda", generator=gen)[::2]
    return a.T, b.T, scale, torch.empty(m, n, device="cuda", dtype=torch.bfloat16)


def ref_kernel(data):
    a, b, scale, out = data
    out[...] = ((a.float() * scale) @ b.float().T).bfloat16()
    return out


check_implementation = close_to(ref_kernel, rtol=2e-2, atol=1e-2)
