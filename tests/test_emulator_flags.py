"""Waves that hand shared memory over by flags, counts and locks, without a barrier: right kernels, and racy twins."""

import functools

import numpy as np
import pytest

pytest.importorskip("tinygrad")
pytest.importorskip("elftools")

from harness.emulator import LaunchOutcome, findings, of_array, run
from harness.emulator.order import InTurn, Order, Shuffled
from harness.hip import compilers

SLEEP = "__builtin_amdgcn_s_sleep(1)"

FLAG = """
extern "C" __global__ void probe(const float* x, float* y, int* in_global) {
    __shared__ float tile[W];
    __shared__ int flag;
    if (threadIdx.x == 0) flag = 0;
    __syncthreads();
    if (threadIdx.x < W) {
        BEFORE
        __hip_atomic_store(WHERE, 1, __ATOMIC_RELEASE, __HIP_MEMORY_SCOPE_AGENT);
        AFTER
    } else {
        WAITING (__hip_atomic_load(WHERE, __ATOMIC_ACQUIRE, __HIP_MEMORY_SCOPE_AGENT) == 0) BODY;
        y[threadIdx.x - W] = tile[2 * W - 1 - threadIdx.x];
    }
}
"""
STORE = "*(volatile float*)(tile + threadIdx.x) = x[threadIdx.x];"

COUNT = """
extern "C" __global__ void probe(const float* x, float* y, int* in_global) {
    __shared__ float tile[256];
    __shared__ int count;
    if (threadIdx.x == 0) count = 0;
    __syncthreads();
    BEFORE
    if (threadIdx.x % W == 0) __hip_atomic_fetch_add(&count, 1, __ATOMIC_RELEASE, __HIP_MEMORY_SCOPE_WORKGROUP);
    AFTER
    while (*(volatile int*)&count != 256 / W) {}
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
    y[threadIdx.x] = tile[255 - threadIdx.x];
}
"""

TICKET = """
extern "C" __global__ void probe(const float* x, float* y, int* in_global) {
    __shared__ float tile[256];
    __shared__ int count;
    if (threadIdx.x == 0) count = 0;
    __syncthreads();
    STORE
    int before = 0;
    if (threadIdx.x % W == 0)
        before = __hip_atomic_fetch_add(&count, 1, __ATOMIC_ACQ_REL, __HIP_MEMORY_SCOPE_WORKGROUP);
    if (__builtin_amdgcn_readfirstlane(before) != LAST) return;
    for (int at = threadIdx.x % W; at < 256; at += W) y[at] = tile[255 - at];
}
"""

BACK_AND_FORTH = """
extern "C" __global__ void probe(const float* x, float* y, int* in_global) {
    __shared__ float tile[W];
    __shared__ int full, empty;
    if (threadIdx.x == 0) full = empty = 0;
    __syncthreads();
    for (int round = 0; round < 4; round++) {
        if (threadIdx.x < W) {
            EMPTY
            tile[threadIdx.x] = x[round * W + threadIdx.x];
            __hip_atomic_store(&full, round + 1, __ATOMIC_RELEASE, __HIP_MEMORY_SCOPE_WORKGROUP);
        } else {
            while (__hip_atomic_load(&full, __ATOMIC_ACQUIRE, __HIP_MEMORY_SCOPE_WORKGROUP) != round + 1)
                __builtin_amdgcn_s_sleep(1);
            y[round * W + threadIdx.x - W] = tile[2 * W - 1 - threadIdx.x];
            __hip_atomic_store(&empty, round + 1, __ATOMIC_RELEASE, __HIP_MEMORY_SCOPE_WORKGROUP);
        }
    }
}
"""
IS_EMPTY = """while (__hip_atomic_load(&empty, __ATOMIC_ACQUIRE, __HIP_MEMORY_SCOPE_WORKGROUP) != round)
                __builtin_amdgcn_s_sleep(1);"""

LOCK = """
extern "C" __global__ void probe(const float* x, float* y, int* in_global) {
    __shared__ int lock;
    __shared__ float sum;
    if (threadIdx.x == 0) { lock = 0; sum = 0; }
    __syncthreads();
    if (threadIdx.x % W == 0) {
        TAKE
        sum += x[threadIdx.x];
        __hip_atomic_store(&lock, 0, __ATOMIC_RELEASE, __HIP_MEMORY_SCOPE_WORKGROUP);
    }
    __syncthreads();
    y[threadIdx.x] = sum;
}
"""
TAKE = """for (int free = 0; !__hip_atomic_compare_exchange_strong(&lock, &free, 1, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED,
                                                                  __HIP_MEMORY_SCOPE_WORKGROUP);) free = 0;"""

THROUGH_ANOTHER = """
extern "C" __global__ void probe(const float* x, float* y, int* in_global) {
    __shared__ float tile[W];
    if (blockIdx.x == 1) {
        while (__hip_atomic_load(in_global, __ATOMIC_ACQUIRE, __HIP_MEMORY_SCOPE_AGENT) == 0) {}
        __hip_atomic_store(in_global + 1, 1, __ATOMIC_RELEASE, __HIP_MEMORY_SCOPE_AGENT);
    } else if (threadIdx.x < W) {
        STORE
        __hip_atomic_store(in_global, 1, __ATOMIC_RELEASE, __HIP_MEMORY_SCOPE_AGENT);
    } else {
        while (__hip_atomic_load(in_global + HEARS, __ATOMIC_ACQUIRE, __HIP_MEMORY_SCOPE_AGENT) == 0) {}
        y[threadIdx.x - W] = tile[2 * W - 1 - threadIdx.x];
    }
}
"""

LOOKED_AT_ONCE = """
extern "C" __global__ void probe(const float* x, float* y, int* in_global) {
    __shared__ float tile[W];
    __shared__ int flag;
    if (threadIdx.x == 0) flag = 0;
    __syncthreads();
    if (threadIdx.x < W) {
        STORE
        __hip_atomic_store(&flag, 1, __ATOMIC_RELEASE, __HIP_MEMORY_SCOPE_WORKGROUP);
    } else if (LOOK) {
        y[threadIdx.x - W] = tile[2 * W - 1 - threadIdx.x];
    }
}
"""
LOAD = "__hip_atomic_load(&flag, __ATOMIC_ACQUIRE, __HIP_MEMORY_SCOPE_WORKGROUP)"
SWAP = """[&] { int was = 1; __hip_atomic_compare_exchange_strong(&flag, &was, 1, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE,
                                                              __HIP_MEMORY_SCOPE_WORKGROUP); return was; }()"""

MAXIMUM = """
extern "C" __global__ void probe(const float* x, float* y, int* in_global) {
    __shared__ int top;
    if (threadIdx.x == 0) top = 0;
    __syncthreads();
    int old = top, assumed, mine = __float_as_int(x[threadIdx.x ^ 63]);  // a wave's first is its greatest: few rounds
    SWAP
    __syncthreads();
    y[threadIdx.x] = __int_as_float(THEN);
}
"""
AGAIN = "do { assumed = old; old = atomicCAS(&top, assumed, max(mine, assumed)); } while (assumed != old);"
ONCE = "assumed = 0; atomicCAS(&top, 0, mine);"

LDS_FLAG, GLOBAL_FLAG = {"WHERE": "&flag"}, {"WHERE": "in_global"}
WAITED = {"WAITING": "while", "BODY": "{}"}
FIRST, LATER = {"BEFORE": STORE, "AFTER": ""}, {"BEFORE": "", "AFTER": STORE}

RIGHT = {
    "a flag": (FLAG, LDS_FLAG | WAITED | FIRST),
    "a flag, asked once before the loop": (FLAG, LDS_FLAG | WAITED | FIRST | {"BODY": SLEEP}),
    "a flag in global memory": (FLAG, GLOBAL_FLAG | WAITED | FIRST),
    "a count": (COUNT, FIRST),
    "the last of a count": (TICKET, {"STORE": STORE, "LAST": "256 / W - 1"}),
    "back and forth": (BACK_AND_FORTH, {"EMPTY": IS_EMPTY}),
    "a lock": (LOCK, {"TAKE": TAKE}),
    "a guess that a compare-and-swap checks": (MAXIMUM, {"SWAP": AGAIN, "THEN": "top"}),
}
RACY = {
    "the flag is set before the data": (FLAG, LDS_FLAG | WAITED | LATER),
    "the flag is looked at and not waited for": (FLAG, LDS_FLAG | FIRST | {"WAITING": "if", "BODY": "y[W] = 1"}),
    "the flag in global memory is set before the data": (FLAG, GLOBAL_FLAG | WAITED | LATER),
    "the count is raised before the data": (COUNT, LATER),
    "the first of a count reads": (TICKET, {"STORE": STORE, "LAST": "0"}),
    "nothing tells that the tile is free": (BACK_AND_FORTH, {"EMPTY": ""}),
    "the lock is not taken": (LOCK, {"TAKE": ""}),
    "a value that no compare-and-swap checks": (MAXIMUM, {"SWAP": ONCE, "THEN": "old + assumed"}),
}


@functools.cache
def compiled(source: str, target: str, width: int) -> tuple[bytes, str]:
    return compilers.code_object(source, target, {"W": width})


def outcome_of(
    source: str, words: dict[str, str], target: str, order: Order | None, blocks: int = 1
) -> tuple[LaunchOutcome, np.ndarray]:
    width = 32 if target == "gfx1100" else 64
    for name, text in words.items():
        source = source.replace(name, text)
    if compilers.missing(target) is not None:
        pytest.skip(f"no compiler for {target}")
    image, assembly = compiled(source, target, width)
    x, y, flag = np.arange(1, 257, dtype=np.float32), np.zeros(256, np.float32), np.zeros(2, np.int32)
    memory = [of_array(one, name) for one, name in ((x, "x"), (y, "y"), (flag, "flag"))]
    pointers = [one.ctypes.data.to_bytes(8, "little") for one in (x, y, flag)]
    threads = 2 * width if source.count("tile[W]") else 256
    block = (threads, 1, 1)
    return run(
        image, "probe", (blocks, 1, 1), block, pointers, memory, assembly=assembly, order=order, limit=100_000
    ), y


TARGETS = [
    "gfx942",
    pytest.param("gfx950", marks=pytest.mark.slow),
    pytest.param("gfx1100", marks=pytest.mark.slow),
]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", RIGHT)
def test_waves_that_hand_over_by_flags_are_not_accused(name, target):
    for order in (None, Shuffled(1), InTurn(False), InTurn(True)):
        outcome, y = outcome_of(*RIGHT[name], target, order)
        assert outcome.clean, (order, [str(one) for one in outcome.findings], outcome.not_emulated)
        width = 32 if target == "gfx1100" else 64
        if name == "a lock":
            assert (y == sum(range(1, 257, width))).all()
        elif "top" in RIGHT[name][0]:
            assert (y == 256).all()
        else:
            rounds = 256 if "tile[256]" in RIGHT[name][0] else width
            expected = np.arange(1, 257, dtype=np.float32).reshape(-1, rounds)[:, ::-1].reshape(-1)
            np.testing.assert_array_equal(y[y != 0], expected[: (y != 0).sum()])
            assert (y != 0).sum() >= width


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", RACY)
def test_the_racy_twin_is_accused(name, target):
    for order in (None, Shuffled(1)):
        outcome, _ = outcome_of(*RACY[name], target, order)
        assert [one for one in outcome.findings if one.kind == findings.RACE], (order, outcome)


# Limits that docs/emulator.md states: right kernels that are accused, each beside what its author can write instead.


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("order", [None, Shuffled(1), InTurn(False)], ids=["together", "shuffled", "in turn"])
def test_a_flag_that_a_load_looks_at_once_is_a_race_and_an_atomic_that_looks_at_it_hears(target, order):
    outcome, y = outcome_of(LOOKED_AT_ONCE, {"STORE": STORE, "LOOK": LOAD}, target, order)
    assert {one.kind for one in outcome.findings} == {findings.RACE}, outcome
    outcome, y = outcome_of(LOOKED_AT_ONCE, {"STORE": STORE, "LOOK": SWAP}, target, order)
    assert outcome.clean, outcome
    if isinstance(order, InTurn):  # the wave that looks comes last
        width = 32 if target == "gfx1100" else 64
        np.testing.assert_array_equal(y[:width], np.arange(width, 0, -1))


@pytest.mark.parametrize("target", TARGETS)
def test_an_order_through_another_workgroup_is_not_followed_and_one_within_it_is(target):
    outcome, _ = outcome_of(THROUGH_ANOTHER, {"STORE": STORE, "HEARS": "1"}, target, None, blocks=2)
    assert {one.kind for one in outcome.findings} == {findings.RACE}, outcome
    outcome, _ = outcome_of(THROUGH_ANOTHER, {"STORE": STORE, "HEARS": "0"}, target, None, blocks=2)
    assert outcome.clean, outcome
