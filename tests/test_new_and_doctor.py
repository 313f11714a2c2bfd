"""The first two things a competitor types: a new submission to start from, and what this machine can do."""

import json
import py_compile
import shutil
import sys
from importlib.util import spec_from_file_location
from pathlib import Path

import pytest

from harness import catalog
from harness.compile.survey import HipCompiler, Tools
from harness.errors import InfrastructureError, ProblemError
from harness.hip import compilers
from harness.machine.device import detect
from harness.render import doctor as rendered
from harness.verbs import doctor, new_problem
from harness.verbs import new as scaffold
from harness.verbs.doctor import Fact
from tests.test_report import disk_with_room_for

CHECKOUT = Path(__file__).resolve().parents[1]
TEMPLATE = '"""data = (x, config); return 2 x."""\n\n\ndef custom_kernel(data):\n    return data[0] * 2\n'


@pytest.fixture
def podium(toy_root, podium):
    (toy_root / "problems" / "double" / "template.py").write_text(TEMPLATE)
    return podium


def test_a_new_problem_passes_its_own_verification_and_takes_a_submission(podium, toy_root):
    code, out, _ = podium("new-problem", "window")
    assert code == 0 and f"python3 -m harness --root {toy_root} verify window" in out
    folder = toy_root / "problems" / "window"
    assert not [path for path in folder.rglob("*") if path.is_file() and "NAME" in path.read_text()]
    assert [path.name for path in folder.parent.iterdir() if path.name.startswith(".")] == []
    code, out, _ = podium("verify", "window")
    assert code == 0 and out.count(" yes ") == 6
    assert podium("new", "window", "mine")[0] == 0
    path = toy_root / "submissions" / "window" / "mine.py"
    assert podium("eval", "window", str(path), "--quick")[0] == 0


@pytest.mark.parametrize("name", ["Window", "2d", "a b", "../x", "", "double", "if", "torch", "json", "reference"])
def test_a_problem_s_name_that_is_none_or_taken_is_refused_and_nothing_is_written(podium, toy_root, name):
    before = sorted(toy_root.rglob("*"))
    code, out, err = podium("new-problem", name)
    refusals = ("not a name for a problem", "already exists", "is empty")
    assert (code, out) == (2, "") and any(why in err for why in refusals)
    assert sorted(toy_root.rglob("*")) == before


def test_a_problem_that_is_bundled_or_imported_keeps_its_name(podium, toy_root, monkeypatch):
    monkeypatch.setattr(new_problem, "problem_names", lambda root: ["bundled"])
    (toy_root / "configs" / "imported.yml").write_text("elsewhere: /nowhere\n")
    for name in ("bundled", "elsewhere"):
        code, out, err = podium("new-problem", name)
        assert (code, out) == (2, "") and f"{name} is not a name for a problem: a problem has that name" in err
        assert not (toy_root / "problems" / name).exists()


def test_a_new_submission_is_the_template_and_is_accepted_at_once(podium, toy_root):
    code, out, _ = podium("new", "double", "mine")
    path = toy_root / "submissions" / "double" / "mine.py"
    assert code == 0 and path.read_text() == TEMPLATE
    steps = out.splitlines()
    assert " check double " in steps[2] and " eval double " in steps[4]
    assert all(f"double {path}" in step for step in (steps[2], steps[4]))
    code, out, _ = podium("eval", "double", str(path), "--device", "cpu")
    assert code == 0 and "accepted: mine" in out


def test_nothing_is_overwritten(podium, toy_root):
    podium("new", "double", "mine")
    path = toy_root / "submissions" / "double" / "mine.py"
    path.write_text("# a day's work\n")
    code, out, err = podium("new", "double", "mine")
    assert code == 2 and "already exists" in err and not out and path.read_text() == "# a day's work\n"


def test_on_a_full_disk_no_half_of_a_submission_is_left(podium, toy_root):
    (toy_root / "problems" / "double" / "template.py").write_text(TEMPLATE * 200)
    with disk_with_room_for(4096):
        code, out, err = podium("new", "double", "mine")
    assert (code, out) == (30, "") and "mine.py cannot be written: File too large" in err
    assert list((toy_root / "submissions" / "double").iterdir()) == []
    assert podium("new", "double", "mine")[0] == 0


def test_a_dangling_link_is_not_written_through(podium, toy_root):
    path = toy_root / "submissions" / "double" / "mine.py"
    path.symlink_to(toy_root / "elsewhere.py")
    assert podium("new", "double", "mine")[0] == 2
    assert not (toy_root / "elsewhere.py").exists()


@pytest.mark.parametrize(
    "name", ["a b", "../mine", "/tmp/mine", "_hidden", "mine.py", "-n", "x" * 65, "mine\n", "naïve", "a.b", "-"]
)
def test_a_name_that_is_none_is_refused_and_nothing_is_written(podium, toy_root, name):
    code, out, err = podium("new", "double", "--", name)
    assert code == 2 and "is not a name for a submission" in err and not out
    assert not list((toy_root / "submissions").rglob("*.py"))


def test_a_name_with_its_ending_is_told_to_leave_it_out(podium):
    assert "try mine" in podium("new", "double", "mine.py")[2]


def test_an_unknown_problem_is_told_the_nearest(podium):
    code, _, err = podium("new", "doubel", "mine")
    assert code == 2 and "did you mean double?" in err


def test_a_problem_without_a_template_is_named(toy_root):
    with pytest.raises(ProblemError, match=r"template\.py cannot be read"):
        scaffold.new(toy_root, catalog.load_problem(toy_root, "double"), "mine")


@pytest.mark.parametrize("problem", catalog.problem_names(CHECKOUT))
def test_every_problem_has_a_template_that_carries_its_contract(problem):
    template = (CHECKOUT / "problems" / problem / "template.py").read_text()
    assert "def custom_kernel(data):" in template and "data = (" in template


TOOLS = Tools(
    triton="3.7.1",
    interpreter=None,
    hip_compilers={
        "gfx942": HipCompiler(compiler="clang-19", install=None),
        "gfx950": HipCompiler(compiler=None, install="pip install ziglang"),
    },
)


@pytest.fixture
def facts(toy_root, monkeypatch):
    monkeypatch.setattr(doctor.tools, "here", lambda: TOOLS)
    return lambda: {fact.name: fact for fact in doctor.survey(toy_root, detect(toy_root, "cpu"))}


def test_a_machine_that_can_judge_is_not_fatal_and_names_what_is_here(facts):
    found = facts()
    assert not any(fact.fatal for fact in found.values())
    import torch

    assert found["torch"].found == torch.__version__ and found["torch"].required
    assert "CPUs" in found["device"].found and found["results"].state == "ok"
    assert found["gfx942"].found == "Triton 3.7.1" and "clang-19" in found["inline HIP for gfx942"].found


def test_a_compiler_that_is_missing_comes_with_the_command_that_brings_it(facts):
    found = facts()["inline HIP for gfx950"]
    assert found.state == "missing" and not found.fatal
    assert found.remedy == "make setup-offline, or: pip install ziglang"


def test_one_command_brings_a_compiler_for_all_chips_of_a_vendor(monkeypatch):
    """After a command for one chip, doctor does not ask for another command for the next chip."""
    monkeypatch.setattr(compilers, "clang_for", lambda target: None)
    monkeypatch.setattr(compilers, "nvrtc", lambda: None)
    monkeypatch.setattr(compilers.shutil, "which", lambda name: None)
    for vendor, package in (("amd", "'ziglang>=0.15'"), ("nvidia", "nvidia-cuda-nvrtc")):
        told = {compilers.missing(name) for name, chip in compilers.TARGETS.items() if chip.vendor == vendor}
        assert told == {f".venv/bin/python -m pip install {package}"}


def test_a_way_that_another_contains_is_not_named_as_well(facts, monkeypatch):
    monkeypatch.setattr(doctor, "how_to_get_offline", lambda: "pip install ziglang nvidia-cuda-nvrtc")
    assert facts()["inline HIP for gfx950"].remedy == "pip install ziglang nvidia-cuda-nvrtc"


def test_no_fact_has_a_comma_in_its_name_for_commas_part_the_names_of_what_is_lacking(facts):
    assert not [name for name in facts() if "," in name]


def test_a_target_that_triton_compiles_for_is_not_missing_for_want_of_a_compiler_for_inline_hip(facts, monkeypatch):
    assert (facts()["gfx950"].state, facts()["inline HIP for gfx950"].state) == ("ok", "missing")
    monkeypatch.setattr(doctor.tools, "here", lambda: TOOLS.model_copy(update={"triton": None}))
    assert (facts()["gfx942"].state, facts()["inline HIP for gfx942"].state) == ("missing", "ok")


def test_cpp_that_cannot_be_built_is_missing_and_comes_with_the_packages_that_bring_it(facts, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    found = facts()["C++"]
    assert (found.state, found.found) == ("missing", "no compiler no-such-compiler")
    assert found.remedy == "apt install g++ python3-dev" and not found.fatal


@pytest.mark.parametrize(("lacking", "state"), [(None, "ok"), ("not installed", "missing")])
def test_the_emulator_is_missing_where_nothing_is_decoded(facts, monkeypatch, lacking, state):
    monkeypatch.setattr(doctor.decoding, "available", lambda: lacking)
    found = facts()["emulator"]
    assert found.state == state and found.remedy == (lacking and "make setup-offline")


@pytest.mark.parametrize(
    ("vendor", "build", "said"), [("NVIDIA's", "+cpu", True), ("NVIDIA's", "", False), ("AMD's", "+cpu", False)]
)
def test_where_torch_for_cpus_was_installed_before_the_gpu_s_driver_it_is_said_how_to_change_it(
    facts, monkeypatch, tmp_path, vendor, build, said
):
    driver = tmp_path / "driver"
    driver.touch()
    monkeypatch.setattr(doctor, "_DRIVERS", {str(driver): vendor})
    monkeypatch.setattr(doctor.tools, "version", lambda name: f"2.13.0{build}")
    found = facts()["device"]
    assert (
        found.state == "missing" and f"{vendor} driver is here" in found.found and "whose torch sees it" in found.remedy
    )
    assert ("make clean, then make doctor" in found.remedy) == said


def test_a_profiler_that_is_missing_comes_with_how_to_get_it(toy_root, monkeypatch):
    gpu = detect(toy_root, "cpu").model_copy(update={"kind": "cuda"})
    monkeypatch.setattr(doctor.tool, "_PLACES", {"ncu": ()})
    monkeypatch.setenv("PATH", "/nowhere")
    found = doctor._profiler(gpu)
    assert found.state == "missing" and "ncu is not installed" in found.found and "CUDA toolkit" in found.remedy
    assert doctor._profiler(detect(toy_root, "cpu")) == Fact("profiler", "torch.profiler")


def test_tools_that_cannot_be_looked_at_are_broken_and_nothing_else_is_lost(facts, monkeypatch):
    def fails():
        raise InfrastructureError("the look at the tools failed: no memory")

    monkeypatch.setattr(doctor.tools, "here", fails)
    found = facts()
    assert found["interpreter"].state == "broken" and "no memory" in found["interpreter"].found
    assert found["results"].state == "ok"


def test_an_interpreter_that_computes_otherwise_is_broken(facts, monkeypatch):
    wrong = TOOLS.model_copy(update={"interpreter": "bf16 arithmetic rounds once an operation"})
    monkeypatch.setattr(doctor.tools, "here", lambda: wrong)
    found = facts()["interpreter"]
    assert found.state == "broken" and "rounds once" in found.found and "triton==" in found.remedy


@pytest.mark.parametrize(
    ("version", "state"), [("2.10.1", "broken"), ("2.11.0+cu130", "ok"), ("2.9", "broken"), ("3.0", "ok")]
)
def test_a_torch_that_is_too_old_is_what_nothing_can_be_judged_with(facts, monkeypatch, version, state):
    known = doctor.tools.version
    monkeypatch.setattr(doctor.tools, "version", lambda name: version if name == "torch" else known(name))
    found = facts()["torch"]
    assert found.state == state and found.fatal is (state == "broken")


def test_no_torch_at_all_is_said_with_the_command(facts, monkeypatch):
    known = doctor.tools.version
    monkeypatch.setattr(doctor.tools, "version", lambda name: None if name == "torch" else known(name))
    found = facts()["torch"]
    assert found.fatal and found.found == "not installed" and "torch>=2.11" in found.remedy


def test_results_that_cannot_be_written_are_fatal(facts, toy_root):
    shutil.rmtree(toy_root / "results")
    (toy_root / "results").write_text("a file")
    assert facts()["results"].fatal


def test_a_full_disk_is_said(facts, monkeypatch):
    usage = shutil.disk_usage("/")._replace(free=1 << 20)
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda path: usage)
    found = facts()["disk for scratch"]
    assert found.state == "broken" and "0.0 GB free" in found.found and found.remedy.startswith("make room")


def test_the_exit_code_is_30_only_for_what_is_required(podium, monkeypatch):
    for fact, code in ((Fact("torch", "none", "broken", "x", True), 30), (Fact("peaks", "none", "missing", "x"), 0)):
        monkeypatch.setattr(doctor, "survey", lambda *_, fact=fact: [fact])
        found, out, _ = podium("doctor", "--device", "cpu", "--json")
        document = json.loads(out)
        assert found == code and document["ready"] is (code == 0) and document["facts"][0]["name"] == fact.name


def test_the_table_keeps_to_its_width_and_ends_with_a_summary():
    facts = [
        Fact("python", "3.11 (/a/very/long/path " + "word " * 60 + ")", required=True),
        Fact("gfx950", "nothing", "missing", "pip install ziglang"),
        Fact("torch", "not installed", "broken", "pip install torch", True),
    ]
    lines = rendered.text(facts, width=80).splitlines()
    assert max(map(len, lines[: lines.index("To install or repair what is missing:")])) <= 80
    assert "  gfx950: pip install ziglang" in lines
    assert lines[-1] == "Nothing can be judged here until this is repaired: torch."
    assert rendered.text(facts[:1], width=80).splitlines()[-1] == "Ready."


def test_a_remedy_is_named_once_for_all_that_it_adds():
    facts = [Fact("gfx942", "none", "missing", "make x"), Fact("a", "b"), Fact("gfx950", "none", "missing", "make x")]
    assert [line for line in rendered.text(facts, width=80).splitlines() if "make x" in line] == [
        "  gfx942, gfx950: make x"
    ]


@pytest.mark.parametrize(
    ("forbidden", "compiled", "state"), [(True, False, "missing"), (True, True, "ok"), (False, False, "ok")]
)
def test_python_that_may_not_keep_torch_s_bytecode_is_told_how_to(monkeypatch, tmp_path, forbidden, compiled, state):
    source = tmp_path / "torch" / "__init__.py"
    source.parent.mkdir()
    source.touch()
    monkeypatch.setattr(sys, "dont_write_bytecode", forbidden)
    if compiled:
        py_compile.compile(str(source))
    (found,) = doctor._bytecode(spec_from_file_location("torch", source))
    assert found.state == state and (found.remedy or "").startswith("python3 -m compileall" * (state == "missing"))


def test_without_torch_there_is_no_bytecode_to_keep():
    assert not list(doctor._bytecode(None))


def test_a_machine_without_torch_is_looked_at_as_a_processor(toy_root, monkeypatch):
    def no_torch(root, wanted):
        if wanted != "cpu":
            raise ModuleNotFoundError("No module named 'torch'")
        return detect(root, wanted)

    monkeypatch.setattr(doctor, "detect", no_torch)
    assert doctor.device(toy_root, "auto").kind == "cpu"


def test_a_calibration_that_cannot_be_read_is_broken_not_fatal(facts, toy_root):
    path = toy_root / "results" / "calibration" / f"{detect(toy_root, 'cpu').slug}.json"
    path.parent.mkdir()
    path.write_text("{")
    found = facts()["noise"]
    assert found.state == "broken" and not found.fatal and "is no calibration" in found.found
    assert "delete it" in found.remedy
