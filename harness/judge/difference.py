"""The difference between one tensor and its expectation, computed in one pass and in bounded memory.

    snapshot ─► chunks, in a secret random order ─► sums of each Difference ─► Excess over each tolerance

Each chunk of a snapshot is copied out of shared memory once and judged from the copy. So a worker that still writes to
it cannot show two different values.
"""

from __future__ import annotations

import math
import secrets
from dataclasses import dataclass, field

import torch

from harness.judge.selection import Selection
from harness.judge.tally import Heads, Tally
from harness.model import Excess, Tolerance

CHUNK_ELEMENTS = {"cpu": 1 << 18, "cuda": 1 << 25}
"""Elements compared at once, at most. A chunk has some ten temporaries of 8 bytes an element. 2 MiB each suit a CPU's
caches. A GPU wants few, large chunks: each takes hundreds of operations."""

NEVER = math.inf


@dataclass
class Difference:
    """How one tensor differs from its expectation, summed over its elements.

    `structural`: what is wrong with the tensor as a whole, in words; then nothing else is filled in. `parts`: parts of
    the expectation that kernels often leave out. `heads`: the head of each row, if rows have heads. `tally`: the
    figures that a tolerance limits over many calls, if one does. `due`: the word for the expectation in a report.
    """

    name: str
    expected: torch.Tensor
    is_state: bool = False
    selection: Selection | None = None
    structural: str | None = None
    actual: torch.Tensor | None = None
    parts: dict[str, torch.Tensor] = field(default_factory=dict)
    heads: Heads | None = None
    elements: int = 0
    mismatches: dict[str, int] = field(default_factory=dict)
    different_bits: int = 0
    bad_specials: int = 0
    squared_errors: list[float] = field(default_factory=list)
    squared_references: list[float] = field(default_factory=list)
    worst_row: float = 0.0
    tally: Tally | None = None
    due: str = "expected"

    @property
    def rel_l2(self) -> float:
        return _ratio(math.sqrt(math.fsum(self.squared_errors)), math.sqrt(math.fsum(self.squared_references)))

    def excess(self, name: str, tolerance: Tolerance) -> Excess:
        """Compare this tensor with the tolerance called `name`. Memory and integers are compared bit for bit, whatever
        the tolerance says."""
        if self.structural is not None:
            return Excess(limit="structure", ratio=NEVER)
        if tolerance.bitwise or self.is_state or not self.expected.is_floating_point():
            return Excess(limit="bitwise", ratio=NEVER if self.different_bits else 0.0)
        if self.bad_specials:
            return Excess(limit="nan_or_inf", ratio=NEVER)
        figures = self.figures(name)
        ratios = [
            Excess(limit=limit, ratio=_ratio(figures[limit], bound)) for limit, bound in tolerance.of_each_call.items()
        ]
        return max(ratios, key=lambda excess: excess.ratio)

    def figures(self, name: str) -> dict[str, float]:
        """What a limit of each call holds for, by its name; elements miss by the tolerance called `name`."""
        return {
            "max_mismatch": self.mismatches[name] / max(self.elements, 1),
            "rel_l2": self.rel_l2,
            "row_rel_l2": self.worst_row,
        }


def read(found: list[Difference], tolerances: dict[str, Tolerance], keep: bool, tally: bool = True) -> None:
    """Compare all tensors chunk by chunk, in a secret random order: a worker that writes after its answer cannot stay
    ahead of the reader. Sums over chunks are exact (fsum), so the order does not change them.

    With `keep`, the outputs' `actual` becomes the copy that was compared, for further computations. Without `tally`
    the figures over many calls are left out.
    """
    chunks: list[_Chunk] = []
    for total in found:
        if total.actual is None:
            continue
        shared, own = total.actual, None
        if keep and not total.is_state:
            total.actual = own = torch.empty(shared.shape, dtype=shared.dtype, device=total.expected.device)
        chunks += [_Chunk(total, shared, own, rows) for rows in _row_ranges(total.expected)]
    secrets.SystemRandom().shuffle(chunks)
    bitwise = all(tolerance.bitwise for tolerance in tolerances.values())
    if tally and any(tolerance.limits_many_calls for tolerance in tolerances.values()):
        for total in found:
            if not total.is_state and total.expected.is_floating_point():
                total.tally = Tally()
    for chunk in chunks:
        total, want, got = chunk.total, chunk.want, chunk.copied()
        if total.tally is not None:
            parts = {name: chunk.of(part) for name, part in total.parts.items()}
            heads = None if total.heads is None else total.heads.of(chunk.rows)
            total.tally.add(float64(want), float64(got), parts, heads)
        different = int((bits(got) != bits(want)).sum())
        total.different_bits += different
        if bitwise:
            continue
        if not different:
            exact = float64(want)
            total.squared_references.append(float(torch.where(exact.isfinite(), exact, 0.0).square().sum()))
        else:
            _accumulate(total, float64(want), float64(got), tolerances)
    for chunk in chunks:
        if bitwise and chunk.total.different_bits:  # the size of the error matters only for the report of a failure
            got = chunk.copied() if chunk.own is None else chunk.of(chunk.own)
            _accumulate(chunk.total, float64(chunk.want), float64(got), tolerances)


@dataclass(frozen=True)
class _Chunk:
    """Some rows of a tensor in `shared` memory. `own`: a copy of the whole tensor, filled chunk by chunk."""

    total: Difference
    shared: torch.Tensor
    own: torch.Tensor | None
    rows: slice

    @property
    def want(self) -> torch.Tensor:
        return self.of(self.total.expected)

    def copied(self) -> torch.Tensor:
        """The worker's values, copied once from the shared memory."""
        got = self.of(self.shared)
        return got.to(self.total.expected.device, copy=True) if self.own is None else self.of(self.own).copy_(got)

    def of(self, whole: torch.Tensor) -> torch.Tensor:
        """These rows of a tensor with the shape of the expected one."""
        return whole.reshape(-1, _width(whole))[self.rows]


def _accumulate(total: Difference, want: torch.Tensor, got: torch.Tensor, tolerances: dict[str, Tolerance]) -> None:
    same_special = (want.isnan() & got.isnan()) | (want == got)
    bad = (~got.isfinite() | ~want.isfinite()) & ~same_special
    error = torch.where(same_special | bad, 0.0, (got - want).abs())
    size = torch.where(want.isfinite(), want.abs(), 0.0)
    wrong = [((error > tolerance.atol + tolerance.rtol * size) | bad).sum() for tolerance in tolerances.values()]
    row_error, row_size = error.square().sum(-1), size.square().sum(-1)
    ratios = torch.where(row_error > 0, (row_error / row_size).sqrt(), 0.0)
    sums = [bad.sum(), row_error.sum(), row_size.sum(), ratios.max(), *wrong]
    # One transfer from the device for all sums: each transfer waits for the device.
    bad_count, squared_error, squared_reference, worst_row, *counts = torch.stack([s.double() for s in sums]).tolist()
    total.bad_specials += int(bad_count)
    total.squared_errors.append(squared_error)
    total.squared_references.append(squared_reference)
    total.worst_row = max(total.worst_row, worst_row)
    for name, count in zip(tolerances, counts, strict=True):
        total.mismatches[name] += int(count)


def meets(name: str, want: torch.Tensor, got: torch.Tensor, tolerance: Tolerance) -> bool:
    """Whether `got`, by itself, is within all limits that `tolerance` sets an output called `name`."""
    held = Difference(name, want, actual=got, elements=want.numel(), mismatches={name: 0})
    read([held], {name: tolerance}, keep=False, tally=False)
    return held.excess(name, tolerance).ratio <= 1


def _width(tensor: torch.Tensor) -> int:
    return tensor.shape[-1] if tensor.dim() else 1


def _row_ranges(tensor: torch.Tensor) -> list[slice]:
    """Divide a tensor, seen as a matrix of rows (last axis), into ranges of rows with a bounded number of elements."""
    if tensor.numel() == 0:
        return []
    width = _width(tensor)
    step = max(CHUNK_ELEMENTS[tensor.device.type] // width, 1)
    return [slice(start, start + step) for start in range(0, tensor.numel() // width, step)]


def rel_l2(actual: torch.Tensor, exact: torch.Tensor) -> float:
    squared_errors, squared_exact = [], []
    exact, actual = (tensor.reshape(-1, _width(tensor)) for tensor in (exact, actual))
    for rows in _row_ranges(exact):
        want = float64(exact[rows])
        got = float64(actual[rows]).to(want.device)
        same = (want == got) | (want.isnan() & got.isnan())  # needed for equal infinities, whose difference is NaN
        squared_errors.append(float(torch.where(same, 0.0, got - want).square().sum()))
        squared_exact.append(float(torch.where(want.isfinite(), want, 0.0).square().sum()))
    return _ratio(math.sqrt(math.fsum(squared_errors)), math.sqrt(math.fsum(squared_exact)))


def float64(tensor: torch.Tensor) -> torch.Tensor:
    """The values as float64, exactly (except an int64 beyond 2^53)."""
    # float8 types convert to float32 only.
    return tensor.float().double() if tensor.is_floating_point() and tensor.itemsize == 1 else tensor.double()


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """View the memory as integers of the same width, so that NaN payloads and the sign of zero are compared. Complex
    numbers get another axis of 2."""
    if tensor.is_complex():
        return bits(torch.view_as_real(tensor.resolve_conj()))
    integers = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return tensor.resolve_neg().contiguous().view(integers[tensor.itemsize])


def _ratio(value: float, bound: float) -> float:
    """value / bound, with 0 / 0 = 0 and x / 0 = infinity."""
    if value == 0:
        return 0.0
    if math.isnan(value):
        return NEVER
    return value / bound if bound > 0 else NEVER
