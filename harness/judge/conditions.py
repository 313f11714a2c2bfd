"""Under which conditions the judge runs other people's code: what it draws, finds in memory, takes for a number."""

from __future__ import annotations

import random
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from harness.judge.difference import bits


def seed_everything(seed: int) -> None:
    """Also the generators that nobody hands on: a generator's inputs must follow its seed alone."""
    torch.manual_seed(seed)
    random.seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed % 2**32)


@contextmanager
def filled_memory() -> Iterator[None]:
    """Within it memory that nothing was written to holds NaN, or of integers the largest: a buffer that a submission is
    to write must not hold what the judge computed before."""
    before, warns = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    # Not torch.use_deterministic_algorithms, which imports torch's compiler: 3 s.
    torch._C._set_deterministic_algorithms(True, warn_only=True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        torch._C._set_deterministic_algorithms(before, warn_only=warns)


@contextmanager
def by_default(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def left_empty(tensor: torch.Tensor) -> bool:
    """Whether nothing was written to it within `filled_memory`."""
    with filled_memory():
        return torch.equal(bits(torch.empty_like(tensor)), bits(tensor))
