"""Which memory each pointer of a kernel may reach. A load or store out of bounds is reported and does not happen.

    kernel[grid](x, out, n)  ──►  x: BoundedPointer, with the extent of x's storage
                                       │ its type: arithmetic, broadcasts and views pass it on unchanged
                                       ▼
    tl.load(x + i, mask)     ──►  check: every unmasked lane lies inside, or OutOfBounds

A chip has no such check: there the same access faults, or silently reads or writes neighbouring data. A pointer to a
view may reach the whole storage of the tensor. Each address must also be a multiple of the element's size, else
Misaligned: NVIDIA's chips fault. Not checked: a pointer that a kernel makes from an integer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle
from triton.tools.tensor_descriptor import TensorDescriptor

from harness.interpreter.element_order import reordered_cat

upstream_bitcast = InterpreterBuilder.create_bitcast
upstream_select = InterpreterBuilder.create_select
upstream_join = InterpreterBuilder.create_join


class OutOfBounds(RuntimeError):
    """A kernel loads or stores outside the tensor whose pointer it was given."""


class Misaligned(RuntimeError):
    """A kernel loads or stores an element at an address that is no multiple of the element's size."""


@dataclass(frozen=True)
class Extent:
    """The storage of a tensor argument: addresses `begin` to `end`. The tensor begins at `address`."""

    address: int
    begin: int
    end: int
    itemsize: int
    described: str


class BoundedPointer(tl.pointer_type):
    """A pointer type with the memory that it may reach: one extent, or several if a kernel has chosen between
    pointers."""

    def __init__(self, like: tl.pointer_type, extents: tuple[Extent, ...]) -> None:
        super().__init__(like.element_ty, like.address_space, like.const)
        self.extents = extents


class Provenance:
    """These methods replace those of the same names in InterpreterBuilder, which would lose a pointer's extent."""

    def create_bitcast(self, src: TensorHandle, dst_type: tl.dtype) -> TensorHandle:
        made = upstream_bitcast(self, src, dst_type)
        if isinstance(src.dtype, BoundedPointer) and isinstance(made.dtype, tl.pointer_type):
            made.dtype = BoundedPointer(made.dtype, src.dtype.extents)
        return made

    def create_select(self, cond: TensorHandle, lhs: TensorHandle, rhs: TensorHandle) -> TensorHandle:
        return of_both(upstream_select(self, cond, lhs, rhs), lhs, rhs)

    def create_join(self, lhs: TensorHandle, rhs: TensorHandle) -> TensorHandle:
        return of_both(upstream_join(self, lhs, rhs), lhs, rhs)

    def create_cat(self, lhs: TensorHandle, rhs: TensorHandle) -> TensorHandle:
        return of_both(reordered_cat(self, lhs, rhs), lhs, rhs)


def of_both(made: TensorHandle, lhs: TensorHandle, rhs: TensorHandle) -> TensorHandle:
    """`made`, which combines pointers of `lhs` and `rhs`, with the extents of both. Unbounded if either is
    unbounded."""
    kind = made.dtype
    if isinstance(kind, tl.pointer_type):
        if isinstance(lhs.dtype, BoundedPointer) and isinstance(rhs.dtype, BoundedPointer):
            made.dtype = BoundedPointer(kind, tuple(dict.fromkeys(lhs.dtype.extents + rhs.dtype.extents)))
        else:
            made.dtype = tl.pointer_type(kind.element_ty, kind.address_space, kind.const)
    return made


def extent_of(tensor: Any) -> Extent | None:
    """The storage of a torch tensor, or of Triton's wrapper around one. None for a bare address."""
    base = getattr(tensor, "base", tensor)
    if not hasattr(base, "untyped_storage"):
        return None
    storage = base.untyped_storage()
    begin, kind = storage.data_ptr(), str(tensor.dtype).removeprefix("torch.")
    shape = " x ".join(map(str, base.shape)) or "a scalar"
    return Extent(base.data_ptr(), begin, begin + storage.nbytes(), base.element_size(), f"{kind}, {shape}")


def bounded(pointer: tl.tensor, tensor: Any) -> tl.tensor:
    """A kernel's argument that points to `tensor`, confined to its storage."""
    extent = extent_of(tensor)
    if extent is None:
        return pointer
    kind = BoundedPointer(pointer.dtype, (extent,))
    pointer.handle.dtype = kind
    return tl.tensor(pointer.handle, kind)


launched: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = []
"""The current launch: the kernel and its arguments."""


def check(builder: Any, verb: str, pointers: TensorHandle, mask: Any) -> None:
    """Raise OutOfBounds if an unmasked lane reaches beyond its tensor, or Misaligned. `mask` is a handle, an array or
    None."""
    kind, addresses = pointers.dtype, pointers.data
    if not isinstance(kind, BoundedPointer) or not addresses.size:
        return
    size = max(kind.element_ty.primitive_bitwidth // 8, 1)
    if addresses.size == 1:
        first = last = bits = addresses.item()
    else:
        first, last = int(addresses.min()), int(addresses.max())
        bits = int(np.bitwise_or.reduce(addresses, axis=None))
    aligned = not bits & (size - 1)
    for extent in kind.extents:
        if aligned and extent.begin <= first and last <= extent.end - size:
            return  # the usual case, at the cost of three passes
    inside = np.zeros(addresses.shape, np.bool_)
    for extent in kind.extents:
        inside |= (addresses >= extent.begin) & (addresses <= extent.end - size)
    outside = ~inside if mask is None else ~inside & np.asarray(mask.data)
    if outside.any():
        raise OutOfBounds(explained(builder, verb, kind.extents[0], addresses, outside))
    apart = (addresses & np.asarray(size - 1, addresses.dtype)) != 0
    apart = apart if mask is None else apart & np.asarray(mask.data)
    if not aligned and apart.any():
        raise Misaligned(f"{misplaced(verb, kind, addresses, apart)}; program {tuple(builder.grid_idx)}")


def misplaced(verb: str, kind: BoundedPointer, addresses: Any, apart: Any) -> str:
    """The message: `kernel f loads int64 at byte 6 of x (int16, 3 x 3), which is no multiple of 8 bytes`."""
    address = int(addresses[tuple(np.argwhere(apart)[0])])
    extent = next(one for one in kind.extents if holds(one, address))
    name = next((name for known, name in arguments() if known == extent), "a pointer")
    size = kind.element_ty.primitive_bitwidth // 8
    kernel = launched[-1][0].fn.__name__ if launched else "?"
    return (
        f"kernel {kernel} {verb} {kind.element_ty} at byte {address - extent.address:,} of {name} "
        f"({extent.described}): the address is no multiple of {size}, which a device may refuse"
    )


def explained(builder: Any, verb: str, extent: Extent, addresses: Any, outside: Any) -> str:
    """The message: `kernel f stores to out[96], which has elements 0 to 95 (float32, 8 x 12): ...`."""
    names: dict[Extent, str] = {}
    for known, name in arguments():  # one tensor may be two arguments
        names[known] = f"{names[known]}/{name}" if known in names else name
    lanes = np.argwhere(outside)
    lane = tuple(int(i) for i in lanes[0])
    address = int(addresses[lane])
    has = f"{(extent.begin - extent.address) // extent.itemsize:,}"
    has += f" to {(extent.end - extent.address) // extent.itemsize - 1:,}"
    has = f"elements {has}" if extent.end > extent.begin else "no elements"
    there = next(
        (f"there lies {at(other, address, name)}" for other, name in names.items() if holds(other, address)), ""
    )
    kernel = launched[-1][0].fn.__name__ if launched else "?"
    said = f"kernel {kernel} {verb} {at(extent, address, names.get(extent, 'a pointer'))}"
    said += f", which has {has} ({extent.described}): {there or 'no tensor of this launch lies there'}"
    said += f"; program {tuple(builder.grid_idx)}"
    if addresses.size > 1:
        others = f" and {len(lanes) - 1:,} more" if len(lanes) > 1 else ""
        said += f", lane {', '.join(map(str, lane))}{others} of {' x '.join(map(str, addresses.shape))}"
    return said


def at(extent: Extent, address: int, name: str) -> str:
    return f"{name}[{(address - extent.address) // extent.itemsize:,}]"


def holds(extent: Extent, address: int) -> bool:
    return extent.begin <= address < extent.end


def arguments() -> Iterator[tuple[Extent, str]]:
    """The tensors of the current launch, with the names of the kernel's parameters."""
    for kernel, args, kwargs in launched[-1:]:
        for name, value in (*zip(kernel.arg_names, args, strict=False), *kwargs.items()):
            yield from within(name, value)


def within(name: str, value: Any) -> Iterator[tuple[Extent, str]]:
    if isinstance(value, tuple):
        for number, member in enumerate(value):
            yield from within(f"{name}[{number}]", member)
    elif isinstance(value, TensorDescriptor):
        yield from within(name, value.base)
    elif hasattr(value, "data_ptr") and (extent := extent_of(value)) is not None:
        yield extent, name
