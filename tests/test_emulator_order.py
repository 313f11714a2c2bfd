"""Kernels whose result depends on the order of workgroups, each beside a clean twin."""

import functools

import pytest
import torch

pytest.importorskip("tinygrad")
pytest.importorskip("elftools")

from harness.emulated.launches import EmulatedFault, Launches
from harness.emulator import findings
from harness.emulator.code_object import CodeObject
from harness.hip import compilers

KERNEL = """
extern "C" __global__ void probe(const float* x, float* y, int* counts) {
    BODY
}
"""
HANDS_ON = """if (blockIdx.x == WRITES) y[0] = x[threadIdx.x];
    else if (threadIdx.x == 0) y[1] = *(volatile float*)y + 1;"""
APART = """if (blockIdx.x == WRITES) y[0] = x[0];
    else if (threadIdx.x == 0) y[1] = x[1] + 1;"""
COUNTED = "__hip_atomic_fetch_add(&counts[(int)x[threadIdx.x] % 4], 1, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);"
READ_TOO_EARLY = COUNTED + "if (threadIdx.x == 0) y[blockIdx.x] = *(volatile int*)(counts + 1);"
TICKETS = """if (threadIdx.x == 0)
        y[__hip_atomic_fetch_add(counts, 1, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT)] = blockIdx.x;"""
SUMMED = "__hip_atomic_fetch_add(y, 1.0f / (1 + x[blockIdx.x]), __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);"


@functools.cache
def compiled(body: str) -> tuple[CodeObject, str]:
    if compilers.missing("gfx942") is not None:
        pytest.skip("no compiler for gfx942")
    image, assembly = compilers.code_object(KERNEL.replace("BODY", body), "gfx942")
    return CodeObject(image), assembly


def launched(body: str, grid: int, block: int = 64) -> tuple[Launches, torch.Tensor, torch.Tensor]:
    image, assembly = compiled(body)
    x, y, counts = torch.arange(64.0), torch.zeros(64), torch.zeros(4, dtype=torch.int32)
    tensors = [("x", x), ("y", y), ("counts", counts)]
    pointers = [one.data_ptr().to_bytes(8, "little") for _, one in tensors]
    launches = Launches("gfx942", again=True)
    launches.run(image, "probe", (grid, 1, 1), (block, 1, 1), pointers, tensors, 0, assembly)
    return launches, y, counts


@pytest.mark.parametrize("writes", [0, 1])
def test_of_two_workgroups_either_that_depends_on_the_other_is_found(writes):
    with pytest.raises(EmulatedFault) as caught:
        launched(HANDS_ON.replace("WRITES", str(writes)), grid=2)
    words = str(caught.value)
    assert words.startswith(f"{findings.ORDER_OF_WORKGROUPS}: probe: byte 7 of y differs")
    assert "global_store_dword, line 4" in words and f"workgroup ({1 - writes}, 0, 0), wave 0, lane 0" in words
    launches, y, _ = launched(APART.replace("WRITES", str(writes)), grid=2)
    assert y[:2].tolist() == [0, 2] and not launches.remarks


def test_atomics_that_commute_are_neither_accused_nor_remarked():
    launches, _, counts = launched(COUNTED, grid=12)
    assert counts.tolist() == [12 * 16] * 4 and not launches.remarks


def test_who_reads_a_count_while_others_add_to_it_is_accused():
    with pytest.raises(EmulatedFault, match=f"{findings.ORDER_OF_WORKGROUPS}: probe: byte . of y differs"):
        launched(READ_TOO_EARLY, grid=12)


@pytest.mark.parametrize(("body", "word"), [(TICKETS, "global_atomic_add"), (SUMMED, "global_atomic_add_f32")])
def test_tickets_and_sums_of_floats_are_remarked_and_not_accused(body, word):
    launches, _, _ = launched(body, grid=12)
    (remark,) = launches.remarks
    assert f"it uses {word}, and what those leave depends on the order by nature" in remark


SHARED_SUM = """
    __shared__ float sums[7];
    if (threadIdx.x < 7) sums[threadIdx.x] = 0;
    __syncthreads();
    atomicAdd(&sums[threadIdx.x % 7], x[threadIdx.x % 64] * 1.1f);
    __syncthreads();
    if (threadIdx.x < 7) y[threadIdx.x] = sums[threadIdx.x];
"""
SHARED_TICKETS = """
    __shared__ int count;
    if (threadIdx.x == 0) count = 0;
    __syncthreads();
    if (threadIdx.x % 8 == 0) y[atomicAdd(&count, 1)] = threadIdx.x;
"""


@pytest.mark.parametrize(("body", "word"), [(SHARED_TICKETS, "ds_add_rtn_u32"), (SHARED_SUM, "ds_add_f32")])
def test_so_are_those_in_shared_memory(body, word):
    launches, _, _ = launched(body, grid=1, block=256)
    (remark,) = launches.remarks
    assert f"it uses {word}, and what those leave depends on the order by nature" in remark


READ_BESIDE_A_SWAP = """
    __shared__ int count;
    if (threadIdx.x == 0) count = 0;
    __syncthreads();
    int seen = count;
    atomicCAS(&count, 0, 5);
    y[threadIdx.x] = seen;
"""


def test_of_a_race_with_an_atomic_the_read_is_named_and_no_other_atomic():
    with pytest.raises(EmulatedFault, match=r"it changes byte 0 .* wave 3, lane 63 read \(ds_read_b32, line"):
        launched(READ_BESIDE_A_SWAP, grid=1, block=256)
