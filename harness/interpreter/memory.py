"""The memory accesses of an interpreted kernel that Triton's interpreter gets wrong or does not check.

    out of bounds              every load, store and atomic is checked against its tensor first (extents)
    atomic_add on bf16         one element after another, in order; each sum rounds to bf16 (upstream refuses)
    atomic_xchg of floats      moves their bits (upstream refuses)
    loads that pad with NaN    the NaN of the element's type (upstream converts NaN to an integer)

Block pointers and tensor descriptors end up as loads and stores of single elements here, so one check covers all.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle, _ir

from harness.interpreter import extents
from harness.interpreter.number_formats import BF16_NAN, decode_bf16, encode_bf16, float8, is_stored_as_bits

upstream_load = InterpreterBuilder.create_masked_load
upstream_store = InterpreterBuilder.create_masked_store
upstream_atomic_cas = InterpreterBuilder.create_atomic_cas
upstream_atomic_rmw = InterpreterBuilder.create_atomic_rmw
upstream_descriptor_load = InterpreterBuilder.create_descriptor_load
upstream_block_pointer_load: Any = getattr(InterpreterBuilder, "create_tensor_pointer_load", None)  # until 3.8


class Memory:
    """These methods replace those of the same names in InterpreterBuilder; `self` is the InterpreterBuilder."""

    def create_masked_load(self, ptrs: TensorHandle, mask: Any, *rest: Any, **named: Any) -> TensorHandle:
        extents.check(self, "loads", ptrs, mask)
        return upstream_load(self, ptrs, mask, *rest, **named)

    def create_masked_store(self, ptrs: TensorHandle, value: TensorHandle, mask: Any, *rest: Any, **named: Any) -> Any:
        extents.check(self, "stores to", ptrs, mask)
        return upstream_store(self, ptrs, value, mask, *rest, **named)

    def create_atomic_cas(self, ptr: TensorHandle, *rest: Any) -> TensorHandle:
        extents.check(self, "changes", ptr, None)
        return upstream_atomic_cas(self, ptr, *rest)

    def create_atomic_rmw(
        self, rmwOp: Any, ptr: TensorHandle, val: TensorHandle, mask: TensorHandle, sem: Any, scope: Any
    ) -> TensorHandle:
        extents.check(self, "changes", ptr, mask)
        if rmwOp == _ir.ATOMIC_OP.XCHG and val.data.dtype.kind == "f":
            bits = TensorHandle(val.data.view(f"i{val.data.itemsize}"), val.dtype)
            before = upstream_atomic_rmw(self, rmwOp, ptr, bits, mask, sem, scope).data
            return TensorHandle(before.view(val.data.dtype), val.dtype.scalar)
        if rmwOp != _ir.ATOMIC_OP.FADD or not val.dtype.scalar.is_bf16():
            return upstream_atomic_rmw(self, rmwOp, ptr, val, mask, sem, scope)
        addends, addresses, enabled = np.broadcast_arrays(decode_bf16(val.data), ptr.data, mask.data)
        before = np.zeros(addends.shape, np.uint16)
        for index in np.ndindex(addends.shape):
            if enabled[index]:
                cell = ctypes.c_uint16.from_address(int(addresses[index]))
                before[index] = cell.value
                total = decode_bf16(np.array([cell.value], np.uint16)) + addends[index]
                cell.value = int(encode_bf16(total)[0])
        return TensorHandle(before, tl.bfloat16)

    def create_descriptor_load(
        self, desc: Any, indices: list[TensorHandle], *policy: Any, **named: Any
    ) -> TensorHandle:
        kind = desc.base.dtype.element_ty
        if desc.padding != _ir.PADDING_OPTION.PAD_NAN or not is_stored_as_bits(kind):
            return upstream_descriptor_load(self, desc, indices, *policy, **named)
        pointers, mask = desc.materialize_pointers(indices)
        return self.create_masked_load(pointers, mask, nan_like(pointers, kind), *policy, *named.values(), False)

    def create_tensor_pointer_load(self, ptr: Any, boundary_check: Any, padding: Any, *policy: Any) -> TensorHandle:
        kind = ptr.base.get_element_ty()
        if padding != _ir.PADDING_OPTION.PAD_NAN or not is_stored_as_bits(kind):
            return upstream_block_pointer_load(self, ptr, boundary_check, padding, *policy)
        pointers, mask = ptr.materialize_pointers(boundary_check)
        return self.create_masked_load(pointers, mask, nan_like(pointers, kind), *policy)


def nan_like(pointers: TensorHandle, kind: tl.dtype) -> TensorHandle:
    """NaN of `kind` in the shape of `pointers`."""
    code = BF16_NAN if kind.is_bf16() else np.uint8(float8(kind).nan_code)
    return TensorHandle(np.full(pointers.data.shape, code), kind)


if upstream_block_pointer_load is None:
    del Memory.create_tensor_pointer_load
