"""What `check` and `replay` say of a file that is run in the emulator, and of one that could be."""

import functools
import re
import shlex
import sys
from types import SimpleNamespace

import pytest
import torch

from harness import hip
from harness.emulated import hip as emulated
from harness.emulated.launches import Launches
from harness.hip import CompilationError, Module, NoDevice, compilers, ptr
from harness.judge import calls, emulation

HIP = '''\
import torch
from harness.hip import Module, int32, ptr

module = Module(r"""
#include <hip/hip_runtime.h>
extern "C" __global__ __launch_bounds__(64) void double_all(const float* x, float* y, int n) {
    int i = blockIdx.x * 64 + threadIdx.x;
    if (i < n) y[i] = 2 * x[i];
}
""")
double_all = module.kernel("double_all", [ptr(torch.float32), ptr(torch.float32), int32])


def custom_kernel(data):
    x = data[0]
    y = torch.empty_like(x)
    double_all(x, y, x.numel(), grid=-(-x.numel() // 64), block=64)
    return y
'''


@pytest.fixture
def check(podium, toy_root, monkeypatch):
    """`check` of a source: exit code, stdout."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(toy_root / "cache"))
    monkeypatch.setenv("COLUMNS", "100")

    def run(source, *words):
        (toy_root / "mine.py").write_text(source)
        code, out, _ = podium("check", "double", str(toy_root / "mine.py"), *words)
        return code, out

    return run


@pytest.fixture
def late_after(limited, monkeypatch):
    """Sets how long a call, and a launch in it, may take before it counts as late, in seconds. The call's limit stays
    far away, however busy the machine is."""

    def set_to(seconds):
        limited(call_s=300)
        for module in (calls, emulation):
            monkeypatch.setattr(module, "SHARE_OF_A_WAVE", seconds / 300)

    return set_to


def needing(target):
    pytest.importorskip("tinygrad")
    pytest.importorskip("elftools")
    lacking = compilers.missing(target)
    if lacking is not None:
        pytest.skip(f"no compiler for {target} here: {lacking}")
    return target


def line_of(source, text):
    return next(number for number, line in enumerate(source.splitlines(), start=1) if text in line)


@pytest.mark.slow(ci=True)
def test_a_fault_on_a_chip_is_judged_again_on_that_chip_by_the_command_it_is_printed_with(check, podium):
    outside = HIP.replace("2 * x[i]", "2 * x[i + 100000000]")
    code, out = check(outside, "--target", needing("gfx1100"))
    assert code == 12 and f"line {line_of(outside, '100000000')}, workgroup" in out and "lane 0, gfx1100)" in out
    command = re.search(r"^To judge that case again, .*: python3 -m harness --root \S+ (replay .*)$", out, re.M)[1]
    assert command.endswith("--device cpu --target gfx1100")
    code, out, _ = podium(*shlex.split(command))
    assert code == 12 and "out-of-range access: double_all" in out and "lane 0, gfx1100)" in out
    code, _, err = podium(*shlex.split(command.replace("gfx1100", "gfx90a")))
    assert code == 2 and "gfx90a is not emulated" in err and "gfx942, gfx950, gfx1100 are" in err


@pytest.mark.slow(ci=True)
def test_a_block_that_the_chip_would_refuse_is_a_runtime_error(check):
    code, out = check(HIP.replace("block=64", "block=128"), "--target", needing("gfx942"))
    assert code == 12
    assert "LaunchError: launch failed: double_all was compiled for blocks of up to 64 threads, not 128" in out


@pytest.mark.slow(ci=True)
def test_after_an_endless_loop_no_further_case_is_tried(check, late_after):
    late_after(1.5)
    endless = HIP.replace("if (i < n)", "for (volatile int k = 0; k < 9; k = 0) {}\n    if (i < n)")
    code, out = check(endless, "--target", needing("gfx942"))
    assert code == 12 and "endless loop: double_all: no wave ended in 1.5 s of processor time" in out
    assert re.search(r"; the call took \d+ s, so no later case was tried", out.splitlines()[-1])
    assert re.search(r"^ *runtime error .*\n *not tried ", out, re.MULTILINE)


@pytest.mark.slow(ci=True)
def test_an_exception_after_much_of_a_call_s_time_ends_the_test_cases_and_one_at_once_does_not(check, late_after):
    late_after(2)
    late = "import time\ndef custom_kernel(data):\n    time.sleep(WAIT)\n    raise ValueError('no')\n"
    code, out = check(late.replace("WAIT", "2.1"))
    assert code == 12 and "so no later case was tried" in out and "not tried" in out
    code, out = check(late.replace("WAIT", "0"))
    assert code == 12 and "no later case" not in out and "not tried" not in out


@pytest.mark.slow(ci=True)
def test_without_a_target_one_line_says_how_to_run_the_machine_code_and_what_to_install_first(check, monkeypatch):
    needing("gfx942")
    code, out = check(HIP)
    assert code == 0
    (line,) = re.findall(r"^To run the machine code in the emulator, without the chip: (.*)$", out, re.MULTILINE)
    assert re.fullmatch(
        r"python3 -m harness --root \S+ check double \S*mine.py --target gfx942( \(or gfx950, gfx1100\))?", line
    )
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "tinygrad", None)  # as if it were not installed
        assert f"without the chip: first `make setup-offline`, then {line}\n" in check(HIP)[1]
    code, out = check(HIP, "--no-run")
    assert code == 0 and "To run the machine code" not in out
    code, out = check("def custom_kernel(data):\n    return data[0] * 2\n")
    assert code == 0 and "To run the machine code" not in out


def test_a_file_that_is_compiled_for_one_chip_is_not_said_to_be_compiled_for_others(check):
    code, out = check(HIP, "--target", needing("gfx90a"))
    assert (
        code == 0 and "double_all needs a GPU: compiled for gfx90a, not run" in out and "gfx942, gfx950, sm" not in out
    )


def test_a_name_of_hip_s_that_is_not_there_is_said_to_be_none_with_its_line(check):
    source = HIP.replace("2 * x[i]", "cbrtf(x[i])")
    code, out = check(source, "--target", needing("gfx942"))
    where = f"mine.py:{line_of(source, 'cbrtf')}: error: use of undeclared identifier 'cbrtf'"
    assert code == 11 and f"{where}\ncbrtf is not there without ROCm's headers: docs/hip.md" in out


def test_triton_s_launch_of_an_empty_grid_does_nothing():
    pytest.importorskip("triton")
    from harness.emulated.triton_driver import Emulated

    launch = Emulated("gfx942", Launches("gfx942")).launcher_cls(SimpleNamespace(signature={}), SimpleNamespace())
    assert launch(0, 1, 1, None, None) is None


def test_a_source_for_another_emulated_chip_says_how_to_run_it(monkeypatch):
    needing("gfx942")
    monkeypatch.setattr(hip, "emulator", functools.partial(emulated.launch, "gfx942"))
    kernel = Module('extern "C" __global__ void k(float* y) {}', targets=("gfx950",)).kernel("k", [ptr(torch.float32)])
    with pytest.raises(NoDevice, match=r"its source is for gfx950; `check --target gfx950` runs it"):
        kernel(torch.zeros(4), grid=1, block=64)


def test_a_source_that_compiles_for_another_emulated_chip_alone_says_how_to_run_it(monkeypatch):
    needing("gfx942"), needing("gfx950")
    monkeypatch.setattr(hip, "emulator", functools.partial(emulated.launch, "gfx942"))
    source = "#ifndef __gfx950__\n#error MI350 alone\n#endif\n" + 'extern "C" __global__ void k(float* y) {}'
    with pytest.raises(
        CompilationError, match=r"MI350 alone[^`]*\nit compiles for gfx950: `check --target gfx950` runs"
    ):
        Module(source).kernel("k", [ptr(torch.float32)])(torch.zeros(4), grid=1, block=64)
    with pytest.raises(CompilationError) as nowhere:
        Module("#error no chip").kernel("k", [ptr(torch.float32)])(torch.zeros(4), grid=1, block=64)
    assert "it compiles for" not in str(nowhere.value)


def test_a_line_of_a_source_is_one_of_the_file_where_it_can_be_found_there():
    source = "int a;\nint b;\nint a;\n"
    assert Module(source).line_in("x = 1\ny = '''" + source + "'''", 2) == 3
    assert Module(source).line_in("x = 1\ny = 'int a;' + \n  int b;\n", 2) == 3
    assert Module(source).line_in("int a;\nint a;\n", 1) is None
    assert Module(source).line_in("", 9) is None
