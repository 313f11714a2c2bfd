"""Triton's compiler for one target. It compiles every kernel in every specialisation that host code launches.

    compile(source) ──► fork ──► Triton's compile ──► its cache, on disk ──► read here       ─► CompiledKernel
                          └─► exception, diagnostics, signal ──► CompileFault                ─► Uncompiled

The fork may have been made before, beside others: `ahead`.

A kernel that crashes LLVM ends only the forked process. A fault does not stop the host code: launching a kernel that
did not compile does nothing.
"""

from __future__ import annotations

import functools
import io
import re
import resource
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from triton import knobs
from triton.compiler.compiler import compile as upstream_compile
from triton.compiler.compiler import make_backend
from triton.runtime.cache import triton_key

from harness.chips.code_object import KernelReport, amd_kernels, nvidia_kernels
from harness.chips.targets import TARGETS
from harness.compile import fault, telling
from harness.compile.apart import ForkedCall, apart
from harness.compile.fault import CompileFault
from harness.compile.grid import MAX_CLUSTER, refusal

KERNEL_CPU_S = 30
"""The processor time for one kernel. A kernel that takes longer is of no use: a run would not wait for it either."""

TOTAL_CPU_S = 240.0
"""The processor time for all of a submission's kernels. It is not clock time, since the same kernels take several times
as long beside other work."""

KERNEL_WALL_S = 240.0
"""The clock time for one kernel. A compiler that uses no processor time waits for something that never comes."""

A_KERNEL = f"{KERNEL_CPU_S} s of processor time for a kernel, and {KERNEL_WALL_S:g} s by the clock"
ALL_KERNELS = f"{TOTAL_CPU_S:g} s of processor time for all kernels of a target"

MAX_THREADS = 1024
KNOWN_OF_ARGUMENTS = {"divisibility": "16-aligned", "pointer_range": "under 2 GiB"}
"""Triton's specialisations of arguments, by the names of its attributes. Only AMD's backend uses sizes."""

STAGES = ("ttir", "ttgir", "llir", "amdgcn", "ptx")


class NotCompiled(AttributeError):
    """Host code uses a kernel that did not compile."""


@dataclass
class TritonKernel:
    """One kernel in one specialisation and with one set of options.

    `line`: the line of its `def`. `configuration`: constexprs and options. `arguments`: the type and specialisation of
      each.
    `threads`: of a block. `cases`: the labels of the cases that launch it. `autotuned`: an autotuner chooses among
      several; a kernel that does not fit the device is skipped there.
    """

    name: str
    line: int | None
    configuration: dict[str, Any]
    arguments: dict[str, str]
    autotuned: bool = False
    threads: int = 0
    cases: list[str] = field(default_factory=list)
    report: KernelReport | None = None
    fault: CompileFault | None = None


@dataclass(frozen=True)
class CompileRequest:
    """What Triton's compile is asked for: its arguments."""

    src: Any
    target: Any
    options: dict[str, Any] | None
    named: dict[str, Any]

    @functools.cached_property
    def key(self) -> str:
        """The same for requests of the same code."""
        return f"{self.src.hash()} {self.target} {sorted((self.options or {}).items())}"

    def make(self) -> Any:
        """Compile, or read the cache. Return Triton's CompiledKernel. Raises what Triton raises."""
        return upstream_compile(self.src, target=self.target, options=self.options, **self.named)


@dataclass
class AutotunerTrial:
    """A trial call of an autotuner, whose launches do not count. `failed`: one of its kernels did not compile."""

    failed: bool = False


class TritonCompiler:
    """Replaces `triton.compile`. `file`: the submission. `emit`: a folder for the output of each stage. `ahead`: what
    came of requests that were compiled before they are made, by their keys. `launches`: their number, but for those
    while `again` is set: a case that is called once more."""

    def __init__(self, target: str, file: Path, emit: Path | None = None) -> None:
        self.target, self.file, self.emit = target, file, emit
        self.kernels: list[TritonKernel] = []
        self.launches = 0
        self.again = False
        self.case = ""
        self.ahead: dict[str, ForkedCall] = {}
        self._began_s = _processor_s_of_forks()
        self._by_hash: dict[str, TritonKernel] = {}
        self._by_binary: dict[bytes, KernelReport] = {}
        self._trials: list[AutotunerTrial] = []

    def compile(self, src: Any, target: Any = None, options: dict[str, Any] | None = None, **named: Any) -> Any:
        """Compile a kernel in Python, as triton.compile does. Return Triton's CompiledKernel, or Uncompiled."""
        kernel = self._described(src, target, options or {})
        request = CompileRequest(src, target, options, named)
        outcome, limit = self.ahead.pop(request.key, None), ""  # once: a fault removes what it left in the cache
        if outcome is None:
            telling.tell(f"kernel {described(kernel)}")
            self.get_ready(request)
            wall_s, limit = (KERNEL_WALL_S, A_KERNEL) if self.left_s() > 0 else (0.0, ALL_KERNELS)
            outcome = apart(lambda: self.compile_to_cache(request), cpu_s=KERNEL_CPU_S, wall_s=wall_s)
        kernel.fault = fault.of_outcome(outcome, described(kernel), self.file, kernel.line, limit)
        if outcome.status == 0 and outcome.returned is None:
            made = request.make()
            if kernel.fault is not None:
                shutil.rmtree(Path(made.metadata_group[f"{src.name[:150]}.json"]).parent)  # else it is found next time
            elif made.hash in self._by_hash:
                return made
            else:
                self._read(kernel, made)
        self.kernels.append(kernel)
        return made if kernel.fault is None else Uncompiled(self, kernel)

    def left_s(self) -> float:
        """The processor time that is left for the submission's kernels."""
        return TOTAL_CPU_S - (_processor_s_of_forks() - self._began_s)

    def get_ready(self, request: CompileRequest) -> None:
        """Compute what forks would compute each: it is kept in memory."""
        triton_key(), make_backend(request.target).hash()

    def launched(self, kernel: TritonKernel | str, grid: tuple[int, int, int] = (1, 1, 1)) -> None:
        """Record a launch. `kernel` may be the kernel's hash."""
        if isinstance(kernel, str):
            kernel = self._by_hash[kernel]
        if kernel.fault is None and (why := refusal(grid, kernel.threads, TARGETS[self.target].vendor)):
            kernel.fault = CompileFault(f"{described(kernel)}: {why}", kernel.line)
        if self.case not in kernel.cases:
            kernel.cases.append(self.case)
        for trial in self._trials:
            trial.failed |= kernel.fault is not None
        self.launches += not self._trials and not self.again

    @contextmanager
    def trial(self) -> Iterator[AutotunerTrial]:
        """Mark the launches in this block as an autotuner's."""
        self._trials.append(AutotunerTrial())
        try:
            yield self._trials[-1]
        finally:
            self._trials.pop()

    def resources_of(self, binary: bytes) -> tuple[int, int]:
        """Return the registers per thread and the spills of a compiled kernel, as a driver does when it loads the
        kernel."""
        report = self._by_binary[binary]
        return report.registers, report.spills

    def _described(self, src: Any, target: Any, options: dict[str, Any]) -> TritonKernel:
        parameters = src.fn.params
        constants = {path: getattr(value, "value", value) for path, value in src.constants.items()}
        configuration = {p.name: readable(constants[p.num,]) for p in parameters if p.is_constexpr}
        defaults = vars(make_backend(target).parse_options({}))
        for name, value in options.items():
            if name in ("num_warps", "num_stages") or value != defaults.get(name, value):
                configuration[name] = readable(value)
        arguments = {
            p.name: _kind(src.signature[p.name], (p.num,), constants, src.attrs)
            for p in parameters
            if not p.is_constexpr
        }
        return TritonKernel(
            src.fn.__name__, line_of_def(src.fn), configuration, arguments, autotuned=bool(self._trials)
        )

    def compile_to_cache(self, request: CompileRequest) -> dict[str, Any] | None:
        """Compile in a forked process. Leave the result in Triton's cache, or return the CompileFault."""
        knobs.nvidia.dump_ptxas_log = True
        written = io.StringIO()
        try:
            with redirect_stdout(written):
                made = request.make()
                if "cubin" in made.asm and not written.getvalue() and not ptxas_log(made).exists():
                    knobs.compilation.always_compile = True  # the cache was filled elsewhere, without the log
                    made = request.make()
        except BaseException as error:
            print(written.getvalue())
            return asdict(fault.of_exception(error, self.file))
        if "cubin" in made.asm and written.getvalue():
            ptxas_log(made).write_text(written.getvalue())
        return None

    def _read(self, kernel: TritonKernel, made: Any) -> None:
        kernel.report = self._report(made)
        kernel.threads = made.metadata.num_warps * TARGETS[self.target].warp_size
        kernel.fault = self._too_large(kernel, made.metadata.num_ctas)
        self._by_hash[made.hash] = kernel
        self._by_binary[made.kernel] = kernel.report
        if self.emit is not None:
            self._write_stages(kernel, made, self.emit / self.target)

    def _report(self, made: Any) -> KernelReport:
        shared = made.metadata.shared
        if TARGETS[self.target].vendor == "amd":
            reports = amd_kernels(made.asm["amdgcn"], self.target, shared)
        else:
            reports = nvidia_kernels(ptxas_log(made).read_text(), made.asm["ptx"], self.target, shared)
        return next(report for report in reports if report.name == made.name)

    def _too_large(self, kernel: TritonKernel, cluster: int) -> CompileFault | None:
        report = kernel.report
        if report and report.over_limit:
            memory = "LDS" if TARGETS[self.target].vendor == "amd" else "shared memory"
            return CompileFault(
                f"{described(kernel)} needs {report.lds_bytes:,} bytes of {memory}; a block of {self.target} has "
                f"{report.lds_limit:,}",
                kernel.line,
            )
        if kernel.threads > MAX_THREADS:
            return CompileFault(
                f"{described(kernel)} has {kernel.threads:,} threads a block; there may be {MAX_THREADS:,}", kernel.line
            )
        if cluster > MAX_CLUSTER:
            return CompileFault(
                f"{described(kernel)} has {cluster} blocks a cluster; there may be {MAX_CLUSTER}", kernel.line
            )
        return None

    def _write_stages(self, kernel: TritonKernel, made: Any, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        words = re.sub(r"[^\w=.,-]+", "", ",".join(f"{name}={value}" for name, value in kernel.configuration.items()))
        for stage in STAGES:
            if stage in made.asm:
                (folder / f"{kernel.name}-{words[:150]}-{made.hash[:8]}.{stage}").write_text(made.asm[stage])


class Uncompiled:
    """Replaces a kernel that did not compile. Launching it does nothing."""

    function = packed_metadata = None

    def __init__(self, compiler: TritonCompiler, kernel: TritonKernel) -> None:
        self._compiler, self._kernel = compiler, kernel

    def launch_metadata(self, *args: Any) -> None: ...

    def run(self, *args: Any) -> None:
        self._compiler.launched(self._kernel)

    def __getattr__(self, name: str) -> Any:
        raise NotCompiled(f"{self._kernel.name} does not compile")


class NoCompiler(TritonCompiler):
    """A compiler that compiles no Triton kernel and reports no fault, for callers that follow the submission's other
    kernels."""

    def compile(self, src: Any, target: Any = None, options: dict[str, Any] | None = None, **named: Any) -> Any:
        return Uncompiled(self, self._described(src, target, options or {}))


def _kind(signature: Any, path: tuple[int, ...], constants: dict[Any, Any], attributes: dict[Any, Any]) -> str:
    """Return an argument's type, or its value if code was compiled for that one alone, and what Triton knows of it. Of
    a tuple: the same of each member, because each has a type of its own."""
    if isinstance(signature, tuple):
        members = (_kind(own, (*path, i), constants, attributes) for i, own in enumerate(signature))
        return f"({'; '.join(members)})"
    said = str(attributes.get(path, ()))
    known = [words for name, words in KNOWN_OF_ARGUMENTS.items() if name in said]
    return ", ".join([str(constants[path]) if path in constants else str(signature), *known])


def _processor_s_of_forks() -> float:
    """The processor time of all ended forks and their children, such as ptxas."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def ptxas_log(made: Any) -> Path:
    """Return the path of the output of `ptxas -v` for a compiled kernel, next to its code in Triton's cache."""
    return Path(made.metadata_group[f"{made.name[:150]}.cubin"]).with_suffix(".ptxas")


def described(kernel: TritonKernel) -> str:
    words = ", ".join(f"{name}={value}" for name, value in kernel.configuration.items())
    return f"{kernel.name} ({words})"


def readable(value: Any) -> Any:
    """Return a configuration's value in JSON form, or as a string."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return getattr(value, "__name__", None) or str(value)


def line_of_def(function: Any) -> int | None:
    """Return the line of a kernel's `def` in its file. The kernel's source begins with its decorators."""
    for offset, line in enumerate(function.raw_src):
        if re.match(r"\s*def\s", line):
            return function.starting_line_number + offset
    return None
