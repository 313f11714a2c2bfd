"""Compile every Triton launch of a submission for one target, in a process of its own, without a GPU.

    python3 -m harness.compile.cross_compile --target gfx942 --inputs FOLDER --file submissions/mla/triton_fp8.py

    FOLDER      ─► inputs of the benchmark and test cases, without storage    ┐
    submission  ─► its own host code, on a simulated card                      ├─► custom_kernel, twice
                                                          (absent_device)      ┘         │
                            each launch, with each configuration of an autotuner  ◄──────┘
                                   └─► compiled, or the reason why not (triton_compiler, fault)

`described` writes FOLDER, because the process that runs a submission may not see the problem. `verbs/check` starts this
module in the sandbox; by itself it confines nothing. stdout gets one JSON document, even if the submission prints:

    {"target", "triton", "compiler", "launches", "hip",
     "kernels": [{"kernel", "line", "configuration", "arguments", "autotuned", "cases",
                  "vgprs", "agprs", "sgprs" on AMD, "registers" on NVIDIA,
                  "spills", "scratch_bytes", "lds_bytes", "lds_limit", "threads", "matrix_instructions",
                  "occupancy": {"waves_per_simd", "of", "limited_by"}, "fault"}],
     "fault": null or {"message", "line"}}

The fault of a kernel is in its entry. The fault of the document is one of the host code, which ended that case. `hip`:
the submission also launches kernels of harness.hip, which are not compiled here. `vgprs` excludes the agprs. If a case
has several steps, only the first is followed. Nothing runs on a GPU, and a kernel that compiles may still be wrong.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
import warnings
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from harness.chips.targets import TARGETS

if TYPE_CHECKING:  # imports of torch and Triton must wait until the environment is set
    from harness.compile.fault import CompileFault
    from harness.compile.inputs import Inputs
    from harness.compile.phantom import Phantoms
    from harness.compile.triton_compiler import TritonCompiler, TritonKernel
    from harness.worker.load import LoadedSubmission

WITHOUT_GPU = {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": "-1", "ROCR_VISIBLE_DEVICES": "-1"}
"""Environment variables that hide the GPUs of this machine from this process."""

CALLS = 2
"""Of each case, as the judge makes: host code may launch other kernels once it knows a shape."""

RETURNED_ON_HOST = (
    "custom_kernel returns a tensor that is on the host (made without device=?); outputs are on the device"
)


def main() -> None:
    arguments = parsed()
    document = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # output of the submission and the compilers must not mix with the document
    os.environ.update(WITHOUT_GPU)
    os.environ.pop("TRITON_INTERPRET", None)
    sys.dont_write_bytecode = True
    warnings.filterwarnings("ignore", ".*use of fork.*", DeprecationWarning)  # the other threads are idle
    with contextlib.ExitStack() as stack:
        if "TRITON_CACHE_DIR" not in os.environ:
            os.environ["TRITON_CACHE_DIR"] = str(stack.enter_context(tempfile.TemporaryDirectory()))
        json.dump(cross_compiled(arguments), document)
    document.write("\n")
    document.close()


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python3 -m harness.compile.cross_compile")
    parser.add_argument("--target", required=True, choices=TARGETS)
    parser.add_argument("--inputs", required=True, type=Path)
    parser.add_argument("--file", required=True, type=Path)
    parser.add_argument("--emit", type=Path)
    parser.add_argument("--at-once", type=int, default=1, metavar="N", help="kernels to compile side by side")
    return parser.parse_args()


def cross_compiled(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the document. Raises OSError and ValueError if the inputs cannot be read."""
    import triton

    from harness.compile.inputs import Inputs
    from harness.compile.triton_compiler import TritonCompiler

    file = arguments.file.resolve()
    compiler = TritonCompiler(arguments.target, file, arguments.emit)
    hip = HipLaunches()
    fault = followed(Inputs.read(arguments.inputs), file, compiler, hip, arguments.at_once)
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
    inputs: Inputs, file: Path, compiler: TritonCompiler, hip: HipFollower, at_once: int = 1
) -> CompileFault | None:
    """Import the submission and call it for every case. Return the first fault of its host code. `at_once`: the number
    of kernels to compile side by side."""
    from harness.compile import absent_device, ahead, allocation, fault, telling
    from harness.compile.phantom import Phantoms
    from harness.worker import load

    phantoms = Phantoms(allocation.most_bytes(compiler.target))
    absent_device.present(compiler.target, compiler, phantoms)

    def gather(gatherer: TritonCompiler) -> None:
        absent_device.present(compiler.target, gatherer, phantoms)
        called(submission, inputs, file, gatherer, hip, phantoms)

    with phantoms:
        try:
            telling.tell("the import of the file")
            submission = load.load(file, interpreted=False)
        except (Exception, SystemExit) as error:
            return fault.of_exception(error, file)
        hip.follow()
        if at_once > 1:
            compiler.ahead = ahead.outcomes(compiler, gather, at_once)
        return called(submission, inputs, file, compiler, hip, phantoms)


def called(
    submission: LoadedSubmission,
    inputs: Inputs,
    file: Path,
    compiler: TritonCompiler,
    hip: HipFollower,
    phantoms: Phantoms,
) -> CompileFault | None:
    """Call the submission for every case, CALLS times. Return the first fault of its host code."""
    from harness.compile import fault, telling
    from harness.compile.nested import leaves
    from harness.compile.phantom import device_of
    from harness.compile.triton_compiler import NotCompiled

    faults = []
    for case, call in product(inputs.cases, range(CALLS)):
        compiler.case = hip.case = case.label
        compiler.again = hip.again = call > 0
        if not compiler.again:
            telling.tell(f"custom_kernel with {case.label}")
        data = case.data(phantoms)
        phantoms.keep([part for name, part in zip(inputs.names, data) if name not in inputs.in_place])
        try:
            returned = submission.kernel(data)
            if any(device_of(tensor).type == "cpu" for tensor in leaves(returned)):
                faults.append(fault.CompileFault(RETURNED_ON_HOST))
        except NotCompiled:
            pass  # the kernel's own entry holds the reason
        except (Exception, SystemExit) as error:
            faults.append(fault.of_exception(error, file))
    return faults[0] if faults else None


class HipFollower(Protocol):
    """Follows launches of harness.hip's kernels. `case`: the label of the current case. `again`: it was called
    before."""

    case: str
    again: bool

    def follow(self) -> None:
        """Start following. Called once the submission is imported."""


class HipLaunches:
    """Checks the arguments of launches of harness.hip's kernels, and lets the host code continue."""

    any = again = False
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
            raise hip.NoDevice(f"{kernel.name} is compiled by harness.compile.inline")

        hip.Kernel.__call__, hip.Kernel._compile_only = launch, not_here


def compiler_of(target: str, triton_version: str) -> str:
    """Name the compiler and its version."""
    if TARGETS[target].vendor == "amd":
        return f"Triton {triton_version} with its LLVM"
    from triton.backends.nvidia.compiler import get_ptxas

    return f"Triton {triton_version} with ptxas {get_ptxas(TARGETS[target].arch).version}"


def entry(kernel: TritonKernel, target: str) -> dict[str, Any]:
    """Return a kernel's entry in the document."""
    report, registers = kernel.report, {}
    if report is not None:
        registers = {"registers": report.registers}
        if TARGETS[target].vendor == "amd":
            registers = {"vgprs": report.vgprs, "agprs": report.agprs, "sgprs": report.sgprs}
    resources = asdict(report) if report else {}
    for said_otherwise in ("name", "registers", "vgprs", "agprs", "sgprs", "over_limit"):
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
