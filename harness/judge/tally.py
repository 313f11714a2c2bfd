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
from dataclasses import dataclass, field

import torch

from harness.model import Excess, Tolerance, Total

STANDARD_ERRORS = 3
"""By so many of the mean's own a band of `row_gain` is wider: few rows must not refuse honest work."""


def wanted(tolerance: Tolerance) -> bool:
    """Whether `tolerance` limits anything over all calls."""
    limits = (tolerance.gain, tolerance.row_gain, tolerance.dim_rel_l2)
    return bool(tolerance.parts) or any(limit is not None for limit in limits)


@dataclass
class Tally:
    """Sums over rows (last axis) of outputs. Of rows that should be zero nothing is counted.

    gain        <out, ref> / <ref, ref> over everything, so mostly over the rows that are largest
    row_gain    the mean of the same over rows; `row_gain_error` is its standard error
    dim_rel_l2  ||out - ref|| / ||ref|| of the index along the last axis where it is largest; None of outputs whose last
                axes differ in length
    parts       of each part of the reference's output how much is there: 1 + <out - ref, part> / <part, part>
    """

    rows: int = 0
    row_gains: float = 0.0
    row_gains_squared: float = 0.0
    products: float = 0.0
    squares: float = 0.0
    _dims: dict[int, tuple[torch.Tensor, torch.Tensor]] = field(default_factory=dict)
    _parts: dict[str, tuple[float, float]] = field(default_factory=dict)

    def add(self, want: torch.Tensor, got: torch.Tensor, parts: Mapping[str, torch.Tensor] | None = None) -> None:
        """float64 matrices of rows, on any device. Elements that are not finite in one of the two are left out."""
        parts = parts or {}
        finite = want.isfinite() & got.isfinite()
        want, got = torch.where(finite, want, 0.0), torch.where(finite, got, 0.0)
        products, squares = (want * got).sum(-1), want.square().sum(-1)
        live = squares > 0
        gains = torch.where(live, products / squares, 0.0)
        along = [total for part in parts.values() for total in (((got - want) * part).sum(), part.square().sum())]
        sums = torch.stack(
            [live.sum().double(), gains.sum(), gains.square().sum(), products.sum(), squares.sum(), *along]
        )
        # One transfer from the device for all of it.
        width = want.shape[-1]
        summed = torch.cat([sums, (got - want).square().sum(0), want.square().sum(0)]).cpu()
        count, gain, gain_squared, product, square, *rest = summed[: len(sums)].tolist()
        dims = summed[len(sums) :]
        found = dict(zip(parts, zip(rest[::2], rest[1::2], strict=True), strict=True))
        self._merge(
            Tally(int(count), gain, gain_squared, product, square, {width: (dims[:width], dims[width:])}, found)
        )

    def __add__(self, other: Tally) -> Tally:
        total = Tally()
        total._merge(self)
        total._merge(other)
        return total

    def _merge(self, other: Tally) -> None:
        self.rows += other.rows
        self.row_gains += other.row_gains
        self.row_gains_squared += other.row_gains_squared
        self.products += other.products
        self.squares += other.squares
        for width, (errors, squares) in other._dims.items():
            before = self._dims.get(width)
            self._dims[width] = (errors, squares) if before is None else (before[0] + errors, before[1] + squares)
        for name, (product, square) in other._parts.items():
            product_before, square_before = self._parts.get(name, (0.0, 0.0))
            self._parts[name] = product_before + product, square_before + square

    @property
    def gain(self) -> float | None:
        return self.products / self.squares if self.squares > 0 else None

    @property
    def row_gain(self) -> float | None:
        return self.row_gains / self.rows if self.rows else None

    @property
    def row_gain_error(self) -> float:
        """As if rows were independent."""
        if self.rows < 2:
            return 0.0
        mean = self.row_gains / self.rows
        return math.sqrt(max(self.row_gains_squared / self.rows - mean * mean, 0.0) / (self.rows - 1))

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
        return {name: 1 + product / square for name, (product, square) in self._parts.items() if square > 0}

    def excess(self, tolerance: Tolerance) -> Excess | None:
        """Where all that was added stands against `tolerance`; None where it limits nothing or nothing was added."""
        found = []
        if tolerance.gain is not None and self.gain is not None:
            found.append(Excess(limit="gain", ratio=_band_ratio(self.gain, tolerance.gain, 0.0)))
        if tolerance.row_gain is not None and self.row_gain is not None:
            slack = STANDARD_ERRORS * self.row_gain_error
            found.append(Excess(limit="row_gain", ratio=_band_ratio(self.row_gain, tolerance.row_gain, slack)))
        if tolerance.dim_rel_l2 is not None and self.dim_rel_l2 is not None:
            found.append(Excess(limit="dim_rel_l2", ratio=self.dim_rel_l2 / tolerance.dim_rel_l2))
        for name, there in self.parts.items():
            if name in tolerance.parts:
                found.append(Excess(limit=name, ratio=_band_ratio(there, tolerance.parts[name], 0.0)))
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
