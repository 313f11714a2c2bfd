"""What is said of a limit over many outputs that is broken.

words(what, tally, ...)  one sentence: the figure and what is allowed
meaning(tally, ...)      what the figure is, every other one beside it, and where to read on
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from harness.command import page
from harness.judge.tally import SPREAD, STANDARD_ERRORS, Tally
from harness.model import BANDS, Tolerance

Sides = tuple[str, str]
"""The cause that moves a figure below 1, and the cause that moves it above."""

OUTPUTS: Sides = (
    "outputs are too small: a scale is too small, or something is left out",
    "outputs are too large: a scale is too large, or something is counted twice",
)
SIDES = dict.fromkeys(BANDS, OUTPUTS)
OF_A_PART: Sides = ("too little of this part is there", "too much of this part is there")

ERRORS_OF_THE_FURTHEST = 5
"""The furthest of several figures of one name shows a mistake only if it is this many of its own standard errors
off."""


def words(what: str, tally: Tally, tolerances: Mapping[str, Tolerance]) -> str:
    """Say which limit of the loosest tolerance is broken, such as `row_gain of all test cases together is 1.075;
    allowed: 0.95 to 1.005`. The band is as wide as it was for these rows."""
    name = list(tolerances)[-1]
    worst = tally.worst(tolerances[name])
    assert worst is not None
    allowed = f"{worst.low:.4g} to {worst.high:.4g}" if worst.low > 0 else f"at most {worst.high:.4g}"
    return f"{worst.limit} of {what} together is {worst.value:.4g}; allowed: {allowed}; tolerance {name}"


def meaning(tally: Tally, tolerances: Mapping[str, Tolerance], sides: Mapping[str, Sides]) -> str:
    """Explain the limit that `words` names, then list every figure with the cause that moves it to its side of 1, and
    where to read on. `sides`: the causes that the problem knows."""
    worst = tally.worst(list(tolerances.values())[-1])
    assert worst is not None
    if worst.low > 0:
        much = worst.value > worst.high
        if worst.limit in tally.parts:
            what = f"the share of a part of the expected outputs that is there: too {'much' if much else 'little'}"
        else:
            what = f"the size of the outputs over the expected size: they are too {'large' if much else 'small'}"
            if worst.limit == "cell_gain" and tally.cells is not None:
                what += f" ({tally.cells.furthest})"
        said = f"{worst.limit} is {what}. Look for a wrong scale, or for keys, heads or dims that are left out"
        said += " or counted twice"
    else:
        said = f"{worst.limit} is the size of the error: the arithmetic is coarser than this tolerance allows"
    lines = _moved(tally, worst.limit.removesuffix(SPREAD), {**SIDES, **sides})
    where = f'{page("debugging")}, "Wrong together", says how to read this'
    return "\n".join([f"each case is right by itself. {said}.", *lines, where])


def _moved(tally: Tally, broken: str, sides: Mapping[str, Sides]) -> Iterator[str]:
    """A line for each figure that is a share of the expected amount: its value, its noise, and the cause that moves
    it."""
    for name in dict.fromkeys(["gain", "row_gain", broken, *tally.parts]):
        ratios = tally.ratios(name)
        if ratios is None or not bool(ratios.value.isfinite().any()):
            continue
        furthest = int((ratios.value - 1).abs().nan_to_num(-1.0).argmax())
        errors = STANDARD_ERRORS if ratios.value.numel() == 1 else ERRORS_OF_THE_FURTHEST
        value, noise = float(ratios.value[furthest]), errors * float(ratios.error[furthest])
        below, above = sides.get(name, OF_A_PART)
        why = "no further from 1 than noise" if abs(value - 1) <= noise else below if value < 1 else above
        yield f"  {name:<15} {value:.3f} \N{PLUS-MINUS SIGN} {noise:.3f}  {why}"
