"""The mismatch report: what a person needs to mend a kernel whose output is wrong.

    out: rel_l2 0.31 (limit 0.2, over); row_rel_l2 1.18 (limit 0.55, over) in 6 of 64 rows; tolerance mxfp4
      row     [query 3, head 5]  rel L2 1.18
      worst   [query 3, head 5, dim 17]  got 0.8125  expected 0.1201  (66 x what is allowed)
      head    at 5, 7-9 (of 0-15; up to 75 % of each)
      hint    head h holds head h^1
    reproduce: python3 -m harness replay mla mine.py 'batch_size=4 ...' --seed 123 --device cpu

Where an axis' indices are listed, they are those of NaN and Inf if there are any that should not be there, else of the
rows that are over their limit, else of the elements that are. Where every bit counts, NaN and Inf are like any values.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import torch

from harness.judge import hints, ranges
from harness.judge.checked_call import CheckedCall
from harness.judge.difference import Difference, bits, float64
from harness.model import Case, Problem, Tolerance

WORST_SHOWN = 5
BITWISE_NEAR = 1e-6
HINT = "  hint    "


def report(
    problem: Problem,
    case: Case,
    comparison: CheckedCall,
    reproduce: str,
    previous: Mapping[str, torch.Tensor] | None = None,
    left: Mapping[str, torch.Tensor] | None = None,
    recognised: Callable[[], str | None] = lambda: None,
) -> str:
    """The report on a call that met no tolerance: against the loosest. Names of axes come from the problem.

    `previous`: what hints.sampled has taken of the outputs that the call before should have given. `left`: what memory
    that was supplied held before the call. `recognised`: a hint that takes long to find, for where there is no other.
    """
    tolerances = problem.tolerances_for(case)
    name = list(tolerances)[-1]
    lines = [f"case {case.label}"]
    for difference in comparison.differences:
        if difference.excess(name, tolerances[name]).ratio > 1:
            before = [(values or {}).get(difference.name) for values in (previous, left)]
            lines += _lines(problem, _as_shown(problem, difference), name, tolerances, *before)
    if not any(line.startswith(HINT) for line in lines) and (hint := recognised()):
        lines.append(f"{HINT}{hint}")
    if comparison.reference_error is not None:
        lines.append(
            f"for scale: the reference itself is {comparison.reference_error:.2g} (rel L2) from exact arithmetic"
            + (f", this output {comparison.error:.2g}" if comparison.error is not None else "")
        )
    return "\n".join([*lines, f"reproduce: {reproduce}"])


def hint_of(report: str | None) -> str:
    """What the hint of `report` says; "" if it has none."""
    lines = (report or "").splitlines()
    return next((line.removeprefix(HINT) for line in lines if line.startswith(HINT)), "")


def _as_shown(problem: Problem, difference: Difference) -> Difference:
    """With both tensors on one device: shared memory may be the host's where the expectation is the GPU's. What is
    expected of an input that nobody may write to is what was there."""
    due = "before the call" if _is_untouchable(problem, difference) else "expected"
    actual = difference.actual
    return replace(difference, due=due, actual=actual if actual is None else actual.to(difference.expected.device))


def _is_untouchable(problem: Problem, difference: Difference) -> bool:
    return difference.is_state and difference.name.split(".")[0] not in problem.in_place


def _lines(
    problem: Problem,
    difference: Difference,
    name: str,
    tolerances: dict[str, Tolerance],
    previous: torch.Tensor | None,
    left: torch.Tensor | None,
) -> list[str]:
    if difference.structural is not None:
        return [f"{difference.name}: {difference.structural}"]
    assert difference.actual is not None
    tolerance = tolerances[name]
    bitwise = tolerance.bitwise or difference.is_state or not difference.expected.is_floating_point()
    axes = problem.axes.get(difference.name, ("",) * difference.expected.dim())
    # A tolerance without a rule for elements borrows that of the next stricter one, to say which of them are worst.
    ruled = [t for t in tolerances.values() if t.max_mismatch is not None]
    wrong, score = _wrong_elements(difference, ruled[-1] if ruled else tolerance, bitwise)
    rows = _rows(difference) if not bitwise and tolerance.row_rel_l2 is not None else None
    over = rows > (tolerance.row_rel_l2 or 0.0) if rows is not None else None
    lines = [_headline(problem, difference, name, tolerance, int(wrong.sum()), over)]
    lines += _census(difference)
    if rows is not None and over is not None:
        lines += [f"  row     {line}" for line in _worst_rows(difference, axes, rows, over)]
    empty = bitwise and _nothing_but_nan(difference)  # no element says more than another, and neither does a place
    if not empty:
        lines += [f"  worst   {line}" for line in _worst(difference, axes, wrong, score, bitwise)]
    stray = _stray_specials(difference)
    if bool(stray.any()) and not bitwise:
        where = stray
    elif over is not None and bool(over.any()):
        where = over[..., None].expand(wrong.shape) if wrong.dim() else wrong
    else:
        where = wrong
    # Of sampled rows, where they lie along that axis says more of the sample than of the kernel.
    sampled = difference.selection.axis if difference.selection is not None else None
    called = [axis or f"axis {dim}" for dim, axis in enumerate(axes)]
    along = [(axis, ranges.along(where, dim)) for dim, axis in enumerate(called[: where.dim()]) if dim != sampled]
    lines += [f"  {axis:<7} {text}" for axis, text in along if text and not empty]
    if left is not None and left.shape == difference.actual.shape:
        if hint := hints.kept(difference.expected, difference.actual, left):
            return [*lines, f"{HINT}{hint}"]
    if difference.is_state:
        return lines
    with contextlib.suppress(torch.OutOfMemoryError):  # the report does without
        near = BITWISE_NEAR if bitwise else tolerance.rel_l2 or hints.NEAR
        found = hints.hints(called, difference.expected, difference.actual, previous, sampled, near)
        lines += [f"{HINT}{hint}" for hint in found]
    return lines


def _headline(
    problem: Problem,
    difference: Difference,
    name: str,
    tolerance: Tolerance,
    wrong: int,
    rows_over: torch.Tensor | None,
) -> str:
    share = f"{wrong:,} of {difference.elements:,} elements ({100 * wrong / max(difference.elements, 1):.3g} %)"
    if tolerance.bitwise or difference.is_state or not difference.expected.is_floating_point():
        untouchable = _is_untouchable(problem, difference)
        what = "changed, and a submission may not write to it" if untouchable else "differ, and every bit counts here"
        if _nothing_but_nan(difference) and not untouchable:
            return f"{difference.name}: all {difference.elements:,} elements are NaN, and every bit counts here"
        return f"{difference.name}: {share} {what}"
    reasons, rest = [], ""
    if difference.bad_specials:
        stray = "NaN or Inf where none belong or other ones do"
        if difference.bad_specials == difference.elements:
            return f"{difference.name}: all {difference.elements:,} elements are {stray}; tolerance {name}"
        reasons, rest = [f"{difference.bad_specials:,} {stray}"], " of the others"
    if tolerance.max_mismatch is not None:
        rule = f"outside atol {tolerance.atol:g} + rtol {tolerance.rtol:g} x |expected|"
        allowed = f"at most {100 * tolerance.max_mismatch:g} % may be" if tolerance.max_mismatch else "none may be"
        reasons.append(f"{share} are {rule}, {allowed}")
    figures = difference.figures(name)
    for limit, bound in tolerance.of_each_call.items():
        if limit == "max_mismatch":
            continue
        value, where = figures[limit], ""
        if limit == "row_rel_l2" and rows_over is not None and bool(rows_over.any()):
            where = f" in {int(rows_over.sum()):,} of {rows_over.numel():,} rows"
        reasons.append(f"{limit}{rest} {value:.3g} (limit {bound:g}{', over' if value > bound else ''}){where}")
    return f"{difference.name}: " + "; ".join(reasons) + f"; tolerance {name}"


def _rows(difference: Difference) -> torch.Tensor:
    """The relative L2 error of each row (last axis), of the output's shape without it."""
    assert difference.actual is not None
    want, got = float64(difference.expected), float64(difference.actual)
    error = torch.where((got == want) | ~got.isfinite() | ~want.isfinite(), 0.0, got - want)
    if want.dim() == 0:
        error, want = error[None], want[None]
    size = torch.where(want.isfinite(), want, 0.0).norm(dim=-1)
    return torch.where(error.any(dim=-1), error.norm(dim=-1) / size, 0.0)


def _worst_rows(difference: Difference, axes: tuple[str, ...], rows: torch.Tensor, over: torch.Tensor) -> list[str]:
    flat = torch.where(over, rows, -1.0).reshape(-1)
    lines = []
    for position in flat.topk(min(WORST_SHOWN, flat.numel())).indices.tolist():
        if float(flat[position]) > 0:
            index = tuple(int(i) for i in np.unravel_index(position, rows.shape))
            lines.append(f"[{_place(difference, axes, index)}]  rel L2 {float(flat[position]):.3g}")
    return lines


def _stray_specials(difference: Difference) -> torch.Tensor:
    """The elements that are NaN or Inf where the reference is another."""
    assert difference.actual is not None
    want, got = float64(difference.expected), float64(difference.actual)
    return (~got.isfinite() | ~want.isfinite()) & ~((want == got) | (want.isnan() & got.isnan()))


def _nothing_but_nan(difference: Difference) -> bool:
    """Whether every element is NaN, and not each should be."""
    assert difference.actual is not None
    if not difference.elements or not difference.expected.is_floating_point():
        return False
    return bool(float64(difference.actual).isnan().all()) and not bool(float64(difference.expected).isnan().all())


def _wrong_elements(difference: Difference, tolerance: Tolerance, bitwise: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Which elements are wrong, and how much: |error| over what is allowed (plain |error| where no bit may differ), as
    float64; infinite for a NaN or Inf that should not be there."""
    assert difference.actual is not None
    want, got = float64(difference.expected), float64(difference.actual)
    error = (got - want).abs()
    if bitwise:
        wrong = bits(difference.actual) != bits(difference.expected)
        # What should have been NaN says least of what went wrong.
        return wrong, torch.where(wrong & ~want.isnan(), error.nan_to_num(math.inf, math.inf), 0.0)
    allowed = tolerance.atol + tolerance.rtol * want.abs()
    score = error / allowed if tolerance.max_mismatch is not None else error / (want.square().mean().sqrt() + 1e-300)
    score = score.nan_to_num(math.inf, math.inf)
    score[(want == got) | (want.isnan() & got.isnan())] = 0.0
    return score > 1, score


def _census(difference: Difference) -> list[str]:
    assert difference.actual is not None
    if not difference.expected.is_floating_point():
        return []
    got, want = float64(difference.actual), float64(difference.expected)
    counts = [(word, int(test(got).sum()), int(test(want).sum())) for word, test in _SPECIALS]
    found = [f"{count:,} {word} ({difference.due} {due:,})" for word, count, due in counts if count != due]
    return [f"  has     {', '.join(found)}"] if found else []


_SPECIALS = (("NaN", torch.isnan), ("+Inf", torch.isposinf), ("-Inf", torch.isneginf))


def _worst(
    difference: Difference, axes: tuple[str, ...], wrong: torch.Tensor, score: torch.Tensor, bitwise: bool
) -> list[str]:
    """The worst elements with their indices; where only a sum is over its limit, those that contribute most. Those that
    got and should have got the same, as copies of one source do, are one."""
    assert difference.actual is not None
    considered = torch.where(wrong, score, -1.0) if bool(wrong.any()) else score
    lines = []
    if not bitwise:  # of those that nothing is worse than, one of each kind
        got, worst = float64(difference.actual), considered == math.inf
        for _, test in (*_SPECIALS, ("", torch.isfinite)):
            alike = (worst & test(got)).reshape(-1)
            count = int(alike.sum())
            if count:
                more = f"  and {count - 1:,} more" if count > 1 else ""
                lines.append(_element(difference, axes, int(alike.int().argmax()), "", bitwise) + more)
        considered = torch.where(worst, -1.0, considered)
    flat, left = considered.reshape(-1).clone(), WORST_SHOWN - len(lines)
    while left > 0 and flat.numel():
        position = int(flat.argmax())
        value = float(flat[position])
        if value < 0 or (value == 0 and not bool(wrong.reshape(-1)[position])):
            break
        alike = _alike(difference, position) & (flat >= 0)
        more = f"  and {int(alike.sum()) - 1:,} more alike" if int(alike.sum()) > 1 else ""
        times = "" if bitwise else f"  ({value:.3g} x what is allowed)"
        lines.append(_element(difference, axes, position, times, bitwise) + more)
        flat[alike] = -1.0
        flat[position] = -1.0
        left -= 1
    return lines


def _alike(difference: Difference, position: int) -> torch.Tensor:
    """Which elements, in a row, got and should have got what the one at `position` did, to the bit."""
    assert difference.actual is not None
    got, want = bits(difference.actual).reshape(-1), bits(difference.expected).reshape(-1)
    return (got == got[position]) & (want == want[position])


def _element(difference: Difference, axes: tuple[str, ...], position: int, times: str, bitwise: bool) -> str:
    """`[query 3, dim 17]  got 0.8125  expected 0.1201`."""
    assert difference.actual is not None
    expected = difference.expected
    index = tuple(int(i) for i in np.unravel_index(position, expected.shape))
    got, want = _shown(difference.actual[index], bitwise), _shown(expected[index], bitwise)
    return f"[{_place(difference, axes, index)}]  got {got}  {difference.due} {want}{times}"


def _place(difference: Difference, axes: tuple[str, ...], index: tuple[int, ...]) -> str:
    """`query 3, dim 17`: where an element or a row is, in the whole output if it is one of selected rows. Of axes that
    nobody has named, the indices."""
    selection = difference.selection
    if selection is not None and len(index) > selection.axis:
        row = int(selection.rows[index[selection.axis]])
        index = (*index[: selection.axis], row, *index[selection.axis + 1 :])
    return ", ".join(f"{axis} {i}".lstrip() for axis, i in zip(axes, index, strict=False))


def _shown(value: torch.Tensor, bitwise: bool) -> str:
    """A number as a person reads it; with its bits where those count."""
    if not value.is_floating_point():
        return str(value.item())
    number = f"{float(float64(value)):.6g}"
    return (
        f"{number} (0x{int(bits(value)) & (1 << 8 * value.itemsize) - 1:0{2 * value.itemsize}x})" if bitwise else number
    )
