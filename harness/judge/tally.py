"""Figures over many outputs together. They have far less noise than those of one call. So they tell a systematic error
from rounding: a wrong scale, a dim that is never written, keys that are left out.

    Tally.add(want, got, ...)  add rows of an output, as float64, of its parts, and each row's head
    a + b                      the tally of two calls
    figures(tolerance)         each limited figure with its allowed range
    excess(tolerance)          the worst figure over its bound
    total(what, tally, ...)    the same for every tolerance, for the record

Errors of opposite signs cancel in a mean, and noise widens its allowed range. So the scatter of rows about the mean is
limited too, and the mean of each head and of each dim.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import torch

from harness.judge.cells import Cells
from harness.judge.ratios import SUMS, Ratios
from harness.model import BANDS, Excess, Tolerance, Total

STANDARD_ERRORS = 3
"""A band is widened by this many standard errors of the figure: an honest submission must not fail because rows are
few."""

LEAST_ROWS_OF_A_PART = 2.0
"""What fewer rows of equal weight make up is not compared: one row with a key that holds most of it is noise."""

SPREAD = "_spread"
"""Suffix of a figure's name: the scatter of rows about that figure."""


@dataclass(frozen=True)
class Heads:
    """The head of each row: `numbers`, int64 (rows,), below `count`. `cells`: each head's dims are limited too."""

    numbers: torch.Tensor
    count: int
    cells: bool = False

    def of(self, rows: slice) -> Heads:
        return replace(self, numbers=self.numbers[rows])


@dataclass(frozen=True)
class Figure:
    """A figure, its allowed range, and its distance from the middle of the range over the half width: at most 1 is
    allowed."""

    limit: str
    value: float
    low: float
    high: float
    ratio: float


@dataclass
class Tally:
    """Sums over rows (last axis) of outputs. Rows that should be zero do not count.

    gain        <out, ref> / <ref, ref> over all rows, so the largest rows dominate
    row_gain    the mean over rows of the same ratio
    head_gain   row_gain of each head
    dim_gain    for each index along the last axis: <out, ref> / <ref, ref>, each row divided by its norm
    cell_gain   dim_gain of each head (cells)
    dim_rel_l2  ||out - ref|| / ||ref|| of the index along the last axis where it is largest; None if the last axes of
                outputs differ in length
    row_rms     the root mean square over rows of ||out - ref|| / ||ref||
    head_rms    row_rms of each head
    parts       how much of each part of the reference's output is there: 1 + <out - ref, part> / <part, part>
    """

    _ratios: dict[str, Ratios] = field(default_factory=dict)
    _dims: dict[int, tuple[torch.Tensor, torch.Tensor]] = field(default_factory=dict)
    _parts: frozenset[str] = frozenset()
    _cells: dict[torch.Size, Cells] = field(default_factory=dict)

    def add(
        self,
        want: torch.Tensor,
        got: torch.Tensor,
        parts: Mapping[str, torch.Tensor] | None = None,
        heads: Heads | None = None,
    ) -> None:
        """Add matrices of rows, on any device: float64, `parts` of any types. Elements that are not finite in either
        matrix are left out."""
        parts = parts or {}
        finite = want.isfinite() & got.isfinite()
        want, got = torch.where(finite, want, 0.0), torch.where(finite, got, 0.0)
        error, products, squares = got - want, want * got, want.square()
        size, wrong = squares.sum(-1, keepdim=True), error.square()
        counts = size > 0
        gains = torch.where(counts, products.sum(-1, keepdim=True) / size, 0.0)
        width = want.shape[-1]
        # The numerators and denominators of each figure's ratios, by column.
        found = {
            "gain": (products.sum(-1, keepdim=True), size),
            "row_gain": (gains, counts.double()),
            "row_error": (torch.where(counts, wrong.sum(-1, keepdim=True) / size, 0.0), counts.double()),
            f"dim_gain {width}": (torch.where(counts, products / size, 0.0), torch.where(counts, squares / size, 0.0)),
        }
        if heads is not None:
            own = torch.nn.functional.one_hot(heads.numbers, heads.count).double() * counts
            found[f"head_gain {heads.count}"] = own * gains, own
            found[f"head_error {heads.count}"] = own * found["row_error"][0], own
        if parts:
            # All parts at once: a loop over mla's 28 is most of the operations of a check.
            each = list(parts.values())
            if any(part.dtype != each[0].dtype for part in each):  # torch would round some, or find no common type
                each = [part.double() for part in each]
            stacked = torch.stack(each, dim=1).double()
            wholes = stacked.square().sum(-1)
            there = wholes + (stacked @ error[:, :, None])[:, :, 0]
            found |= dict(zip(parts, zip(there.split(1, dim=1), wholes.split(1, dim=1), strict=True), strict=True))
        # One pass over all columns and one transfer from the device: each operation on a GPU waits for the host.
        columns = Ratios.of(*(torch.cat(sides, dim=1) for sides in zip(*found.values(), strict=True)))
        dims = torch.stack([wrong.sum(0), squares.sum(0)])
        cells = columns.sums.new_empty(3, 0, width)
        if heads is not None and heads.cells:
            cells = Cells.of(*found[f"dim_gain {width}"], found["row_error"][0], own).sums
        flat = torch.cat([columns.sums.flatten(), dims.flatten(), cells.flatten()]).cpu()
        sums, errors, of_cells = flat.split([columns.sums.numel(), 2 * width, cells.numel()])
        each = sums.view(SUMS, -1).split([over.shape[1] for over, _ in found.values()], dim=1)
        ratios = {name: Ratios(own) for name, own in zip(found, each, strict=True)}
        by_size = {cells.shape: Cells(of_cells.view(cells.shape))} if cells.numel() else {}
        self._merge(Tally(ratios, {width: (errors[:width], errors[width:])}, frozenset(parts), by_size))

    def __add__(self, other: Tally) -> Tally:
        total = Tally()
        total._merge(self)
        total._merge(other)
        return total

    def _merge(self, other: Tally) -> None:
        for name, ratios in other._ratios.items():
            self._ratios[name] = self._ratios[name] + ratios if name in self._ratios else ratios
        for width, (errors, squares) in other._dims.items():
            before = self._dims.get(width)
            self._dims[width] = (errors, squares) if before is None else (before[0] + errors, before[1] + squares)
        self._parts |= other._parts
        for size, cells in other._cells.items():
            self._cells[size] = self._cells[size] + cells if size in self._cells else cells

    @property
    def rows(self) -> int:
        return int(self._ratios["gain"].rows) if "gain" in self._ratios else 0

    @property
    def gain(self) -> float | None:
        return self._one("gain")

    @property
    def row_gain(self) -> float | None:
        return self._one("row_gain")

    @property
    def row_rms(self) -> float | None:
        mean_square = self._one("row_error")
        return None if mean_square is None else math.sqrt(mean_square)

    @property
    def head_rms(self) -> float | None:
        """Of the head with the largest one."""
        heads = self.ratios("head_error")
        return None if heads is None else float(_roots(heads).max())

    @property
    def dim_rel_l2(self) -> float | None:
        if len(self._dims) != 1:
            return None
        ((errors, refs),) = self._dims.values()
        # An error at an index that should be zero has no relative size. The other limits see it.
        ratios = torch.where(refs > 0, errors / refs.clamp(min=torch.finfo(torch.float64).tiny), 0.0)
        return float(ratios.max().sqrt())

    @property
    def parts(self) -> dict[str, float]:
        """How much of each part is there, by name. For a family of parts: the one furthest from 1."""
        found = {}
        for name in dict.fromkeys(part.partition(".")[0] for part in self._ratios if part in self._parts):
            ratios = self.ratios(name)
            values = ratios.value[ratios.value.isfinite()] if ratios is not None else torch.empty(0)
            if values.numel():
                found[name] = float(values[(values - 1).abs().argmax()])
        return found

    @property
    def cells(self) -> Cells | None:
        """The gains of each head's dims. None if they were not added, or outputs differ in their heads or dims."""
        return next(iter(self._cells.values())) if len(self._cells) == 1 else None

    def ratios(self, name: str) -> Ratios | None:
        """The ratios called `name`, or those of a family of parts: `slice` stands for `slice.0`, `slice.1` and so on.
        None if there are none, or if outputs differ in their number of heads or in the length of their last axis."""
        fitting = [each for key, each in self._ratios.items() if key == name or key.startswith(f"{name}.")]
        by_count = [each for key, each in self._ratios.items() if key.startswith(f"{name} ")]
        if len(by_count) > 1 or not (fitting or by_count):
            return None
        return Ratios(torch.cat([each.sums for each in by_count or fitting], dim=1))

    def _one(self, name: str) -> float | None:
        value = float(self._ratios[name].value) if name in self._ratios else math.nan
        return value if math.isfinite(value) else None

    def figures(self, tolerance: Tolerance) -> Iterator[Figure]:
        """Compare everything added with each limit of `tolerance`. For heads, dims and families of parts: the one
        furthest off."""
        for name, (low, high) in tolerance.bands.items():
            limited = self._with_slack(name, tolerance.spreads.get(name))
            if limited is None or bool(limited[0].isnan().all()):
                continue
            values, slack = limited
            away = ((values - (low + high) / 2).abs() - slack) / ((high - low) / 2)
            away = torch.where(values.isnan(), -1.0, away.nan_to_num(math.inf))
            worst = int(away.argmax())
            room = float(slack[worst])
            yield Figure(name, float(values[worst]), low - room, high + room, max(float(away[worst]), 0.0))
        for name, most in tolerance.spreads.items():
            ratios = self.ratios(name)
            if ratios is None:
                continue
            # The standard error of a root mean square of n normal numbers is 1 / sqrt(2 n) of itself.
            bounds = most * (1 + STANDARD_ERRORS / (2 * ratios.effective_rows).sqrt())
            over = (ratios.spread / bounds).nan_to_num(0.0)
            worst = int(over.argmax())
            yield Figure(name + SPREAD, float(ratios.spread[worst]), 0.0, float(bounds[worst]), float(over[worst]))
        for name, most in tolerance.of_many_calls.items():
            found, bound = self._errors(most)[name]
            if found is not None:
                yield Figure(name, found, 0.0, bound, found / bound)

    def _with_slack(self, name: str, most: float | None) -> tuple[torch.Tensor, torch.Tensor] | None:
        """The figures called `name`, and by how much noise widens the band of each."""
        if name == "cell_gain":
            return None if self.cells is None else (self.cells.value.flatten(), self.cells.room.flatten())
        if (ratios := self.ratios(name)) is None:
            return None
        # More noise than allowed must not widen the band further.
        error = ratios.error if most is None else ratios.error.minimum(ratios.error_with(most))
        few = ratios.equal_rows < (0.0 if name in BANDS else LEAST_ROWS_OF_A_PART)
        return ratios.value, torch.where(few, math.inf, STANDARD_ERRORS * error)

    def _errors(self, most: float) -> dict[str, tuple[float | None, float]]:
        """Each error over all rows by name, and its bound under a limit of `most`. Of heads the one furthest off."""
        wider = most * (1 + STANDARD_ERRORS / math.sqrt(2 * max(self.rows, 1)))
        found = {"row_rms": (self.row_rms, wider), "dim_rel_l2": (self.dim_rel_l2, most), "head_rms": (None, most)}
        if (heads := self.ratios("head_error")) is not None:
            errors = _roots(heads)
            bounds = most * (1 + STANDARD_ERRORS / (2 * heads.rows.clamp(min=1)).sqrt())
            worst = int((errors / bounds).argmax())
            found["head_rms"] = float(errors[worst]), float(bounds[worst])
        return found

    def excess(self, tolerance: Tolerance) -> Excess | None:
        """The worst of `figures`; None if nothing is limited or nothing was added."""
        worst = self.worst(tolerance)
        return None if worst is None else Excess(limit=worst.limit, ratio=worst.ratio)

    def worst(self, tolerance: Tolerance) -> Figure | None:
        return max(self.figures(tolerance), key=lambda figure: figure.ratio, default=None)


def _roots(ratios: Ratios) -> torch.Tensor:
    """The roots of mean squares; 0 where there are no rows."""
    return ratios.value.nan_to_num(0.0).sqrt()


def total(what: str, tally: Tally, tolerances: Mapping[str, Tolerance]) -> Total | None:
    """The total of `tally` over all calls that `what` names; None if no tolerance limits it."""
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
