"""Hostile code objects through a whole evaluation: a verdict in a sentence, and a judge that goes on as before."""

import os
import re

import pytest

pytest.importorskip("tinygrad")
pytest.importorskip("elftools")

from harness.emulator import native
from harness.hip import compilers
from harness.judge import emulation
from harness.machine.device import detect
from harness.model import Verdict
from harness.sandbox import tiers
from tests.test_judging import HONEST, judge

pytestmark = pytest.mark.skipif(compilers.missing("gfx942") is not None, reason="no compiler for gfx942")

SUBMISSION = '''
import numpy as np
import torch
from harness.emulator.code_object import CodeObject
from harness.hip import Module, compilers, int32, ptr

SOURCE = """
extern "C" __global__ void twice(const float* x, float* y, int n) {{
    __shared__ float kept[256];
    int at = blockIdx.x * blockDim.x + threadIdx.x;
    kept[threadIdx.x] = at < n ? x[at] : 0.0f;
    __syncthreads();
    if (at < n) y[at] = kept[threadIdx.x] * 2.0f;
}}
"""
honest, generator = compilers.code_object, np.random.default_rng({seed})


def damaged(*arguments):
    image, assembly = honest(*arguments)
    code = CodeObject(image).kernel("twice").code
    at, words = image.index(code), np.frombuffer(code, np.uint32).copy()
    {damage}
    return image[:at] + words.tobytes() + image[at + len(code):], {assembly}


compilers.code_object = damaged
twice = Module(SOURCE).kernel("twice", {{"x": ptr(torch.float32), "y": ptr(torch.float32), "n": int32}})


def custom_kernel(data):
    x = data[0].contiguous()
    y = torch.empty_like(x)
    twice(x, y, x.numel(), grid=-(-x.numel() // 256), block=256)
    return y
'''

RANDOM = "words = np.frombuffer(generator.bytes(len(code)), np.uint32)"
SOME = "words[generator.integers(0, words.size, 3)] = generator.integers(0, 2**32, 3, np.uint32)"
JUMP = "words[generator.integers(0, 8)] = 0xBF820000 | int(generator.integers(0, 1 << 16))"
METADATA = """hostile = bytearray(image)
    for place in generator.integers(0, len(image), 60):
        hostile[place] = hostile[place] if at <= place < at + len(code) else generator.integers(0, 256)
    image = bytes(hostile)"""
NOTHING = "pass"
DAMAGE = {"random code": RANDOM, "random words": SOME, "jumps": JUMP, "lying metadata": METADATA}
slow = pytest.mark.slow


def ended(root, damage, seed=0, assembly="None"):
    """How the judge says that it ended."""
    source = SUBMISSION.format(seed=seed, damage=damage, assembly=assembly)
    run = judge(root, source, timed=False)
    return run.ending, run


def test_the_kernel_itself_is_accepted_as_emulated(toy_root, roomy):
    ending, run = ended(toy_root, NOTHING, assembly="assembly")
    assert ending.verdict is Verdict.ACCEPTED, ending
    assert run.environment["emulated"] == "gfx942" and not run.ranked


@pytest.mark.parametrize(
    ("what", "seed"),
    [("random words", 0), *(pytest.param(what, seed, marks=slow) for what in DAMAGE for seed in range(4))],
)
def test_a_damaged_code_object_ends_as_a_sentence_and_the_judge_goes_on(toy_root, roomy, what, seed):
    before = set(os.listdir(f"/proc/{os.getpid()}/fd"))
    ending, run = ended(toy_root, DAMAGE[what], seed)
    if ending.verdict is not Verdict.ACCEPTED:  # damage may lie where nothing reads it
        assert ending.verdict in (Verdict.RUNTIME_ERROR, Verdict.WRONG_ANSWER, Verdict.INFRASTRUCTURE_ERROR), ending
        assert re.search(r"\w+ \w+", ending.message) and "\n" not in ending.message, ending
        assert "Traceback" not in ending.message and "Segmentation" not in ending.message, ending
    assert not run.ranked
    assert judge(toy_root, HONEST, timed=False).ending.verdict is Verdict.ACCEPTED
    assert len(set(os.listdir(f"/proc/{os.getpid()}/fd")) - before) < 8


def test_code_that_is_none_is_a_runtime_error_of_the_submission(toy_root, roomy):
    ending, _ = ended(toy_root, RANDOM)
    assert ending.verdict is Verdict.RUNTIME_ERROR, ending
    assert re.search(
        r"illegal instruction: twice: gfx942 has no such instruction \(the word 0x[0-9a-f]{8}, ", str(ending)
    )


def test_code_that_the_assembly_contradicts_is_not_run(toy_root, roomy):
    ending, _ = ended(toy_root, SOME, 0, assembly="assembly")
    assert ending.verdict is not Verdict.ACCEPTED
    assert re.search("to the compiler|is not an? (known )?instruction", ending.message), ending


INTRUDER = """
import os, torch
from pathlib import Path

PLACE = Path({folder!r})
done = []
for goal in (PLACE / "new.so", Path({library!r})):
    for attempt in (lambda: goal.write_bytes(b"mine"), lambda: os.replace("/proc/self/exe", goal), goal.unlink):
        try:
            attempt()
            done.append(str(goal))
        except OSError:
            pass


def custom_kernel(data):
    assert not done, done
    return data[0] * 2
"""


SCRATCH = """hostile = bytearray(image)
    at = CodeObject(image).symbols["twice.kd"][0]
    at = bytes(hostile).index(CodeObject(image).image[at:at + 64])
    hostile[at + 4:at + 8] = (16 << 20).to_bytes(4, "little")
    return bytes(hostile), None"""


def test_a_workgroup_that_would_fill_the_memory_is_refused_in_a_sentence(toy_root, roomy):
    ending, _ = ended(toy_root, SCRATCH)
    assert ending.verdict is Verdict.INFRASTRUCTURE_ERROR, ending
    asked = r"scratch and shared memory of a workgroup take 4,29\d,\d+,\d+ bytes; the emulator holds 1,073,741,824"
    assert re.search(asked, str(ending)), ending


@pytest.mark.skipif(native.build() is None, reason="nothing here compiles C")
def test_no_worker_can_write_the_compiled_library(toy_root, roomy):
    if not tiers.strongest(detect(toy_root, "cpu")).confines:
        pytest.skip("nothing confines workers here")
    library = native.path()
    before, names = library.read_bytes(), sorted(native.folder().iterdir())
    run = judge(toy_root, INTRUDER.format(folder=str(native.folder()), library=str(library)), timed=False)
    assert run.ending.verdict is Verdict.ACCEPTED, run.ending
    assert library.read_bytes() == before and sorted(native.folder().iterdir()) == names


FORGETS = """
def custom_kernel(data):
    from harness.emulated import launches
    launches._of_process.clear()
    return data[0] * 2
# {mention}
"""

FORGES = """
def custom_kernel(data):
    from harness.emulated import launches
    launches._of_process["gfx942"] = launches.Launches("gfx942")
    launches._of_process["gfx942"].count = 1
    return data[0] * 2
"""


def test_what_the_emulator_was_set_up_for_is_not_timed_whatever_its_process_says(toy_root, roomy):
    run = judge(toy_root, FORGETS.format(mention="harness.hip"))
    assert run.ending.verdict is Verdict.ACCEPTED and not run.measurements and run.unranked_because == "emulated"
    assert judge(toy_root, FORGETS.format(mention="nothing")).measurements


def test_a_file_that_nothing_is_emulated_for_cannot_claim_it(toy_root, roomy):
    run = judge(toy_root, FORGES)
    assert run.ending.verdict is Verdict.ACCEPTED and "emulated" not in run.environment, run.ending
    assert "emulated" not in run.ending.message and not run.measurements and not run.ranked


ENDLESS = '''
import torch
from harness.hip import Module, ptr

SOURCE = """
extern "C" __global__ void spins(float* y) {
    for (volatile int lane = 0; lane >= 0; lane = 1) y[threadIdx.x] = 1.0f;
}
"""
spins = Module(SOURCE).kernel("spins", {"y": ptr(torch.float32)})


def custom_kernel(data):
    y = torch.empty(64)
    spins(y, grid=1, block=64)
    return y
'''


@pytest.mark.slow(ci=True)
def test_a_wave_without_an_end_is_an_endless_loop_with_its_line_before_the_call_s_time_is_over(
    toy_root, roomy, monkeypatch
):
    monkeypatch.setattr(emulation, "SHARE_OF_A_WAVE", 0.01)
    ending = judge(toy_root, ENDLESS, timed=False).ending
    assert ending.verdict is Verdict.RUNTIME_ERROR, ending
    assert re.search(r"endless loop: spins: no wave ended in 3 s .* instructions \(.*, line 7, workgroup", str(ending))
