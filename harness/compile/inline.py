"""Compile a submission's inline HIP or CUDA for one target, in a process of its own.

    python3 -m harness.compile.inline --target gfx942 --cpu FOLDER --inputs FOLDER --file mine.py [--emit DIR]

    --cpu     the small CPU cases, --inputs the other cases on the target's card: both are written by `described`
    --emit    DIR/<target>/<kernels>-<hash>.hip       the compiler's input: macros, prelude, source

`verbs/check` starts this in the sandbox; by itself it confines nothing.

The submission is called with a GPU that records launches (`rehearsal`). Then every `harness.hip` module that the
submission created is compiled, and the result is printed as one `Compilation` document. Sources for torch's load_inline
are compiled too, if they include no headers. Others need torch's headers and the vendor's compiler, and the document
says so.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from harness import hip
from harness.chips.code_object import KernelReport
from harness.chips.targets import TARGETS, occupancy
from harness.command import how_to_get_offline
from harness.compile import telling
from harness.compile.compilation import Compilation, CompiledKernel, Flaw, OccupancyDocument
from harness.compile.grid import refusal_of_cluster
from harness.compile.inputs import Inputs
from harness.compile.rehearsal import Launched, Rehearsal, follow, needs_torch, rehearse
from harness.hip import compilers
from harness.hip.runtime import CompilationError
from harness.hip.vocabulary import hint

NEEDS_TORCH = {
    "amd": "load_inline's sources include headers; torch builds them, with hipcc and a ROCm build of torch",
    "nvidia": "load_inline's sources include headers; torch builds them, with nvcc and a CUDA build of torch",
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="harness.compile.inline")
    parser.add_argument("--target", required=True, choices=tuple(TARGETS))
    parser.add_argument("--cpu", type=Path, required=True)
    parser.add_argument("--inputs", type=Path, required=True)
    parser.add_argument("--file", type=Path, required=True)
    parser.add_argument("--emit", type=Path)
    options = parser.parse_args()
    document = os.fdopen(os.dup(1), "w")  # output of the submission goes to stderr
    os.dup2(2, 1)
    cpu, inputs = Inputs.read(options.cpu), Inputs.read(options.inputs) if options.inputs.is_dir() else None
    compilation = compile_submission(cpu, inputs, options.file.resolve(), options.target, options.emit)
    document.write(compilation.model_dump_json() + "\n")
    document.flush()
    sys.stdout.flush()
    os._exit(0)  # skip the submission's threads and exit hooks


def compile_submission(
    cpu: Inputs, inputs: Inputs | None, path: Path, target: str, emit: Path | None = None
) -> Compilation:
    """Import and rehearse the submission, then compile its modules. No exception of the submission escapes.

    `inputs`: None if Triton is missing, whose driver is part of the target's simulated card.
    """
    rehearsal, sources = Rehearsal(target), list[str]()
    fault, refused = rehearse(cpu, path, rehearsal, sources)
    if refused and inputs is not None:
        fault = follow(inputs, path, target, rehearsal, sources)
    every = [*hip.modules, *(hip.Module(source) for source in sources if not needs_torch(source))]
    modules = [module for module in every if module.refusal(target) is None]
    if every and not modules:
        refusal = every[0].refusal(target)
        return Compilation(target=target, hip=True, launches=rehearsal.launches, fault=fault, refusal=refusal)
    lacking = compilers.missing(target) if modules else None
    if lacking is not None:
        how = f"no compiler: {lacking}, or {how_to_get_offline()}"
        return Compilation(target=target, hip=True, launches=rehearsal.launches, fault=fault, missing=how)
    text = path.read_text(encoding="utf-8", errors="replace")
    kernels: list[CompiledKernel] = []
    compiler: str | None = None
    missing: str | None = None
    for module in modules:
        if emit is not None:
            _write_program(module, emit / target)
        try:
            telling.tell(f"the compiler for a source of {len(module.source.splitlines()):,} lines")
            report = compilers.compile(module.source, target, module.defines)
        except CompilationError as error:
            kernels.append(_not_compiled(module, text, str(error)))
            continue
        compiler = report.compiler
        names = {kernel.name for kernel in report.kernels}
        kernels += [_kernel(module, kernel, target, text, rehearsal) for kernel in report.kernels]
        for launched_module, name in rehearsal.launched:
            if launched_module is module and name not in names:
                fault = fault or Flaw(message=f'the source defines no extern "C" __global__ {name}')
    if any(map(needs_torch, sources)):
        missing = NEEDS_TORCH[TARGETS[target].vendor]
    return Compilation(
        target=target,
        compiler=compiler,
        kernels=tuple(kernels),
        fault=fault,
        launches=rehearsal.launches,
        hip=True,
        missing=missing,
    )


def _kernel(module: hip.Module, report: KernelReport, target: str, text: str, rehearsal: Rehearsal) -> CompiledKernel:
    launched = rehearsal.launched.get((module, report.name), Launched())
    lds_bytes = report.lds_bytes + launched.shared_bytes
    defined = _definition(module.source, report.name)
    line = None if defined is None else module.line_in(text, defined)
    amd = TARGETS[target].vendor == "amd"
    waves = occupancy(
        target,
        registers=report.registers,
        sgprs=report.sgprs,
        lds_bytes=lds_bytes,
        threads=launched.threads or report.threads,
    )
    refusal, threads = None, f"{launched.threads:,} threads a block"
    if lds_bytes > report.lds_limit:
        refusal = f"asks for {lds_bytes:,} bytes of shared memory; a block of {target} has {report.lds_limit:,}"
    elif launched.threads > report.threads:
        refusal = f"is launched with {threads}, and was compiled for up to {report.threads:,}"
    elif launched.threads and not waves.waves_per_simd:
        refusal = f"is launched with {threads}, which need more {waves.limited_by} than {target} has"
    elif launched.cases:
        refusal = _too_little(launched.arguments, report.parameters) or refusal_of_cluster(
            report.cluster, launched.grids
        )
    return CompiledKernel(
        kernel=report.name,
        line=line,
        configuration=_readable(module.defines),
        cases=tuple(launched.cases),
        vgprs=report.vgprs if amd else None,
        agprs=report.agprs if amd else None,
        sgprs=report.sgprs if amd else None,
        registers=None if amd else report.registers,
        spills=report.spills,
        scratch_bytes=report.scratch_bytes,
        lds_bytes=lds_bytes,
        lds_limit=report.lds_limit,
        matrix_instructions=report.matrix_instructions,
        occupancy=OccupancyDocument(**asdict(waves)),
        fault=Flaw(message=f"{report.name} {refusal}", line=line) if refusal else None,
    )


def _too_little(arguments: tuple[int, ...], parameters: tuple[int, ...]) -> str | None:
    """Say which parameter a launch would read from memory that holds none, or None. What is too much is not read."""
    if len(arguments) < len(parameters):
        return f"takes {len(parameters)} arguments, and its signature has {len(arguments)}"
    for number, (given, taken) in enumerate(zip(arguments, parameters), start=1):
        if given < taken:
            return f"takes {taken} bytes as argument {number}, and its signature gives {given}"
    return None


def _readable(defines: Mapping[str, object]) -> dict[str, Any]:
    """Return the macros in JSON form. A value that is not a number becomes a string."""
    return {name: value if isinstance(value, bool | int | float) else str(value) for name, value in defines.items()}


def _write_program(module: hip.Module, folder: Path) -> None:
    program = hip.program(module.source, module.defines)
    folder.mkdir(parents=True, exist_ok=True)
    name = "+".join(_kernel_names(module.source))[:100] or "source"
    (folder / f"{name}-{hashlib.sha256(program.encode()).hexdigest()[:8]}.hip").write_text(program)


def _kernel_names(source: str) -> list[str]:
    plain = re.sub(r"__launch_bounds__\s*\([^)]*\)", "", source)
    return re.findall(r"__global__[^;{(]*?\b(\w+)\s*\(", plain)


def _not_compiled(module: hip.Module, text: str, log: str) -> CompiledKernel:
    """Return an entry with the compiler's first error and its line in the file."""
    found = re.search(r"source(?::(\d+):\d+:|\((\d+)\):) (?:fatal )?error: (.*)", log)
    stated = re.search(r"^.*\berror\b.*", log, re.MULTILINE)  # of ptxas or the linker, below what they inform of
    elsewhere = (stated[0] if stated else log.strip().splitlines()[0]).strip(" \0")
    message = f"error: {found[3]}{hint(found[3])}" if found else elsewhere
    line = module.line_in(text, int(found[1] or found[2])) if found else None
    name = ", ".join(_kernel_names(module.source)) or "(source)"
    return CompiledKernel(
        kernel=name, line=line, configuration=_readable(module.defines), fault=Flaw(message=message, line=line)
    )


def _definition(source: str, name: str) -> int | None:
    """Return the line of a source on which a kernel is defined."""
    found = re.search(rf"__global__[^;{{]*?\b{re.escape(name)}\s*\(", source)
    return source.count("\n", 0, found.end()) + 1 if found else None


if __name__ == "__main__":
    main()
