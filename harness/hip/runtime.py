"""The vendors' run-time compilers and drivers, by ctypes: NVRTC and libcuda, hipRTC and libamdhip64.

    RuntimeCompiler   source text ─► code object, or CompilationError with the log
    Gpu               code object ─► module ─► function ─► launch on torch's current stream
    compiled          the code object from the cache on disk, or new

Each library is the one that torch has loaded or ships, if there is one.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import glob
import hashlib
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from harness.hip.tensor_maps import EncodedMap


class CompilationError(RuntimeError):
    """The source does not compile. The message is the compiler's log, with line numbers of the source."""


class LaunchError(RuntimeError):
    """The driver refused to load or to launch."""


@dataclass(frozen=True)
class Vendor:
    """The names of one vendor's libraries and functions, and its limits."""

    driver: str
    compiler: tuple[str, ...]
    rtc: str
    code: str
    calls: Mapping[str, str]
    max_threads_x: int
    max_block_z: int


NVIDIA = Vendor(
    driver="libcuda.so.1",
    compiler=("libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"),
    rtc="nvrtc",
    code="CUBIN",
    calls={
        "init": "cuInit",
        "count": "cuDeviceGetCount",
        "load": "cuModuleLoadData",
        "function": "cuModuleGetFunction",
        "attribute": "cuFuncSetAttribute",
        "launch": "cuLaunchKernel",
        "error": "cuGetErrorString",
    },
    max_threads_x=2**31 * 1024,
    max_block_z=64,  # CUDA programming guide, "Technical specifications per compute capability"
)
AMD = Vendor(
    driver="libamdhip64.so",
    compiler=("libhiprtc.so",),
    rtc="hiprtc",
    code="Code",
    calls={
        "init": "hipInit",
        "count": "hipGetDeviceCount",
        "load": "hipModuleLoadData",
        "function": "hipModuleGetFunction",
        "launch": "hipModuleLaunchKernel",
        "error": "hipDrvGetErrorString",
    },
    max_threads_x=2**32 - 1,  # HIP API, hipModuleLaunchKernel: gridDim * blockDim < 2^32
    max_block_z=1024,
)


class RuntimeCompiler:
    """NVRTC or hipRTC: the two libraries differ in the prefix of their functions and in the name of the product."""

    def __init__(self, library: ctypes.CDLL, vendor: Vendor) -> None:
        self._library, self._vendor = library, vendor
        if vendor is NVIDIA:
            # NVRTC opens this library by its bare name. One from a wheel is found only if it is loaded already.
            self._builtins = find_library(["libnvrtc-builtins.so*"])

    def version(self) -> str:
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._call("Version", ctypes.byref(major), ctypes.byref(minor))
        return f"{self._vendor.rtc} {major.value}.{minor.value}"

    def compile(self, text: str, arch: str, options: Sequence[str] = (), product: str = "") -> tuple[bytes, str]:
        """The code object for `arch` (or another `product`, such as PTX), and the log. Raises CompilationError."""
        flag = "--gpu-architecture" if self._vendor is NVIDIA else "--offload-arch"
        flags = [f"{flag}={arch}".encode(), b"-std=c++17", *(option.encode() for option in options)]
        handle = ctypes.c_void_p()
        self._call("CreateProgram", ctypes.byref(handle), text.encode(), b"podium.hip", 0, None, None)
        try:
            array = (ctypes.c_char_p * len(flags))(*flags)
            status = self._function("CompileProgram")(handle, len(flags), array)
            log = self._text("GetProgramLog", handle).rstrip(b"\0").decode(errors="replace")
            if status:
                raise CompilationError(f"{self.version()} for {arch}: {log.strip() or f'status {status}'}")
            return self._text(f"Get{product or self._vendor.code}", handle), log
        finally:
            self._call("DestroyProgram", ctypes.byref(handle))

    def _text(self, getter: str, handle: ctypes.c_void_p) -> bytes:
        size = ctypes.c_size_t()
        self._call(f"{getter}Size", handle, ctypes.byref(size))
        buffer = ctypes.create_string_buffer(size.value or 1)
        self._call(getter, handle, buffer)
        return buffer.raw[: size.value]

    def _call(self, name: str, *arguments: Any) -> None:
        status = self._function(name)(*arguments)
        if status:
            describe = self._function("GetErrorString")
            describe.restype = ctypes.c_char_p
            raise LaunchError(f"{self._vendor.rtc}{name} failed: {(describe(status) or b'').decode()} ({status})")

    def _function(self, name: str) -> Any:
        return getattr(self._library, self._vendor.rtc + name)


class Gpu:
    """The GPUs of this process, through the driver of their vendor."""

    def __init__(
        self, vendor: Vendor, driver: ctypes.CDLL, compiler: RuntimeCompiler, device_type: str = "cuda"
    ) -> None:
        self.vendor, self.compiler, self.device_type = vendor, compiler, device_type
        self._encode_map = getattr(driver, "cuTensorMapEncodeTiled", None)  # CUDA's drivers have it from 12 on
        self._calls = {what: getattr(driver, name) for what, name in vendor.calls.items()}
        unsigned, handle = ctypes.c_uint, ctypes.c_void_p
        self._calls["launch"].argtypes = [handle, *[unsigned] * 7, handle, ctypes.POINTER(handle), handle]

    def arch(self, device: int) -> str:
        properties = torch.cuda.get_device_properties(device)
        if self.vendor is AMD:
            return str(properties.gcnArchName)
        # From Hopper on, instructions of exactly one architecture (wgmma) need the suffix "a".
        return f"sm_{properties.major}{properties.minor}" + ("a" if properties.major >= 9 else "")

    def index_of(self, tensor: torch.Tensor) -> int:
        """The index of the GPU that holds `tensor`, or a negative number."""
        return tensor.get_device()

    def current_device(self) -> int:
        return torch.cuda.current_device()

    def current(self, device: int) -> contextlib.AbstractContextManager[Any]:
        """Makes `device` the current one. Costs nothing if it is already."""
        return contextlib.nullcontext() if self.current_device() == device else torch.cuda.device(device)

    def synchronize(self) -> None:
        torch.cuda.synchronize()

    def stream(self) -> int:
        return torch.cuda.current_stream().cuda_stream

    def load(self, image: bytes) -> ctypes.c_void_p:
        self.synchronize()  # the driver loads into this thread's context, which the runtime makes at its first call
        module = ctypes.c_void_p()
        self._succeed("load", self._calls["load"](ctypes.byref(module), image))
        return module

    def function(self, module: ctypes.c_void_p, name: str) -> ctypes.c_void_p:
        function = ctypes.c_void_p()
        status = self._calls["function"](ctypes.byref(function), module, name.encode())
        self._succeed(f'function (is {name} declared extern "C" __global__?)', status)
        if "attribute" in self._calls:
            # Allow clusters of up to 16 blocks instead of 8, for a kernel that asks for them. Chips without clusters
            # refuse this.
            non_portable_cluster_size_allowed = 14  # CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, cuda.h
            self._calls["attribute"](function, non_portable_cluster_size_allowed, 1)
        return function

    def grant_shared(self, function: ctypes.c_void_p, count: int) -> None:
        """Allow `count` bytes of dynamic shared memory. AMD's driver needs no permission below the chip's limit."""
        if "attribute" in self._calls:
            max_dynamic_shared_size_bytes = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, cuda.h
            self._succeed("attribute", self._calls["attribute"](function, max_dynamic_shared_size_bytes, count))

    def encode(self, words: EncodedMap, what: str) -> None:
        """Make the words of a tensor map from what it is to describe."""
        if self._encode_map is None:
            raise LaunchError(f"{what}: this driver has no tensor maps, which are for NVIDIA's GPUs from Hopper on")
        self._succeed(f"{what}: the tensor map", self._encode_map(ctypes.byref(words), *words.encoding))

    def launch(
        self, function: ctypes.c_void_p, grid: Sequence[int], block: Sequence[int], shared: int, packed: list[Any]
    ) -> None:
        addresses = (ctypes.c_void_p * len(packed))(*map(ctypes.addressof, packed))
        self._succeed("launch", self._calls["launch"](function, *grid, *block, shared, self.stream(), addresses, None))

    def _succeed(self, what: str, status: int) -> None:
        if status:
            text = ctypes.c_char_p()
            self._calls["error"](status, ctypes.byref(text))
            raise LaunchError(f"{what} failed: {(text.value or b'unknown error').decode()} ({status})")


@functools.cache
def visible_gpu() -> Gpu | None:
    """The GPUs that torch uses, or None if there is none. It asks the driver, because torch may be patched to
    pretend."""
    vendor = AMD if torch.version.hip else NVIDIA if torch.version.cuda else None
    if vendor is None:
        return None
    driver, count = find_library([vendor.driver]), ctypes.c_int()
    if driver is None or getattr(driver, vendor.calls["init"])(0):
        return None
    if getattr(driver, vendor.calls["count"])(ctypes.byref(count)) or count.value == 0:
        return None
    library = find_library(vendor.compiler)
    if library is None:
        raise LaunchError(f"there is a GPU, but there is no {vendor.compiler[-1]} to compile for it")
    torch.cuda.init()
    return Gpu(vendor, driver, RuntimeCompiler(library, vendor))


def find_library(names: Sequence[str]) -> ctypes.CDLL | None:
    """The first library with one of these names. Looks among loaded libraries, in torch, a wheel, ROCm or CUDA, and by
    the loader."""
    for name in names:
        for candidate in [*_candidates(name), name]:
            with contextlib.suppress(OSError):
                return ctypes.CDLL(candidate)
    return None


def _candidates(name: str) -> Iterator[str]:
    # A loaded library comes first: a second copy of a runtime would not know the first one's streams.
    with contextlib.suppress(OSError), open("/proc/self/maps") as maps:
        mapped = {line.split(maxsplit=5)[-1].strip() for line in maps}
        yield from sorted(path for path in mapped if path.rpartition("/")[2].startswith(name))
    for folder in (f"{Path(torch.__file__).parent}/lib", *(f"{entry}/nvidia/*/lib" for entry in sys.path if entry)):
        yield from sorted(glob.glob(f"{folder}/{name}"))
    for variable, default in (("ROCM_PATH", "/opt/rocm"), ("CUDA_HOME", "/usr/local/cuda")):
        for folder in ("lib", "lib64"):
            yield from glob.glob(f"{os.environ.get(variable, default)}/{folder}/{name}")


def compiled(compiler: RuntimeCompiler, text: str, arch: str) -> bytes:
    """The code object, from the cache on disk or newly compiled."""
    release = torch.version.hip or torch.version.cuda or ""  # hipRTC has reported 9.0 for years
    key = hashlib.sha256("\0".join((compiler.version(), release, arch, text)).encode()).hexdigest()
    folder = _cache_folder()
    if folder is None:
        return compiler.compile(text, arch)[0]
    path = folder / key
    with contextlib.suppress(OSError):
        return path.read_bytes()
    image, _ = compiler.compile(text, arch)
    with contextlib.suppress(OSError):  # a full disk costs time, not the launch
        with tempfile.NamedTemporaryFile(dir=folder, delete=False) as file:
            file.write(image)
        os.replace(file.name, path)
    return image


def _cache_folder() -> Path | None:
    """The folder of compiled code. None if another user could have put files there."""
    base = os.environ.get("XDG_CACHE_HOME") or f"{tempfile.gettempdir()}/podium-{os.getuid()}"
    folder = Path(base) / "podium" / "hip"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return folder if all(path.stat().st_uid == os.getuid() for path in (Path(base), folder)) else None
    except OSError:
        return None
