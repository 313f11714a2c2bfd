"""The table of `verify`: what each control must get, what it got, and how much of each tolerance it takes."""

import json
from pathlib import Path

import pytest

from harness import catalog
from harness.machine.device import detect
from harness.sandbox import tiers
from harness.verbs.verify import verify

TOLERANCE = "close: {rtol: 1.0e-5, atol: 1.0e-6, max_mismatch: 0, rel_l2: 1.0e-5}"
FACTORS = {"accepted/exact": 2.0, "accepted/rough": 2.02, "wrong_answer/lenient": 2.02, "wrong_answer/off": 2.4}


@pytest.fixture
def controls(toy_root):
    """Writes controls that multiply by these factors, where 2 is right; `close` is met up to 2.002, `rough` to 2.2."""
    folder = toy_root / "problems" / "double"
    text = (folder / "problem.yml").read_text()
    assert TOLERANCE in text
    (folder / "problem.yml").write_text(text.replace(TOLERANCE, "close: {rel_l2: 0.001}\n  rough: {rel_l2: 0.1}"))

    def write(**factors):
        for name, factor in factors.items():
            path = folder / "controls" / f"{name}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"def custom_kernel(data):\n    return data[0] * {factor}\n")

    return write


def rows_of(markdown):
    lines = [line for line in markdown.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return cells[0], {row[0]: row[1:] for row in cells[2:]}


def test_a_control_s_row_says_what_is_due_what_it_got_and_how_much_of_each_tolerance_it_takes(podium, controls):
    controls(**FACTORS)
    code, out, _ = podium("verify", "double", "--markdown")
    headers, rows = rows_of(out)
    assert headers == ["control", "expected", "got", "of close", "of rough", "as expected"]
    assert code == 10 and rows == {
        "accepted/exact": ["accepted", "accepted", "0.00 rel_l2", "0.00 rel_l2", "yes"],
        "accepted/rough": ["accepted", "accepted", "10.00 rel_l2", "0.10 rel_l2", "yes"],
        "wrong_answer/lenient": ["wrong answer", "accepted", "10.00 rel_l2", "0.10 rel_l2", "NO"],
        "wrong_answer/off": ["wrong answer", "wrong answer", "200.00 rel_l2", "2.00 rel_l2", "yes"],
    }
    assert "double: 4 controls" in out and "the tolerance rough does not reject wrong_answer/lenient" in out
    assert "the tolerance close does not reject" not in out


def test_a_control_that_misses_its_verdict_is_told_before_the_next_is_judged(toy_root, controls, monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {0})  # one at a time
    controls(**{"wrong_answer/a": 2.0, "wrong_answer/b": 2.0})
    problem, said = catalog.load_problem(toy_root, "double"), []
    next(verify(toy_root, problem, detect(toy_root, "cpu"), said.append))
    assert any(str(line).startswith("double: wrong_answer/a must get wrong answer, but got accepted") for line in said)
    assert not any("wrong_answer/b" in str(line) for line in said)


def test_a_control_that_gave_no_answer_has_no_margin(podium, controls):
    controls(**{"accepted/exact": 2.0, "runtime_error/raises": "no_such_name"})
    rows = rows_of(podium("verify", "double", "--markdown")[1])[1]
    assert rows["runtime_error/raises"] == ["runtime error", "runtime error", "", "", "yes"] and len(rows) == 2


def test_one_control_is_no_plural_and_a_tolerance_that_nothing_meets_is_named(podium, controls):
    controls(**{"accepted/rough": 2.02})
    code, out, _ = podium("verify", "double", "--markdown")
    assert code == 10 and "double: 1 control**" in out
    assert "double: no accepted control meets the tolerance close" in out and "the tolerance rough" not in out


def test_as_json_a_control_has_the_figures_of_its_row(podium, controls):
    controls(**FACTORS)
    (document,) = json.loads(podium("verify", "double", "--json")[1])["problems"]
    found = {control["name"]: control for control in document["controls"]}
    assert found.keys() == FACTORS.keys()
    rough, lenient = found["accepted/rough"], found["wrong_answer/lenient"]
    assert (rough["due"], rough["got"], rough["tolerance"], rough["faults"]) == ("accepted", "accepted", "rough", [])
    assert rough["excess"]["close"]["limit"] == "rel_l2"
    assert [rough["excess"][name]["ratio"] for name in ("close", "rough")] == pytest.approx([10, 0.1], rel=1e-3)
    assert (lenient["due"], lenient["got"], len(lenient["faults"])) == ("wrong_answer", "accepted", 2)


def test_controls_are_forked_and_confined_also_where_namespaces_hold(podium, controls, monkeypatch):
    cpu = detect(Path(__file__).resolve().parents[1], "cpu")
    held = (each for each in tiers.candidates(cpu) if each.bubblewrap and tiers.holds(each, cpu))
    namespaces = next(held, None)
    if namespaces is None or not namespaces.landlock:
        pytest.skip("bubblewrap is not installed or does not work here, or the kernel lacks Landlock")
    monkeypatch.setitem(tiers._found, cpu.torch_device, namespaces)
    trusted = tiers.for_trusted(cpu)
    assert trusted.confines and not trusted.bubblewrap and tiers.strongest(cpu) is namespaces
    forked = "2.0\nimport sys\nassert 'harness.sandbox.fork_server' in sys.orig_argv"
    controls(**{"accepted/forked": forked})
    assert rows_of(podium("verify", "double", "--markdown")[1])[1]["accepted/forked"][1] == "accepted"
