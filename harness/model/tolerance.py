"""Tolerances: how far an output may differ from the reference.

A new kind of limit is a field here. judge/difference computes the figures of one call, judge/tally those of many calls.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import Field, model_validator

from harness.model.case import Case, CaseValue
from harness.model.value import Value

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]

OF_EACH_CALL = ("max_mismatch", "rel_l2", "row_rel_l2")
OF_MANY_CALLS = ("row_rms", "head_rms", "dim_rel_l2")
BANDS = ("gain", "row_gain", "head_gain", "dim_gain", "cell_gain")
"""The limits of a Tolerance: on each call, on many calls, and as bands. judge/difference computes the figures of the
first group, judge/tally those of the others."""


class Tolerance(Value):
    """How far an output may differ from the reference. A limit that is None does not apply. `bitwise` allows no
    difference.

    An element misses when |out - ref| > atol + rtol * |ref|; at most the fraction `max_mismatch` may miss. `rel_l2`
    bounds ||out - ref|| / ||ref|| over a whole output. `row_rel_l2` bounds the same over the worst row (last axis).

    The other limits hold over many calls together: over all test cases, and over all timed calls of each benchmark
    case.

    - `gain`: the band [low, high] for <out, ref> / <ref, ref>;
    - `row_gain`: the band for the mean of that figure over rows;
    - `head_gain`: the same mean for each head, for outputs that have an axis called `head`;
    - `dim_gain`: the figure of each index along the last axis, with rows divided by their norms;
    - `cell_gain`: the same figure of each index for each head, for outputs that have an axis called `head`;
    - `row_rms`: bounds the root mean square over rows of ||out - ref|| / ||ref||, with equal weight for each row;
    - `head_rms`: bounds the same over the rows of each head, for outputs that have an axis called `head`;
    - `dim_rel_l2`: bounds ||out - ref|| / ||ref|| of the worst index along the last axis;
    - `parts`: bands for 1 + <out - ref, part> / <part, part>. A part is a part of the reference's output that is easily
      left out, by its name in reference.py's `parts`. The figure is 1 if the part is there and 0 if it is missing. A
      band holds for each part of a family: `slice` for `slice.0`, `slice.1` and so on.

    A band is widened by three standard errors of its figure, that of `cell_gain` by five. `spreads` limits how much
    rows may scatter about a figure, as a root mean square. With such a limit, the standard error is at most that of
    rows that scatter so much.
    """

    rtol: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    atol: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    max_mismatch: float | None = Field(default=None, ge=0, le=1)
    rel_l2: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    row_rel_l2: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    gain: tuple[float, float] | None = None
    row_gain: tuple[float, float] | None = None
    head_gain: tuple[float, float] | None = None
    dim_gain: tuple[float, float] | None = None
    cell_gain: tuple[float, float] | None = None
    dim_rel_l2: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    row_rms: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    head_rms: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    parts: dict[str, tuple[float, float]] = Field(default_factory=dict)
    spreads: dict[str, Positive] = Field(default_factory=dict)
    bitwise: bool = False
    when: dict[str, CaseValue] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _limits_something(self) -> Tolerance:
        if self.bitwise and (self.of_each_call or self.limits_many_calls or self.rtol or self.atol):
            raise ValueError("bitwise allows no difference: leave the other limits out")
        if not self.bitwise and not self.of_each_call:
            *some, last = OF_EACH_CALL
            raise ValueError(f"limits nothing: give {', '.join(some)} or {last}, or say bitwise: true")
        for name, band in self.bands.items():
            if not 0 < band[0] < band[1] < math.inf:
                raise ValueError(f"{name} is a band [low, high] around 1, with 0 < low < high")
        for name in self.spreads:
            if name not in self.bands:
                raise ValueError(f"spreads limits {name}, which has no band")
            if name == "cell_gain":
                raise ValueError("spreads limits cell_gain, but a cell has too few rows for that")
        return self

    @property
    def bands(self) -> dict[str, tuple[float, float]]:
        """All bands of figures over many calls, by the figure's name."""
        return {**self._given(BANDS), **self.parts}

    @property
    def of_each_call(self) -> dict[str, float]:
        """The limits on figures of each output, by the figure's name."""
        return self._given(OF_EACH_CALL)

    @property
    def of_many_calls(self) -> dict[str, float]:
        """The limits on errors over many calls, by the error's name."""
        return self._given(OF_MANY_CALLS)

    @property
    def limits_many_calls(self) -> bool:
        """True if there is a limit over many calls."""
        return bool(self.bands or self.spreads or self.of_many_calls)

    def _given(self, names: Sequence[str]) -> dict[str, Any]:
        return {name: limit for name in names if (limit := getattr(self, name)) is not None}

    def applies_to(self, case: Case) -> bool:
        return all(case.parameters.get(key) == value for key, value in self.when.items())
