"""Memory of the GPU that judge and worker both map: made, handed over as a descriptor, let go of."""

import ctypes
import mmap
import os
import subprocess
import sys
import threading

import pytest
import torch

from harness.wire.arena import TensorSpec
from harness.wire.device_arena import CudaMemory, DeviceArena, shareable_memory

GRANULARITY = 2 << 20
INVALID_CONTEXT = 201


class FakeCuda:
    """libcuda whose device memory is anonymous files of the host; it answers with the status it is told to."""

    def __init__(self, failing=None):
        self.failing = failing
        self.handles, self.mapped, self.fds = {}, {}, []
        self.current = threading.local()  # a context is current in one thread, here in the one that makes this
        self.current.context = 0xC0DE

    def __getattr__(self, name):
        if not name.startswith("cuMem"):
            raise AttributeError(name)

        def call(*arguments):
            if name == self.failing:
                return 2
            getattr(self, "_" + name)(*[getattr(argument, "_obj", argument) for argument in arguments])
            return 0

        return call

    def _cuMemGetAllocationGranularity(self, granularity, properties, option):
        assert properties.location.type == 1 and properties.handle_types == 1 and option == 0
        granularity.value = GRANULARITY

    def _cuMemCreate(self, handle, size, properties, flags):
        assert size.value % GRANULARITY == 0
        fd = os.memfd_create("gpu")
        os.ftruncate(fd, size.value)
        self._keep(handle, fd)

    def _cuMemExportToShareableHandle(self, fd, handle, kind, flags):
        fd.value = os.dup(self.handles[handle.value])

    def _cuMemImportFromShareableHandle(self, handle, pointer, kind):
        self._keep(handle, os.dup(pointer.value))

    def _cuMemAddressReserve(self, address, size, alignment, wanted, flags):
        address.value = 1  # replaced when mapped: the host's mmap chooses

    def _cuMemMap(self, address, size, offset, handle, flags):
        mapping = mmap.mmap(self.handles[handle.value], size.value)
        address.value = ctypes.addressof(ctypes.c_char.from_buffer(mapping))
        self.mapped[address.value] = mapping

    def _cuMemSetAccess(self, address, size, access, count):
        assert access.flags == 3 and count.value == 1 and address.value in self.mapped

    def cuCtxGetCurrent(self, context):
        context._obj.value = getattr(self.current, "context", None)
        return 0

    def cuCtxPushCurrent_v2(self, context):
        self.current.before, self.current.context = getattr(self.current, "context", None), context.value
        return 0

    def cuCtxPopCurrent_v2(self, context):
        self.current.context = self.current.before
        return 0

    def cuCtxSynchronize(self):
        return 0 if getattr(self.current, "context", None) else INVALID_CONTEXT

    def _cuMemUnmap(self, address, size):
        del self.mapped[address.value]

    def _cuMemAddressFree(self, address, size):
        pass

    def _cuMemRelease(self, handle):
        os.close(self.handles.pop(handle.value))

    def _keep(self, handle, fd):
        handle.value = fd
        self.handles[fd] = fd


def open_files():
    return len(os.listdir("/proc/self/fd"))


def test_what_one_side_writes_the_other_reads():
    judge, worker = FakeCuda(), FakeCuda()
    arena = DeviceArena.create_on(CudaMemory(judge), 5000)
    twin = DeviceArena.adopt_on(CudaMemory(worker), os.dup(arena.fd), arena.size)
    ctypes.memmove(arena.address + 4096, b"hello", 5)
    assert ctypes.string_at(twin.address + 4096, 5) == b"hello" and twin.address != arena.address
    arena.close()
    twin.close()


def test_it_is_as_large_as_the_driver_deals_memory_out():
    arena = DeviceArena.create_on(CudaMemory(FakeCuda()), GRANULARITY + 1)
    assert arena.size == 2 * GRANULARITY
    arena.close()


def test_once_closed_nothing_of_it_is_left():
    before = open_files()
    cuda = FakeCuda()
    arena = DeviceArena.create_on(CudaMemory(cuda), 1)
    assert cuda.handles and cuda.mapped
    arena.close()
    assert not cuda.handles and not cuda.mapped and open_files() <= before  # others may close theirs meanwhile


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
def test_a_thread_without_a_context_may_let_go_of_it():
    cuda = FakeCuda()
    arena = DeviceArena.create_on(CudaMemory(cuda), 1)
    collector = threading.Thread(target=arena.close)
    collector.start()
    collector.join()
    assert not cuda.handles and not cuda.mapped


@pytest.mark.parametrize(
    "failing",
    ["cuMemGetAllocationGranularity", "cuMemCreate", "cuMemExportToShareableHandle", "cuMemMap", "cuMemSetAccess"],
)
def test_a_driver_that_refuses_is_an_oserror_and_leaves_nothing(failing):
    before = open_files()
    cuda = FakeCuda(failing)
    with pytest.raises(OSError, match="failed with status 2"):
        DeviceArena.create_on(CudaMemory(cuda), 1)
    assert not cuda.handles and not cuda.mapped and open_files() <= before  # others may close theirs meanwhile


def test_a_descriptor_that_cannot_be_taken_is_an_oserror():
    with pytest.raises(OSError, match="importing failed"):
        DeviceArena.adopt_on(CudaMemory(FakeCuda("cuMemImportFromShareableHandle")), 0, GRANULARITY)


def test_views_outside_are_refused():
    arena = DeviceArena.create_on(CudaMemory(FakeCuda()), 1)
    with pytest.raises(ValueError, match="outside an arena"):
        arena.view(TensorSpec("uint8", (arena.size + 1,), 0))
    arena.close()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_without_cuda_there_is_no_shareable_memory():
    assert shareable_memory("cuda:0") is None


OTHER_SIDE = """
import sys, torch
from harness.wire.arena import TensorSpec
from harness.wire.device_arena import CudaMemory, DeviceArena
arena = DeviceArena.adopt_on(CudaMemory.of_torch(), int(sys.argv[1]), int(sys.argv[2]))
spec = TensorSpec("float32", (1000,), 256)
print(float(arena.view(spec).sum()))
arena.view(spec).fill_(2.0)
torch.cuda.synchronize()
"""


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_two_processes_share_the_gpu_s_memory():
    memory = shareable_memory("cuda:0")
    assert memory is not None
    arena = DeviceArena.create_on(memory, 1 << 20)
    spec = TensorSpec("float32", (1000,), 256)
    view = arena.view(spec)
    view.fill_(3.0)
    torch.cuda.synchronize()
    other = [sys.executable, "-c", OTHER_SIDE, str(arena.fd), str(arena.size)]
    done = subprocess.run(other, pass_fds=(arena.fd,), capture_output=True, text=True)
    assert done.stdout.split() == ["3000.0"], done.stderr
    arena.close()
    assert (view == 2.0).all(), "a view outlives the arena"
