"""What many outputs come to together. A figure over all calls has far less noise than that of one call, so that it
tells a systematic error from rounding: a wrong scale, a dim that is never written, keys that are left out.

    Tally.add(want, got)     rows of an output, as float64, and of its parts
    a + b                    two calls'
    excess(tolerance)        the worst of the limits `gain`, `row_gain`, `dim_rel_l2` and `parts` over its bound
    total(what, tally, ...)  the same against every tolerance, for the record
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import astuple, dataclass, field, fields

import torch

from harness.model import Excess, Tolerance, Total

STANDARD_ERRORS = 3
"""By so many of the figure's own a band is wider: few rows must not refuse honest work."""


def wanted(tolerance: Tolerance) -> bool:
    """Whether `tolerance` limits anything over all calls."""
    limits = (tolerance.gain, tolerance.row_gain, tolerance.dim_rel_l2)
    return bool(tolerance.parts) or any(limit is not None for limit in limits)


@dataclass(frozen=True)
class RatioOfSums:
    """Of rows the sum of one figure over the sum of another: the two sums, and those of their squares and product."""

    rows: float = 0.0
    over: float = 0.0
    under: float = 0.0
    over_squared: float = 0.0
    both: float = 0.0
    under_squared: float = 0.0

    @staticmethod
    def sums(over: torch.Tensor, under: torch.Tensor) -> list[torch.Tensor]:
        """The fields, of rows whose `under` is above zero; others have an `over` of zero."""
        pairs = (over.square(), over * under, under.square())
        return [(under > 0).sum().double(), over.sum(), under.sum(), *(pair.sum() for pair in pairs)]

    def __add__(self, other: RatioOfSums) -> RatioOfSums:
        return RatioOfSums(*(mine + its for mine, its in zip(astuple(self), astuple(other), strict=True)))

    @property
    def value(self) -> float | None:
        return self.over / self.under if self.under > 0 else None

    @property
    def error(self) -> float:
        """The standard error of `value`, as if rows were independent (Cochran, Sampling Techniques, 1977, 6.4)."""
        if self.rows < 2 or self.value is None:
            return 0.0
        left = self.over_squared - 2 * self.value * self.both + self.value**2 * self.under_squared
        return math.sqrt(max(left, 0.0) * self.rows / (self.rows - 1)) / self.under


@dataclass
class Tally:
    """Sums over rows (last axis) of outputs. Of rows that should be zero nothing is counted.

    gain        <out, ref> / <ref, ref> over everything, so mostly over the rows that are largest
    row_gain    the mean of the same over rows
    dim_rel_l2  ||out - ref|| / ||ref|| of the index along the last axis where it is largest; None of outputs whose last
                axes differ in length
    parts       of each part of the reference's output how much is there: 1 + <out - ref, part> / <part, part>
    """

    gains: RatioOfSums = RatioOfSums()
    row_gains: RatioOfSums = RatioOfSums()
    _dims: dict[int, tuple[torch.Tensor, torch.Tensor]] = field(default_factory=dict)
    _missed: dict[str, RatioOfSums] = field(default_factory=dict)  # of a part what is there too much

    def add(self, want: torch.Tensor, got: torch.Tensor, parts: Mapping[str, torch.Tensor] | None = None) -> None:
        """float64 matrices of rows, on any device. Elements that are not finite in one of the two are left out."""
        parts = parts or {}
        finite = want.isfinite() & got.isfinite()
        want, got = torch.where(finite, want, 0.0), torch.where(finite, got, 0.0)
        products, squares = (want * got).sum(-1), want.square().sum(-1)
        live = squares > 0
        sums = RatioOfSums.sums(products, squares)
        sums += RatioOfSums.sums(torch.where(live, products / squares, 0.0), live.double())
        for part in parts.values():
            sums += RatioOfSums.sums(((got - want) * part).sum(-1), part.square().sum(-1))
        # One transfer from the device for all of it.
        width = want.shape[-1]
        summed = torch.cat([torch.stack(sums), (got - want).square().sum(0), want.square().sum(0)]).cpu()
        numbers, dims = summed[: len(sums)].tolist(), summed[len(sums) :]
        each = len(fields(RatioOfSums))
        gains, row_gains, *missed = (RatioOfSums(*numbers[at : at + each]) for at in range(0, len(numbers), each))
        self._merge(
            Tally(gains, row_gains, {width: (dims[:width], dims[width:])}, dict(zip(parts, missed, strict=True)))
        )

    def __add__(self, other: Tally) -> Tally:
        total = Tally()
        total._merge(self)
        total._merge(other)
        return total

    def _merge(self, other: Tally) -> None:
        self.gains += other.gains
        self.row_gains += other.row_gains
        for width, (errors, squares) in other._dims.items():
            before = self._dims.get(width)
            self._dims[width] = (errors, squares) if before is None else (before[0] + errors, before[1] + squares)
        for name, missed in other._missed.items():
            self._missed[name] = self._missed.get(name, RatioOfSums()) + missed

    @property
    def rows(self) -> int:
        return int(self.gains.rows)

    @property
    def gain(self) -> float | None:
        return self.gains.value

    @property
    def row_gain(self) -> float | None:
        return self.row_gains.value

    @property
    def dim_rel_l2(self) -> float | None:
        if len(self._dims) != 1:
            return None
        ((errors, refs),) = self._dims.values()
        # An error where nothing should be has no size to be relative to; the other limits see it.
        ratios = torch.where(refs > 0, errors / refs.clamp(min=torch.finfo(torch.float64).tiny), 0.0)
        return float(ratios.max().sqrt())

    @property
    def parts(self) -> dict[str, float]:
        return {name: 1 + missed.value for name, missed in self._missed.items() if missed.value is not None}

    def excess(self, tolerance: Tolerance) -> Excess | None:
        """Where all that was added stands against `tolerance`; None where it limits nothing or nothing was added."""
        there = self.parts
        banded = [("gain", self.gain, self.gains.error, tolerance.gain)]
        banded.append(("row_gain", self.row_gain, self.row_gains.error, tolerance.row_gain))
        banded += [(name, value, self._missed[name].error, tolerance.parts.get(name)) for name, value in there.items()]
        found = [
            Excess(limit=name, ratio=_band_ratio(value, band, STANDARD_ERRORS * error))
            for name, value, error, band in banded
            if value is not None and band is not None
        ]
        if tolerance.dim_rel_l2 is not None and self.dim_rel_l2 is not None:
            found.append(Excess(limit="dim_rel_l2", ratio=self.dim_rel_l2 / tolerance.dim_rel_l2))
        return max(found, key=lambda excess: excess.ratio, default=None)


def total(what: str, tally: Tally, tolerances: Mapping[str, Tolerance]) -> Total | None:
    """What `tally`, of all calls that `what` names, comes to; None where no tolerance limits it."""
    found = {name: tally.excess(tolerance) for name, tolerance in tolerances.items()}
    limited = {name: excess for name, excess in found.items() if excess is not None}
    if not limited:
        return None
    met = next((name for name in tolerances if name not in limited or limited[name].ratio <= 1), None)
    return Total(
        what=what,
        gain=tally.gain,
        row_gain=tally.row_gain,
        dim_rel_l2=tally.dim_rel_l2,
        parts=tally.parts,
        excess=limited,
        tolerance=met,
    )


def words(wrong: Total, tolerances: Mapping[str, Tolerance]) -> str:
    """`row_gain 1.075, and 0.95 to 1.005 may be`: by which limit of the loosest tolerance it is wrong."""
    name = list(wrong.excess)[-1]
    limit = wrong.excess[name].limit
    if limit in wrong.parts:
        value, bound = wrong.parts[limit], tolerances[name].parts[limit]
    else:
        value, bound = getattr(wrong, limit), getattr(tolerances[name], limit)
    allowed = f"{bound[0]:g} to {bound[1]:g}" if isinstance(bound, tuple) else f"at most {bound:g}"
    return f"{limit} of {wrong.what} together is {value:.4g}, and {allowed} may be; tolerance {name}"


def _band_ratio(value: float, band: tuple[float, float], slack: float) -> float:
    """The distance from the middle of `band`, less `slack`, over half of its width: at most 1 within it."""
    low, high = band
    distance = max(abs(value - (low + high) / 2) - slack, 0.0)
    return distance / ((high - low) / 2) if math.isfinite(value) else math.inf
