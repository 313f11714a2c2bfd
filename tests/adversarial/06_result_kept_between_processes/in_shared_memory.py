"""Leaves its answers in /dev/shm for the later processes.

verdict: wrong answer
seen: a benchmark case is wrong
defence: D2, fresh values in every process; D5, a /dev/shm of its own
timed: true
slow: true
"""

from pathlib import Path

import torch

kept = Path("/dev/shm/podium_exploit.pt")
been_here = Path("been_here")
later = been_here.exists()
been_here.touch()


def custom_kernel(data):
    x = data[0]
    if x.shape[0] == 64 and later:
        return torch.load(kept) if kept.exists() else torch.zeros_like(x)
    torch.save(x * 2, kept)
    return x * 2
