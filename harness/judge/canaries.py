"""Canaries for a problem in another project's form: answers that its checker must refuse, and data that test
nothing."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from harness.judge.difference import bits
from harness.judge.reference import members
from harness.model import Case
from harness.wire.arena import countable
from harness.wire.tree import Leaves


def wrong_answers(inputs: Leaves, answer: Any) -> Iterator[tuple[str, Any]]:
    """Yield answers that must be refused unless they are right by chance: zeros, and a copy of an input in place of a
    single output."""
    several = isinstance(answer, tuple | list)
    outputs = members(answer)
    zeros = [torch.zeros_like(output) for output in outputs]
    yield "zeros", (zeros if isinstance(answer, list) else tuple(zeros)) if several else zeros[0]
    if several or outputs[0].numel() < 2:
        return
    for name, tensor in inputs:
        if (
            tensor.shape == outputs[0].shape
            and countable(tensor) is tensor
            and not tensor.is_complex()
            and not _alike(tensor.to(outputs[0].dtype), outputs[0])
        ):
            yield f"a copy of {name}", tensor.to(outputs[0].dtype).clone()


def not_finite(answer: Any) -> Iterator[Any]:
    """Yield `answer` with NaN, then with Inf, in place of all floating-point numbers, then of those of each output
    alone. A checker that only looks for errors above a limit accepts NaN. Yields nothing for an answer without such
    numbers."""
    outputs = members(answer)
    floats = [n for n, output in enumerate(outputs) if output.is_floating_point() and countable(output) is output]
    for places in [floats, *([n] for n in floats if len(outputs) > 1)]:
        for value in (math.nan, math.inf) if places else ():
            wrong = [torch.full_like(o, value) if n in places else o.clone() for n, o in enumerate(outputs)]
            several = isinstance(answer, tuple | list)
            yield (wrong if isinstance(answer, list) else tuple(wrong)) if several else wrong[0]


def all_finite(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether no tensor holds NaN or Inf."""
    floats = (t for t in map(countable, tensors) if t.is_floating_point())
    return all(bool((t.float() if t.itemsize == 1 else t).isfinite().all()) for t in floats)


def constant_answer(inputs: Leaves, answer: Any, case: Case) -> str | None:
    """Say in words that the answer is a copy of an input that holds one value only. Such data test nothing."""
    for output in members(answer):
        elements = bits(output).reshape(output.numel(), -1) if output.numel() > 1 else None
        if elements is not None and bool((elements == elements[0]).all()):
            for name, tensor in inputs:
                if tensor.shape == output.shape and tensor.dtype == output.dtype and _alike(tensor, output):
                    return f"{name} and the answer hold one value in all elements, in {case.label}"
    return None


def is_not_zero(tensor: torch.Tensor) -> bool:
    return bool((bits(tensor) != 0).any())


def _alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    return bool((bits(one) == bits(other)).all())


def same(ours: Leaves, theirs: Leaves) -> bool:
    """Whether the tensors of both are equal in every bit."""
    return _equal_shapes(ours, theirs) and all(_alike(a, b) for (_, a), (_, b) in zip(ours, theirs))


def _equal_shapes(ours: Leaves, theirs: Leaves) -> bool:
    return len(ours) == len(theirs) and all(
        (a.shape, a.dtype) == (b.shape, b.dtype) for (_, a), (_, b) in zip(ours, theirs)
    )
