"""Compiling inline HIP and CUDA for chips that are not here, and reading what came out.

    compile(source, "gfx942") ─► Report: registers, spills, scratch, LDS and matrix instructions of each kernel
    missing("gfx950")         ─► the command that installs a compiler for it, or None when there is one

    gfx942, gfx1100   ROCm's clang, or any from 19 on
    gfx950            ROCm's clang, or any from 20 on, such as the one in PyPI's ziglang
    sm_90             NVRTC (PyPI: nvidia-cuda-nvrtc), or nvcc

Sources are those of `harness.hip`, which need no vendor's headers. AMD's are compiled to assembly, whose metadata hold
the resources; nothing is linked, so a function that is declared and nowhere defined goes unnoticed. Compiled, not run:
this says nothing of whether a kernel is right.
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
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml

from harness.hip_prelude import program
from harness.hip_runtime import NVIDIA, CompilationError, RuntimeCompiler, find_library

COMPILE_TIMEOUT_S = 120

_AMD_FLAGS = (
    *("-x", "hip", "--cuda-device-only", "--no-gpu-bundle-output", "-nogpulib", "-nogpuinc"),
    *("--target=x86_64-linux-gnu", "-std=c++17", "-O3", "-S", "-DPODIUM_NO_HEADERS"),
)


@dataclass(frozen=True)
class Target:
    """A chip to compile for. `lds_bytes`: the most shared memory a block can have."""

    vendor: str
    lds_bytes: int
    install: str


# LDS: AMD CDNA3, CDNA4 and RDNA3 ISA guides; shared memory: CUDA programming guide, compute capability 9.0.
TARGETS = {
    "gfx942": Target("amd", 64 << 10, "apt-get install clang-19"),
    "gfx950": Target("amd", 160 << 10, "pip install ziglang"),
    "gfx1100": Target("amd", 64 << 10, "apt-get install clang-19"),
    "sm_90": Target("nvidia", 227 << 10, "pip install nvidia-cuda-nvrtc"),
}


@dataclass(frozen=True)
class KernelReport:
    """What one kernel needs. Registers are counted a thread (SGPRs a wave); AGPRs and SGPRs are 0 on NVIDIA.

    registers: AMD's VGPRs with the AGPRs among them, where they share a file; NVIDIA's registers.
    spills: registers on AMD, bytes of spill stores and loads on NVIDIA. scratch_bytes: private memory a thread.
    lds_bytes: static shared memory a block. matrix_instructions: how often each occurs in the code.
    """

    name: str
    registers: int
    agprs: int
    sgprs: int
    spills: int
    scratch_bytes: int
    lds_bytes: int
    matrix_instructions: dict[str, int]
    over_limit: str | None


@dataclass(frozen=True)
class Report:
    """One source, compiled for one target."""

    target: str
    compiler: str
    kernels: tuple[KernelReport, ...]
    """By name."""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def compile(source: str, target: str, defines: Mapping[str, object] | None = None) -> Report:
    """Compile a source as `harness.hip.Module` would, for a target by name.

    Raises CompilationError with the compiler's log, LookupError where no compiler for the target is found, ValueError
    for an unknown target.
    """
    lacking = missing(target)
    if lacking is not None:
        raise LookupError(f"no compiler for {target} here: {lacking}")
    text = program(source, defines or {})
    if TARGETS[target].vendor == "amd":
        return _amd(text, target)
    return _nvrtc(text, target) if nvrtc() else _nvcc(text, target)


def missing(target: str) -> str | None:
    """The command that installs a compiler for `target`, or None if one is here. Raises ValueError if unknown."""
    if target not in TARGETS:
        raise ValueError(f"unknown target {target!r}; there are {', '.join(TARGETS)}")
    if TARGETS[target].vendor == "amd":
        found: object = clang_for(target)
    else:
        found = nvrtc() or shutil.which("nvcc")
    return None if found else TARGETS[target].install


@functools.cache
def clang_for(target: str) -> tuple[str, ...] | None:
    """The command of the first clang that knows `target`: ROCm's, the newest of the system's, the one in ziglang."""
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
    return Report(target, version, _amd_kernels(assembly, target))


def _amd_kernels(assembly: str, target: str) -> tuple[KernelReport, ...]:
    """The kernels of an AMD assembly file, from its metadata (LLVM's AMDGPU usage guide, "Code Object Metadata")."""
    metadata = re.search(r"\.amdgpu_metadata\n---\n(.*?)\n\.\.\.", assembly, re.DOTALL)
    kernels = yaml.safe_load(metadata[1])["amdhsa.kernels"] if metadata else []
    return _by_name(
        _kernel(
            target,
            name=kernel[".name"],
            registers=kernel[".vgpr_count"],
            agprs=kernel.get(".agpr_count", 0),
            sgprs=kernel[".sgpr_count"],
            spills=kernel.get(".vgpr_spill_count", 0) + kernel.get(".sgpr_spill_count", 0),
            scratch_bytes=kernel[".private_segment_fixed_size"],
            lds_bytes=kernel[".group_segment_fixed_size"],
            code=_body(assembly, rf"^{re.escape(kernel['.name'])}:", r"^\.Lfunc_end"),
            matrix=r"^\s+(v_s?mfmac?_\w+|v_s?wmmac?_\w+)",
        )
        for kernel in kernels
    )


def _nvrtc(text: str, target: str) -> Report:
    compiler = nvrtc()
    assert compiler is not None
    _, log = compiler.compile(text, f"{target}a", ["--ptxas-options=-v"])
    ptx, _ = compiler.compile(text, f"{target}a", product="PTX")
    return Report(target, compiler.version(), _nvidia_kernels(log, ptx.decode(), target))


def _nvcc(text: str, target: str) -> Report:
    version = re.search(r"release ([\d.]+)", _run(["nvcc", "--version"]))
    with tempfile.TemporaryDirectory() as folder:
        source, cubin = Path(folder) / "source.cu", Path(folder) / "source.cubin"
        source.write_text(text)
        flags = ["-cubin", f"-arch={target}a", "-std=c++17", "-Xptxas", "-v", "--keep", "--keep-dir", folder]
        log = _run(["nvcc", *flags, str(source), "-o", str(cubin)])
        ptx = (Path(folder) / "source.ptx").read_text()
    return Report(target, f"nvcc {version[1] if version else ''}".strip(), _nvidia_kernels(log, ptx, target))


def _nvidia_kernels(log: str, ptx: str, target: str) -> tuple[KernelReport, ...]:
    """The kernels that `ptxas -v` speaks of."""
    parts = re.split(r"Compiling entry function '(\w+)'", log)
    return _by_name(
        _kernel(
            target,
            name=name,
            registers=_number(r"Used (\d+) registers", said),
            agprs=0,
            sgprs=0,
            spills=_number(r"(\d+) bytes spill stores", said) + _number(r"(\d+) bytes spill loads", said),
            scratch_bytes=_number(r"(\d+) bytes stack frame", said),
            lds_bytes=_number(r"(\d+) bytes smem", said),
            code=_body(ptx, rf"\.entry {re.escape(name)}\(", r"^\}"),
            matrix=r"^\s+(?:@\S+\s+)?((?:wg)?mma\.(?:mma_async|sync)\.[\w.]+)",
        )
        for name, said in zip(parts[1::2], parts[2::2])
    )


def _by_name(kernels: Iterable[KernelReport]) -> tuple[KernelReport, ...]:
    return tuple(sorted(kernels, key=lambda kernel: kernel.name))


def _kernel(target: str, *, lds_bytes: int, code: str, matrix: str, **counts: Any) -> KernelReport:
    limit = TARGETS[target].lds_bytes
    over = f"{lds_bytes} bytes of shared memory, over the {limit} of {target}" if lds_bytes > limit else None
    instructions = dict(Counter(re.findall(matrix, code, re.MULTILINE)))
    return KernelReport(lds_bytes=lds_bytes, matrix_instructions=instructions, over_limit=over, **counts)


def _body(code: str, start: str, end: str) -> str:
    found = re.search(rf"{start}.*?{end}", code, re.DOTALL | re.MULTILINE)
    return found[0] if found else ""


def _number(pattern: str, text: str) -> int:
    found = re.search(pattern, text)
    return int(found[1]) if found else 0


def _run(command: list[str], text: str = "") -> str:
    """What a compiler printed, on either stream. Raises CompilationError when it fails."""
    try:
        done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=COMPILE_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        raise CompilationError(f"{command[0]} took longer than {COMPILE_TIMEOUT_S} s") from None
    if done.returncode:
        raise CompilationError(f"{Path(command[0]).name}: {(done.stderr + done.stdout).strip()}")
    return done.stdout + done.stderr
