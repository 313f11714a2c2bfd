"""Writes its answers to a file in the first process and reads them in the later ones.

verdict: wrong answer
seen: a benchmark case is wrong
defence: D2, fresh values in every process
timed: true
"""

from pathlib import Path

import torch

kept = Path.home() / "answer.pt"
first = not kept.exists()


def custom_kernel(data):
    x = data[0]
    if x.shape[0] == 64 and not first:
        return torch.load(kept)
    torch.save(x * 2, kept)
    return x * 2
