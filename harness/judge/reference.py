"""A problem's reference.py: inputs, expected outputs, costs. Its faults become ProblemError and blame no submission."""

from __future__ import annotations

import importlib.util
import sys
import types
from typing import Any

import torch

from harness.catalog import places
from harness.errors import InfrastructureError, ProblemError
from harness.judge.checker import Checker
from harness.judge.inputs import Dealer
from harness.judge.seeds import Seeds
from harness.judge.selection import Selection
from harness.judge.share import DeviceFull
from harness.machine.device import CHECK_THE_DEVICE
from harness.model import Case, Device, Problem
from harness.wire.arena import Arena
from harness.wire.device_arena import DeviceArena, shareable_memory

JUDGING_HEADROOM = 1.15
"""Factor for device memory beyond inputs and outputs: flush buffers, workspaces, chunks of the check, the runtimes."""


def open_reference(problem: Problem, device: Device) -> Reference:
    """Return the reference of `problem`, in any form. Raises ProblemError if its files cannot be used."""
    if problem.foreign is None:
        return Reference(problem, device)
    from harness.judge.foreign import open_foreign

    return open_foreign(problem, device)


class Reference:
    """A problem's imported reference.py: its generator, its reference kernel and, if it has one, its float64 oracle."""

    has_setup = False
    """Whether a worker gets data (`setup`) before its calls."""

    notes: tuple[str, ...] = ()
    """Remarks on how a run was judged, for its readers."""

    stuck = False
    """Whether the problem's own checker gave no opinion on an answer. The next answers would take as long."""

    def __init__(self, problem: Problem, device: Device) -> None:
        self.problem, self.torch_device = problem, device.torch_device
        self._module: Any = self._imported()
        self._gpu_memory = shareable_memory(device.torch_device) if device.kind == "cuda" else None

    def _imported(self) -> Any:
        return _import_reference(self.problem)

    def new_arena(self, size: int) -> Arena:
        """An arena of at least `size` bytes, in device memory if that can be shared, else in host memory."""
        try:
            if self._gpu_memory is not None:
                return DeviceArena.create_on(self._gpu_memory, size)
            return Arena.create(size)
        except OSError as error:
            kind = InfrastructureError if self._gpu_memory is None else DeviceFull
            raise kind(f"cannot allocate {size:,} bytes of shared memory: {error}") from error

    def dealer(self, case: Case, seeds: Seeds) -> Dealer:
        """The dealer of calls of `case`."""
        return Dealer(self, case, seeds)

    def checker(self) -> Checker:
        """The checker of these calls."""
        return Checker(self.problem)

    def setup(self) -> Any:
        """The data that a worker gets before its calls, in any tree of tensors."""
        raise NotImplementedError

    def allow(self, limit_s: float | None) -> None:
        """Limit each call of another project's code to `limit_s` from now on (None: the longest stage). Podium's own
        problems have no limit."""

    def admitted(self, seed: int) -> int:
        """The seed to give the generator for `seed`, which is below 2^63."""
        return seed

    def output_bytes(self, case: Case, data: Any) -> list[int]:
        """Bytes of each output for `data`, if nothing else is known of the outputs beforehand."""
        raise NotImplementedError

    def generate(self, case: Case, seed: int) -> Any:
        """Draw the inputs of `case` from `seed`, on the judge's device."""
        return self._run("generate_input", **case.parameters, seed=seed, device=self.torch_device)

    def next_input(self, data: Any, seed: int) -> Any:
        """The data of the next step, made from `data` as the last step left it."""
        return self._run("next_input", data, seed=seed)

    def expect(self, data: Any, selection: Selection | None) -> tuple[torch.Tensor, ...]:
        """The expected outputs for `data`, or their selected rows. `data` is left as a submission must leave its
        own."""
        outputs = members(self._run("ref_kernel", data, **_rows(selection)))
        if len(outputs) != len(self.problem.outputs):
            raise ProblemError(f"{self.problem.name}: ref_kernel returns {len(outputs)} outputs, unlike problem.yml")
        return outputs

    def exact(self, data: Any, selection: Selection | None) -> tuple[torch.Tensor, ...] | None:
        """The result of exact arithmetic for `data`, if the problem has an oracle besides its reference."""
        return members(self._run("oracle", data, **_rows(selection))) if hasattr(self._module, "oracle") else None

    def parts(self, data: Any, selection: Selection | None) -> dict[str, tuple[torch.Tensor, ...]]:
        """Parts of the expected outputs that kernels often leave out, by name. Each is one tensor for each output, of
        any float dtype. Computed only if a tolerance limits them."""
        limited = any(each.parts for options in self.problem.tolerances.values() for each in options)
        found = self._run("parts", data, **_rows(selection)) if limited else {}
        return {name: members(part) for name, part in found.items()}

    def does_not_fit(self, case: Case, memory_bytes: int) -> str | None:
        """Say why `case` cannot be judged in `memory_bytes` of device memory. None if it can, or if the problem does
        not know.

        Judge and worker hold its inputs and outputs at the same time, and each needs some workspace.
        """
        if not hasattr(self._module, "device_bytes"):
            return None
        needed = int(self.holders * JUDGING_HEADROOM * self._module.device_bytes(**case.parameters))
        if needed <= memory_bytes:
            return None
        return f"needs {needed / 1e9:.1f} GB of device memory; {memory_bytes / 1e9:.1f} GB are here"

    @property
    def holders(self) -> int:
        """How many parts a device's memory has: the judge's, the worker's, and the arena's where it is on the
        device."""
        return 2 if self._gpu_memory is None else 3

    def cost(self, case: Case) -> dict[str, dict[str, Any]]:
        """Bytes, and flops by dtype, of `case` for each storage format that the problem allows."""
        cost: dict[str, dict[str, Any]] = self._run("cost", **case.parameters)
        return cost

    def most_bytes(self, case: Case) -> float:
        """The bytes that `case` moves in the largest storage format."""
        return max(float(cost["bytes"]) for cost in self.cost(case).values())

    def _run(self, function: str, *arguments: Any, **named: Any) -> Any:
        """Call the problem's own code. Its exceptions become ProblemError: no submission is to blame."""
        try:
            return getattr(self._module, function)(*arguments, **named)
        except (MemoryError, torch.OutOfMemoryError) as error:
            kind = DeviceFull if isinstance(error, torch.OutOfMemoryError) else InfrastructureError
            raise kind(
                f"{self.problem.name}: no memory left for {function}: {error}",
                "end other programs that use memory (nvidia-smi and rocm-smi list those on GPUs), then judge again",
            ) from error
        except (Exception, SystemExit) as error:
            path = self.problem.folder / "reference.py"
            if isinstance(error, torch.AcceleratorError) or str(error).startswith(("CUDA error", "HIP error")):
                raise InfrastructureError(
                    f"the device failed in {path}, {function}: {str(error).splitlines()[0]}", CHECK_THE_DEVICE
                ) from error
            raise ProblemError(f"{path}: {function} failed: {type(error).__name__}: {error}") from error


def _rows(selection: Selection | None) -> dict[str, torch.Tensor]:
    return {} if selection is None else {"rows": selection.rows}


def members(outputs: Any) -> tuple[torch.Tensor, ...]:
    """Return one or several outputs as a tuple."""
    return tuple(outputs) if isinstance(outputs, tuple | list) else (outputs,)


def import_anew(problem: Problem) -> None:
    """Drop the cached modules of `reference`, so that `problem` imports them again. They may have changed or belong to
    another root."""
    root = str(places.mathematics(problem.folder))
    sys.path[:] = [root, *(entry for entry in sys.path if entry != root)]
    for name in [name for name in sys.modules if name.partition(".")[0] == "reference"]:
        del sys.modules[name]


def _import_reference(problem: Problem) -> types.ModuleType:
    path = problem.folder / "reference.py"
    root = str(places.mathematics(problem.folder))
    if root not in sys.path:
        sys.path.insert(0, root)  # for `import reference`, the mathematics that the problems share
    spec = importlib.util.spec_from_file_location(f"podium_problem_{problem.name}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up there
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise ProblemError(f"{path} cannot be imported: {type(error).__name__}: {error}") from error
    return module
