"""`profile`: the profiler is called as documented, what it says is read, and what fails is said in a sentence.

ncu and rocprofv3 are stood in for by programs that record their words, run the profiled program for real, and leave
files in the formats of ncu 2025.3 and of ROCm 6.3 and 7; the tests marked gpu run the real ones.
"""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
import torch

from harness import catalog
from harness.cli import main
from harness.errors import InfrastructureError, UsageError
from harness.machine.device import detect
from harness.model import Device
from harness.profiling import ncu, process, rocprof, torch_profiler
from harness.profiling import tool as tools
from harness.profiling.excerpt import Launch, kernels
from harness.render import document
from harness.render import profile as rendered
from harness.temporary import temporary_folder
from harness.verbs import profile as profiling
from tests.processes import alive

CHECKOUT = Path(__file__).resolve().parents[1]
HONEST = "import torch\n\ndef custom_kernel(data):\n    return torch.mul(data[0], 2)\n"
COLUMNS = '"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size","Grid Size",'
COLUMNS += '"Device","CC"'
METRICS = '"dram__bytes_read.sum","dram__bytes_write.sum","gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",'
METRICS += '"gpu__time_duration.sum","launch__registers_per_thread","launch__shared_mem_per_block",'
METRICS += '"sm__throughput.avg.pct_of_peak_sustained_elapsed","sm__warps_active.avg.pct_of_peak_sustained_active"'
LAUNCH = '"{id}","7","python3.12","127.0.0.1","{name}","1","7","(128, 1, 1)","(132, 4, 1)","0","9.0",'
PAGE = f"""==PROF== Connected to process 7 (/usr/bin/python3.12)
{COLUMNS},{METRICS}
"","","","","","","","","","","","byte","byte","%","ns","register/thread","byte/block","%","%"
{LAUNCH.format(id=0, name="_decode(float*, int)")}"1,000,000","200,000","81.5","4,000","168","65,536","33.25","24.9"
{LAUNCH.format(id=1, name="_merge")}"1000","2000","1.5","1000","32","0","0.5","n/a"
{LAUNCH.format(id=2, name="_decode(float*, int)")}"1,000,000","200,000","79.5","5,000","168","65,536","31.25","26.1"
{LAUNCH.format(id=3, name="_merge")}"1000","2000","1.5","1000","32","0","0.5","n/a"
"""
TRACE_COLUMNS = (
    '"Kind","Agent_Id","Queue_Id","Stream_Id","Thread_Id","Dispatch_Id","Kernel_Id","Kernel_Name","Correlation_Id",'
    '"Start_Timestamp","End_Timestamp","LDS_Block_Size","Scratch_Size","VGPR_Count","Accum_VGPR_Count","SGPR_Count",'
    '"Workgroup_Size_X","Workgroup_Size_Y","Workgroup_Size_Z","Grid_Size_X","Grid_Size_Y","Grid_Size_Z"'
)
COUNTER_COLUMNS = (
    '"Correlation_Id","Dispatch_Id","Agent_Id","Queue_Id","Process_Id","Thread_Id","Grid_Size","Kernel_Id",'
    '"Kernel_Name","Workgroup_Size","LDS_Block_Size","Scratch_Size","VGPR_Count","Accum_VGPR_Count","SGPR_Count",'
    '"Counter_Name","Counter_Value","Start_Timestamp","End_Timestamp"'
)

# Each runs the program that it is to profile, as on a CPU, and leaves what the real one would.
FAKE_NCU = f"""#!{sys.executable}
import json, os, subprocess, sys
from pathlib import Path
words = sys.argv[1:]
here = Path(__file__).parent
with (here / "words.txt").open("a") as file:
    file.write(json.dumps(words) + "\\n")
if "--import" in words:
    print((here / "page.csv").read_text(), end="")
    sys.exit(0)
say = here / "say.txt"
if say.exists():
    print(say.read_text())
    sys.exit(1)
done = subprocess.run(words[words.index({sys.executable!r}):])
Path(words[words.index("--export") + 1]).write_bytes(b"a report")
sys.exit(done.returncode)
"""
FAKE_ROCPROF = f"""#!{sys.executable}
import json, subprocess, sys
from pathlib import Path
words = sys.argv[1:]
here = Path(__file__).parent
with (here / "words.txt").open("a") as file:
    file.write(json.dumps(words) + "\\n")
done = subprocess.run(words[words.index("--") + 1:])
folder = Path(words[words.index("--output-directory") + 1])
name = words[words.index("--output-file") + 1]
calls = json.loads((folder / "program.json").read_text())["calls"]
row = '"KERNEL_DISPATCH","Agent 4",1,0,7,{{n}},3,"_decode(float*, int)",1,{{start}},{{end}},16384,0,96,32,48,'
row += "256,1,1,1024,4,1"
early = calls[0][0] - 10**6 if calls else 0
if "--kernel-trace" in words:
    rows = [{TRACE_COLUMNS!r}, row.format(n=1, start=early, end=early + 9999)]
    rows += [row.format(n=2, start=began + 10, end=began + 2010) for began, _ in calls]
    (folder / f"{{name}}_kernel_trace.csv").write_text("\\n".join(rows) + "\\n")
    (folder / f"{{name}}_results.pftrace").write_bytes(b"")
else:
    counter = words[words.index("--pmc") + 1]
    value = {{"FETCH_SIZE": 1000, "WRITE_SIZE": 24, "OccupancyPercent": 37.5}}.get(counter)
    if value is None:
        print("no such counter " + counter)
        sys.exit(1)
    row = '1,2,"Agent 4",1,7,7,4096,3,"_decode(float*, int)",256,16384,0,96,32,48,"{{c}}",{{v}},{{start}},{{end}}'
    rows = [{COUNTER_COLUMNS!r}, row.format(c=counter, v=10**9, start=early, end=early + 5)]
    rows += [row.format(c=counter, v=value, start=began + 10, end=began + 3010) for began, _ in calls]
    (folder / f"{{name}}_counter_collection.csv").write_text("\\n".join(rows) + "\\n")
sys.exit(done.returncode)
"""


def gpu(kind, **known):
    """A GPU that is none: its program computes on the CPU."""
    return Device(
        kind=kind, name="Test 1000", slug="test-1000", arch="sm_90", torch_device="cpu", memory_bytes=1 << 30,
        flush_bytes=1, **known,
    )  # fmt: skip


@pytest.fixture
def mine(toy_root):
    path = toy_root / "submissions" / "double" / "mine.py"
    path.write_text(HONEST)
    return path


@pytest.fixture
def stand_in(toy_root, tmp_path, monkeypatch):
    """Puts a program called `name` on PATH; returns its folder, where it records its words. The profiled program is
    told that its device is a CPU."""

    def put(name: str, source: str) -> Path:
        folder = tmp_path / "bin"
        folder.mkdir()
        (folder / name).write_text(source)
        (folder / name).chmod(0o755)
        (folder / "page.csv").write_text(PAGE)
        monkeypatch.setenv("PATH", str(folder), prepend=":")
        return folder

    plain = process.words

    def on_a_processor(settings):
        # "times" and a CPU: CUDA's start and stop have nothing to start here.
        here = settings.model_copy(update={"device": detect(toy_root, "cpu"), "looks": "times"})
        return plain(here)

    monkeypatch.setattr(process, "words", on_a_processor)
    return put


def profile(toy_root, path, device, **options):
    problem = catalog.load_problem(toy_root, "double")
    return profiling.profile(toy_root, problem, catalog.load_submission(problem, path), device, **options)


def words_of(folder: Path) -> list[list[str]]:
    return [json.loads(line) for line in (folder / "words.txt").read_text().splitlines()]


def test_what_is_refused_is_refused_before_it_is_said_that_the_file_runs_unconfined(toy_root, mine, capsys):
    code = main(["--root", str(toy_root), "profile", "double", str(mine), "--device", "cpu", "--tool", "ncu"])
    out, err = capsys.readouterr()
    assert (code, out) == (2, "") and err.startswith("error: ncu cannot profile")


def test_on_a_processor_the_operators_are_shown_and_kept(toy_root, mine, capsys, tmp_path):
    code = main(["--root", str(toy_root), "profile", "double", str(mine), "--device", "cpu", "--calls", "2"])
    out, err = capsys.readouterr()
    assert code == 0 and "aten::mul" in out and "double, benchmark case 1: rows=64 cols=64" in out
    assert "outside the sandbox, with your own rights" in err.splitlines()[0] and "aten::mul" not in err
    (folder,) = (toy_root / "build" / "profiles" / "double").iterdir()
    kept = json.loads((folder / "profile.json").read_text())
    assert {"trace-1.json", "trace-2.json", "operators.json"} == set(kept["files"])
    (multiplied,) = [kernel for kernel in kept["kernels"] if kernel["name"] == "aten::mul"]
    assert multiplied["launches"] == 1 and multiplied["total_ns"] > 0 and kept["call_ns"] > multiplied["total_ns"]
    assert not list((toy_root / "results").rglob("*.json"))


UNEVEN = """import torch

CALLS = []


def custom_kernel(data):
    CALLS.append(1)
    for _ in range(300 if len(CALLS) == 5 else 1):  # the first behind the smallest case and the warm-up
        y = torch.mul(data[0], 2)
    return y
"""


@pytest.mark.slow(ci=True)
def test_the_operators_of_uneven_calls_take_no_more_than_a_call_does(toy_root, mine):
    mine.write_text(UNEVEN)
    found = profile(toy_root, mine, detect(toy_root, "cpu"))
    assert 0 < found.total_ns <= found.call_ns


@pytest.mark.slow(ci=True)
@pytest.mark.parametrize("kind", ["hip", "triton"])
def test_kernels_that_a_processor_does_not_run_are_not_profiled_here_and_the_emulator_is_named(
    toy_root, mine, capsys, in_triton, kind
):
    in_hip = "from harness.hip import NoDevice\ndef custom_kernel(data):\n    raise NoDevice('it needs a GPU')\n"
    mine.write_text(in_hip if kind == "hip" else in_triton)
    assert main(["--root", str(toy_root), "profile", "double", str(mine), "--device", "cpu"]) == 30
    err = capsys.readouterr().err
    assert "infrastructure" not in err and "`--tool emulator` counts the instructions" in err
    assert ("would show Triton's interpreter" in err) is (kind == "triton") and "GPU" in err


def test_a_file_that_fails_on_the_smallest_case_is_told_that_case_and_its_own_line(toy_root, mine, capsys):
    mine.write_text("def custom_kernel(data):\n    raise ValueError(len(data[0]))\n")
    assert main(["--root", str(toy_root), "profile", "double", str(mine), "--device", "cpu"]) == 12
    out, err = capsys.readouterr()
    assert "runtime error under the profiler: ValueError: 3 (line 2)" in err and "\n  case rows=3 cols=5" in err
    assert f'File "{mine}", line 2, in custom_kernel' in err
    assert not out and "harness/" not in err and "build/profiles" not in err


WARMS_UP = """import torch

CALLS = []


def custom_kernel(data):
    CALLS.append(1)
    if len(CALLS) <= 3:
        torch.sin(data[0])
    return torch.mul(data[0], 2)
"""


def test_any_case_is_profiled_by_its_label_in_quotes_without_warm_up_and_inputs_and_json_is_one_document_as_the_file_is(
    toy_root, mine, capsys, tmp_path
):
    mine.write_text(WARMS_UP)
    here = tmp_path / "here"
    command = ["--root", str(toy_root), "profile", "double", str(mine), "--device", "cpu", "--calls", "1"]
    assert main([*command, "--case", "rows=3 cols=5", "--json", "--out", str(here)]) == 0
    out, err = capsys.readouterr()
    printed = json.loads(out)
    assert printed == json.loads((here / "profile.json").read_text()) and "1 calls of rows=3 cols=5" in err
    assert printed["tool"] == "torch.profiler" and printed["folder"] == str(here)
    assert printed["case"] == {"rows": 3, "cols": 5} and printed["case_number"] is None
    names = {kernel["name"] for kernel in printed["kernels"]}
    assert "aten::mul" in names and not names & {"aten::sin", "aten::randn", "aten::normal_"}
    problem = catalog.load_problem(toy_root, "double")
    assert profiling._case(toy_root, problem, detect(toy_root, "cpu"), "rows=64 cols=64")[1] == 1


def test_ncu_is_told_to_look_at_the_calls_only_and_what_it_counted_is_shown_beside_the_floor(toy_root, mine, stand_in):
    folder = stand_in("ncu", FAKE_NCU)
    found = profile(toy_root, mine, gpu("cuda", bandwidth_bytes_per_s=10e9), calls=2)
    run, page = words_of(folder)
    for option, value in (("--profile-from-start", "off"), ("--clock-control", "none"), ("--cache-control", "all")):
        assert run[run.index(option) + 1] == value
    assert set(run[run.index("--metrics") + 1].split(",")) == set(ncu.METRICS)
    assert page[page.index("--import") + 1] == str(found.folder / "profile.ncu-rep")
    assert page[page.index("--page") + 1] == "raw" and "--csv" in page
    assert set(found.files) == {"profile.ncu-rep", "kernels.csv"}
    assert (found.folder / "submission.py").read_text() == HONEST
    decode, merge = found.kernels
    assert decode.each.name == "_decode(float*, int)" and decode.launches == 1
    assert (decode.total_ns, decode.each.time_ns, decode.each.dram_percent) == (4500, 4500, 80.5)
    assert (decode.each.compute_percent, decode.each.occupancy_percent) == (32.25, 25.5)
    assert (decode.each.registers, decode.each.shared_bytes) == (168, 65536)
    assert (decode.each.grid, decode.each.block) == ("132×4×1", "128×1×1")
    assert merge.each.occupancy_percent is None and found.dram_bytes == 1_203_000
    shown = document.text(rendered.parts(found))
    # The toy's floor: 8 bytes an element of 64 x 64 at 10 GB/s.
    assert "kernels of a call: 5.500 µs" in shown and "floor: 3.277 µs, bound by bandwidth (float32)" in shown
    assert (
        "reach 60\N{NO-BREAK SPACE}% of the limit" in shown
        and "1.203 MB moved, 36.71 times what the floor counts" in shown
    )
    row = next(line for line in shown.splitlines() if "_decode" in line)
    assert [cell.strip() for cell in row.strip("│ ").split("│")][1:] == [
        "1", "4.500", "81.8", "80", "32", "26", "168", "64", "528 × 128",
    ]  # fmt: skip


@pytest.mark.parametrize("unit, scale", [("ns", 1), ("us", 1e3), ("msecond", 1e6), ("second", 1e9)])
def test_a_time_is_read_in_the_unit_it_is_given_in(unit, scale):
    first = ncu.read(PAGE.replace('"%","ns"', f'"%","{unit}"'))[0]
    assert first.time_ns == 4000 * scale


@pytest.mark.parametrize("page", ["", "==PROF== Disconnected", '"ID","Kernel Name"\n"0","_k"\n'])
def test_a_page_without_a_table_or_times_is_refused(page):
    with pytest.raises(ValueError, match="ncu"):
        ncu.read(page)


def test_a_driver_that_keeps_its_counters_is_explained(toy_root, mine, stand_in):
    folder = stand_in("ncu", FAKE_NCU)
    (folder / "say.txt").write_text("==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access\n")
    with pytest.raises(InfrastructureError, match="profiled nothing") as caught:
        profile(toy_root, mine, gpu("cuda"))
    assert "CAP_SYS_ADMIN" in caught.value.hint


def test_what_ncu_says_of_another_failure_is_passed_on(toy_root, mine, stand_in):
    folder = stand_in("ncu", FAKE_NCU)
    (folder / "say.txt").write_text("==ERROR== An unforeseen\x1b[31m thing\n")
    with pytest.raises(InfrastructureError) as caught:
        profile(toy_root, mine, gpu("cuda"))
    assert "An unforeseen?[31m thing" in caught.value.hint and "printed.txt" in caught.value.hint


@pytest.mark.slow
def test_rocprofv3_is_called_for_a_trace_and_once_for_every_counter(toy_root, mine, stand_in):
    folder = stand_in("rocprofv3", FAKE_ROCPROF)
    found = profile(toy_root, mine, gpu("rocm", bandwidth_bytes_per_s=1e12), calls=2)
    trace, *counters = words_of(folder)
    assert trace[:5] == ["--kernel-trace", "--stats", "--output-format", "csv", "pftrace"]
    assert [words[words.index("--pmc") + 1] for words in counters] == list(rocprof.COUNTERS)
    assert all(words[words.index("--") + 1] == sys.executable for words in (trace, *counters))
    (kernel,) = found.kernels
    assert (kernel.launches, kernel.total_ns) == (1, 2000)  # the launch before the calls is left out
    assert (kernel.each.registers, kernel.each.shared_bytes, kernel.each.grid) == (128, 16384, "4×4×1")
    assert kernel.each.dram_bytes == 1024 * 1024 and kernel.each.dram_percent == pytest.approx(52.4, abs=0.1)
    assert kernel.each.occupancy_percent == 37.5 and kernel.each.compute_percent is None
    assert any("MfmaUtil" in note for note in found.notes)


def test_a_trace_of_rocm_6_2_is_read_without_registers():
    row = {
        "Kernel_Name": "k", "Start_Timestamp": "5", "End_Timestamp": "25", "Private_Segment_Size": "0",
        "Group_Segment_Size": "512", "Workgroup_Size_X": "64", "Workgroup_Size_Y": "1", "Workgroup_Size_Z": "1",
        "Grid_Size_X": "130", "Grid_Size_Y": "1", "Grid_Size_Z": "1",
    }  # fmt: skip
    launch = rocprof._launch(row)
    assert (launch.time_ns, launch.registers, launch.shared_bytes, launch.grid) == (20, None, 512, "3×1×1")


def test_kernels_in_a_trace_of_torch_carry_what_the_device_told(tmp_path):
    args = {"registers per thread": 40, "shared memory": 1024, "grid": [8, 1, 1], "block": [256, 1, 1]}
    args |= {"est. achieved occupancy %": 75}
    events = [
        {"ph": "X", "cat": "kernel", "name": "k", "ts": 1.0, "dur": 2.5, "args": args},
        {"ph": "X", "cat": "gpu_memset", "name": "Memset", "ts": 4.0, "dur": 1.0},
    ]
    (tmp_path / "trace-1.json").write_text(json.dumps({"traceEvents": events}))
    (launch,) = torch_profiler.launches(tmp_path)
    assert launch == Launch(
        name="k", time_ns=2500, occupancy_percent=75, registers=40, shared_bytes=1024, grid="8×1×1", block="256×1×1"
    )


def test_launches_of_other_extents_are_other_kernels():
    launches = [Launch("k", 10.0, grid="1×1×1"), Launch("k", 30.0, grid="2×1×1"), Launch("k", 20.0, grid="1×1×1")]
    found = kernels(launches, calls=1)
    assert [(kernel.launches, kernel.total_ns, kernel.each.time_ns) for kernel in found] == [(2, 30, 15), (1, 30, 30)]


@pytest.mark.parametrize("kind, tool, where", [("cuda", "ncu", "CUDA toolkit"), ("rocm", "rocprofv3", "ROCm 6.2")])
def test_a_tool_that_is_missing_is_named_with_how_to_get_it(toy_root, mine, monkeypatch, kind, tool, where):
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(tools, "_PLACES", {"ncu": (), "rocprofv3": ()})
    with pytest.raises(InfrastructureError, match=f"{tool} is not installed") as caught:
        profile(toy_root, mine, gpu(kind))
    assert where in caught.value.hint and "--tool torch" in caught.value.hint and caught.value.exit_code == 30
    assert not (toy_root / "build").exists()


@pytest.mark.parametrize(
    "source, code, words",
    [
        pytest.param("def custom_kernel(data:\n", 11, "SyntaxError", marks=pytest.mark.slow),
        pytest.param("import sys\nsys.exit(0)\n", 12, "sys.exit", marks=pytest.mark.slow),
        pytest.param("x = 1\n", 11, "no custom_kernel", marks=pytest.mark.slow),
        ("import os\n\ndef custom_kernel(data):\n    os._exit(7)\n", 30, "status 7"),
    ],
)
def test_a_submission_that_fails_ends_with_the_verdict_s_code(toy_root, mine, capsys, source, code, words):
    mine.write_text(source)
    assert main(["--root", str(toy_root), "profile", "double", str(mine), "--device", "cpu"]) == code
    out, err = capsys.readouterr()
    assert words in err and not out and "harness/" not in err and "(submission.py" not in err
    if code == 12:
        assert "\n  case " in err and "build/profiles" not in err


@pytest.mark.slow
def test_a_file_that_fails_does_not_wait_for_the_processors_and_one_that_does_not_leaves_nothing_of_its_trial(
    toy_root, mine, monkeypatch
):
    looks = []

    @contextlib.contextmanager
    def hold(device, narrate, waiting):
        for _ in range(2):
            waiting()
        looks.append(sorted(path.name for path in (toy_root / "build").rglob("*") if path.is_file()))
        yield

    monkeypatch.setattr(profiling.lock, "hold", hold)
    cpu = detect(toy_root, "cpu")
    mine.write_text("def custom_kernel(data):\n    raise ValueError('not today')\n")
    with pytest.raises(process.Unprofiled, match="not today"):
        profile(toy_root, mine, cpu)
    assert not looks
    mine.write_text(HONEST)
    assert profile(toy_root, mine, cpu, out=toy_root / "build" / "honest").calls == 3
    assert "trace-1.json" not in looks[0] and "submission.py" in looks[0]


def test_what_a_submission_started_does_not_outlive_its_profile(toy_root, mine):
    mine.write_text(
        "import subprocess\nCHILD = subprocess.Popen(['sleep', '600'])\nprint('child', CHILD.pid)\n" + HONEST
    )
    found = profile(toy_root, mine, detect(toy_root, "cpu"), case="rows=3 cols=5")
    assert "double, a case that you named: rows=3 cols=5" in document.text(rendered.parts(found))
    pid = re.search(r"child (\d+)", (found.folder / "printed.txt").read_text())[1]
    deadline = time.monotonic() + 300
    while alive(pid) and time.monotonic() < deadline:
        time.sleep(0.05)  # killed, and not yet gone
    assert not alive(pid)


@pytest.mark.slow(ci=True)
def test_a_profile_that_is_terminated_leaves_no_process(toy_root, mine, tmp_path):
    told = tmp_path / "pid"
    mine.write_text(
        "import os, pathlib, time\n\ndef custom_kernel(data):\n"
        f"    pathlib.Path({str(told)!r}).write_text(str(os.getpid()))\n    time.sleep(600)\n"
    )
    command = [sys.executable, "-m", "harness", "--root", str(toy_root)]
    profiled = subprocess.Popen([*command, "profile", "double", str(mine), "--device", "cpu"], cwd=CHECKOUT)
    deadline = time.monotonic() + 300
    while not (told.exists() and told.read_text()) and time.monotonic() < deadline:
        time.sleep(0.05)
    profiled.terminate()
    assert profiled.wait(300) == 128 + signal.SIGTERM
    assert not alive(told.read_text())


@pytest.mark.parametrize(
    "options, words",
    [
        (["--case", "2"], "no benchmark case 2"),
        (["--case", "0"], "1: rows=64 cols=64"),
        (["--case", "-1"], "no benchmark case -1"),
        (["--case", "rows=9 cols=9"], "double has no case 'rows=9 cols=9'"),
        (["--tool", "ncu"], "ncu cannot profile"),
        (["--tool", "nsys"], "--tool"),
        (["--calls", "0"], "--calls"),
        (["--json", "--markdown"], "--json and --markdown"),
    ],
)
def test_what_makes_no_sense_is_usage(toy_root, mine, capsys, options, words):
    assert main(["--root", str(toy_root), "profile", "double", str(mine), "--device", "cpu", *options]) == 2
    assert words in capsys.readouterr().err
    assert not (toy_root / "build").exists()


def test_files_of_another_profile_are_not_mixed_with_these(toy_root, mine, tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "profile.json").write_text("{}")
    with pytest.raises(UsageError, match="not empty"):
        profile(toy_root, mine, detect(toy_root, "cpu"), out=tmp_path / "there")


def test_the_case_with_the_highest_floor_is_profiled_unless_one_is_named():
    problem = catalog.load_problem(CHECKOUT, "kv_replicate")
    device = gpu("cuda", bandwidth_bytes_per_s=1e12)
    numbers = range(1, len(problem.cases.benchmark) + 1)
    floors = [profiling._case(CHECKOUT, problem, device, str(number))[2] for number in numbers]
    case, number, floor, needed = profiling._case(CHECKOUT, problem, device, None)
    assert case == problem.cases.benchmark[number - 1]
    assert floor.latency_ns == max(each.latency_ns for each in floors) and floor == floors[number - 1]
    assert needed == pytest.approx(floor.latency_ns * 1e3)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU, and torch sees none")
@pytest.mark.parametrize("tool", ["auto", "torch"])
def test_a_bundled_kernel_is_profiled_for_real(tmp_path, tool):
    problem = catalog.load_problem(CHECKOUT, "kv_replicate")
    path = CHECKOUT / "submissions" / "kv_replicate" / "triton_fused.py"
    found = profiling.profile(
        CHECKOUT,
        problem,
        catalog.load_submission(problem, path),
        detect(CHECKOUT),
        tool=tool,
        calls=2,
        out=tmp_path / "out",
    )
    print(document.text(rendered.parts(found)))
    assert found.kernels and found.total_ns > 0 and found.files
    # One kernel copies K and V: neither the making of the inputs nor a warm-up is among what was seen.
    assert len(found.kernels) == 1 and found.kernels[0].launches == 1
    each = found.kernels[0].each
    assert each.registers and each.grid and each.block
    if found.floor is not None:
        assert found.total_ns > 0.9 * found.floor.latency_ns
    if tool == "auto":
        assert each.dram_percent and 0 < each.dram_percent <= 105
        assert found.dram_bytes and 0.5 < found.dram_bytes / found.needed_bytes < 2
    if found.tool == "ncu":
        assert each.compute_percent and each.occupancy_percent


@pytest.mark.slow(ci=True)
def test_the_emulator_counts_what_a_kernel_executes_by_line_and_tells_no_time(capsys):
    pytest.importorskip("tinygrad")
    pytest.importorskip("triton")
    command = [
        "profile",
        "kv_replicate",
        str(CHECKOUT / "submissions/kv_replicate/triton_fused.py"),
        "--tool",
        "emulator",
    ]
    assert main([*command, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["target"] == "gfx942" and found["kernels"]
    for kernel in found["kernels"]:
        assert kernel["instructions"]["vector"] > 0 and kernel["instructions"]["global"] > 0
        assert 0 < sum(kernel["lines"].values()) <= sum(kernel["instructions"].values())
        files = {place.split(":")[0] for place in kernel["lines"]}
        assert "triton_fused.py" in files and "submission.py" not in files
    assert "_ns" not in json.dumps(found)


@pytest.mark.slow
def test_a_file_that_the_emulator_cannot_load_is_named_as_its_author_does(tmp_path, capsys):
    pytest.importorskip("tinygrad")
    path = tmp_path / "mine.py"
    path.write_text("def custom_kernel(data:\n")
    assert main(["profile", "kv_replicate", str(path), "--tool", "emulator"]) == 11
    err = capsys.readouterr().err
    assert "(mine.py, line 1)" in err and f'File "{path}", line 1' in err and "submission.py" not in err


@pytest.mark.slow(ci=True)
def test_what_a_killed_count_in_the_emulator_leaves_is_removed_by_the_next_command(tmp_path, monkeypatch):
    pytest.importorskip("tinygrad")
    path = tmp_path / "mine.py"
    path.write_text("import time\n\ndef custom_kernel(data):\n    time.sleep(600)\n")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    command = [sys.executable, "-m", "harness", "profile", "kv_replicate", str(path), "--tool", "emulator"]
    process = subprocess.Popen(command, cwd=CHECKOUT, start_new_session=True, stderr=subprocess.DEVNULL)
    try:
        while not list(tmp_path.glob("podium-*/submission.py")):
            assert process.poll() is None
            time.sleep(0.05)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    until = time.monotonic() + 60
    left = 2
    while left > 1:  # what it had begun dies a moment later, and holds the folder so long
        assert time.monotonic() < until
        with temporary_folder():
            left = len(list(tmp_path.glob("podium-*")))
    assert not list(tmp_path.glob("podium-*"))
