"""On a GPU of NVIDIA's: whatever an honest submission does in its call is timed right or labelled.

Each call holds the device for a known number of its clock's cycles, so no latency below that is right.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from harness import catalog
from harness.catalog.config import load_config
from harness.judge.evaluate import evaluate
from harness.judge.hold import Hold
from harness.judge.sandwich import pause, until
from harness.machine.device import detect
from harness.model import ClockOwner, Manner, Verdict

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available() or bool(torch.version.hip), reason="needs a GPU of NVIDIA's"),
]

CYCLES = 400_000
FASTEST_HZ = 1.98e9
"""Of an H200's multiprocessors, as its driver says; a slower clock only takes longer."""

PROBLEMS = Path(__file__).parent / "adversarial" / "problems"
CHECKOUT = Path(__file__).parents[1]

HEAD = f"import torch\nspin = lambda: torch.cuda._sleep({CYCLES})\n"
CALL = "def custom_kernel(data):\n    x = data[0]\n"
SOURCES = {
    "one stream": (HEAD + CALL + "    spin()\n    return x * 2\n", Manner.SANDWICH),
    "several streams": (
        HEAD
        + "sides = [torch.cuda.Stream() for _ in range(4)]\n"
        + CALL
        + """    out, main = torch.empty_like(x), torch.cuda.current_stream()
    for side in sides:
        side.wait_stream(main)
        with torch.cuda.stream(side):
            spin()
    for side in sides:
        main.wait_stream(side)
    return torch.mul(x, 2, out=out)
""",
        Manner.SANDWICH,
    ),
    "a graph": (
        HEAD
        + "graphs = {}\n"
        + CALL
        + """    if x.shape not in graphs:
        static, graph = x.clone(), torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            spin()
            out = static * 2
        graphs[x.shape] = static, graph, out
    static, graph, out = graphs[x.shape]
    static.copy_(x)
    graph.replay()
    return out
""",
        Manner.SANDWICH,
    ),
    "many small operations": (
        HEAD + CALL + "    spin()\n    for _ in range(40):\n        x = x + 0\n    return x * 2\n",
        None,
    ),
    "more than can be enqueued at once": (
        HEAD + CALL + "    spin()\n    for _ in range(1500):\n        x = x + 0\n    return x * 2\n",
        None,
    ),
    "a static output": (
        HEAD
        + "outs = {}\n"
        + CALL
        + "    out = outs.setdefault(x.shape, torch.empty_like(x))\n    spin()\n    return torch.mul(x, 2, out=out)\n",
        Manner.SANDWICH,
    ),
    "waiting for the device": (HEAD + CALL + "    spin()\n    x.sum().item()\n    return x * 2\n", Manner.STOPPED),
    "looking at its inputs": (
        HEAD + CALL + "    spin()\n    return x * 2 if x.abs().max().item() > 0 else x\n",
        Manner.STOPPED,
    ),
    "slow to enqueue": (
        "import time\n" + HEAD + CALL + "    time.sleep(3e-3)\n    spin()\n    return x * 2\n",
        Manner.GATED,
    ),
    "longer than a slice": (HEAD + CALL + "    for _ in range(20):\n        spin()\n    return x * 2\n", Manner.LONG),
    "memory of the driver's in each call": (
        HEAD
        + "import ctypes\ncuda = ctypes.CDLL('libcuda.so.1')\n"
        + CALL
        + """    spin()
    out, place = x * 2, ctypes.c_uint64()
    assert cuda.cuMemAlloc_v2(ctypes.byref(place), ctypes.c_size_t(1 << 20)) == 0
    assert cuda.cuMemFree_v2(place) == 0
    return out
""",
        None,
    ),
    "Triton, tuned at its first call": (
        HEAD
        + """import triton, triton.language as tl
@triton.autotune([triton.Config({'BLOCK': 64}), triton.Config({'BLOCK': 256})], key=['n'])
@triton.jit
def twice(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, at < n) * 2, at < n)
"""
        + CALL
        + """    spin()
    out = torch.empty_like(x)
    twice[lambda meta: (triton.cdiv(x.numel(), meta['BLOCK']),)](x, out, x.numel())
    return out
""",
        Manner.SANDWICH,
    ),
    "a cooperative launch, dependent ones and a cluster": (
        HEAD
        + """import triton, triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait
@triton.jit
def together(arrived, until):
    tl.atomic_add(arrived, 1)
    while tl.atomic_add(arrived, 0) < until:
        pass
@triton.jit
def times(x, y, n, factor, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    gdc_launch_dependents()
    gdc_wait()
    tl.store(y + at, tl.load(x + at, at < n) * factor, at < n)
programs = torch.cuda.get_device_properties(0).multi_processor_count
arrived, launches = torch.zeros((), dtype=torch.int32, device='cuda'), 0
"""
        + CALL
        + """    global launches
    launches += 1
    same, out, grid = torch.empty_like(x), torch.empty_like(x), (triton.cdiv(x.numel(), 256),)
    spin()
    together[(programs,)](arrived, launches * programs, launch_cooperative_grid=True)
    times[grid](x, same, x.numel(), 1, BLOCK=256, launch_pdl=True)
    times[grid](same, out, x.numel(), 2, BLOCK=256, launch_pdl=True, num_ctas=2)
    return out
""",
        Manner.SANDWICH,
    ),
    "Triton that prints": (
        HEAD
        + """import triton, triton.language as tl
@triton.jit
def twice(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if tl.program_id(0) == 0:
        tl.device_print('first', n)
    tl.store(y + at, tl.load(x + at, at < n) * 2, at < n)
"""
        + CALL
        + """    spin()
    out = torch.empty_like(x)
    twice[(triton.cdiv(x.numel(), 64),)](x, out, x.numel(), BLOCK=64)
    return out
""",
        None,
    ),
    "kernels that wait for each other": (
        HEAD
        + """import triton, triton.language as tl
side = torch.cuda.Stream()
@triton.jit
def wait(word, turn):
    while tl.atomic_add(word, 0) < turn:
        pass
@triton.jit
def tell(word):
    tl.atomic_add(word, 1)
word = torch.zeros((), dtype=torch.int32, device='cuda')
# All of them are compiled and loaded before one of them waits: loading waits for the device.
tell[(1,)](word), wait[(1,)](word, 1), spin()
turn = 1
"""
        + CALL
        + """    global turn
    turn += 1
    out, main = x * 2, torch.cuda.current_stream()
    side.wait_stream(main)
    with torch.cuda.stream(side):
        wait[(1,)](word, turn)
    spin()
    tell[(1,)](word)
    main.wait_stream(side)
    return out
""",
        None,
    ),
}


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("gpu_clock")
    for folder in (root, *root.parents[:3]):
        folder.chmod(0o755)
    shutil.copytree(PROBLEMS, root / "problems")
    shutil.copytree(CHECKOUT / "configs", root / "configs")
    (root / "submissions").mkdir()
    return root


def device(root):
    number = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:]) % torch.cuda.device_count()
    return detect(root, f"cuda:{number}")


@pytest.mark.parametrize("name", SOURCES)
def test_it_is_timed_right_or_labelled(root, name):
    source, manner = SOURCES[name]
    path = root / "submissions" / f"{name.replace(' ', '_').replace(',', '')}.py"
    path.write_text(source)
    problem = catalog.load_problem(root, "double")
    run = evaluate(problem, catalog.load_submission(problem, path), device(root), load_config(root), quick=True)
    print(name, [(m.manner, m.latency.latency_ns, m.labels, m.voids, m.inside_ns) for m in run.measurements])
    assert run.ending.verdict is Verdict.ACCEPTED, run.ending
    assert run.clock is ClockOwner.JUDGE and run.unranked_because == "quick"
    (measured,) = run.measurements
    assert measured.latency.latency_ns >= CYCLES / FASTEST_HZ * 1e9
    assert manner is None or measured.manner is manner
    assert (measured.manner is Manner.STOPPED) == ("host-bound" in measured.labels)
    assert ("static" in name or "graph" in name) == ("copied" in measured.labels)


def test_work_within_a_pour_longer_than_a_slice_never_counts_and_honest_calls_do(tmp_path):
    command = [sys.executable, str(CHECKOUT / "bench" / "pours.py"), "--device", "cuda", "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=CHECKOUT)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["pours"][0]["sandwich, most"] > found["pours"][0]["stopped, most"] + 200, "it is longer than a slice"
    long = [row for row in found["rows"] if row["GiB"] > 3]
    assert [row["right"] + row["voids"] for row in long if not row["share"]] == [15]
    hidden = [row for row in long if row["share"]]
    assert len(hidden) == 7 and not any(row["right"] for row in hidden)
    assert sum(row["right and void"] for row in hidden) >= 60, "there is work within the pours, and it would be right"


NEIGHBOUR = """
import torch
torch.cuda._sleep(1)
torch.cuda.synchronize()
print("ready", flush=True)
while True:
    torch.cuda._sleep(4_000_000)
    torch.cuda.synchronize()
"""


@pytest.fixture
def neighbour():
    """A process that computes on the device for 2 ms at a time."""
    process = subprocess.Popen([sys.executable, "-c", NEIGHBOUR], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def held_for(hold, seconds):
    """Whether the hold ran to its release, and whether the device was taken from it."""
    hold.begin(limit_ns=int(4e9 * seconds))
    until(hold.holds)
    pause(seconds)
    in_time = hold.release()
    torch.cuda.synchronize()
    return in_time, hold.was_taken()


def test_a_device_that_is_taken_right_behind_a_hold_is_noticed(neighbour):
    def taken(look):
        hold = Hold("cuda:0")
        hold.begin(limit_ns=1_000_000)
        until(hold.holds)
        hold.release()
        torch.cuda.synchronize()
        pause(0.01)  # the device is the neighbour's meanwhile
        if look:
            hold.look_behind()
            torch.cuda.synchronize()
        return hold.was_taken()

    assert sum(taken(look=False) for _ in range(5)) < 5
    assert [taken(look=True) for _ in range(5)] == [True] * 5


def test_a_hold_that_the_device_is_taken_from_notices_it(neighbour):
    hold = Hold("cuda:0")
    assert any(held_for(hold, 0.02)[1] for _ in range(10))  # many slices long
    neighbour.kill()
    neighbour.wait()
    torch.cuda.synchronize()
    assert [held_for(hold, 0.002) for _ in range(10)] == [(True, False)] * 10
