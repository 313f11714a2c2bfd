"""Fresh inputs and what must come of them.

    master secret ─► seed of (phase, case, call) ─► generate_input ─► ref_kernel on the judge's own copy ─► Expectation
                                                        │
                                                        └─► poured into the arena when the worker is ready for it

A problem's reference may work in place, as a submission may: what `ref_kernel` leaves in the judge's copy is what the
submission must leave in its own.
"""

from __future__ import annotations

import math
import secrets
from dataclasses import dataclass
from typing import Any

import torch

from harness.arena import ALIGNMENT, Arena, TensorSpec, dtype_name, flatten, layout, room
from harness.errors import ProblemError
from harness.judge.reference import Reference, Selection
from harness.judge.seeds import Seeds
from harness.judge.stopwatch import stopwatch
from harness.model import Case

STARTS = 256
"""At how many places, ALIGNMENT bytes apart, the inputs may begin in the arena: a submission that has worked on the
arena's own memory does not know where the next ones will lie."""

LEAD_CYCLES = 400_000
"""A GPU sleeps so long, some 0.2 ms, before it copies inputs: the host has enqueued all copies by then, and they follow
upon one another. How long they take is part of a call's turnaround, and without it would depend on what the judge had
done before: copies for idle calls took 0.2 ms longer (H200, 2026-11-20)."""


@dataclass(frozen=True)
class Expectation:
    """What one call must produce: outputs by name, and the state of the inputs that are looked at afterwards.

    With a `selection`, `outputs` and `exact` hold only its rows.
    """

    outputs: dict[str, torch.Tensor]
    state: dict[str, torch.Tensor]
    exact: tuple[torch.Tensor, ...] | None
    selection: Selection | None

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape that the whole output called `name` must have."""
        shape = tuple(self.outputs[name].shape)
        return shape if self.selection is None else self.selection.whole_shape(shape)


@dataclass(frozen=True)
class Call:
    """One prepared call: the request for the worker, and the expectation that the judge keeps.

    `seed` is the one that its case was generated from, steps before it included.
    """

    request: dict[str, Any]
    expectation: Expectation
    state_specs: dict[str, TensorSpec]
    input_names: tuple[str, ...]
    seed: int


class Dealer:
    """Deals fresh calls of one case, through one arena.

    `pour` reveals the inputs of the last one dealt, as often as it is called; `idle_request` is for a call like it that
    computes nothing.
    """

    def __init__(self, reference: Reference, case: Case, seeds: Seeds) -> None:
        self._reference, self._case, self._seeds = reference, case, seeds
        self._dealt = 0
        self._steps = int(case.parameters.get("steps", 1))  # type: ignore[arg-type]
        self._left: Any = None
        self._inputs: list[tuple[torch.Tensor, TensorSpec]] = []
        self.idle_request: dict[str, Any] = {}
        self.arena: Arena | None = None

    @property
    def steps(self) -> int:
        """How many calls in a row the case consists of."""
        return self._steps

    def deal(self, everything: bool) -> Call:
        """The next call, with an arena that is large enough for it.

        `everything`, as a test asks for it: the state of all inputs afterwards, not only of those that the problem lets
        a submission write to; the oracle's outputs; and more of the rows of long outputs.
        """
        problem = self._reference.problem
        number = self._dealt
        self._dealt += 1
        step = number % self._steps
        self._inputs = []
        first_seed = self._seeds.of_inputs(number - step)
        seed = (first_seed + step) % 2**63
        if step == 0:
            self._left = None
            data = self._reference.generate(self._case, seed)
        else:
            data = self._reference.next_input(self._left, seed)
        selection = self._select_rows(self._seeds.of_rows(number), timed=not everything)
        try:
            tree, leaves = flatten(data, problem.inputs)
        except (TypeError, ValueError) as error:
            raise ProblemError(f"{problem.name}: generate_input: {error}") from None
        tensors = [
            # What the reference may change is poured as it was before.
            tensor.detach().clone() if name.split(".")[0] in problem.in_place else tensor.detach().contiguous()
            for name, tensor in leaves
        ]
        specs = layout(tensors, secrets.randbelow(STARTS) * ALIGNMENT)
        watched = [
            index for index, (name, _) in enumerate(leaves) if everything or name.split(".")[0] in problem.in_place
        ]
        exact = self._reference.exact(data, selection) if everything else None
        outputs = self._reference.expect(data, selection)
        if self._steps > 1:
            self._left = data
        expectation = Expectation(
            outputs=dict(zip(problem.outputs, outputs, strict=True)),
            state={leaves[index][0]: leaves[index][1] for index in watched},
            exact=exact,
            selection=selection,
        )
        fresh = self._fresh_output_sizes(expectation)
        snapshot_bytes = room([*(_nbytes(tensor) for tensor in expectation.state.values()), *fresh])
        # Of a call that works on the arena's own memory, what is new lies behind the inputs. Some room is left in any
        # case: a load beyond the last of them is no fault of a call that gets copies.
        self._make_room(max(room([2 * STARTS * ALIGNMENT, *map(_nbytes, tensors), *fresh]), snapshot_bytes))
        self._inputs = list(zip(tensors, specs, strict=True))
        request = {
            "tree": tree,
            "inputs": [spec.to_json() for spec in specs],
            "state": watched,
            "poison": fresh,
        }
        self._let_the_device_finish()
        state_specs = {leaves[index][0]: specs[index] for index in watched}
        idle = self._idle_outputs(expectation, [tensor for _, tensor in leaves])
        self.idle_request = {**request, "idle": idle}
        return Call(request, expectation, state_specs, tuple(name for name, _ in leaves), first_seed)

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

    def pour(self) -> float:
        """Copy the inputs of the last call dealt into the arena. When it returns, some of them may have been there to
        be read for so many nanoseconds.

        On a GPU that is less than this takes: the judge's copy may have to wait for its turn on the device.
        """
        assert self.arena is not None
        if self.arena.on_device:
            torch.cuda._sleep(LEAD_CYCLES)
        with stopwatch(self.arena.on_device) as lasted_ns:
            for tensor, spec in self._inputs:
                self.arena.view(spec).copy_(tensor)
        return lasted_ns()

    def close(self) -> None:
        self._inputs = []
        if self.arena is not None:
            self.arena.close()
            self.arena = None
        self._left = None
        if self._reference.torch_device != "cpu":
            torch.cuda.empty_cache()  # what the judge keeps for itself, the worker cannot have

    def _let_the_device_finish(self) -> None:
        """What the judge computes must not be under way during a call."""
        if self._reference.torch_device != "cpu":
            torch.cuda.synchronize()

    def _fresh_output_sizes(self, expectation: Expectation) -> list[int]:
        """Bytes of each whole output that is not itself state, which a submission would have to allocate."""
        state = {(tensor.data_ptr(), _nbytes(tensor)) for tensor in expectation.state.values()}
        return [
            math.prod(expectation.shape(name)) * output.itemsize
            for name, output in expectation.outputs.items()
            if (output.data_ptr(), _nbytes(output)) not in state
        ]

    def _idle_outputs(self, expectation: Expectation, leaves: list[torch.Tensor]) -> list[dict[str, Any]]:
        addresses = [tensor.data_ptr() for tensor in leaves]
        return [
            {"input": addresses.index(output.data_ptr())}
            if output.data_ptr() in addresses and output.numel()
            else {"dtype": dtype_name(output.dtype), "shape": list(expectation.shape(name))}
            for name, output in expectation.outputs.items()
        ]

    def _make_room(self, size: int) -> None:
        if self.arena is not None and self.arena.size < size:
            self.arena.close()
            self.arena = None
        if self.arena is None:
            self.arena = self._reference.new_arena(size)


def _nbytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.itemsize
