"""Triton's machine code in the emulator: ten kernels, planted faults beside clean twins, hostile code objects.

The kernels are in tests/emulated_triton.py, which runs as a program: Triton's driver is put in place for a process.
"""

import functools
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("tinygrad")
pytest.importorskip("elftools")
pytest.importorskip("triton")

from harness.emulator import findings
from tests.emulated_triton import FAULTS, HOSTILE, KERNELS

ROOT = Path(__file__).resolve().parents[1]

EXPECTED = {
    "out of range": (findings.OUT_OF_RANGE, "unmasked_kernel", r"0 bytes after the end of argument 2"),
    "lost update": (findings.ORDER_OF_WORKGROUPS, "counter_kernel", r"12 waves write it"),
    "exchange": (findings.ORDER, "exchange_kernel", r"it read what others write, without synchronization"),
    "uninitialised": (findings.UNINITIALISED, "undefined_kernel", r"a value that was never written"),
    "endless": (findings.ENDLESS, "waiting_kernel", r"a wave ran 100,000 instructions"),
}

each_target = pytest.mark.parametrize(
    "target",
    [
        pytest.param("gfx942", marks=pytest.mark.slow(ci=True)),
        pytest.param("gfx950", marks=pytest.mark.slow),
        pytest.param("gfx1100", marks=pytest.mark.slow),
    ],
)


@functools.cache
def outcomes(target, *names):
    """What the program says of each kernel, or of those that are named."""
    words = [sys.executable, "-m", "tests.emulated_triton", target, *names]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr[-2000:]
    return {row["name"]: row for row in map(json.loads, done.stdout.splitlines())}


@each_target
@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_that_was_written_after_the_emulator_is_right(name, target):
    assert outcomes(target)[name]["wrong"] is None
    assert not outcomes(target)[name]["remarks"]


@each_target
@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_named_with_its_line_and_its_clean_twin_has_none(name, target):
    kind, kernel, words = EXPECTED[name]
    wrong = outcomes(target)[f"{name}, planted"]["wrong"]
    assert wrong is not None and wrong.startswith(f"EmulatedFault: {kind}: {kernel}: ") and re.search(words, wrong), (
        wrong
    )
    assert re.search(r"\([a-z]\w+, line \d+", wrong), wrong
    assert outcomes(target)[f"{name}, clean"]["wrong"] is None


@each_target
def test_a_sum_of_floats_by_atomics_is_remarked_and_not_accused(target):
    row = outcomes(target)["sum of floats by atomics"]
    assert row["wrong"] is None
    (remark,) = row["remarks"]
    assert "what those leave depends on the order by nature" in remark and "_atomic_" in remark


@pytest.mark.slow
def test_products_with_scales_of_gfx950_are_what_their_values_say():
    assert outcomes("gfx950", "scaled dot")["scaled dot"]["wrong"] is None


@each_target
def test_a_damaged_code_object_ends_as_an_outcome(target):
    for what in HOSTILE:
        row = outcomes(target)[f"hostile, {what}"]
        assert row["wrong"] is None and row["outcomes"] == 30 and row["refused or found"] > 0, row
