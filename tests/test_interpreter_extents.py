"""Loads and stores out of bounds: each is named with its tensor and its index, and does not happen."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from tests.test_interpreter_process import interpreted

UNTIL_3_8 = tuple(map(int, triton.__version__.split(".")[:2])) < (3, 8)


@triton.jit
def copy(x, out, n, start, BLOCK: tl.constexpr, MASKED: tl.constexpr):
    i = start + tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = i < n if MASKED else i > -(1 << 30)
    tl.store(out + i, tl.load(x + i, mask), mask)


@triton.jit
def only_store(out, start, BLOCK: tl.constexpr):
    tl.store(out + start + tl.arange(0, BLOCK), 1.0)


@triton.jit
def scalar(x, out, at):
    tl.store(out, tl.load(x + at))


@triton.jit
def of_a_tile(tile, stride, ROWS: tl.constexpr, COLS: tl.constexpr):
    r, c = tl.arange(0, ROWS)[:, None], tl.arange(0, COLS)[None, :]
    tl.store(tile + r * stride + c, 0.0)


@triton.jit
def add(out, at):
    tl.atomic_add(out + at, 1.0)


@triton.jit
def highest(out, at):
    tl.atomic_max(out + at, 1.0)  # of floats, which goes through pointers to integers


@triton.jit
def swap(out, at):
    tl.atomic_cas(out + at, 0, 1)


@triton.jit
def flag(out, at):
    tl.store(out + at, True)  # of bool, which goes through a pointer to int8


@triton.jit
def through_a_block_pointer(x, out, n, start, BLOCK: tl.constexpr, CHECKED: tl.constexpr):
    here = tl.make_block_ptr(x, (n,), (1,), (start,), (BLOCK,), (0,))
    tl.store(out + tl.arange(0, BLOCK), tl.load(here, boundary_check=(0,) if CHECKED else ()))


@triton.jit
def through_a_descriptor(x, out, n, start, BLOCK: tl.constexpr):
    there = tl.make_tensor_descriptor(x, [n], [1], [BLOCK])
    tl.store(out + tl.arange(0, BLOCK), there.load([start]))


@triton.jit
def through_the_hosts_descriptor(there, out, start, BLOCK: tl.constexpr):
    tl.store(out + tl.arange(0, BLOCK), there.load([start]))


@triton.jit
def one_of_two(x, y, out, choice, at):
    tl.store(out, tl.load(tl.where(choice > 0, x, y) + at))


@triton.jit
def through_an_address(addresses, out):
    there = tl.load(addresses).to(tl.pointer_type(tl.float32))
    tl.store(out, tl.load(there))


@triton.jit
def in_words(x, out, start, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    words = (x + start).to(tl.pointer_type(tl.int64), bitcast=True)
    tl.store(out + i, tl.load(words + i, i < n, 0))


@triton.jit
def deeper(p, at):
    tl.store(p + at, 1.0)


@triton.jit
def through_a_function(out, at):
    deeper(out, at)


def refused(said: str, launch, *args, **kwargs) -> None:
    from harness.interpreter.extents import OutOfBounds

    with pytest.raises(OutOfBounds) as raised:
        launch(*args, **kwargs)
    assert said in str(raised.value), raised.value


@interpreted
def test_a_load_beyond_the_end_names_kernel_argument_index_program_and_lanes() -> None:
    x, out = torch.ones(1000), torch.empty(2048)
    whole = (
        "kernel copy loads x[1,000], which has elements 0 to 999 (float32, 1000): no tensor of this launch lies there"
    )
    refused(f"{whole}; program (1, 0, 0), lane 488 and 23 more of 512", copy[(2,)], x, out, 1000, 0, 512, False)


@interpreted
def test_a_store_beyond_the_end_does_not_happen_and_says_what_lies_there() -> None:
    storage = torch.zeros(96)
    x = torch.frombuffer(storage.numpy(), dtype=torch.float32, count=64)
    out = torch.frombuffer(storage.numpy(), dtype=torch.float32, count=32, offset=256)
    refused("kernel copy loads x[-8], which has elements 0 to 63", copy[(1,)], x, out, 64, -8, 16, False)
    refused(
        "loads x[64], which has elements 0 to 63 (float32, 64): there lies out[0]", copy[(1,)], x, out, 0, 56, 16, False
    )
    refused("kernel only_store stores to out[32], which has elements 0 to 31", only_store[(1,)], out, 24, 16)
    assert not storage.any()


@interpreted
def test_lanes_that_are_masked_off_may_point_anywhere() -> None:
    x, out = torch.ones(1000), torch.zeros(1000)
    copy[(1,)](x, out, 1000, 0, 1024, True)
    assert torch.equal(out, x)


@interpreted
def test_a_scalar_access_a_tile_and_a_device_function_are_held_to_the_same() -> None:
    refused("loads x[4], which has elements 0 to 3 (float32, 4)", scalar[(1,)], torch.ones(4), torch.empty(1), 4)
    tile = "stores to tile[60], which has elements 0 to 59 (float32, 6 x 10)"
    refused(tile, of_a_tile[(1,)], torch.empty(6, 10), 10, 8, 8)
    refused("lane 6, 0 and 15 more of 8 x 8", of_a_tile[(1,)], torch.empty(6, 10), 10, 8, 8)
    refused("kernel through_a_function stores to out[-1]", through_a_function[(1,)], torch.empty(4), -1)


@interpreted
def test_atomics_are_held_to_the_same() -> None:
    for dtype in (torch.float32, torch.bfloat16):
        refused("kernel add changes out[3], which has elements 0 to 2", add[(1,)], torch.zeros(3, dtype=dtype), 3)
    refused("kernel highest changes out[3], which has elements 0 to 2 (float32", highest[(1,)], torch.zeros(3), 3)
    refused("kernel swap changes out[-1]", swap[(1,)], torch.zeros(3, dtype=torch.int32), -1)
    refused("kernel flag stores to out[3]", flag[(1,)], torch.zeros(3, dtype=torch.bool), 3)


@interpreted
def test_descriptors_are_held_to_the_tensor_and_not_to_the_shape_that_they_state() -> None:
    x, out = torch.ones(48), torch.zeros(32)
    through_a_descriptor[(1,)](x, out, 48, 32, 32)
    assert out.sum() == 16
    refused("loads x[48], which has elements 0 to 47", through_a_descriptor[(1,)], x, out, 64, 32, 32)
    through_the_hosts_descriptor[(1,)](TensorDescriptor(x, [48], [1], [32]), out, 32, 32)
    wrong = TensorDescriptor(x, [64], [1], [32])
    refused("loads there[48], which has elements 0 to 47", through_the_hosts_descriptor[(1,)], wrong, out, 32, 32)


@interpreted
def test_block_pointers_are_held_to_the_tensor() -> None:
    if not UNTIL_3_8:
        return  # there are none
    x, out = torch.ones(48), torch.zeros(32)
    through_a_block_pointer[(1,)](x, out, 48, 32, 32, True)
    assert out.sum() == 16
    refused("loads x[48], which has elements 0 to 47", through_a_block_pointer[(1,)], x, out, 48, 32, 32, False)


@interpreted
def test_a_view_may_be_left_as_far_as_its_storage_goes() -> None:
    storage, out = torch.arange(8.0), torch.empty(1)
    scalar[(1,)](storage[4:6], out, -4)
    assert out.item() == 0
    scalar[(1,)](storage[4:6], out, 3)
    assert out.item() == 7
    refused("loads x[4], which has elements -4 to 3", scalar[(1,)], storage[4:6], out, 4)


@interpreted
def test_a_pointer_chosen_between_two_may_reach_both() -> None:
    x, y, out = torch.zeros(4), torch.ones(8), torch.empty(1)
    one_of_two[(1,)](x, y, out, 0, 7)
    assert out.item() == 1
    one_of_two[(1,)](y, x, out, 1, 7)
    assert out.item() == 1
    refused("which has", one_of_two[(1,)], x, y, out, 1, 1 << 20)


@interpreted
def test_a_pointer_made_of_an_integer_is_followed_unchecked() -> None:
    x, out = torch.full((4,), 3.0), torch.empty(1)
    through_an_address[(1,)](torch.tensor([x.data_ptr()]), out)
    assert out.item() == 3


@interpreted
def test_an_address_that_is_no_multiple_of_the_element_s_size_is_refused_unless_masked_off() -> None:
    from harness.interpreter.extents import Misaligned

    x, out = torch.arange(32, dtype=torch.int16), torch.zeros(4, dtype=torch.int64)
    in_words[(1,)](x, out, 4, 4, 4)
    assert torch.equal(out, x.view(torch.int64)[1:5])
    in_words[(1,)](x, out, 3, 0, 4)
    with pytest.raises(Misaligned, match=r"in_words loads int64 at byte 6 of x \(int16, 32\): .* no multiple of 8, "):
        in_words[(1,)](x, out, 3, 4, 4)


@interpreted
def test_a_tensor_that_is_two_arguments_is_called_by_both_names() -> None:
    x = torch.ones(8)
    refused("kernel copy loads x/out[8], which has elements 0 to 7", copy[(1,)], x, x, 8, 0, 16, False)


@interpreted
def test_an_empty_tensor_may_not_be_touched() -> None:
    refused("stores to out[0], which has no elements", only_store[(1,)], torch.empty(0), 0, 4)


if __name__ == "__main__":
    from harness.interpreter.installation import install
    from tests.test_interpreter_process import run_claims

    install()
    run_claims()
