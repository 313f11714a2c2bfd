"""The conditions under which the judge runs other people's code: random numbers, contents of fresh memory, default
dtype."""

from __future__ import annotations

import random
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from harness.judge.difference import bits


def seed_everything(seed: int) -> None:
    """Seed all generators, the global ones too: generated inputs must depend on their seed alone."""
    torch.manual_seed(seed)
    random.seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed % 2**32)


@contextmanager
def filled_memory() -> Iterator[None]:
    """Within this block fresh memory holds NaN, or the largest value for integers. A buffer that a submission is to
    write must not hold results that the judge computed before."""
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
    """Whether nothing was written to `tensor`, which was made within `filled_memory`."""
    with filled_memory():
        return torch.equal(bits(torch.empty_like(tensor)), bits(tensor))
