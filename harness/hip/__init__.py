'''Kernels in HIP C++ as text, compiled when they are first launched: what submissions import.

    from harness.hip import Module, float32, int32, ptr

    module = Module(r"""
        extern "C" __global__ __launch_bounds__(256) void scale(float* x, int n, float factor) {
            int i = blockIdx.x * blockDim.x + threadIdx.x;
            if (i < n) x[i] *= factor;
        }
    """)
    scale = module.kernel("scale", {"x": ptr(torch.float32), "n": int32, "factor": float32})
    scale(x, x.numel(), 2.0, grid=-(-x.numel() // 256), block=256)

One source runs on both vendors: hipRTC compiles it on ROCm, NVRTC on CUDA, each from the library that torch uses.
`PRELUDE` precedes the source and defines what the vendors spell differently. Compiled code is cached in memory, and in
$XDG_CACHE_HOME under a hash of all its inputs. A launch checks its arguments against the signature, uses torch's
current stream and does not wait. Sources need no headers, so they also compile for chips that are not in this machine.

Without a GPU everything works except the launch. In a worker that emulates a chip, `emulator` runs the kernel.
Elsewhere a launch compiles the source for every target with a compiler and raises NoDevice, or CompilationError if it
compiles for no target.

    Module, Kernel ─► prelude     what comes before each source; vocabulary, mathematics, halves: HIP's own names,
                                   without ROCm
                   ─► tensor_maps arguments for the copy unit of Hopper
                   ─► runtime     the vendors' compilers and drivers: a GPU that is here
                   ─► compilers   clang and NVRTC for chips that are not here
'''

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import torch

from harness.hip.prelude import program
from harness.hip.runtime import CompilationError, Gpu, LaunchError, compiled, visible_gpu
from harness.hip.tensor_maps import TensorMap, tensor_map

__all__ = [
    "CompilationError",
    "Kernel",
    "LaunchError",
    "Module",
    "NoDevice",
    "float32",
    "float64",
    "int32",
    "int64",
    "ptr",
    "tensor_map",
    "uint32",
]

emulator: Callable[..., None] | None = None
"""The function that launches if there is no GPU. Its arguments: (module, kernel, blocks, threads, shared bytes, packed
arguments, tensors). `harness.emulated` sets it in a worker that emulates. If it is None, a launch only compiles."""

modules: list[Module] = []
"""Every module of this process, in order of creation. `check` compiles them for its targets."""

MAX_GRID = (2**31 - 1, 65535, 65535)
"""CUDA programming guide, "Technical specifications per compute capability"; HIP grants no less."""


class NoDevice(RuntimeError):
    """A launch without a GPU. The message says what was compiled. It gives no verdict on the submission."""


class NotInstalled(NoDevice):
    """This machine lacks packages of which the message names the command that brings them."""


@dataclass(frozen=True)
class Pointer:
    """A tensor argument: passed as the address of its first element."""

    dtypes: tuple[torch.dtype, ...]
    alignment: int
    contiguous: bool

    def pack(self, value: Any, what: str) -> Any:
        if not isinstance(value, torch.Tensor):
            raise TypeError(f"{what} must be a tensor, not {type(value).__name__}")
        if self.dtypes and value.dtype not in self.dtypes:
            raise TypeError(f"{what} must be {' or '.join(map(_plain, self.dtypes))}, not {_plain(value.dtype)}")
        if self.contiguous and not value.is_contiguous():
            raise ValueError(f"{what} must be contiguous; its strides are {tuple(value.stride())}")
        address = value.data_ptr()
        if address % self.alignment:
            raise ValueError(f"{what} must lie at a multiple of {self.alignment} bytes")
        return ctypes.c_void_p(address)


@dataclass(frozen=True)
class Scalar:
    """A number argument. `low` and `high` bound integers; without them it is a float."""

    name: str
    ctype: Any
    low: int | None = None
    high: int | None = None

    def pack(self, value: Any, what: str) -> Any:
        accepted = (int, float) if self.low is None else int
        if isinstance(value, bool) or not isinstance(value, accepted):
            raise TypeError(f"{what} must be {self.name}, not {type(value).__name__}")
        if self.low is not None and self.high is not None and not self.low <= value <= self.high:
            raise ValueError(f"{what} is {value}, which does not fit into {self.name}")
        return self.ctype(value)


def ptr(*dtypes: torch.dtype, alignment: int = 1, contiguous: bool = True) -> Pointer:
    """A tensor argument of one of `dtypes` (default: any). Its first element lies at a multiple of `alignment`
    bytes."""
    return Pointer(dtypes, alignment, contiguous)


int32 = Scalar("int32", ctypes.c_int32, -(2**31), 2**31 - 1)
uint32 = Scalar("uint32", ctypes.c_uint32, 0, 2**32 - 1)
int64 = Scalar("int64", ctypes.c_int64, -(2**63), 2**63 - 1)
float32 = Scalar("float32", ctypes.c_float)
float64 = Scalar("float64", ctypes.c_double)


class Module:
    """One source and its kernels. `defines` become macros, so one source can give several modules.

    `targets`: the only chips that the source is for (gfx942, sm_90). It is compiled for no other chip, and a launch on
    another raises NoDevice. Default: all chips. Raises TypeError if `targets` is one string.
    """

    def __init__(self, source: str, defines: Mapping[str, object] | None = None, targets: Sequence[str] = ()) -> None:
        if isinstance(targets, str):
            raise TypeError(f'targets are several names: targets=("{targets}",)')
        self.source, self.defines, self.targets = source, dict(defines or {}), tuple(targets)
        self._handles: dict[int, ctypes.c_void_p] = {}
        modules.append(self)

    def kernel(self, name: str, signature: Mapping[str, Any] | Sequence[Any]) -> Kernel:
        """The `extern "C" __global__` function `name`. `signature`: the types of its arguments, with or without
        names."""
        return Kernel(self, name, signature)

    def loaded(self, gpu: Gpu, device: int) -> ctypes.c_void_p:
        """This module on a device, compiled if needed. Raises NoDevice if the source is not for the device's chip."""
        if device not in self._handles:
            chip = gpu.arch(device).partition(":")[0]
            chip = chip.removesuffix("a") if chip.startswith("sm_") else chip
            refusal = self.refusal(chip)
            if refusal is not None:
                raise NoDevice(f"{refusal}, and this is {chip}")
            self._handles[device] = gpu.load(
                compiled(gpu.compiler, program(self.source, self.defines), gpu.arch(device))
            )
        return self._handles[device]

    def refusal(self, target: str) -> str | None:
        """The reason not to compile the source for `target`, or None."""
        if not self.targets or target in self.targets:
            return None
        return f"its source is for {' and '.join(self.targets)}"

    def line_in(self, text: str, line: int) -> int | None:
        """The line of the file `text` that holds line `line` of the source. It is found by the whole source, or else by
        that line's text if it occurs once. None if it is not found."""
        at = text.find(self.source)
        if at >= 0:
            return text.count("\n", 0, at) + line
        lines = self.source.splitlines()
        wanted = lines[line - 1].strip() if 1 <= line <= len(lines) else ""
        same = [number for number, here in enumerate(text.splitlines(), start=1) if here.strip() == wanted]
        return same[0] if wanted and len(same) == 1 else None

    @functools.cached_property
    def offline(self) -> tuple[str, set[str]]:
        """The result of compiling this module without a GPU, in words, and the names of its kernels.

        Raises CompilationError with the first compiler's log if it compiles for no default target that has a compiler
        here.
        """
        from harness.hip import compilers

        names: set[str] = set()
        compiled, failures = [], {}
        for target in compilers.DEFAULT_TARGETS:
            if self.refusal(target) is None and compilers.missing(target) is None:
                try:
                    report = compilers.compile(self.source, target, self.defines)
                except CompilationError as error:
                    failures[target] = error
                else:
                    compiled.append(target)
                    names |= {kernel.name for kernel in report.kernels}
        if failures and not compiled:
            raise next(iter(failures.values()))
        words = f"compiled for {', '.join(compiled)}" if compiled else "no compiler here"
        return words + (f", not for {', '.join(failures)}" if failures else ""), names


class Kernel:
    """A kernel to be launched: `kernel(*arguments, grid=, block=, shared_bytes=0)`."""

    def __init__(self, module: Module, name: str, signature: Mapping[str, Any] | Sequence[Any]) -> None:
        named = isinstance(signature, Mapping)
        self._module, self.name = module, name
        self._types = list(signature.values() if isinstance(signature, Mapping) else signature)
        self._labels = [
            f"{name}: argument {number}" + (f" ({label})" if named else "")
            for number, label in enumerate(signature, start=1)
        ]
        for label, kind in zip(self._labels, self._types):
            if not isinstance(kind, Pointer | Scalar | TensorMap):
                raise TypeError(f"{label}: {kind!r} is not an argument type: use ptr(dtype), int32, int64, float32, ..")
        self._maps = [number for number, kind in enumerate(self._types) if isinstance(kind, TensorMap)]
        self._tensors = [number for number, kind in enumerate(self._types) if isinstance(kind, Pointer | TensorMap)]
        self._functions: dict[int, ctypes.c_void_p] = {}
        # CUDA grants a block 48 KiB unasked, less what the kernel's arrays take: so every size is asked for.
        self._granted: dict[int, int] = {}

    def __call__(
        self, *arguments: Any, grid: int | Sequence[int], block: int | Sequence[int], shared_bytes: int = 0
    ) -> None:
        """Launch on torch's current stream.

        grid, block: numbers of blocks, and of threads per block, in x, y, z. shared_bytes: dynamic shared memory per
        block. Raises TypeError or ValueError that names the argument, CompilationError, LaunchError or NoDevice.
        """
        if len(arguments) != len(self._types):
            raise TypeError(f"{self.name} takes {len(self._types)} arguments, not {len(arguments)}")
        packed = [kind.pack(value, label) for kind, value, label in zip(self._types, arguments, self._labels)]
        blocks, threads = _three(grid, f"{self.name}: grid"), _three(block, f"{self.name}: block")
        if blocks[0] > MAX_GRID[0] or blocks[1] > MAX_GRID[1] or blocks[2] > MAX_GRID[2]:
            raise ValueError(f"{self.name}: grid {blocks} is larger than {MAX_GRID}")
        gpu = visible_gpu()
        if gpu is None:
            if emulator is None:
                self._compile_only()
            tensors = [(self._labels[number], arguments[number]) for number in self._tensors]
            return emulator(self._module, self.name, blocks, threads, shared_bytes, packed, tensors)
        if blocks[0] * threads[0] > gpu.vendor.max_threads_x:
            raise ValueError(
                f"{self.name}: grid {blocks} of blocks {threads} has over {gpu.vendor.max_threads_x} threads"
            )
        if threads[2] > gpu.vendor.max_block_z:
            raise ValueError(f"{self.name}: block {threads} has over {gpu.vendor.max_block_z} threads in z")
        device = self._device(gpu, arguments)
        with gpu.current(device):
            function = self._functions.get(device)
            if function is None:
                function = self._functions[device] = gpu.function(self._module.loaded(gpu, device), self.name)
            if shared_bytes > self._granted.get(device, 0):
                gpu.grant_shared(function, shared_bytes)
                self._granted[device] = shared_bytes
            for number in self._maps:
                gpu.encode(packed[number], self._labels[number])
            gpu.launch(function, blocks, threads, shared_bytes, packed)

    def _compile_only(self) -> NoReturn:
        words, names = self._module.offline
        if names and self.name not in names:
            raise CompilationError(f'the source defines no extern "C" __global__ {self.name}')
        raise NoDevice(f"{self.name} needs a GPU: {words}, not run")

    def _device(self, gpu: Gpu, arguments: tuple[Any, ...]) -> int:
        """The index of the one device that holds all tensors."""
        found: int | None = None
        for number in self._tensors:
            index = gpu.index_of(arguments[number])
            if index < 0:
                raise ValueError(f"{self._labels[number]} is on {arguments[number].device}; it must be on the GPU")
            if found is not None and index != found:
                raise ValueError(f"{self._labels[number]} is on device {index}; those before it are on {found}")
            found = index
        return gpu.current_device() if found is None else found


def _three(counts: int | Sequence[int], what: str) -> tuple[int, int, int]:
    if type(counts) is int and counts >= 1:
        return counts, 1, 1
    given = tuple(counts) if isinstance(counts, Sequence) else (counts,)
    if not 1 <= len(given) <= 3 or not all(isinstance(count, int) and count >= 1 for count in given):
        raise ValueError(f"{what} is {counts!r}; it must be one to three counts of at least 1")
    x, y, z = (*given, 1, 1)[:3]
    return x, y, z


def _plain(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
