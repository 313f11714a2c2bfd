"""Fresh inputs for each call, and their expected outputs.

    master secret ─► seed of (phase, case, call) ─► generate_input ─► ref_kernel on the judge's own copy ─► Expectation
                                                        │
                                                        └─► places in the arena; the clock pours the inputs there

A problem's reference may work in place, and so may a submission. A submission must leave its copy of the inputs as
`ref_kernel` leaves the judge's.
"""

from __future__ import annotations

import math
import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from harness.errors import ProblemError
from harness.judge.seeds import Seeds
from harness.judge.selection import Selection
from harness.judge.tally import Heads
from harness.model import Case
from harness.wire.arena import ALIGNMENT, Arena, TensorSpec, dtype_name, extent, layout, room
from harness.wire.tree import flatten

if TYPE_CHECKING:
    from harness.judge.reference import Reference

STARTS, GAPS = 256, 64
"""Number of places where the inputs may start in the arena, and the most steps between two inputs, in steps of
ALIGNMENT bytes. So nobody can predict the next places."""

LEAST_GAP = 2
"""The least gap in such steps: a guard after one input and one before the next (judge/stage)."""


@dataclass(frozen=True)
class Expectation:
    """The expected result of one call: outputs by name, and the state of the inputs that are compared afterwards.

    With a `selection`, `outputs`, `exact`, `parts` and `heads` hold only its rows. `heads`: for each output that has an
    axis called `head`.
    """

    outputs: dict[str, torch.Tensor]
    state: dict[str, torch.Tensor]
    exact: tuple[torch.Tensor, ...] | None
    selection: Selection | None
    parts: dict[str, tuple[torch.Tensor, ...]] = field(default_factory=dict)
    heads: dict[str, Heads] = field(default_factory=dict)

    def shape(self, name: str) -> tuple[int, ...]:
        """The full shape of the output called `name`."""
        shape = tuple(self.outputs[name].shape)
        return shape if self.selection is None else self.selection.whole_shape(shape)


@dataclass(frozen=True)
class Call:
    """One prepared call: the request for the worker, and the expectation, which the judge keeps.

    `places`: each input and its place in `arena`. `fresh_bytes`: the sizes of the outputs that a submission must
    allocate. `read_only`: the numbers of inputs that must not change and are in no snapshot. `seed`: the seed from
    which the case was generated, before its first step. If the problem's own checker decides, `data` is the generated
    data, `expectation` is empty, and every input may be an output: `writable` has their places.
    """

    case: Case
    request: dict[str, Any]
    expectation: Expectation
    state_specs: dict[str, TensorSpec]
    input_names: tuple[str, ...]
    places: list[tuple[torch.Tensor, TensorSpec]]
    arena: Arena
    fresh_bytes: tuple[int, ...]
    seed: int
    data: Any = None
    writable: tuple[TensorSpec, ...] = ()
    read_only: tuple[int, ...] = ()

    @property
    def due(self) -> list[tuple[str, tuple[int, ...]]] | int:
        """The dtype name and the shape of each output. If these are free: the bytes that all outputs together may
        have."""
        expected = self.expectation
        if not expected.outputs:
            return sum(self.fresh_bytes) + sum(spec.nbytes for spec in self.writable)
        return [(dtype_name(output.dtype), expected.shape(name)) for name, output in expected.outputs.items()]


class Dealer:
    """Deals fresh calls of one case in one arena."""

    def __init__(self, reference: Reference, case: Case, seeds: Seeds) -> None:
        self._reference, self._case, self._seeds = reference, case, seeds
        self._dealt = 0
        self._steps = self._steps_of(case)
        self._left: Any = None
        self.arena: Arena | None = None

    @property
    def steps(self) -> int:
        """How many calls in a row the case consists of."""
        return self._steps

    def _steps_of(self, case: Case) -> int:
        return int(case.parameters.get("steps", 1))  # type: ignore[arg-type]

    def deal(self, everything: bool, probe: Case | None = None) -> Call:
        """Return the next call, with an arena that is large enough.

        `everything`, for tests: compare the state of all inputs, also of those that a submission may not write to. Also
        compute the oracle's outputs, and check more rows of long outputs. `probe`: a case of the same shapes to use in
        place of the dealer's own.
        """
        case, number = probe or self._case, self._dealt
        self._dealt += 1
        step = number % self._steps
        first_seed = self._reference.admitted(self._seeds.of_inputs(number - step))
        seed = self._reference.admitted((first_seed + step) % 2**63)
        if step == 0:
            self._left = None
            data = self._reference.generate(case, seed)
        else:
            data = self._reference.next_input(self._left, seed)
        selection = self._select_rows(self._seeds.of_rows(number), timed=not everything)
        return self._call(case, data, first_seed, selection, everything)

    def _call(self, case: Case, data: Any, seed: int, selection: Selection | None, everything: bool) -> Call:
        """Build a call of `case` with `data`, which was generated from `seed` or is a later step of such data."""
        problem = self._reference.problem
        try:
            tree, leaves = flatten(data, problem.inputs)
        except (TypeError, ValueError) as error:
            raise ProblemError(f"{problem.name}: generate_input: {error}") from None
        tensors = [
            # Inputs that the reference may change are cloned, so that the old values are poured.
            tensor.detach().clone() if name.split(".")[0] in problem.in_place else tensor.detach().contiguous()
            for name, tensor in leaves
        ]
        specs = scattered(tensors)
        watched = [
            index for index, (name, _) in enumerate(leaves) if everything or name.split(".")[0] in problem.in_place
        ]
        exact = self._reference.exact(data, selection) if everything else None
        parts = self._reference.parts(data, selection)
        outputs = self._reference.expect(data, selection)
        if self._steps > 1:
            self._left = data
        expectation = Expectation(
            outputs=dict(zip(problem.outputs, outputs, strict=True)),
            state={leaves[index][0]: leaves[index][1] for index in watched},
            exact=exact,
            selection=selection,
            parts=parts,
            heads=self._heads(dict(zip(problem.outputs, outputs, strict=True))),
        )
        fresh = self._fresh_output_sizes(expectation)
        # Some room is left at the end, so that a load beyond the last input need not crash.
        steps = STARTS + (GAPS + 1) * (len(tensors) + 1) + STARTS
        arena = self._room_for(room([steps * ALIGNMENT, *map(_nbytes, tensors), *fresh]))
        request = {
            "tree": tree,
            "inputs": [spec.to_json() for spec in specs],
            "state": watched,
            "poison": fresh,
            "tail": extent(specs) + LEAST_GAP * ALIGNMENT,
        }
        self._let_the_device_finish()
        state_specs = {leaves[index][0]: specs[index] for index in watched}
        names = tuple(name for name, _ in leaves)
        places = list(zip(tensors, specs, strict=True))
        read_only = tuple(index for index in range(len(leaves)) if index not in watched)
        return Call(
            case,
            request,
            expectation,
            state_specs,
            names,
            places,
            arena,
            tuple(fresh),
            seed,
            read_only=read_only,
        )

    def _select_rows(self, seed: int, timed: bool) -> Selection | None:
        sampled = self._reference.problem.sampled_rows
        if sampled is None:
            return None
        length = int(self._case.parameters[sampled.parameter])  # type: ignore[arg-type]
        count = sampled.count(length, timed)
        if count is None:
            return None
        generator = torch.Generator().manual_seed(seed)
        middle = torch.randperm(length - 2, generator=generator)[: count - 2] + 1
        rows = torch.cat([torch.tensor([0, length - 1]), middle]).sort().values
        return Selection(sampled.output_axis, rows.to(self._reference.torch_device), length)

    def _heads(self, outputs: dict[str, torch.Tensor]) -> dict[str, Heads]:
        """The head of each row of `outputs`, if a tolerance needs it."""
        problem = self._reference.problem
        found: dict[str, Heads] = {}
        each = [tolerance for options in problem.tolerances.values() for tolerance in options]
        cells = any(tolerance.cell_gain for tolerance in each)
        if not cells and not any(tolerance.head_gain for tolerance in each):
            return found
        for name, output in outputs.items():
            axes = problem.axes[name][:-1]
            if "head" in axes:
                count, behind = output.shape[axes.index("head")], len(axes) - 1 - axes.index("head")
                numbers = torch.arange(count, device=output.device).view(-1, *[1] * behind)
                found[name] = Heads(numbers.expand(output.shape[:-1]).reshape(-1), count, cells)
        return found

    def close(self) -> None:
        if self.arena is not None:
            self.arena.close()
            self.arena = None
        self._left = None
        if self._reference.torch_device != "cpu":
            torch.cuda.empty_cache()  # memory that the judge keeps is lost to the worker

    def _let_the_device_finish(self) -> None:
        """Wait until the judge's own computations are done: they must not run during a call."""
        if self._reference.torch_device != "cpu":
            torch.cuda.synchronize()

    def _fresh_output_sizes(self, expectation: Expectation) -> list[int]:
        """Bytes of each whole output that is not state itself: the ones that a submission must allocate."""
        state = {(tensor.data_ptr(), _nbytes(tensor)) for tensor in expectation.state.values()}
        return [
            math.prod(expectation.shape(name)) * output.itemsize
            for name, output in expectation.outputs.items()
            if (output.data_ptr(), _nbytes(output)) not in state
        ]

    def _room_for(self, size: int) -> Arena:
        if self.arena is not None and self.arena.size < size:
            self.arena.close()
            self.arena = None
        if self.arena is None:
            self.arena = self._reference.new_arena(size)
        return self.arena


def scattered(tensors: list[torch.Tensor]) -> list[TensorSpec]:
    """Places for `tensors` that nobody can predict."""
    specs: list[TensorSpec] = []
    start = LEAST_GAP * ALIGNMENT + secrets.randbelow(STARTS) * ALIGNMENT
    for tensor in tensors:
        specs += layout([tensor], start)
        start = extent(specs[-1:]) + (LEAST_GAP + secrets.randbelow(GAPS - LEAST_GAP)) * ALIGNMENT
    return specs


def _nbytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.itemsize
