"""Keeps in a file how it chose to split its work, as a tuner does."""

from pathlib import Path

import torch

tuned = Path.home() / "tuned.txt"
if not tuned.exists():
    tuned.write_text("4")
blocks = int(tuned.read_text())


def custom_kernel(data):
    return torch.cat([block * 2 for block in data[0].chunk(blocks)])
