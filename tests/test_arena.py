"""What is poured into an arena comes out bit for bit, nothing outside is ever viewed, and its size is for good."""

import ctypes
import json
import math
import os

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from harness.wire.arena import (
    ALIGNMENT,
    DTYPES,
    Arena,
    TensorSpec,
    dtype_name,
    extent,
    layout,
    room,
)
from harness.wire.tree import flatten, unflatten

BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def bits(tensor):
    return tensor.contiguous().view(BITS[tensor.itemsize])


def random_bits(dtype, *shape):
    """Any bit pattern: NaNs with payloads, denormals, both zeros. For bool only the two that are one."""
    if dtype is torch.bool:
        return torch.randint(0, 2, shape, dtype=torch.bool)
    return torch.randint(0, 256, (*shape, dtype.itemsize), dtype=torch.uint8).view(dtype).reshape(shape)


numbers = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5)
tensors = st.builds(
    lambda dtype, shape: random_bits(dtype, *shape),
    st.sampled_from(list(DTYPES.values())),
    st.lists(st.integers(0, 3), max_size=3),
)
data = st.recursive(
    numbers | tensors,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)


def same(one, other):
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        return one.shape == other.shape and one.dtype == other.dtype and torch.equal(bits(one), bits(other))
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


@given(data)
def test_data_survive_the_tree_the_arena_and_json(given_data):
    tree, leaves = flatten((given_data, 1), ["q", "kv"])
    specs = layout([tensor for _, tensor in leaves])
    arena = Arena.create(extent(specs))
    for (_, tensor), spec in zip(leaves, specs):
        arena.view(spec).copy_(tensor)
    tree, fields = json.loads(json.dumps([tree, [spec.to_json() for spec in specs]]))
    views = [arena.view(TensorSpec.from_json(entry)) for entry in fields]
    assert same(unflatten(tree, views.__getitem__), (given_data, 1))
    arena.close()


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_every_dtype_is_carried_bit_for_bit(dtype):
    tensor = random_bits(dtype, 97, 13)
    (spec,) = layout([tensor])
    arena = Arena.create(extent([spec]))
    arena.view(spec).copy_(tensor)
    twin = Arena.adopt(os.dup(arena.fd), arena.size)
    assert torch.equal(bits(twin.view(spec)), bits(tensor))
    raw = ctypes.string_at(twin.address + spec.offset, spec.nbytes)
    assert raw == bytes(bits(tensor).view(torch.uint8).flatten().tolist())
    arena.close()
    twin.close()


@pytest.mark.parametrize("value", [0x7FC00001, 0x7F800001, -1, -0x80000000], ids=hex)
def test_a_nan_keeps_its_payload_and_zero_its_sign(value):
    tensor = torch.tensor([value], dtype=torch.int32).view(torch.float32)
    (spec,) = layout([tensor])
    arena = Arena.create(spec.nbytes)
    arena.view(spec).copy_(tensor)
    assert bits(arena.view(spec)).item() == value
    arena.close()


@given(st.lists(st.tuples(st.sampled_from(list(DTYPES.values())), st.lists(st.integers(0, 70), max_size=2))))
def test_a_layout_is_aligned_and_nothing_in_it_overlaps(wanted):
    made = [torch.empty(shape, dtype=dtype) for dtype, shape in wanted]
    specs = layout(made)
    end = 0
    for spec, tensor in zip(specs, made, strict=True):
        assert spec.offset % ALIGNMENT == 0 and spec.offset >= end
        assert spec.shape == tuple(tensor.shape) and DTYPES[spec.dtype] is tensor.dtype
        end = spec.offset + spec.nbytes
    assert end <= extent(specs) == room([spec.nbytes for spec in specs])


@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (0, 5), (1,), (1, 1)])
def test_scalars_and_empty_tensors_travel(shape):
    tensor, after = torch.full(shape, 7.0), torch.arange(3)
    specs = layout([tensor, after])
    arena = Arena.create(extent(specs))
    for spec, content in zip(specs, [tensor, after]):
        arena.view(spec).copy_(content)
    assert torch.equal(arena.view(specs[0]), tensor) and torch.equal(arena.view(specs[1]), after)
    arena.close()


def test_an_empty_tensor_may_lie_at_the_very_end():
    arena = Arena.create(1)
    assert arena.view(TensorSpec("float32", (0, 4), arena.size)).shape == (0, 4)
    arena.close()


@pytest.mark.parametrize(
    "shape, offset",
    [((1,), 4096), ((1025,), 0), ((1024,), 256), ((1,), -256), ((2**62,), 0), ((1,), 2**70), ((1,), 4), ((1,), 4095)],
)
def test_a_view_that_is_not_wholly_inside_is_refused(shape, offset):
    arena = Arena.create(4096)
    assert arena.size == 4096
    with pytest.raises(ValueError, match="outside an arena"):
        arena.view(TensorSpec("float32", shape, offset))
    assert arena.view(TensorSpec("float32", (1024,), 0)).numel() == 1024
    arena.close()


def test_a_shape_with_a_negative_extent_is_refused():
    arena = Arena.create(4096)
    with pytest.raises(ValueError):
        arena.view(TensorSpec("float32", (-1,), 256))


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="seals are Linux's")
def test_nobody_who_holds_the_file_can_change_its_size():
    arena = Arena.create(8192)
    other = os.dup(arena.fd)
    for size in (0, 4096, 16384):
        with pytest.raises(PermissionError):
            os.ftruncate(other, size)
    assert os.fstat(other).st_size == arena.size
    os.close(other)
    arena.close()


def test_writes_of_one_holder_are_seen_by_the_other():
    arena = Arena.create(100)
    spec = TensorSpec("int64", (3,), 0)
    twin = Arena.adopt(os.dup(arena.fd), arena.size)
    twin.view(spec).copy_(torch.tensor([1, 2, 3]))
    arena.close()
    twin.close()
    assert arena.view(spec).tolist() == [1, 2, 3], "mapped as long as it is used, closed or not"


def test_more_than_the_file_holds_is_not_adopted():
    arena = Arena.create(4096)
    with pytest.raises(ValueError):
        Arena.adopt(arena.fd, 8192)
    arena.close()


def test_tensors_are_called_by_the_names_of_the_inputs_and_deeper_ones_by_their_path():
    t = torch.zeros(1)
    _, leaves = flatten((t, {"fp8": (t, t), "n": 3}, [t]), ["q", "kv", "table"])
    assert [name for name, _ in leaves] == ["q", "kv.fp8.0", "kv.fp8.1", "table.0"]


@pytest.mark.parametrize("wrong", [object(), {1: 2}, {"a": {None: 1}}, b"bytes", 1j, {1, 2}])
def test_what_cannot_travel_is_refused_by_name(wrong):
    with pytest.raises(TypeError, match="cannot be passed to a worker"):
        flatten((1, wrong), ["a", "b"])


def test_a_dtype_that_does_not_travel_is_refused_but_has_a_name():
    with pytest.raises(TypeError, match="complex64"):
        layout([torch.zeros(1, dtype=torch.complex64)])
    assert dtype_name(torch.complex64) == "complex64" and dtype_name(torch.bfloat16) == "bfloat16"


def test_data_with_another_number_of_members_than_there_are_names_are_refused():
    with pytest.raises((TypeError, ValueError)):
        flatten((torch.zeros(1), torch.zeros(1)), ["only"])


def test_a_spec_counts_its_bytes():
    for name, dtype in DTYPES.items():
        assert TensorSpec(name, (3, 5), 0).nbytes == 15 * dtype.itemsize == math.prod((3, 5, dtype.itemsize))
    assert TensorSpec("float64", (), 0).nbytes == 8 and TensorSpec("float64", (4, 0), 0).nbytes == 0
