"""Compiling every Triton launch of a submission for one target, in a process of its own, without a GPU.

    python3 -m harness.offline.cross_compile --target gfx942 --problem mla --file submissions/mla/triton_fp8.py

    problem     ─► inputs at the benchmark shapes, without storage (phantom)   ┐
    submission  ─► its own host code, on a card that is not there              ├─► custom_kernel
                                                          (absent_device)      ┘         │
                            each launch, with each configuration of an autotuner  ◄──────┘
                                   └─► compiled, or why it is not (triton_compiler, fault)

stdout gets one JSON document, whatever the submission prints:

    {"target", "triton", "compiler", "launches", "hip",
     "kernels": [{"kernel", "line", "configuration", "arguments", "autotuned", "cases",
                  "vgprs", "agprs", "sgprs" on AMD, "registers" on NVIDIA,
                  "spills", "scratch_bytes", "lds_bytes", "lds_limit", "threads", "matrix_instructions",
                  "occupancy": {"waves_per_simd", "of", "limited_by"}, "fault"}],
     "fault": null or {"message", "line"}}

A kernel's own fault is in its entry; the document's is one of the host code, which ended that case. `hip`: the
submission also launches kernels of harness.hip, which are not compiled here. vgprs are without the agprs. Of a case
with several steps, the first is followed. Nothing is run on a GPU, and nothing here says that a kernel is right.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib.util
import json
import os
import sys
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from harness.offline.targets import TARGETS
from harness.temporary import temporary_folder

if TYPE_CHECKING:  # what imports torch or Triton waits until the environment is set
    from collections.abc import Callable, Iterable

    from harness.model import Case, Problem
    from harness.offline.fault import Fault
    from harness.offline.triton_compiler import Kernel, TritonCompiler

WITHOUT_GPU = {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": "-1", "ROCR_VISIBLE_DEVICES": "-1"}
"""Where there are GPUs, this process does not see them."""


def main() -> None:
    arguments = parsed()
    document = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what the submission and the compilers print must not mix with the document
    os.environ.update(WITHOUT_GPU)
    os.environ.pop("TRITON_INTERPRET", None)
    sys.dont_write_bytecode = True
    warnings.filterwarnings("ignore", ".*use of fork.*", DeprecationWarning)  # of a process whose threads do nothing
    with contextlib.ExitStack() as stack:
        if "TRITON_CACHE_DIR" not in os.environ:
            os.environ["TRITON_CACHE_DIR"] = str(stack.enter_context(temporary_folder()))
        json.dump(cross_compiled(arguments), document)
    document.write("\n")
    document.close()


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python3 -m harness.offline.cross_compile")
    parser.add_argument("--target", required=True, choices=TARGETS)
    parser.add_argument("--problem", required=True)
    parser.add_argument("--file", required=True, type=Path)
    parser.add_argument("--cases", choices=("benchmark", "test"), default="benchmark")
    parser.add_argument("--emit", type=Path)
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parents[2])
    return parser.parse_args()


def cross_compiled(arguments: argparse.Namespace) -> dict[str, Any]:
    """The document. Raises the harness's errors for a problem or a file that cannot be read."""
    import triton

    from harness import catalog
    from harness.offline.triton_compiler import TritonCompiler

    problem = catalog.load_problem(arguments.root, arguments.problem)
    file = arguments.file.resolve()
    catalog.load_submission(problem, file)
    compiler = TritonCompiler(arguments.target, file, arguments.emit)
    hip = HipLaunches()
    cases = problem.cases.benchmark if arguments.cases == "benchmark" else problem.cases.test
    fault = followed(problem, cases, file, compiler, hip)
    return {
        "target": arguments.target,
        "triton": triton.__version__,
        "compiler": compiler_of(arguments.target, triton.__version__),
        "launches": compiler.launches,
        "hip": hip.any,
        "kernels": [entry(kernel, arguments.target) for kernel in compiler.kernels],
        "fault": asdict(fault) if fault else None,
    }


def followed(
    problem: Problem, cases: Iterable[Case], file: Path, compiler: TritonCompiler, hip: HipFollower
) -> Fault | None:
    """Import the submission and call it for every case; the first fault of its host code."""
    from harness.offline import absent_device, fault
    from harness.offline.phantom import Phantoms
    from harness.offline.triton_compiler import NotCompiled
    from harness.worker import load

    phantoms, faults = Phantoms(), []
    absent_device.present(compiler.target, compiler, phantoms)
    empty_input = input_maker(problem)
    with phantoms:
        try:
            submission = load.load(file, interpreted=False)
        except (Exception, SystemExit) as error:
            return fault.of_exception(error, file)
        hip.follow()
        for case in cases:
            compiler.case = hip.case = case.label
            data = empty_input(**case.parameters, device="cuda")
            phantoms.keep([part for name, part in zip(problem.inputs, data) if name not in problem.in_place])
            try:
                submission.kernel(data)
            except NotCompiled:
                pass  # the kernel's own entry says why
            except (Exception, SystemExit) as error:
                faults.append(fault.of_exception(error, file))
    return faults[0] if faults else None


def input_maker(problem: Problem) -> Callable[..., Any]:
    """The problem's empty_input, or its generate_input with a seed. Raises ProblemError if it cannot be imported."""
    from harness.errors import ProblemError

    path = problem.folder / "reference.py"
    sys.path.insert(0, str(problem.folder.parents[1]))  # for `import reference`
    spec = importlib.util.spec_from_file_location(f"podium_problem_{problem.name}", path)
    assert spec is not None and spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise ProblemError(f"{path} cannot be imported: {type(error).__name__}: {error}") from error
    return getattr(module, "empty_input", None) or functools.partial(module.generate_input, seed=0)


class HipFollower(Protocol):
    """What follows launches of harness.hip's kernels. `case`: the label of the one that they are of."""

    case: str

    def follow(self) -> None:
        """From here on; called once the submission is imported."""


class HipLaunches:
    """Launches of harness.hip's kernels: their arguments are checked, and host code goes on."""

    any = False
    case = ""

    def follow(self) -> None:
        hip = sys.modules.get("harness.hip")
        if hip is None:
            return
        checked_launch = hip.Kernel.__call__

        def launch(kernel: Any, *arguments: Any, **named: Any) -> None:
            self.any = True
            with contextlib.suppress(hip.NoDevice):
                checked_launch(kernel, *arguments, **named)

        def not_here(kernel: Any) -> NoReturn:
            raise hip.NoDevice(f"{kernel.name} is compiled by harness.offline.inline")

        hip.Kernel.__call__, hip.Kernel._compile_only = launch, not_here


def compiler_of(target: str, triton_version: str) -> str:
    """What made the code, in words."""
    if TARGETS[target].vendor == "amd":
        return f"Triton {triton_version} with its LLVM"
    from triton.backends.nvidia.compiler import get_ptxas

    return f"Triton {triton_version} with ptxas {get_ptxas(TARGETS[target].arch).version}"


def entry(kernel: Kernel, target: str) -> dict[str, Any]:
    """A kernel as the document has it."""
    report, registers = kernel.report, {}
    if report is not None:
        registers = {"registers": report.registers}
        if TARGETS[target].vendor == "amd":
            registers = {"vgprs": report.registers - report.agprs, "agprs": report.agprs, "sgprs": report.sgprs}
    resources = asdict(report) if report else {}
    for said_otherwise in ("name", "registers", "agprs", "sgprs", "over_limit"):
        resources.pop(said_otherwise, None)
    return {
        "kernel": kernel.name,
        "line": kernel.line,
        "configuration": kernel.configuration,
        "arguments": kernel.arguments,
        "autotuned": kernel.autotuned,
        "cases": kernel.cases,
        **registers,
        **resources,
        "fault": asdict(kernel.fault) if kernel.fault else None,
    }


if __name__ == "__main__":
    main()
