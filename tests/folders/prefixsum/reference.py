import torch


def generate_input(size: int, seed: int):
    gen = torch.Generator(device="cuda").manual_seed(seed)
    return torch.rand(size, device="cuda", generator=gen), torch.empty(size, device="cuda")


def ref_kernel(data):
    return torch.cumsum(data[0].double(), 0)


def check_implementation(data, output):
    want, slack = ref_kernel(data), 1e-6 * len(data[0])
    far = ~((output.double() - want).abs() <= slack * want)
    return not bool(far.any()), f"{int(far.sum())} sums are off"
