"""Secret seeds, fresh inputs and what must come of them.

    master secret ─► seed of (phase, case, call) ─► generate_input ─► pour into the arena
                                                        │
                                                        └─► ref_kernel on the judge's own copy ─► Expectation

A problem's reference may work in place, as a submission may: what `ref_kernel` leaves in the judge's copy is what the
submission must leave in its own.
"""

from __future__ import annotations

import hashlib
import importlib.util
import math
import secrets
import sys
import types
from dataclasses import dataclass
from typing import Any

import torch

from harness.arena import Arena, TensorSpec, extent, flatten, layout, room
from harness.device_arena import DeviceArena, shareable_memory
from harness.errors import InfrastructureError, ProblemError
from harness.model import Case, Device, Problem

JUDGING_HEADROOM = 1.15
"""Device memory beyond inputs and outputs: flush buffers, workspaces, chunks of the check, the runtimes themselves."""


class Reference:
    """A problem's reference.py, imported: its generator, reference kernel and, if it has one, its float64 oracle."""

    def __init__(self, problem: Problem, device: Device) -> None:
        self.problem, self.torch_device = problem, device.torch_device
        self._module = _import_reference(problem)
        self._gpu_memory = shareable_memory(device.torch_device) if device.kind == "cuda" else None

    def new_arena(self, size: int) -> Arena:
        """An arena of at least `size` bytes: in the device's memory where that can be shared, else in the host's."""
        try:
            if self._gpu_memory is not None:
                return DeviceArena.create_on(self._gpu_memory, size)
            return Arena.create(size)
        except OSError as error:
            raise InfrastructureError(f"no shared memory of {size:,} bytes can be had: {error}") from error

    def generate(self, case: Case, seed: int) -> Any:
        """The inputs of `case` drawn from `seed`, on the judge's device."""
        return self._run("generate_input", **case.parameters, seed=seed, device=self.torch_device)

    def next_input(self, data: Any, seed: int) -> Any:
        """The next step's data, on what the last step left of `data`."""
        return self._run("next_input", data, seed=seed)

    def expect(self, data: Any, selection: Selection | None) -> tuple[torch.Tensor, ...]:
        """The expected outputs (or the selected rows of them) for `data`, left as a submission must leave its own."""
        outputs = _members(self._run("ref_kernel", data, **_rows(selection)))
        if len(outputs) != len(self.problem.outputs):
            raise ProblemError(f"{self.problem.name}: ref_kernel returns {len(outputs)} outputs, not as stated")
        return outputs

    def exact(self, data: Any, selection: Selection | None) -> tuple[torch.Tensor, ...] | None:
        """What exact arithmetic gives for `data`, if the problem tells that apart from its reference."""
        return _members(self._run("oracle", data, **_rows(selection))) if hasattr(self._module, "oracle") else None

    def does_not_fit(self, case: Case, memory_bytes: int) -> str | None:
        """Why `case` cannot be judged in `memory_bytes` of device memory, or None if it can or the problem cannot say.

        Judge and worker hold its inputs and outputs at the same time, and each needs some room to work in.
        """
        if not hasattr(self._module, "device_bytes"):
            return None
        needed = int(2 * JUDGING_HEADROOM * self._module.device_bytes(**case.parameters))
        if needed <= memory_bytes:
            return None
        return f"needs {needed / 1e9:.1f} GB of device memory; {memory_bytes / 1e9:.1f} GB are here"

    def cost(self, case: Case) -> dict[str, dict[str, Any]]:
        """Bytes and flops by dtype of `case`, for each storage format that the problem allows."""
        cost: dict[str, dict[str, Any]] = self._run("cost", **case.parameters)
        return cost

    def _run(self, function: str, *arguments: Any, **named: Any) -> Any:
        """Call the problem's own code. Raises ProblemError for whatever it raises: no submission is to blame."""
        try:
            return getattr(self._module, function)(*arguments, **named)
        except (MemoryError, torch.OutOfMemoryError) as error:
            raise InfrastructureError(f"{self.problem.name}: no memory left for {function}: {error}") from error
        except Exception as error:
            path = self.problem.folder / "reference.py"
            raise ProblemError(f"{path}: {function} failed: {type(error).__name__}: {error}") from error


@dataclass(frozen=True)
class Selection:
    """The secret rows of an output that are checked: row numbers along `axis`, which is `length` long."""

    axis: int
    rows: torch.Tensor
    length: int

    def whole_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return (*shape[: self.axis], self.length, *shape[self.axis + 1 :])


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


class Seeds:
    """The seeds of one case's calls in one phase of a run: for inputs and, apart from those, for the rows checked."""

    def __init__(self, master_seed: str, phase: str, case: Case) -> None:
        self._master_seed, self._label = master_seed, f"{phase}/{case.key}"

    def of_inputs(self, call: int) -> int:
        return derive_seed(self._master_seed, f"{self._label}/{call}")

    def of_rows(self, call: int) -> int:
        return derive_seed(self._master_seed, f"{self._label}/{call}/rows")


class OneSeed(Seeds):
    """The inputs of one seed again, for looking at a mismatch. Which rows are checked is drawn anew."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def of_inputs(self, call: int) -> int:
        return self._seed

    def of_rows(self, call: int) -> int:
        return self._seed


class Dealer:
    """Deals fresh calls of one case, through one arena."""

    def __init__(self, reference: Reference, case: Case, seeds: Seeds) -> None:
        self._reference, self._case, self._seeds = reference, case, seeds
        self._dealt = 0
        self._steps = int(case.parameters.get("steps", 1))  # type: ignore[arg-type]
        self._left: Any = None
        self.arena: Arena | None = None

    @property
    def steps(self) -> int:
        """How many calls in a row the case consists of."""
        return self._steps

    def deal(self, everything: bool) -> Call:
        """The next call, its inputs poured into the arena.

        `everything`, as a test asks for it: the state of all inputs afterwards, not only of those that the problem lets
        a submission write to; the oracle's outputs; and more of the rows of long outputs.
        """
        problem = self._reference.problem
        number = self._dealt
        self._dealt += 1
        step = number % self._steps
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
        tensors = [tensor.detach().contiguous() for _, tensor in leaves]
        specs = layout(tensors)
        watched = [
            index for index, (name, _) in enumerate(leaves) if everything or name.split(".")[0] in problem.in_place
        ]
        self._pour(tensors, specs)
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
        self._make_room([*(_nbytes(tensor) for tensor in expectation.state.values()), *fresh])
        request = {
            "tree": tree,
            "inputs": [spec.to_json() for spec in specs],
            "state": watched,
            "poison": fresh,
        }
        if self._reference.torch_device != "cpu":
            torch.cuda.synchronize()  # the worker's call must find the device idle
        state_specs = {leaves[index][0]: specs[index] for index in watched}
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

    def close(self) -> None:
        if self.arena is not None:
            self.arena.close()
            self.arena = None
        self._left = None
        if self._reference.torch_device != "cpu":
            torch.cuda.empty_cache()  # what the judge keeps for itself, the worker cannot have

    def _pour(self, tensors: list[torch.Tensor], specs: list[TensorSpec]) -> None:
        if self.arena is not None and self.arena.size < extent(specs):
            self.close()
        if self.arena is None:
            self.arena = self._reference.new_arena(extent(specs))
        for tensor, spec in zip(tensors, specs, strict=True):
            self.arena.view(spec).copy_(tensor)

    def _fresh_output_sizes(self, expectation: Expectation) -> list[int]:
        """Bytes of each whole output that is not itself state, which a submission would have to allocate."""
        state = {(tensor.data_ptr(), _nbytes(tensor)) for tensor in expectation.state.values()}
        return [
            math.prod(expectation.shape(name)) * output.itemsize
            for name, output in expectation.outputs.items()
            if (output.data_ptr(), _nbytes(output)) not in state
        ]

    def _make_room(self, sizes: list[int]) -> None:
        """Grow the arena where a snapshot of these sizes does not fit."""
        assert self.arena is not None
        needed = room(sizes)
        if needed <= self.arena.size:
            return
        everything = TensorSpec("uint8", (self.arena.size,), 0)
        larger = self._reference.new_arena(needed)
        larger.view(everything).copy_(self.arena.view(everything))
        self.arena.close()
        self.arena = larger


def _rows(selection: Selection | None) -> dict[str, torch.Tensor]:
    return {} if selection is None else {"rows": selection.rows}


def _nbytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.itemsize


def _members(outputs: Any) -> tuple[torch.Tensor, ...]:
    return tuple(outputs) if isinstance(outputs, tuple | list) else (outputs,)


def new_master_seed() -> str:
    """128 secret bits from the system, in hexadecimal. Stored with the run once it has its verdict."""
    return secrets.token_hex(16)


def derive_seed(master_seed: str, label: str) -> int:
    """A seed for torch.Generator, in [0, 2^63): a keyed hash, so that no seed tells anything of another."""
    digest = hashlib.blake2b(label.encode(), key=bytes.fromhex(master_seed), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def _import_reference(problem: Problem) -> types.ModuleType:
    path = problem.folder / "reference.py"
    root = str(problem.folder.parents[1])
    if root not in sys.path:
        sys.path.insert(0, root)  # for `import reference`, the mathematics that the problems share
    spec = importlib.util.spec_from_file_location(f"podium_problem_{problem.name}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up there
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise ProblemError(f"{path} cannot be imported: {type(error).__name__}: {error}") from error
    return module
