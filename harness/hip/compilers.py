"""Compiles inline HIP and CUDA for chips that are not in this machine, and reads the compilers' reports.

    compile(source, "gfx942") ─► Report: registers, spills, scratch, LDS and matrix instructions of each kernel
    code_object(source, ..)   ─► a loadable code object, for the emulator, and the assembly
    missing("gfx950")         ─► the command that installs a compiler for it, or None if there is one

    AMD's chips   ROCm's clang, any from 20 on (but for gfx950 from 19 on), or that of PyPI's ziglang from 0.15 on
    sm_90         NVRTC (PyPI: nvidia-cuda-nvrtc), or nvcc

Sources are those of `harness.hip`, which need no vendor's headers. AMD sources are compiled to assembly, whose metadata
hold the resources. Nothing is linked, so a call of an undefined function is not noticed. Nothing is run, so this does
not show whether a kernel is right.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from harness.chips.code_object import KernelReport, amd_kernels, nvidia_kernels
from harness.chips.targets import DEFAULT_TARGETS, TARGETS
from harness.command import CLANG, NVRTC, how_to_get_offline, pip_install
from harness.hip.prelude import program
from harness.hip.runtime import NVIDIA, CompilationError, RuntimeCompiler, find_library
from harness.hip.vocabulary import hint

__all__ = [
    "DEFAULT_TARGETS",
    "TARGETS",
    "KernelReport",
    "Report",
    "clang_for",
    "code_object",
    "compile",
    "missing",
    "nvrtc",
]

COMPILE_TIMEOUT_S = 120

_AMD_FLAGS = (
    *("-x", "hip", "--cuda-device-only", "--no-gpu-bundle-output", "-nogpulib", "-nogpuinc"),
    *("--target=x86_64-linux-gnu", "-std=c++17", "-O3", "-S", "-DPODIUM_NO_HEADERS"),
)


_OF_PIP = {"amd": CLANG, "nvidia": NVRTC}
"""By vendor the package with a compiler for all of its chips: a distribution's clang may know some of them only."""


@dataclass(frozen=True)
class Report:
    """One source, compiled for one target."""

    target: str
    compiler: str
    kernels: tuple[KernelReport, ...]
    """Sorted by name."""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def compile(source: str, target: str, defines: Mapping[str, object] | None = None) -> Report:
    """Compile a source as `harness.hip.Module` would, for a target by name.

    Raises CompilationError with the compiler's log, LookupError if there is no compiler for the target, ValueError for
    an unknown target.
    """
    lacking = missing(target)
    if lacking is not None:
        raise LookupError(f"no compiler for {target} here: {lacking}")
    text = program(source, defines or {})
    if TARGETS[target].vendor == "amd":
        return _amd(text, target)
    return _nvrtc(text, target) if nvrtc() else _nvcc(text, target)


def code_object(source: str, target: str, defines: Mapping[str, object] | None = None) -> tuple[bytes, str]:
    """A source as a loadable code object with line information, and the assembly that it was made from.

    `target`: a chip of AMD's. Raises as `compile` does, and LookupError if there is no linker.
    """
    lacking = missing(target)
    if lacking is not None:
        raise LookupError(f"no compiler for {target} here: {lacking}, or {how_to_get_offline()}")
    command = clang_for(target)
    assert command is not None
    flags = (*_AMD_FLAGS, "-gline-tables-only", f"--offload-arch={target}")
    with tempfile.TemporaryDirectory() as folder:
        text, part, whole = (str(Path(folder) / f"source.{kind}") for kind in ("s", "o", "hsaco"))
        _run([*command, *flags, "-", "-o", text], program(source, defines or {}))  # to a file: warnings are on stdout
        _run([*command, "-x", "assembler", "--target=amdgcn-amd-amdhsa", f"-mcpu={target}", "-c", text, "-o", part])
        _run([*_linker(command), "-shared", part, "-o", whole])
        return Path(whole).read_bytes(), Path(text).read_text()


def _linker(clang: tuple[str, ...]) -> list[str]:
    """The lld that belongs to a clang. Raises LookupError."""
    if len(clang) > 1:  # zig clang
        return [clang[0], "ld.lld"]
    version = clang[0].rpartition("clang")[2]
    beside = str(Path(clang[0]).resolve().parent / "ld.lld")
    found = shutil.which(beside) or shutil.which(f"ld.lld{version}") or shutil.which("ld.lld")
    if not found:
        raise LookupError(f"{clang[0]} has no ld.lld beside it: install lld, or {how_to_get_offline()}")
    return [found]


def missing(target: str) -> str | None:
    """The command that installs a compiler for `target`, or None if one is here. Raises ValueError if unknown."""
    if target not in TARGETS:
        raise ValueError(f"unknown target {target!r}; there are {', '.join(TARGETS)}")
    if TARGETS[target].vendor == "amd":
        found: object = clang_for(target)
    else:
        found = nvrtc() or shutil.which("nvcc")
    if found:
        return None
    return pip_install(_OF_PIP[TARGETS[target].vendor])


@functools.cache
def clang_for(target: str) -> tuple[str, ...] | None:
    """The command of the first clang that supports `target`: ROCm's, the newest of the system's, or the one in
    ziglang."""
    for command in _clangs():
        with contextlib.suppress(CompilationError, OSError):
            _run([*command, *_AMD_FLAGS, f"--offload-arch={target}", "-", "-o", "-"], program("", {}))
            return command
    return None


@functools.cache
def nvrtc() -> RuntimeCompiler | None:
    library = find_library(NVIDIA.compiler)
    return RuntimeCompiler(library, NVIDIA) if library else None


def _clangs() -> list[tuple[str, ...]]:
    hipcc = shutil.which("hipcc")
    rocm = Path(hipcc).resolve().parents[1] if hipcc else Path(os.environ.get("ROCM_PATH", "/opt/rocm"))
    names = [str(rocm / "llvm" / "bin" / "clang"), *(f"clang-{version}" for version in range(29, 18, -1)), "clang"]
    found: list[tuple[str, ...]] = [(path,) for name in names if (path := shutil.which(name))]
    wheel = importlib.util.find_spec("ziglang")
    for folder in (wheel.submodule_search_locations or []) if wheel else []:
        found.append((str(Path(folder) / "zig"), "clang"))
    return found


def _amd(text: str, target: str) -> Report:
    command = clang_for(target)
    assert command is not None
    version = _run([*command, "--version"]).splitlines()[0]
    assembly = _run([*command, *_AMD_FLAGS, f"--offload-arch={target}", "-", "-o", "-"], text)
    return Report(target, version, amd_kernels(assembly, target))


def _nvrtc(text: str, target: str) -> Report:
    compiler = nvrtc()
    assert compiler is not None
    _, log = compiler.compile(text, f"{target}a", ["--ptxas-options=-v"])
    ptx, _ = compiler.compile(text, f"{target}a", product="PTX")
    return Report(target, compiler.version(), nvidia_kernels(log, ptx.decode(), target))


def _nvcc(text: str, target: str) -> Report:
    version = re.search(r"release ([\d.]+)", _run(["nvcc", "--version"]))
    with tempfile.TemporaryDirectory() as folder:
        source, cubin = Path(folder) / "source.cu", Path(folder) / "source.cubin"
        source.write_text(text)
        flags = ["-cubin", f"-arch={target}a", "-std=c++17", "-Xptxas", "-v", "--keep", "--keep-dir", folder]
        log = _run(["nvcc", *flags, str(source), "-o", str(cubin)])
        ptx = (Path(folder) / "source.ptx").read_text()
    return Report(target, f"nvcc {version[1] if version else ''}".strip(), nvidia_kernels(log, ptx, target))


def _run(command: list[str], text: str = "") -> str:
    """The output of a compiler, on both streams. Raises CompilationError if it fails."""
    try:
        done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=COMPILE_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        raise CompilationError(f"{command[0]} took longer than {COMPILE_TIMEOUT_S} s") from None
    if done.returncode:
        log = (done.stderr + done.stdout).strip()
        raise CompilationError(f"{Path(command[0]).name}: {log}{hint(log)}")
    return done.stdout + done.stderr
