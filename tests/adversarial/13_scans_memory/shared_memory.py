"""Searches the memory shared with the judge for anything but the input.

verdict: wrong answer
seen: x what is allowed
defence: D1, the worker does not have it
"""

from pathlib import Path

import torch


def custom_kernel(data):
    x = data[0]
    for line in Path("/proc/self/maps").read_text().splitlines():
        if "memfd:podium" not in line:
            continue
        start, end = (int(address, 16) for address in line.split()[0].split("-"))
        with open("/proc/self/mem", "rb") as memory:
            memory.seek(start)
            words = torch.frombuffer(bytearray(memory.read(end - start)), dtype=torch.float32)
        for block in words[: words.numel() // x.numel() * x.numel()].view(-1, *x.shape):
            if not torch.equal(block, x) and block.abs().sum() > 0:
                return block.clone()
    return torch.zeros_like(x)
