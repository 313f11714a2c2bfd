"""A problem's own list of known mistakes, problems/NAME/mistakes.py, tried on a call whose output is wrong.

    inputs of the call ─► mistakes(data) ─► (words, the outputs that this mistake gives), one after another
    the call's outputs ─► within the strictest tolerance of those, and far from the right ones? ─► a hint;
                          it names every mistake about as close as the closest: some cases cannot tell two apart

The file is optional and not part of the problem's hash: no verdict depends on it. It is used for small calls only, and
for some seconds of an evaluation. If the file itself fails, the hint says so.
"""

from __future__ import annotations

import contextlib
import importlib.util
import math
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from pydantic import TypeAdapter

from harness.judge.difference import Difference, float64, meets
from harness.judge.hints import AS_IF, NEARER, OR
from harness.judge.inputs import Call
from harness.model import Problem, Tolerance
from harness.wire.tree import unflatten

FILE = "mistakes.py"
SIDES = "SIDES"
"""Name of a dict in that file: for each figure over all calls, the mistakes that change it."""

UNCHANGED = "UNCHANGED"
"""Name of a text in that file: why, in the calls that change nothing of the supplied memory, they do not."""

MOST_BYTES = 32 << 20
"""The most bytes of a call's inputs. The CPU cases of the bundled problems have at most 5 MB."""

MOST_S = 10.0
"""Seconds for the mistakes of all calls of an evaluation together. If no mistake is recognised, all CPU cases of a
bundled problem take 1 to 6 s of one core (EPYC, 2026-11-23)."""

MOST_VAIN = 4
"""After this many wrong calls in a row without a recognised mistake the search ends."""

LEAST = 8
"""The fewest elements that a mistake must change: fewer are alike by chance."""

OFF_BY = (1, 2, 5, 10)
"""Per cents by which a softmax scale is tried too large and too small. Those in between are not recognised."""

MOST_NAMED = 3
"""How many equally fitting mistakes are named. The number of the others is told."""

Mistake = tuple[str, Any]
"""The mistake in words, and its output or outputs, with the shapes of the right ones and any float dtype. Where they
are NaN, any value fits; where they are Inf, NaN and Inf fit."""


def wrong_scales(sm_scale: float, head_dim: int) -> Iterator[tuple[str, float]]:
    """Softmax scales that are mistaken for `sm_scale`, each in words. For problems with a softmax."""
    known = {
        "the scores were not scaled": 1.0,
        "every key weighed alike: the output is the mean of the values": 0.0,
        f"the softmax scale were 1 / {head_dim}, as if 1 / sqrt({head_dim}) were applied twice": 1 / head_dim,
        f"scores were multiplied by sqrt({head_dim}) and not divided by it": math.sqrt(head_dim),
        "log2(e) were missing from the softmax scale, which exp2 needs": sm_scale * math.log(2),
        "log2(e) were in the softmax scale, and then exp and not exp2 taken": sm_scale / math.log(2),
    }
    yield from ((words, scale) for words, scale in known.items() if not math.isclose(scale, sm_scale))
    for percent in OFF_BY:
        for side, sign in (("large", 1), ("small", -1)):
            yield f"the softmax scale were {percent} % too {side}", sm_scale * (1 + sign * percent / 100)


EXP_TAKES = (-104.0, -80.0, 88.0, 90.0)
"""The logarithm of a sum of exponentials in float32: below the first it is zero, below the second it may round to zero,
above the third it may overflow, above the fourth it does. Between, a score's own rounding decides."""


BEGINNINGS = ((0.0, "0", "0"), (-50.0, "-50 or so", "-150 or so"))
"""Numbers at which a maximum begins by mistake, in words, and scores of padding that look the same. Inputs whose scores
are moved by 112 and 300 do not tell the second from those near it."""


def wrong_maximum(out: torch.Tensor, log_sums: torch.Tensor) -> Iterator[Mistake]:
    """The mistakes of a softmax without the row's maximum, if its exponentials overflow, and of a maximum that is never
    below one of BEGINNINGS, if they are all zero: the row is 0 / 0, or zero as where padding counts. For problems with
    a softmax.

    `out`: the right output. `log_sums`: the logarithm of each row's sum of exponentials, without an axis for dims.
    """
    zero, low, high, beyond = EXP_TAKES
    rows = log_sums.to(out)[..., None]
    if bool((log_sums > beyond).any()):
        mistaken = torch.where((rows < low) | (rows > high), torch.nan, out)
        words = "the row's maximum were not subtracted: exp overflows at scores above 88"
        yield words, torch.where(rows > beyond, torch.inf, mistaken)
    for least, begun, padding in BEGINNINGS:
        if bool((log_sums < least + zero).any()):
            mistaken = torch.where(rows < least + low, torch.nan, out)
            words = f"the row's maximum began at {begun} and not at -inf"
            below = f"every weight is zero where all scores are below {least + zero:g}"
            yield f"{words}: {below}", torch.where(rows < least + zero, torch.inf, mistaken)
            counted = f"{words}, or keys beyond the end counted with the score {padding}"
            yield counted, torch.where(rows < least + zero, 0.0, mistaken)


MOST_SCORES = 8 << 20
"""The most scores for `not_rescaled`, which holds several tensors of that many float64 numbers."""


def not_rescaled(
    scores: torch.Tensor,
    values: torch.Tensor,
    last: torch.Tensor,
    words: str,
    until: torch.Tensor | None = None,
    then: torch.Tensor | None = None,
) -> Iterator[Mistake]:
    """The mistakes of a softmax that takes keys block by block and keeps what it has when a block raises the maximum.
    For problems with a softmax.

    `scores`: float64 `[..., rows, keys]`, -inf where a row does not see a key. `values`: `[..., keys, dims]`. `last`:
    for each key the last one of its block, broadcast to `scores`. `words`: which blocks. `until`: the keys before a
    last step that does rescale, `then`: the maximum up to there.
    """
    seen, top = scores > -torch.inf, scores.amax(dim=-1, keepdim=True)
    running = scores.cummax(dim=-1).values.gather(-1, last.expand_as(scores))
    if until is not None and then is not None:
        running = torch.where(until, running + top - then, top)
    kept, right = (torch.where(seen, (scores - most).exp(), 0.0) for most in (running, top))
    if torch.equal(kept, right):
        return
    kept_total, total = (weights.sum(dim=-1, keepdim=True) for weights in (kept, right))
    kept_sum, whole = (weights @ values for weights in (kept, right))
    # A row without keys becomes 0 / 0, where any value fits.
    for what, wrong in (
        ("the accumulator were not", kept_sum / total),
        ("the sum of exponentials were not", whole / kept_total),
        ("neither the accumulator nor the sum were", kept_sum / kept_total),
    ):
        yield f"{what} rescaled when {words} raised the maximum", wrong


class Mistakes:
    """The known mistakes of one problem, for the calls of one evaluation."""

    def __init__(self, problem: Problem) -> None:
        self._problem, self._path = problem, problem.folder / FILE
        self._left_s, self._vain = MOST_S, 0
        self._mistakes: Callable[[Any], Iterator[Mistake]] | None = None

    def recognised(self, call: Call, outputs: Sequence[Difference], tolerances: dict[str, Tolerance]) -> str | None:
        """Say in words which mistakes give these wrong outputs of `call`; None if no known one does."""
        whole = call.expectation.selection is None and all(each.actual is not None for each in outputs)
        inputs_bytes = sum(tensor.numel() * tensor.itemsize for tensor, _ in call.places)
        if not whole or inputs_bytes > MOST_BYTES or self._left_s <= 0 or not self._path.exists():
            return None
        if self._vain >= MOST_VAIN:
            return None
        self._vain += 1
        began, away = time.monotonic(), dict[str, float]()
        try:
            self._mistakes = self._mistakes or _imported(self._path).mistakes
            for words, found in self._mistakes(_data(call)):
                given = found if isinstance(found, tuple | list) else (found,)
                if len(given) == len(outputs) and _is_it(outputs, given, tolerances):
                    away[words] = min(_distance(outputs, given), away.get(words, math.inf))
                if time.monotonic() - began > self._left_s:
                    break
        except (Exception, SystemExit) as error:  # a fault in the organiser's file must not cost a verdict
            if not away:
                return f"none: {self._path} failed: {type(error).__name__}: {str(error).partition(chr(10))[0]}"
        finally:
            self._left_s -= time.monotonic() - began
        if not away:
            return None
        self._vain = 0
        dtypes = [output.expected.dtype for output in outputs]
        rounding = max((torch.finfo(dtype).eps for dtype in dtypes if dtype.is_floating_point), default=0.0)
        reach = NEARER * max(min(away.values()), rounding)
        return _named([words for words, distance in away.items() if distance <= reach])


def sides(problem: Problem) -> dict[str, tuple[str, str]]:
    """The problem's dict SIDES: for each figure, the mistakes that move it below 1, and those that move it above.
    Anything in another form is ignored."""
    path = problem.folder / FILE
    with contextlib.suppress(Exception, SystemExit):  # a fault in the organiser's file must not cost a verdict
        return _SIDES.validate_python(getattr(_imported(path), SIDES, {}) if path.exists() else {})
    return {}


def unchanged(problem: Problem) -> str | None:
    """The problem's UNCHANGED: why the memory that it supplies stays as it was in some calls. None if it has none."""
    path = problem.folder / FILE
    with contextlib.suppress(Exception, SystemExit):  # a fault in the organiser's file must not cost a verdict
        return str(getattr(_imported(path), UNCHANGED)) if path.exists() else None
    return None


_SIDES = TypeAdapter(dict[str, tuple[str, str]])


def _named(fitting: Sequence[str]) -> str:
    """Format mistakes that fit equally: `as if this, or as if that`."""
    more = len(fitting) - MOST_NAMED
    rest = f"; {more} more mistakes give the same" if more > 1 else "; one more gives the same" if more == 1 else ""
    return OR.join(f"{AS_IF}{words}" for words in fitting[:MOST_NAMED]) + rest


def _imported(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"podium_mistakes_{path.parent.name}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _data(call: Call) -> Any:
    """The inputs as they were before the call."""
    return unflatten(call.request["tree"], lambda number: call.places[number][0].clone())


def _is_it(outputs: Sequence[Difference], given: Sequence[torch.Tensor], tolerances: dict[str, Tolerance]) -> bool:
    """Whether the outputs are those of a mistake. They must be within the strictest tolerance of its outputs. In the
    rows that it changes they must be NEARER times closer to these than to the right ones. What the loosest tolerance
    lets pass is no reason for a wrong answer."""
    strictest, *_, loosest = *tolerances.values(), *tolerances.values()
    changed = False
    for output, mistaken in zip(outputs, given, strict=True):
        want = float64(output.expected)
        if mistaken.shape != want.shape or output.actual is None:
            return False
        mistaken, actual = mistaken.to(want.device), output.actual.to(want.device)
        known, strays = ~mistaken.isnan(), mistaken.isinf()
        if bool(strays.any()) and bool((float64(actual).isfinite() == strays)[known].any()):
            return False
        wrong = torch.where(known & ~strays, mistaken, 0.0).to(output.expected.dtype)
        got = torch.where(known & ~strays, actual, torch.zeros_like(wrong))
        if not meets(output.name, wrong, got, strictest):
            return False
        away = torch.where(known, float64(wrong) - want, 0.0)
        rows = (away != 0).any(dim=-1, keepdim=True) & known
        passes = torch.where(known, mistaken, want).to(output.expected.dtype)
        if int((away != 0).sum()) < LEAST or meets(output.name, output.expected, passes, loosest):
            continue
        to_right, to_wrong = (
            float(torch.where(rows, float64(got) - each, 0.0).norm()) for each in (want, float64(wrong))
        )
        if not to_wrong * NEARER <= to_right:
            return False
        changed = True
    return changed


def _distance(outputs: Sequence[Difference], given: Sequence[torch.Tensor]) -> float:
    """The largest relative L2 distance of an output from that of a mistake, where the latter is finite. Infinite if it
    is so nowhere: any mistake that says more is nearer."""
    found = []
    for output, mistaken in zip(outputs, given, strict=True):
        assert output.actual is not None
        wrong = float64(mistaken.to(output.expected.device).to(output.expected.dtype))
        got = float64(output.actual.to(wrong.device))
        numbers = wrong.isfinite()
        away, size = (torch.where(numbers, each, 0.0).norm() for each in (got - wrong, wrong))
        found.append(float(away / size.clamp(min=1e-30)) if bool(numbers.any()) else math.inf)
    return max(found)
