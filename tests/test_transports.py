"""Bytes go in and out unchanged, at addresses nobody can foresee; freed memory holds NaN where it can."""

import ctypes
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from harness.command import ROOT
from harness.wire.arena import ALIGNMENT, DTYPES, Arena, TensorSpec, extent, layout
from harness.worker import main, transports
from harness.worker.transports import POISON_BYTE, CpuTransport, GpuRuntime, GpuTransport


class FakeRuntime:
    """A runtime whose device memory is the host's."""

    def __init__(self):
        self.log = []

    def copy(self, destination, source, count):
        self.log.append("copy")
        ctypes.memmove(destination, source, count)

    def enqueue_copy(self, destination, source, count):
        self.log.append("enqueue copy")
        ctypes.memmove(destination, source, count)

    def fill(self, address, byte, count):
        self.log.append("fill")
        ctypes.memset(address, byte, count)

    def synchronize(self):
        self.log.append("synchronize")


@pytest.fixture
def transport():
    return GpuTransport(FakeRuntime(), "cpu")


@pytest.fixture(params=["cpu", "gpu"])
def either(request, transport):
    return CpuTransport() if request.param == "cpu" else transport


def paged_in(transport, arena, spec):
    tensor = transport.place(spec)
    transport.page_in(arena, spec, transports._data_ptr(tensor))
    return tensor


def random_bytes(count):
    return torch.randint(0, 256, (count,), dtype=torch.uint8)


def arena_with(content):
    """An arena that holds these bytes at an offset, with a margin of 0x55 around them."""
    arena = Arena.create(3 * ALIGNMENT + len(content))
    arena.view(TensorSpec("uint8", (arena.size,), 0)).fill_(0x55)
    spec = TensorSpec("uint8", (len(content),), ALIGNMENT)
    arena.view(spec).copy_(content)
    return arena, spec


@pytest.mark.parametrize("dtype", DTYPES)
def test_any_bits_of_any_dtype_come_in_and_go_out_unchanged(transport, dtype):
    content = random_bytes(24 * 16)
    if dtype == "bool":
        content %= 2
    arena, raw = arena_with(content)
    shape = (6, 64 // DTYPES[dtype].itemsize)
    tensor = paged_in(transport, arena, TensorSpec(dtype, shape, raw.offset))
    assert tensor.dtype is DTYPES[dtype] and tensor.shape == shape and tensor.is_contiguous()
    assert torch.equal(tensor.view(torch.uint8).flatten(), content)
    arena.view(raw).fill_(0)
    transport.page_out(arena, raw, tensor.data_ptr())
    assert torch.equal(arena.view(raw), content)
    everything = arena.view(TensorSpec("uint8", (arena.size,), 0))
    assert (everything[: raw.offset] == 0x55).all() and (everything[raw.offset + len(content) :] == 0x55).all()
    arena.close()


@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (1,)])
def test_scalars_and_empty_tensors_come_in(transport, shape):
    arena = Arena.create(4096)
    spec = TensorSpec("float32", shape, 0)
    arena.view(spec).fill_(2.5)
    tensor = paged_in(transport, arena, spec)
    assert tensor.shape == shape and (tensor == 2.5).all()
    transport.page_out(arena, spec, tensor.data_ptr())
    arena.close()


def test_what_came_in_is_the_submission_s_own(transport):
    arena, spec = arena_with(random_bytes(100))
    one, other = paged_in(transport, arena, spec), paged_in(transport, arena, spec)
    before = other.clone()
    one.fill_(0)
    assert torch.equal(other, before) and torch.equal(arena.view(spec), before)
    arena.close()


def test_tensors_are_aligned_and_lie_at_many_places_in_their_allocations(transport):
    arena, spec = arena_with(random_bytes(1000))
    tensors = [paged_in(transport, arena, spec) for _ in range(200)]
    assert all(tensor.data_ptr() % ALIGNMENT == 0 for tensor in tensors)
    assert len({tensor.storage_offset() // ALIGNMENT for tensor in tensors}) > 32
    for tensor in tensors:
        assert tensor.storage_offset() + 1000 <= tensor.untyped_storage().nbytes()
    arena.close()


def test_a_tensor_that_lies_last_in_its_allocation_is_whole(transport, monkeypatch):
    monkeypatch.setattr(transports.secrets, "randbelow", lambda count: count - 1)
    content = random_bytes(1000)
    arena, spec = arena_with(content)
    assert torch.equal(paged_in(transport, arena, spec), content)
    arena.close()


def test_operators_that_a_submission_overrides_do_not_get_between(transport, monkeypatch):
    content = random_bytes(64)
    arena, spec = arena_with(content)

    def evil(*_, **__):
        raise AssertionError("called the submission's")

    for name in ("data_ptr", "view", "copy_", "clone", "to"):
        monkeypatch.setattr(torch.Tensor, name, evil)
    monkeypatch.setattr(torch, "empty", evil)
    tensor = paged_in(transport, arena, spec)
    transport.poison([64])
    monkeypatch.undo()
    assert torch.equal(tensor, content)
    arena.close()


def test_on_a_cpu_what_is_copied_out_goes_past_them_too(monkeypatch):
    content = random_bytes(64)
    arena, spec = arena_with(torch.zeros(64, dtype=torch.uint8))
    address = content.data_ptr()

    def evil(*_, **__):
        raise AssertionError("called the submission's")

    for owner, name in ((torch.Tensor, "data_ptr"), (torch.Tensor, "copy_"), (torch, "empty"), (ctypes, "memmove")):
        monkeypatch.setattr(owner, name, evil)
    CpuTransport().page_out(arena, spec, address)
    CpuTransport().poison([64])
    monkeypatch.undo()
    assert torch.equal(arena.view(spec), content)
    arena.close()


def test_poison_on_a_gpu_fills_blocks_of_the_sizes_asked_for_and_holds_them_all_at_once(transport, monkeypatch):
    blocks = []
    empty = torch.empty

    def recorded(size, **options):
        blocks.append(empty(size, **options))
        return blocks[-1]

    monkeypatch.setattr(transports, "_empty", recorded)
    transport.poison([100, 0, 131073])
    assert [block.numel() for block in blocks] == [100, 0, 131073]
    assert all((block == POISON_BYTE).all() for block in blocks)


def heap_of(monkeypatch, lacks=()):
    """What CpuTransport does to the C library's heap: the sizes of the most blocks that it held at once, the blocks
    that it holds still, and those that it freed without poison. There is no memory for the sizes that it `lacks`."""
    held, most, clean = {}, [], []

    def malloc(size):
        if size in lacks:
            return None
        block = ctypes.create_string_buffer(size)
        held[ctypes.addressof(block)] = block
        if len(held) > len(most):
            most[:] = map(len, held.values())
        return ctypes.addressof(block)

    def free(address):
        if address is not None and set((block := held.pop(address)).raw) != {POISON_BYTE}:
            clean.append(len(block))

    monkeypatch.setattr(transports, "_malloc", malloc)
    monkeypatch.setattr(transports, "_free", free)
    return most, held, clean


def test_poison_on_a_cpu_fills_many_small_blocks_and_few_large_ones_and_holds_them_all_at_once(monkeypatch):
    most, held, clean = heap_of(monkeypatch)
    half, slack = transports.FILLED // 2, transports.SLACK
    CpuTransport().poison([100, 0, half, 8 << 20])
    assert most == [100 + slack] * 64 + [slack] * 64 + [half + slack] * 2 + [(8 << 20) + slack] and not held
    assert clean == [(8 << 20) + slack + ALIGNMENT], "but for the block that has the free ones sorted"


def test_memory_that_the_heap_never_gives_is_not_filled(monkeypatch):
    """Blocks of 32 MiB are new to the process each time. To fill one would only take time and memory."""
    most, _, _ = heap_of(monkeypatch)
    CpuTransport().poison([transports.KEPT])
    assert most == [transports.LARGE + ALIGNMENT]


def test_where_memory_is_short_less_is_filled(monkeypatch):
    most, held, _ = heap_of(monkeypatch, lacks=[(8 << 20) + transports.SLACK])
    CpuTransport().poison([8 << 20, 1 << 20])
    assert most == [(1 << 20) + transports.SLACK] and not held


FILLED = """
import torch
from harness.worker.transports import CpuTransport, keep_freed_memory

keep_freed_memory()
for size in (512, 3000, 40_000, 200_000, 1 << 20, 31 << 20):
    for _ in range(10):
        CpuTransport().poison([size])
        tensor = torch.empty(size, dtype=torch.uint8)
        print(size, int((tensor != 0xFF).sum()))
        del tensor
"""


@pytest.mark.slow(ci=True)
def test_what_torch_gives_for_empty_memory_is_poison_at_every_size_from_the_first_call_on():
    """Where the C library took new memory of the system, every byte would be zero. It keeps some bytes for itself."""
    done = subprocess.run([sys.executable, "-c", FILLED], capture_output=True, text=True, check=True, cwd=ROOT)
    found = [tuple(map(int, line.split())) for line in done.stdout.splitlines()]
    assert len(found) == 60
    other = [(size, left) for size, left in found if left > 64]
    assert len(other) <= 3, other


def test_a_worker_on_a_cpu_keeps_freed_memory_from_its_start_on(monkeypatch):
    called = []
    monkeypatch.setattr(main, "keep_freed_memory", lambda: called.append("kept"))
    main.Worker(None, "cpu", 0)._get_ready()
    assert called == ["kept"]


def test_poison_on_a_gpu_is_there_before_the_clock_starts():
    runtime = FakeRuntime()
    GpuTransport(runtime, "cpu").poison([8, 8])
    assert runtime.log == ["fill", "fill", "synchronize"]


# float8_e4m3fnuz and e5m2fnuz have one NaN, 0x80; no byte is NaN in every format.
@pytest.mark.parametrize(
    "dtype", [name for name in DTYPES if "float" in name and "fnuz" not in name and "float4" not in name]
)
def test_poison_reads_as_nan(dtype):
    (spec,) = layout([torch.empty(4, dtype=DTYPES[dtype])])
    arena = Arena.create(extent([spec]))
    ctypes.memset(arena.address, POISON_BYTE, spec.nbytes)
    assert arena.view(spec).float().isnan().all()
    arena.close()


@pytest.mark.parametrize("dtype, value", [("float8_e4m3fnuz", -240.0), ("float8_e5m2fnuz", -57344.0)])
def test_poison_reads_as_the_largest_negative_number_where_there_is_one_nan(dtype, value):
    byte = torch.tensor([POISON_BYTE], dtype=torch.uint8)
    assert byte.view(DTYPES[dtype]).float().item() == value == torch.finfo(DTYPES[dtype]).min


def library(prefix, status=0):
    """A shared library of the three functions, which copies within the host's memory."""
    calls = []

    def function(name, action):
        def call(*arguments):
            calls.append((name, arguments))
            action(*arguments)
            return status

        return call

    return calls, SimpleNamespace(
        **{
            f"{prefix}Memcpy": function("memcpy", lambda to, source, count, kind: ctypes.memmove(to, source, count)),
            f"{prefix}MemcpyAsync": function(
                "enqueue", lambda to, source, count, kind, stream: ctypes.memmove(to, source, count)
            ),
            f"{prefix}Memset": function("memset", lambda to, byte, count: ctypes.memset(to, byte, count)),
            f"{prefix}DeviceSynchronize": function("synchronize", lambda: None),
        }
    )


@pytest.mark.parametrize("prefix", ["cuda", "hip"])
def test_the_runtime_of_either_make_is_called_by_its_own_names(prefix):
    calls, fake = library(prefix)
    runtime = GpuRuntime(fake, prefix)
    source, target = ctypes.create_string_buffer(b"12345678", 8), ctypes.create_string_buffer(8)
    runtime.copy(ctypes.addressof(target), ctypes.addressof(source), 4)
    assert target.raw == b"1234\0\0\0\0"
    assert calls[0][1][3] == 4, "the default direction, told from the addresses"
    runtime.fill(ctypes.addressof(target), 0xFF, 2)
    runtime.synchronize()
    assert target.raw == b"\xff\xff34\0\0\0\0" and [name for name, _ in calls] == ["memcpy", "memset", "synchronize"]
    runtime.enqueue_copy(ctypes.addressof(target), ctypes.addressof(source), 2)
    assert target.raw[:2] == b"12" and calls[-1] == ("enqueue", (*calls[-1][1][:3], 4, None)), "on the default stream"


@pytest.mark.parametrize("what", ["memcpy", "asynchronous memcpy", "memset", "synchronize"])
def test_a_call_of_the_runtime_that_fails_is_an_exception(what):
    _, fake = library("cuda", status=700)
    runtime = GpuRuntime(fake, "cuda")
    buffer = ctypes.addressof(ctypes.create_string_buffer(8))
    with pytest.raises(RuntimeError, match=f"{what} failed with status 700"):
        {
            "memcpy": lambda: runtime.copy(buffer, buffer, 0),
            "asynchronous memcpy": lambda: runtime.enqueue_copy(buffer, buffer, 0),
            "memset": lambda: runtime.fill(buffer, 0, 0),
            "synchronize": runtime.synchronize,
        }[what]()


def test_addresses_beyond_32_bits_survive_the_real_c_calling_convention():
    """libc's memcpy and memset under the runtime's names: what ctypes passes is what arrives."""
    libc = ctypes.CDLL(None)
    taken = SimpleNamespace(
        cudaMemcpy=ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)(
            lambda to, source, count, kind: (ctypes.memmove(to, source, count), 0)[1]
        ),
        cudaMemcpyAsync=SimpleNamespace(),
        cudaMemset=libc.memset,
        cudaDeviceSynchronize=lambda: 0,
    )
    runtime = GpuRuntime(taken, "cuda")
    source, target = random_bytes(1 << 20), torch.zeros(1 << 20, dtype=torch.uint8)
    runtime.copy(target.data_ptr(), source.data_ptr(), 1 << 20)
    assert torch.equal(source, target)


def test_a_runtime_that_torch_has_not_loaded_is_an_error(monkeypatch):
    monkeypatch.setattr(torch.version, "hip", "6.4")
    with pytest.raises(OSError, match=r"no libamdhip64\.so"):
        GpuRuntime.loaded_by_torch()


def test_a_library_that_is_mapped_is_found():
    assert transports._mapped_library("libc.so").memcpy
