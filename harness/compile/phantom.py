"""Tensors on a GPU that is not here. They have shape, dtype, strides and an address, but no memory.

    with Phantoms():
        x = torch.empty(1 << 40, device="cuda")          no storage; x.device is cuda:0, x.data_ptr() is aligned
        y = (x.view(-1, 64) + 1).half()                  shapes and dtypes follow
        n = torch.tensor([3, 5], device="cuda")          small tensors made on the host keep their values
        n.cumsum(0).tolist()                             [3, 8]
        y.sum().item()                                   raises DataDependent

A phantom is a tensor on torch's meta device that claims to be on another device. Inside the context every torch
function goes through `Phantoms.__torch_function__`. It runs the function on the meta device for the shapes. If all
inputs have known values of at most `KNOWN_BYTES`, it also runs on the CPU for the values. Values that are random,
uninitialised or written by a kernel are unknown. A build of torch without CUDA suffices, and a real GPU is not used.

Two things escape: code that bypasses torch's functions (DLPack, `__cuda_array_interface__`, C++ extensions), and other
threads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
import torch.utils._device
from torch.overrides import TorchFunctionMode

from harness.compile import allocation, mixed, operators
from harness.compile.nested import leaves, rebuilt, replaced
from harness.interpreter.cuda_on_cpu import means_cuda

KNOWN_BYTES = 1 << 20
"""Values of tensors up to this size are followed: these are lengths and index pointers, not data."""

CPU, META, CUDA = torch.device("cpu"), torch.device("meta"), torch.device("cuda", 0)

CONSTRUCTORS = torch.utils._device._device_constructors
"""The functions that make tensors on a named device or the default device."""

UNKNOWN = (
    *("empty", "new_empty", "rand", "normal", "bernoulli", "multinomial", "poisson", "dropout"),
    *("uniform_", "exponential_", "cauchy_", "geometric_", "log_normal_"),
)
"""The beginnings of the names of functions whose results are unknown."""

READING = (
    *("item", "tolist", "is_nonzero", "equal", "allclose", "numpy", "__array__", "__contains__", "__format__"),
    *("__bool__", "__int__", "__float__", "__index__", "__complex__"),
)
"""The functions that copy values to the host."""


class DataDependent(Exception):
    """Host code asks for a value that depends on the data."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what} depends on the data: the launches cannot be followed without running them")


class Phantom(torch.Tensor):
    """A tensor on `claimed`, without storage. `Phantoms` makes and handles these."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    claimed: torch.device = CUDA
    on_cpu: torch.Tensor | None = None
    """The same tensor on the CPU, if its values are known. Views that share a storage share a storage here, too."""


class Phantoms(TorchFunctionMode):
    """Inside this context, tensors that host code puts on "cuda" are phantoms, each smaller than `memory_bytes`."""

    def __init__(self, memory_bytes: float = math.inf) -> None:
        super().__init__()
        self.memory_bytes = memory_bytes
        self.addresses: dict[int, int] = {}
        self.next_address = 1 << 40
        # Known storages that no longer hold the device's values (`spoilt`), and those that no kernel writes to
        # (`lasting`). The tensors are kept alive, so that no new storage reuses an old one's identity.
        self.spoilt: dict[int, torch.Tensor] = {}
        self.lasting: dict[int, torch.Tensor] = {}
        self.pinned: dict[int, torch.Tensor] = {}
        """Storages on the host that a kernel can access."""

    def launched_with(self, arguments: Iterable[Any]) -> None:
        """Record the launch of a kernel that may have written to any of these arguments, descriptors among them. Raises
        ValueError as Triton does if one is in the host's memory."""
        tensors = list(leaves(tuple(getattr(argument, "base", argument) for argument in arguments)))
        for tensor in filter(self.is_out_of_reach, tensors):
            what = f"{plain(tensor.dtype)}, shape {tuple(tensor.shape)}"
            raise ValueError(f"Pointer argument ({what}) cannot be accessed from Triton (cpu tensor?)")
        self.spoil(tensor for tensor in tensors if storage_of(tensor) not in self.lasting)

    def is_out_of_reach(self, tensor: torch.Tensor) -> bool:
        """Whether a kernel that is given this tensor cannot access it."""
        on_host = device_of(tensor).type == "cpu" and tensor.numel() > 0
        return on_host and tensor.untyped_storage()._cdata not in self.pinned

    def keep(self, data: Any) -> None:
        """Declare that no kernel writes to the tensors in `data`, so their values stay known."""
        self.lasting |= {storage: tensor for tensor in leaves(data) if (storage := storage_of(tensor)) is not None}

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if kwargs.pop("pin_memory", False) or func is torch.Tensor.pin_memory:
            pinned = args[0] if func is torch.Tensor.pin_memory else self.__torch_function__(func, types, args, kwargs)
            self.pinned |= {tensor.untyped_storage()._cdata: tensor for tensor in leaves(pinned)}
            return pinned
        default = torch.utils._device.CURRENT_DEVICE  # set by `with torch.device()` and torch.set_default_device
        if default is not None and func in CONSTRUCTORS():
            kwargs.setdefault("device", default)
        args = replaced(args, self.with_known_bounds)
        phantoms = [leaf for leaf in leaves((args, kwargs)) if isinstance(leaf, Phantom)]
        device = requested_device(func, args, kwargs)
        if not phantoms and (device is None or device.type != "cuda"):
            return func(*args, **kwargs)
        if phantoms and func in ANSWERS:
            return ANSWERS[func](self, *args, **kwargs)
        if phantoms and name_of(func) in READING:
            return func(*(self.read(arg, name_of(func)) for arg in args), **kwargs)
        if func is torch.Tensor.cuda or func is torch.Tensor.cpu:
            func, args, kwargs = torch.Tensor.to, (args[0], device), {}
        own = operators.implementation(func)
        if own is not None and any(phantom.claimed.type == "cuda" for phantom in phantoms):
            with self:
                return own(*args, **kwargs)
        return self.follow(func, args, kwargs, phantoms, device)

    def follow(
        self,
        func: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        phantoms: list[Phantom],
        device: torch.device | None,
    ) -> Any:
        """Return the result of `func`: phantoms, with values if they can be known."""
        name = name_of(func)
        of_result = mixed.device_of_result(func, args, kwargs, device_of)
        written = list(written_to(name, args, kwargs))
        known = not name.startswith(UNKNOWN) and all(self.known(phantom) is not None for phantom in phantoms)
        if written and not any(isinstance(tensor, Phantom) for tensor in written):
            if not known:
                raise DataDependent(f"what {name} writes to a tensor on the CPU")
            return func(*self.on(CPU, func, args), **self.on(CPU, func, kwargs))
        kwargs = {key: value for key, value in kwargs.items() if key != "generator"}
        shadow = self.shadow(func, args, kwargs, known)
        values = None
        if known and all(tensor.nbytes <= KNOWN_BYTES for tensor in leaves(shadow)):
            values = func(*self.on(CPU, func, args), **self.on(CPU, func, kwargs))
            if shadow is None:
                shadow = replaced(values, unstored)
        else:
            self.spoil(written)
        claimed = device or of_result
        claimed = claimed or next((x.claimed for x in phantoms if x.ndim), phantoms[0].claimed if phantoms else CUDA)
        if device is not None and any(device_of(tensor) != device for tensor in leaves((args, kwargs))):
            # A move between devices is a copy, although both are the meta device and the CPU here.
            shadow = replaced(shadow, unstored)
            values = replaced(values, lambda leaf: leaf.clone() if isinstance(leaf, torch.Tensor) else leaf)
        if claimed.type == "cuda":
            allocation.refuse_too_large(shadow, phantoms, self.memory_bytes)
        return self.made_of(shadow, values, claimed)

    def shadow(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], known: bool) -> Any:
        """Run `func` on the meta device. Return None if that needs values and these are `known`."""
        try:
            return func(*self.on(META, func, args), **self.on(META, func, kwargs))
        except RuntimeError as error:  # NotImplementedError is one
            if "meta" not in str(error).lower():
                raise
        if not known:
            raise DataDependent(f"the result of torch's {name_of(func)}")
        return None

    def made_of(self, shadow: Any, values: Any, claimed: torch.device) -> Any:
        """Return `shadow` with its tensors made phantoms, or `values` if the result is on the CPU."""
        if isinstance(shadow, torch.Tensor) and not isinstance(shadow, Phantom):
            if claimed.type == "cpu" and values is not None:
                return values
            made: Phantom = shadow.as_subclass(Phantom)
            made.claimed, made.on_cpu = claimed, values
            return made
        if isinstance(shadow, tuple | list):
            parts = values if isinstance(values, tuple | list) else [None] * len(shadow)
            return rebuilt(shadow, [self.made_of(one, value, claimed) for one, value in zip(shadow, parts)])
        return shadow

    def known(self, phantom: Phantom) -> torch.Tensor | None:
        return None if storage_of(phantom) in self.spoilt else phantom.on_cpu

    def read(self, value: Any, name: str) -> Any:
        """Return `value` on the host. Raises DataDependent if it is a phantom with unknown values."""
        if not isinstance(value, Phantom):
            return value
        if name in ("numpy", "__array__") and value.claimed.type == "cuda":
            raise TypeError(
                "can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host memory "
                "first."
            )
        values = self.known(value)
        if values is None:
            raise DataDependent(f"{name.strip('_')}() of a tensor ({plain(value.dtype)}, shape {tuple(value.shape)})")
        return values

    def spoil(self, tensors: Iterable[Any]) -> None:
        """Mark the values of these tensors, and of every view of the same storages, as unknown."""
        self.spoilt |= {storage: tensor for tensor in tensors if (storage := storage_of(tensor)) is not None}

    def address(self, phantom: Phantom) -> int:
        """Return the address of the first element. Storages are aligned to 512 bytes, as by CUDA's allocator."""
        if not phantom.numel():
            return 0
        storage = phantom.untyped_storage()
        start = self.addresses.get(storage._cdata)
        if start is None:
            start = self.addresses[storage._cdata] = self.next_address
            self.next_address += (storage.nbytes() // 512 + 1) * 512
        return start + int(phantom.storage_offset()) * phantom.element_size()

    def with_known_bounds(self, leaf: Any) -> Any:
        """Return a slice with numbers for bounds that were phantoms."""
        if not isinstance(leaf, slice):
            return leaf
        bounds = (leaf.start, leaf.stop, leaf.step)
        return slice(*(int(self.read(bound, "int")) if isinstance(bound, Phantom) else bound for bound in bounds))

    def on(self, device: torch.device, func: Callable[..., Any], arguments: Any) -> Any:
        """Move the positional or named `arguments` of `func` to the CPU or the meta device."""

        def moved(leaf: Any) -> Any:
            if isinstance(leaf, Phantom):
                return self.known(leaf) if device is CPU else leaf
            return leaf.to(device) if isinstance(leaf, torch.Tensor) and leaf.device != device else leaf

        there = replaced(arguments, moved)
        if isinstance(there, dict):
            return {**there, "device": device} if "device" in there or func in CONSTRUCTORS() else there
        if func is torch.Tensor.to and len(there) > 1 and is_device(there[1]):
            return (there[0], device, *there[2:])
        return there


def requested_device(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.device | None:
    """Return the device that a call names: cuda:0, the CPU or the meta device. None if it names none."""
    if func is torch.Tensor.cpu:
        return CPU
    named = kwargs.get("device")
    if func is torch.Tensor.cuda:
        means_cuda(args[1] if len(args) > 1 else named)
        return CUDA
    if func is torch.Tensor.to and named is None:
        second = args[1] if len(args) > 1 else kwargs.get("other")
        if isinstance(second, torch.Tensor):
            return device_of(second)
        named = second if is_device(second) else None
    if named is None:
        return None
    return CUDA if means_cuda(named) else torch.device(named)


def is_device(value: Any) -> bool:
    return isinstance(value, str | torch.device) or (isinstance(value, int) and not isinstance(value, bool))


def device_of(tensor: torch.Tensor) -> torch.device:
    return tensor.claimed if isinstance(tensor, Phantom) else tensor.device


def storage_of(tensor: Any) -> int | None:
    """Return an identity shared by all views of the same known values. None if the values are unknown."""
    if not isinstance(tensor, Phantom) or tensor.on_cpu is None:
        return None
    return tensor.on_cpu.untyped_storage()._cdata


def written_to(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[torch.Tensor]:
    """Yield the tensors that the torch function `name` writes to."""
    in_place = name.endswith("_") and not name.startswith("__")
    if in_place or name == "__setitem__" or (name.startswith("__i") and name not in ("__invert__", "__index__")):
        yield from leaves(args[:1])
    yield from leaves(kwargs.get("out"))


def unstored(leaf: Any) -> Any:
    if not isinstance(leaf, torch.Tensor):
        return leaf
    return torch.empty_strided(leaf.shape, leaf.stride(), dtype=leaf.dtype, device=META)


def name_of(func: Callable[..., Any]) -> str:
    return getattr(func, "__name__", "function")


def plain(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def description(phantoms: Phantoms, phantom: Phantom, *args: Any, **named: Any) -> str:
    values = phantoms.known(phantom)
    shape = f"tensor of shape {tuple(phantom.shape)}, {plain(phantom.dtype)}, on {phantom.claimed}"
    return f"<{shape}, values unknown>" if values is None else f"<{shape}: {values.tolist()}>"


def unfollowable(what: str) -> Callable[..., Any]:
    def refuse(phantoms: Phantoms, phantom: Phantom, *args: Any, **named: Any) -> Any:
        raise DataDependent(f"{what} of a tensor")

    return refuse


ANSWERS: dict[Any, Callable[..., Any]] = {
    torch.Tensor.device.__get__: lambda phantoms, phantom: phantom.claimed,  # type: ignore[attr-defined]
    torch.Tensor.is_cuda.__get__: lambda phantoms, phantom: phantom.claimed.type == "cuda",  # type: ignore[attr-defined]
    torch.Tensor.is_cpu.__get__: lambda phantoms, phantom: phantom.claimed.type == "cpu",  # type: ignore[attr-defined]
    torch.Tensor.is_meta.__get__: lambda phantoms, phantom: False,  # type: ignore[attr-defined]
    torch.Tensor.get_device: lambda phantoms, phantom: phantom.claimed.index if phantom.claimed.type == "cuda" else -1,
    torch.Tensor.data_ptr: Phantoms.address,
    torch.Tensor.__repr__: description,
    torch.Tensor.record_stream: lambda phantoms, phantom, stream: None,
    torch.Tensor.__deepcopy__: lambda phantoms, phantom, memo: phantom.clone(),
    torch.Tensor.__dlpack__: unfollowable("the memory"),
    torch.Tensor.__cuda_array_interface__.__get__: unfollowable("the memory"),  # type: ignore[attr-defined]
}
"""Queries about a phantom that its meta tensor would answer wrongly."""
