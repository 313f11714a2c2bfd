"""How far one tensor is from its expectation: one pass over it, in bounded memory.

    snapshot ─► chunks, in an order that nobody knows ─► sums of each Difference ─► excess over each tolerance

Each chunk of a snapshot is copied out of shared memory once and judged from the copy, so that a worker that still
writes to it cannot show two faces.
"""

from __future__ import annotations

import itertools
import math
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch

from harness.judge.reference import Selection
from harness.judge.tally import Tally, wanted
from harness.model import Excess, Tolerance

CHUNK_ELEMENTS = {"cpu": 1 << 18, "cuda": 1 << 25}
CHUNK_SHARE = {"cpu": 32, "cuda": 4}
"""At most this many elements are compared at a time, and at most this share of a tensor: a chunk has some ten
temporaries of 8 bytes an element. 2 MiB each suit a CPU's caches; a GPU wants few and large ones."""

MIN_CHUNK_ELEMENTS = 1 << 12

NEVER = math.inf


@dataclass
class Difference:
    """How one tensor differs from its expectation, summed over its elements.

    `structural` says in words what is wrong with the tensor as such; then nothing else is filled in. `parts` of what is
    expected are easily left out; `tally` is what a tolerance limits over many calls, if one does.
    """

    name: str
    expected: torch.Tensor
    is_state: bool = False
    selection: Selection | None = None
    structural: str | None = None
    actual: torch.Tensor | None = None
    parts: dict[str, torch.Tensor] = field(default_factory=dict)
    elements: int = 0
    mismatches: dict[str, int] = field(default_factory=dict)
    different_bits: int = 0
    bad_specials: int = 0
    squared_errors: list[float] = field(default_factory=list)
    squared_references: list[float] = field(default_factory=list)
    worst_row: float = 0.0
    tally: Tally | None = None

    @property
    def rel_l2(self) -> float:
        return _ratio(math.sqrt(math.fsum(self.squared_errors)), math.sqrt(math.fsum(self.squared_references)))

    def excess(self, name: str, tolerance: Tolerance) -> Excess:
        """Where this tensor stands against the tolerance called `name`. Memory and integers are compared bit for bit,
        whatever the tolerance says."""
        if self.structural is not None:
            return Excess(limit="structure", ratio=NEVER)
        if tolerance.bitwise or self.is_state or not self.expected.is_floating_point():
            return Excess(limit="bitwise", ratio=NEVER if self.different_bits else 0.0)
        if self.bad_specials:
            return Excess(limit="nan_or_inf", ratio=NEVER)
        values = {
            "max_mismatch": self.mismatches[name] / max(self.elements, 1),
            "rel_l2": self.rel_l2,
            "row_rel_l2": self.worst_row,
        }
        ratios = [
            Excess(limit=limit, ratio=_ratio(value, bound))
            for limit, value in values.items()
            if (bound := getattr(tolerance, limit)) is not None
        ]
        return max(ratios, key=lambda excess: excess.ratio)


def read(found: list[Difference], tolerances: dict[str, Tolerance], keep: bool) -> None:
    """Compare them, chunk by chunk of all, in an order that nobody knows: a worker that has answered and goes on
    writing cannot keep ahead of who reads. Sums over chunks are exact (fsum), so that they do not depend on it.

    With `keep` the outputs' `actual` becomes what was compared, copied: more will be computed of it."""
    chunks: list[tuple[Difference, torch.Tensor, torch.Tensor, torch.Tensor | None, dict[str, torch.Tensor]]] = []
    for total in found:
        if total.actual is None:
            continue
        shared = total.actual
        copies: Iterator[torch.Tensor | None] = itertools.repeat(None)
        if keep and not total.is_state:
            total.actual = torch.empty(shared.shape, dtype=shared.dtype, device=total.expected.device)
            copies = (own for _, own in _chunks(total.expected, total.actual))
        both, parts = _chunks(total.expected, shared), _parts_of_chunks(total)
        chunks += [(total, want, got, own, part) for (want, got), own, part in zip(both, copies, parts)]
    secrets.SystemRandom().shuffle(chunks)
    bitwise = all(tolerance.bitwise for tolerance in tolerances.values())
    for total in found:
        if not total.is_state and total.expected.is_floating_point() and any(map(wanted, tolerances.values())):
            total.tally = Tally()
    for total, want, got, own, parts_here in chunks:
        got = got.to(want.device, copy=True) if own is None else own.copy_(got)
        if total.tally is not None:
            total.tally.add(float64(want), float64(got), {name: float64(part) for name, part in parts_here.items()})
        different = int((bits(got) != bits(want)).sum())
        total.different_bits += different
        if bitwise:
            continue
        if not different:
            exact = float64(want)
            total.squared_references.append(float(torch.where(exact.isfinite(), exact, 0.0).square().sum()))
        else:
            _accumulate(total, float64(want), float64(got), tolerances)
    for total, want, got, own, _ in chunks:
        if bitwise and total.different_bits:  # only now does it matter by how much
            got = got.to(want.device, copy=True) if own is None else own
            _accumulate(total, float64(want), float64(got), tolerances)


def _accumulate(total: Difference, want: torch.Tensor, got: torch.Tensor, tolerances: dict[str, Tolerance]) -> None:
    same_special = (want.isnan() & got.isnan()) | (want == got)
    bad = (~got.isfinite() | ~want.isfinite()) & ~same_special
    error = torch.where(same_special | bad, 0.0, (got - want).abs())
    size = torch.where(want.isfinite(), want.abs(), 0.0)
    wrong = [((error > tolerance.atol + tolerance.rtol * size) | bad).sum() for tolerance in tolerances.values()]
    row_error, row_size = error.square().sum(-1), size.square().sum(-1)
    ratios = torch.where(row_error > 0, (row_error / row_size).sqrt(), 0.0)
    sums = [bad.sum(), row_error.sum(), row_size.sum(), ratios.max(), *wrong]
    # Fetched from the device at once: each fetch of its own would wait for it.
    bad_count, squared_error, squared_reference, worst_row, *counts = torch.stack([s.double() for s in sums]).tolist()
    total.bad_specials += int(bad_count)
    total.squared_errors.append(squared_error)
    total.squared_references.append(squared_reference)
    total.worst_row = max(total.worst_row, worst_row)
    for name, count in zip(tolerances, counts, strict=True):
        total.mismatches[name] += int(count)


def _chunks(expected: torch.Tensor, actual: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Both tensors as matrices of rows (last axis), a bounded number of elements at a time: views, of which nothing is
    read."""
    width = expected.shape[-1] if expected.dim() else 1
    if expected.numel() == 0:
        return
    want, got = expected.reshape(-1, width), actual.reshape(-1, width)
    kind = expected.device.type
    most = min(CHUNK_ELEMENTS[kind], max(expected.numel() // CHUNK_SHARE[kind], MIN_CHUNK_ELEMENTS))
    rows = max(most // width, 1)
    for start in range(0, want.shape[0], rows):
        yield want[start : start + rows], got[start : start + rows]


def _parts_of_chunks(total: Difference) -> Iterator[dict[str, torch.Tensor]]:
    """For each chunk its parts, as `_chunks` cuts them."""
    if not total.parts:
        return itertools.repeat({})
    cut = [[part for _, part in _chunks(total.expected, whole)] for whole in total.parts.values()]
    return (dict(zip(total.parts, here)) for here in zip(*cut))


def rel_l2(actual: torch.Tensor, exact: torch.Tensor) -> float:
    squared_errors, squared_exact = [], []
    for want, got in _chunks(exact, actual):
        want = float64(want)
        got = float64(got).to(want.device)
        same = (want == got) | (want.isnan() & got.isnan())  # infinities among them, whose difference is NaN
        squared_errors.append(float(torch.where(same, 0.0, got - want).square().sum()))
        squared_exact.append(float(torch.where(want.isfinite(), want, 0.0).square().sum()))
    return _ratio(math.sqrt(math.fsum(squared_errors)), math.sqrt(math.fsum(squared_exact)))


def float64(tensor: torch.Tensor) -> torch.Tensor:
    """The values as float64, exactly (an int64 beyond 2^53 aside)."""
    # float8 types convert to float32 only.
    return tensor.float().double() if tensor.is_floating_point() and tensor.itemsize == 1 else tensor.double()


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory as integers of the same width, so that NaN payloads and the sign of zero compare."""
    integers = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return tensor.contiguous().view(integers[tensor.itemsize])


def _ratio(value: float, bound: float) -> float:
    """value / bound, where nothing over nothing is nothing and something over nothing is infinite."""
    if value == 0:
        return 0.0
    if math.isnan(value):
        return NEVER
    return value / bound if bound > 0 else NEVER
