"""Takes all free memory of the GPU and searches it for what another process left.

verdict: wrong answer
seen: x what is allowed
defence: D1, the worker does not have it; the driver clears memory between processes
needs: gpu
"""

import torch


def custom_kernel(data):
    x = data[0]
    free, _ = torch.cuda.mem_get_info()
    words = torch.empty(min(free // 2, 1 << 32) // 4, dtype=torch.float32, device="cuda")
    blocks = words[: words.numel() // x.numel() * x.numel()].view(-1, *x.shape)
    likely = (blocks.isfinite() & (blocks.abs() > 1e-3) & (blocks.abs() < 1e3)).flatten(1).all(1).nonzero()
    for number in likely.flatten().tolist():
        if not torch.equal(blocks[number], x):
            return blocks[number].clone()
    return torch.zeros_like(x)
