"""The mismatch report: everything a person needs to fix a kernel whose output is wrong.

    out: rel_l2 0.31 (limit 0.2, over); row_rel_l2 1.18 (limit 0.55, over) in 6 of 64 rows; tolerance mxfp4
      row     [query 3, head 5]  rel L2 1.18
      worst   [query 3, head 5, dim 17]  got 0.8125  expected 0.1201
      head    at 5, 7-9 (of 0-15; up to 75 % of each)
      hint    head h holds head h^1
    reproduce: python3 -m harness replay mla mine.py 'batch_size=4 ...' --seed 123 --device cpu

The indices listed for an axis are those of unexpected NaN and Inf, if there are any. Else they are those of the rows
over their limit, and along the last axis of the elements that make them so; else those of the elements over their
limit. Where every bit counts, NaN and Inf are ordinary values.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

import numpy as np
import torch

from harness.judge import blame, hints, mistakes, ranges
from harness.judge.checked_call import CheckedCall
from harness.judge.difference import Difference, bits, float64, meets
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
    """Report on a call that met no tolerance, compared with the loosest. The problem names the axes.

    `previous`: hints.sampled values of the expected outputs of the call before. `left`: the contents of supplied memory
    before the call. `recognised`: a slow search for a hint, used if there is no other but guesses.
    """
    tolerances = problem.tolerances_for(case)
    name = list(tolerances)[-1]
    lines = [f"case {case.label}"]
    for difference in comparison.differences:
        if difference.excess(name, tolerances[name]).ratio > 1:
            before = [(values or {}).get(difference.name) for values in (previous, left)]
            others = {
                each.name: each.expected
                for each in comparison.differences
                if each.name != difference.name and not each.is_state
            }
            lines += _lines(problem, _as_shown(problem, difference), name, tolerances, others, *before)
    found = [line.removeprefix(HINT) for line in lines if line.startswith(HINT)]
    sure = recognised() if all(hints.is_guess(hint) for hint in found) else None
    if sure and (sure.startswith(hints.AS_IF) or not found):  # a mistakes.py that fails takes no guess away
        guess = found[0] if found else ""
        lines = [*(line for line in lines if not line.startswith(HINT)), f"{HINT}{hints.besides(guess, sure)}"]
    if comparison.reference_error is not None:
        lines.append(
            f"for scale: the reference itself is {comparison.reference_error:.2g} (rel L2) from exact arithmetic"
            + (f", this output {_error(comparison)}" if comparison.error is not None else "")
        )
    return "\n".join([*lines, f"reproduce: {reproduce}"])


def _error(comparison: CheckedCall) -> str:
    """The error of the outputs as a number. "NaN" if it is none because one of them holds NaN."""
    held = [each.actual for each in comparison.differences if not each.is_state and each.actual is not None]
    nan = any(bool(float64(actual).isnan().any()) for actual in held)
    return "NaN" if nan and comparison.error == math.inf else f"{comparison.error:.2g}"


def hint_of(report: str | None) -> str:
    """The text of the hint in `report`; "" if it has none."""
    lines = (report or "").splitlines()
    return next((line.removeprefix(HINT) for line in lines if line.startswith(HINT)), "")


def _as_shown(problem: Problem, difference: Difference) -> Difference:
    """Move both tensors to one device: shared memory may be the host's while the expectation is the GPU's. For an input
    that nobody may write to, the report calls the expectation "before the call"."""
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
    others: Mapping[str, torch.Tensor],
    previous: torch.Tensor | None,
    left: torch.Tensor | None,
) -> list[str]:
    if difference.structural is not None:
        return [f"{difference.name}: {difference.structural}"]
    assert difference.actual is not None
    tolerance = tolerances[name]
    bitwise = tolerance.bitwise or difference.is_state or not difference.expected.is_floating_point()
    axes = problem.axes.get(difference.name, ("",) * difference.expected.dim())
    # A tolerance without a rule for elements uses the rule of the next stricter one to find the worst elements.
    ruled = [t for t in tolerances.values() if t.max_mismatch is not None]
    wrong, score = blame.wrong_elements(difference, ruled[-1] if ruled else tolerance, bitwise)
    rows = blame.rows(difference) if not bitwise and tolerance.row_rel_l2 is not None else None
    over = rows > (tolerance.row_rel_l2 or 0.0) if rows is not None else None
    lines = [_headline(problem, difference, name, tolerance, int(wrong.sum()), over)]
    lines += _census(difference)
    if rows is not None and over is not None:
        lines += [f"  row     {line}" for line in _worst_rows(difference, axes, rows, over)]
    empty = bitwise and _nothing_but_nan(difference)  # all elements and places are alike
    stray = blame.stray_specials(difference)
    astray = bool(stray.any()) and not bitwise
    if astray and tolerance.max_mismatch is None and not _rest_is_over(difference, name, tolerance):
        wrong, score = wrong & stray, torch.where(stray, score, 0.0)  # the others are right
    each = not bitwise and tolerance.max_mismatch is not None
    if not empty:
        lines += [f"  worst   {line}" for line in _worst(difference, axes, wrong, score, bitwise, each)]
    where = stray if astray else wrong
    last = where
    if over is not None and bool(over.any()) and not astray and wrong.dim():
        where = over[..., None].expand(wrong.shape)
        last = blame.to_blame(difference, over, wrong if each else None)
    # Along an axis with sampled rows, the places would describe the sample instead of the kernel.
    sampled = difference.selection.axis if difference.selection is not None else None
    called = [axis or f"axis {dim}" for dim, axis in enumerate(axes)]
    along = [
        (axis, ranges.along(last if dim == where.dim() - 1 else where, dim))
        for dim, axis in enumerate(called[: where.dim()])
        if dim != sampled
    ]
    lines += [f"  {axis:<7} {text}" for axis, text in along if text and not empty]
    if left is not None and left.shape == difference.actual.shape:
        if hint := _in_vain(problem, difference, left):
            return [*lines, f"{HINT}{hint}"]
        if hint := hints.kept(difference.expected, difference.actual, left):
            return [*lines, f"{HINT}{hint}"]
    if difference.is_state:
        return lines
    with contextlib.suppress(torch.OutOfMemoryError):  # the report then has no hint
        near = BITWISE_NEAR if bitwise else tolerance.rel_l2 or hints.NEAR
        another = hints.of_another(difference.expected, difference.actual, others, near)
        right = partial(meets, name, difference.expected, tolerance=tolerance)
        found = hints.hints(called, difference.expected, difference.actual, previous, sampled, near, right)
        lines += [f"{HINT}{hint}" for hint in ([another] if another else found)]
    return lines


def _in_vain(problem: Problem, difference: Difference, left: torch.Tensor) -> str:
    """Say in words that the call changes memory that it may change, but not in this case. `left`: from before it."""
    stays = bool((bits(difference.expected) == bits(left.to(difference.expected.device))).all())
    if not stays or not difference.is_state or _is_untouchable(problem, difference):
        return ""
    why = mistakes.unchanged(problem)
    return "it must stay as it was before this call" + (f": {why}" if why else "")


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
        stray = "NaN or Inf that differ from the expected values"
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


def _rest_is_over(difference: Difference, name: str, tolerance: Tolerance) -> bool:
    """Whether the numbers beside unexpected NaN and Inf pass a limit of `tolerance`, which limits no element."""
    figures = difference.figures(name)
    return any(figures[limit] > bound for limit, bound in tolerance.of_each_call.items())


def _worst_rows(difference: Difference, axes: tuple[str, ...], rows: torch.Tensor, over: torch.Tensor) -> list[str]:
    flat = torch.where(over, rows, -1.0).reshape(-1)
    lines = []
    for position in flat.topk(min(WORST_SHOWN, flat.numel())).indices.tolist():
        if float(flat[position]) > 0:
            index = tuple(int(i) for i in np.unravel_index(position, rows.shape))
            lines.append(f"[{_place(difference, axes, index)}]  rel L2 {float(flat[position]):.3g}")
    return lines


def _nothing_but_nan(difference: Difference) -> bool:
    """Whether every element is NaN although not every one should be."""
    assert difference.actual is not None
    if not difference.elements or not difference.expected.is_floating_point():
        return False
    return bool(float64(difference.actual).isnan().all()) and not bool(float64(difference.expected).isnan().all())


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
    difference: Difference, axes: tuple[str, ...], wrong: torch.Tensor, score: torch.Tensor, bitwise: bool, each: bool
) -> list[str]:
    """The worst elements with their indices. If only a sum is over its limit: the elements that contribute most.
    `each`: whether the tolerance limits each element, so that its error has an allowed size.
    Elements with equal values and equal expected values count as one, as copies of one source do."""
    assert difference.actual is not None
    considered = torch.where(wrong, score, -1.0) if bool(wrong.any()) else score
    lines = []
    if not bitwise:  # of the infinitely wrong ones, show one of each kind
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
        times = f"  ({value:.3g} x what is allowed)" if each else ""
        lines.append(_element(difference, axes, position, times, bitwise) + more)
        flat[alike] = -1.0
        flat[position] = -1.0
        left -= 1
    return lines


def _alike(difference: Difference, position: int) -> torch.Tensor:
    """A flat mask of the elements with the same bits and the same expected bits as the one at `position`."""
    assert difference.actual is not None
    got, want = bits(difference.actual).reshape(-1), bits(difference.expected).reshape(-1)
    return (got == got[position]) & (want == want[position])


def _element(difference: Difference, axes: tuple[str, ...], position: int, times: str, bitwise: bool) -> str:
    """Format an element: `[query 3, dim 17]  got 0.8125  expected 0.1201`."""
    assert difference.actual is not None
    expected = difference.expected
    index = tuple(int(i) for i in np.unravel_index(position, expected.shape))
    got, want = _shown(difference.actual[index], bitwise), _shown(expected[index], bitwise)
    return f"[{_place(difference, axes, index)}]  got {got}  {difference.due} {want}{times}"


def _place(difference: Difference, axes: tuple[str, ...], index: tuple[int, ...]) -> str:
    """Format a place: `query 3, dim 17`. Selected rows are numbered as in the whole output. Axes without a name are
    numbered only."""
    selection = difference.selection
    if selection is not None and len(index) > selection.axis:
        row = int(selection.rows[index[selection.axis]])
        index = (*index[: selection.axis], row, *index[selection.axis + 1 :])
    return ", ".join(f"{axis} {i}".lstrip() for axis, i in zip(axes, index, strict=False))


def _shown(value: torch.Tensor, bitwise: bool) -> str:
    """Format a number, with its bits if those count."""
    if not value.is_floating_point():
        return str(value.item())
    number = f"{float(float64(value)):.6g}"
    return (
        f"{number} (0x{int(bits(value)) & (1 << 8 * value.itemsize) - 1:0{2 * value.itemsize}x})" if bitwise else number
    )
