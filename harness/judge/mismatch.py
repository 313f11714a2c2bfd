"""The mismatch report: what a person needs to mend a kernel whose output is wrong.

output: 37 of 65,536 elements (0.0565 %) are outside atol 0.008 + rtol 0.02 x |expected|, ...
  worst   [token 3, head 5, dim 17]  got 0.8125  expected 0.1201  (71 x the tolerance)
  head    all of it at 5, 7-9
  dim     spread evenly
reproduce: python -m harness eval mla FILE --case 4 --seed 123
"""

from __future__ import annotations

import math

import torch

from harness.judge.check import Comparison, Difference, bits, float64
from harness.model import Case, Problem, Tolerance

WORST_SHOWN = 5
RANGES_SHOWN = 6


def report(problem: Problem, case: Case, comparison: Comparison, reproduce: str) -> str:
    """The report on a call that met no tolerance. Names of axes come from the problem."""
    name, tolerance = list(problem.tolerances_for(case).items())[-1]
    lines = [f"case {case.label}"]
    for difference in comparison.differences:
        if difference.excess(name, tolerance).ratio > 1:
            lines += _lines(problem, difference, name, tolerance)
    if comparison.reference_error is not None:
        lines.append(
            f"for scale: the reference itself is {comparison.reference_error:.2g} (rel L2) from exact arithmetic"
            + (f", this output {comparison.error:.2g}" if comparison.error is not None else "")
        )
    return "\n".join([*lines, f"reproduce: {reproduce}"])


def _lines(problem: Problem, difference: Difference, name: str, tolerance: Tolerance) -> list[str]:
    if difference.structural is not None:
        return [f"{difference.name}: {difference.structural}"]
    assert difference.actual is not None
    bitwise = tolerance.bitwise or difference.is_state or not difference.expected.is_floating_point()
    axes = problem.axes.get(difference.name, tuple(f"axis{i}" for i in range(difference.expected.dim())))
    wrong, score = _wrong_elements(difference, tolerance, bitwise)
    lines = [_headline(problem, difference, name, tolerance, bitwise, int(wrong.sum()))]
    lines += _census(difference)
    lines += [f"  worst   {line}" for line in _worst(difference, axes, wrong, score, bitwise)]
    lines += [
        f"  {axis:<7} {text}"
        for axis, dim in zip(axes, range(wrong.dim()), strict=False)
        if (text := _along(wrong, dim))
    ]
    return lines


def _headline(
    problem: Problem, difference: Difference, name: str, tolerance: Tolerance, bitwise: bool, wrong: int
) -> str:
    total = max(difference.elements, 1)
    share = f"{wrong:,} of {total:,} elements ({100 * wrong / total:.3g} %)"
    if bitwise:
        untouchable = difference.is_state and difference.name.split(".")[0] not in problem.in_place
        what = "changed, and a submission may not write to it" if untouchable else "differ, and every bit counts here"
        return f"{difference.name}: {share} {what}"
    limits = []
    if tolerance.max_mismatch is not None:
        limits.append(f"at most {tolerance.max_mismatch:g} may be")
    for limit, value in (("rel_l2", difference.rel_l2), ("row_rel_l2", difference.worst_row)):
        if (bound := getattr(tolerance, limit)) is not None:
            limits.append(f"{limit} {value:.3g} (limit {bound:g}{', over' if value > bound else ''})")
    return (
        f"{difference.name}: {share} are outside atol {tolerance.atol:g} + rtol {tolerance.rtol:g} x |expected|; "
        + "; ".join(limits)
        + f"; tolerance {name}"
    )


def _wrong_elements(difference: Difference, tolerance: Tolerance, bitwise: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Which elements are wrong, and how much: |error| over what is allowed (plain |error| where no bit may differ), as
    float64; infinite for a NaN or Inf that should not be there."""
    assert difference.actual is not None
    want, got = float64(difference.expected.cpu()), float64(difference.actual)
    error = (got - want).abs()
    if bitwise:
        wrong = bits(difference.actual) != bits(difference.expected.cpu())
        return wrong, torch.where(wrong, error.nan_to_num(math.inf, math.inf), 0.0)
    score = (error / (tolerance.atol + tolerance.rtol * want.abs())).nan_to_num(math.inf, math.inf)
    score[(want == got) | (want.isnan() & got.isnan())] = 0.0
    return score > 1, score


def _census(difference: Difference) -> list[str]:
    assert difference.actual is not None
    if not difference.expected.is_floating_point():
        return []
    got, want = float64(difference.actual), float64(difference.expected)
    counts = [(word, int(test(got).sum()), int(test(want).sum())) for word, test in _SPECIALS]
    found = [f"{count:,} {word} (expected {due:,})" for word, count, due in counts if count != due]
    return [f"  has     {', '.join(found)}"] if found else []


_SPECIALS = (("NaN", torch.isnan), ("+Inf", torch.isposinf), ("-Inf", torch.isneginf))


def _worst(
    difference: Difference, axes: tuple[str, ...], wrong: torch.Tensor, score: torch.Tensor, bitwise: bool
) -> list[str]:
    """The worst elements with their indices; where only a sum is over its limit, those that contribute most."""
    assert difference.actual is not None
    considered = torch.where(wrong, score, -1.0) if bool(wrong.any()) else score
    expected = difference.expected.cpu()
    lines = []
    for position in considered.reshape(-1).topk(min(WORST_SHOWN, considered.numel())).indices.tolist():
        index = tuple(int(i) for i in torch.unravel_index(torch.tensor(position), wrong.shape))
        if float(considered[index]) < 0 or (float(considered[index]) == 0 and not bool(wrong[index])):
            continue
        where = ", ".join(f"{axis} {i}" for axis, i in zip(axes, _whole_index(difference, index), strict=False))
        got, want = _shown(difference.actual[index], bitwise), _shown(expected[index], bitwise)
        times = "" if bitwise else f"  ({float(score[index]):.3g} x what is allowed)"
        lines.append(f"[{where}]  got {got}  expected {want}{times}")
    return lines


def _whole_index(difference: Difference, index: tuple[int, ...]) -> tuple[int, ...]:
    """The index in the whole output of an element of its selected rows."""
    selection = difference.selection
    if selection is None:
        return index
    row = int(selection.rows[index[selection.axis]])
    return (*index[: selection.axis], row, *index[selection.axis + 1 :])


def _shown(value: torch.Tensor, bitwise: bool) -> str:
    """A number as a person reads it; with its bits where those count."""
    if not value.is_floating_point():
        return str(value.item())
    number = f"{float(float64(value)):.6g}"
    return (
        f"{number} (0x{int(bits(value)) & (1 << 8 * value.itemsize) - 1:0{2 * value.itemsize}x})" if bitwise else number
    )


def _along(wrong: torch.Tensor, dim: int) -> str | None:
    """Where along one axis the wrong elements lie, in words; None for an axis of one."""
    length = wrong.shape[dim]
    if length < 2 or not bool(wrong.any()):
        return None
    others = [d for d in range(wrong.dim()) if d != dim]
    share = wrong.float().mean(dim=others) if others else wrong.float()
    hit = (share > 0).nonzero().flatten().tolist()
    if len(hit) > 0.9 * length and float(share.max()) < 4 * float(share.mean()):
        return f"spread over all {length} ({float(share.min()):.2g} to {float(share.max()):.2g} of each wrong)"
    ranges = _ranges(hit)
    shown = ", ".join(f"{a}-{b}" if b > a else str(a) for a, b in ranges[:RANGES_SHOWN])
    more = f" and {len(ranges) - RANGES_SHOWN} more ranges" if len(ranges) > RANGES_SHOWN else ""
    return f"at {shown}{more} (of 0-{length - 1}; up to {float(share.max()):.2g} of each wrong)"


def _ranges(indices: list[int]) -> list[tuple[int, int]]:
    ranges: list[tuple[int, int]] = []
    for index in indices:
        if ranges and ranges[-1][1] == index - 1:
            ranges[-1] = (ranges[-1][0], index)
        else:
            ranges.append((index, index))
    return ranges
