"""`repro`: a stored run judged again with its own source, cases, sampling and seeds; what differs is said."""

import json
import shutil
from pathlib import Path

import pytest

from harness.model import ClockOwner, Ending, Estimate, Run, Unranked, Verdict
from harness.ranking.speed import Noise
from harness.records.run_file import load_run
from harness.render import document
from harness.render import repro as rendered
from harness.verbs.repro import Reproduction, hold
from tests.test_comparison import DEVICE, run

# Errs by an amount that depends on the inputs, and prints what it was given.
INEXACT = """\
def custom_kernel(data):
    x = data[0]
    print("SAW", x.shape[0], float(x.flatten()[0]))
    return x * 2 * (1 + 1e-7)
"""
NOT_JUDGED = {"verdict": "infrastructure_error", "message": "mine needs an AMD GPU", "detail": None}
WRONG = "def custom_kernel(data):\n    return data[0] * 3\n"

INDEX = shutil.ignore_patterns("index.sqlite*", "*.lock")

pytestmark = pytest.mark.usefixtures("roomy")  # a process timed again would have other inputs


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """Copies of what a first evaluation left in results, by what was evaluated: a second one would take as long."""
    return tmp_path_factory.mktemp("kept"), {}


@pytest.fixture
def judged(podium, toy_root, kept):
    """Judges a source as `name` on the CPU; the run, and its file to be tampered with."""
    folder, copies = kept
    results = toy_root / "results"

    def judge(source: str, name: str = "mine", *options: str) -> tuple[Run, Path]:
        only = not (results / "local").exists()
        if only and (source, name, options) in copies:
            shutil.copytree(copies[source, name, options], results, dirs_exist_ok=True)
        else:
            path = toy_root / "submissions" / "double" / f"{name}.py"
            path.write_text(source)
            podium("eval", "double", str(path), "--device", "cpu", *options)
            path.unlink()
            if only:
                copies[source, name, options] = folder / str(len(copies))
                shutil.copytree(results, copies[source, name, options], ignore=INDEX)
        (stored,) = (results / "local" / "double").glob(f"*/*-{name}.json")
        return load_run(stored), stored

    return judge


def edit(stored: Path, **changes) -> None:
    stored.write_text(json.dumps(json.loads(stored.read_text()) | changes))


def again(podium, name: str) -> tuple[int, dict]:
    code, out, err = podium("repro", name, "--json")
    assert out, err
    return code, json.loads(out)


@pytest.fixture
def reproduced(podium, judged, kept, toy_root) -> tuple[Run, int, dict]:
    """INEXACT judged and judged again, once for all tests: the first run, then what `again` says."""
    folder, copies = kept
    if "reproduced" not in copies:
        then, _ = judged(INEXACT)
        found = then, *again(podium, "mine")
        shutil.copytree(toy_root / "results", folder / "reproduced", ignore=INDEX)
        copies["reproduced"] = found
    else:
        shutil.copytree(folder / "reproduced", toy_root / "results", dirs_exist_ok=True)
    return copies["reproduced"]


def saw(printed: str) -> list[str]:
    return [line for line in printed.splitlines() if line.startswith("SAW 64")]


def test_a_run_is_judged_again_on_its_own_inputs_and_errs_by_the_same_amount(reproduced):
    then, code, document = reproduced
    now = Run.model_validate(document["now"])
    assert now.master_seed == then.master_seed and now.submission_sha256 == then.submission_sha256
    assert [check.error for check in now.checks] == [check.error for check in then.checks] != [None, None]
    assert all(check.error for check in then.checks)
    assert document["errors"] == {"same": 2, "checked": 2}
    # Of the last process the first calls have what they had, however many there were.
    assert min(len(saw(then.output)), len(saw(now.output))) > 2
    assert all(old == new for old, new in zip(saw(then.output), saw(now.output), strict=False))
    assert document["verdict"] == {"then": "accepted", "now": "accepted", "agrees": True}
    assert code in (0, 20) and code == document["exit_code"]  # two CPUs in CI may well differ in speed


def test_the_new_run_is_stored_and_never_ranked_and_says_what_it_reproduces(podium, reproduced):
    then, _, document = reproduced
    now = document["now"]
    assert now["unranked_because"] == "repro" and now["reproduces"] == then.id and now["score"]
    code, out, _ = podium("show", now["id"])
    assert code == 0 and then.id in out and "so its inputs could be known" in out
    assert podium("show", "mine")[1].split()[1] == then.id  # by its name a submission's latest run is still its own
    boards = json.loads(podium("leaderboard", "double", "--json")[1])["boards"]
    assert now["id"] not in [entry["id"] for entry in boards[0]["ranked"]]
    assert then.id in [entry["id"] for entry in boards[0]["ranked"] + boards[0]["unranked"]]


def test_a_wrong_answer_is_reproduced_with_its_report(podium, judged):
    then, _ = judged(WRONG)
    code, out, _ = podium("repro", "mine")
    assert code == 0 and out.splitlines()[-1].startswith("reproduced: wrong answer then and now")
    assert then.ending.detail is not None and then.ending.detail.splitlines()[1] in out


def test_another_verdict_is_not_reproduced_and_has_its_exit_code(podium, judged, toy_root):
    judged(INEXACT)
    yml = toy_root / "problems" / "double" / "problem.yml"
    yml.write_text(yml.read_text().replace("rtol: 1.0e-5, atol: 1.0e-6", "rtol: 1.0e-9, atol: 1.0e-9"))
    code, out, _ = podium("repro", "mine")
    assert code == 10 and "not reproduced: accepted then, wrong answer now" in out.splitlines()[-1]
    assert "problem files (sha256)" in out


def test_a_run_that_failed_and_is_accepted_now_is_not_reproduced(podium, judged, toy_root):
    judged(INEXACT.replace("1e-7", "1e-4"))
    yml = toy_root / "problems" / "double" / "problem.yml"
    yml.write_text(yml.read_text().replace("rel_l2: 1.0e-5", "rel_l2: 1").replace("rtol: 1.0e-5", "rtol: 1"))
    code, out, _ = podium("repro", "mine")
    assert code == 10 and "not reproduced: wrong answer then, accepted now" in out.splitlines()[-1]


def test_the_cases_are_those_of_the_run_whatever_the_problem_has_now(podium, judged, toy_root):
    then, _ = judged(INEXACT)
    yml = toy_root / "problems" / "double" / "problem.yml"
    before, cpu = yml.read_text().split("cpu:")
    yml.write_text(f"{before}cpu:" + cpu.replace("rows: 3, cols: 5", "rows: 2, cols: 2").replace("64", "16"))
    _, document = again(podium, "mine")
    now = Run.model_validate(document["now"])
    assert [check.case for check in now.checks] == [check.case for check in then.checks]
    assert [m.case for m in now.measurements] == [m.case for m in then.measurements]
    assert document["reproduced"] is None and "the problem's files changed" in document["score"]["reason"]


def test_the_sampling_is_that_of_the_run_whatever_the_configuration_is_now(podium, judged, toy_root):
    then, _ = judged(INEXACT)
    config = toy_root / "configs" / "eval.yml"
    config.write_text(config.read_text().replace("processes: 2", "processes: 3"))
    now = Run.model_validate(again(podium, "mine")[1]["now"])
    assert now.config == then.config and len(now.measurements[0].samples_ns) == 2


def test_a_quick_run_is_reproduced_quickly_and_its_score_left_undecided(podium, judged):
    judged(INEXACT, "mine", "--quick")
    code, document = again(podium, "mine")
    assert code == 0 and len(document["now"]["measurements"][0]["samples_ns"]) == 1
    assert document["reproduced"] is None
    assert document["score"]["reason"] == "not ranked then and now, quick: a quick look with one process"
    assert "a default: this device is not calibrated" in podium("repro", "mine")[1]


def test_what_an_older_podium_did_not_record_is_as_it_is_now_and_said(podium, judged):
    then, stored = judged(INEXACT)
    cpu = {key: value for key, value in then.config["cpu"].items() if key != "warmup_calls"}
    edit(stored, config=then.config | {"cpu": cpu | {"forgotten": 3}})
    _, document = again(podium, "mine")
    assert {"what": "sampling cpu warmup_calls", "then": None, "now": "1"} in document["differences"]
    assert {"what": "sampling cpu forgotten", "then": "3", "now": None} in document["differences"]
    assert document["now"]["config"]["cpu"]["warmup_calls"] == 1


def test_only_what_differs_in_the_environment_is_shown(podium, judged):
    then, stored = judged(INEXACT)
    packages = then.environment["packages"] | {"torch": "2.0\x1b[31m"}
    edit(stored, environment=then.environment | {"packages": packages, "load_average": [9, 9, 9], "driver": "1.2"})
    _, out, _ = podium("repro", "mine")
    table = out[: out.index("µs")]
    assert "2.0‹U+001B›[31m" in table and "driver" in table
    assert "load_average" not in table and "numpy" not in table and "python" not in table


def test_a_changed_device_is_said_and_its_latencies_are_not_compared(podium, judged, toy_root):
    then, stored = judged(INEXACT)
    device = then.device.model_dump() | {"name": "Crate", "slug": "crate"}
    (folder := stored.parents[1] / "crate").mkdir()
    edit(stored, device=device)
    stored.rename(folder / stored.name)
    code, document = again(podium, "mine")
    assert code == 0 and document["reproduced"] is None and "timed on Crate then" in document["score"]["reason"]
    assert "device name" in [difference["what"] for difference in document["differences"]]


def test_a_run_whose_submission_is_called_what_no_file_may_be_is_stored_by_a_plain_name(podium, judged, toy_root):
    _, stored = judged(INEXACT)
    edit(stored, submission="mi\x1b[31mne\x00\n/of\rcourse")
    stem = stored.stem
    code, document = again(podium, stem)
    assert code in (0, 20) and document["now"]["id"].endswith("-of_course-repro")
    names = [path.name for path in toy_root.rglob("*.json")]
    assert len(names) == 2 and all(name.isprintable() for name in names)


def of_problem(stored, name):
    """Have the run be one of another problem, in its folder."""
    edit(stored, problem=name)
    folder = stored.parents[2] / name / stored.parent.name
    folder.mkdir(parents=True)
    stored.rename(folder / stored.name)


@pytest.mark.parametrize(
    ("spoil", "code", "words"),
    [
        (lambda then, stored: [p.unlink() for p in stored.parents[1].glob("sources/*")], 30, "is not stored here"),
        (lambda then, stored: [p.write_text("#") for p in stored.parents[1].glob("sources/*")], 30, "sha256 differs"),
        (lambda then, stored: edit(stored, device=then.device.model_dump() | {"kind": "cuda"}), 30, "no cuda device"),
        (lambda then, stored: edit(stored, problem_revision=7), 2, "which is at revision 1"),
        (lambda then, stored: edit(stored, master_seed="not hex"), 30, "its inputs are lost"),
        (lambda then, stored: edit(stored, master_seed="00" * 65), 30, "its inputs are lost"),
        (lambda then, stored: edit(stored, config={"cpu": {"processes": -1}}), 30, "cpu.processes is wrong"),
        (lambda then, stored: of_problem(stored, "triple"), 2, "no problem called 'triple'"),
        (lambda then, stored: edit(stored, ending=NOT_JUDGED), 2, "no verdict to reproduce"),
        (lambda then, stored: stored.unlink(), 2, "there is no run mine"),
    ],
    ids=["cleared", "changed", "device", "revision", "seed", "long seed", "config", "problem", "unjudged", "run"],
)
def test_what_cannot_be_restored_is_one_sentence(podium, judged, monkeypatch, spoil, code, words):
    monkeypatch.setattr("harness.machine.device._gpu", lambda root, index: None)
    spoil(*judged(INEXACT))
    got, out, err = podium("repro", "mine")
    assert got == code and words in err and not out and "Traceback" not in err and "test 1" not in err


def test_another_kind_of_device_is_refused_when_it_is_asked_for(podium, judged):
    then, stored = judged(INEXACT)
    edit(stored, device=then.device.model_dump() | {"kind": "rocm"})
    code, out, err = podium("repro", "mine", "--device", "cpu")
    assert code == 2 and "(rocm)" in err and not out


def reproduction(then: Run, now: Run) -> Reproduction:
    return hold(then, now, Noise(0.01, True, "made up for a test"), 0.95)


FAILED = {
    "ending": Ending(verdict=Verdict.WRONG_ANSWER, message="1 of 2 test cases is wrong"),
    "measurements": (),
    "score": None,
}


@pytest.mark.parametrize(
    ("now", "reproduced", "code"),
    [
        (run("b"), True, 0),
        (run("b", (100.5, 402.0)), True, 0),
        (run("b", (130.0, 520.0)), False, 20),
        (run("b", (70.0, 280.0)), False, 20),
        (run("b", (130.0, 520.0), spread=(1.0, 2.0, 0.5, 3.0, 0.4)), None, 0),
        (run("b", (101.0, 404.0), spread=(1.0, 1.05, 0.95, 1.02, 0.98)), True, 0),
        (run("b", (130.0, 520.0), labels=("crowded",)), None, 0),
        (run("b", (130.0, 520.0), spread=(1.0,)), None, 0),
        (run("b", (130.0,)), None, 0),
        (run("b", problem_sha256="1" * 64), None, 0),
        (run("b", (130.0, 520.0), clock=ClockOwner.WORKER), None, 0),
        (run("b", **FAILED, clock=ClockOwner.WORKER), False, 10),
        *((run("b", (130.0, 520.0), unranked_because=reason), None, 0) for reason in ("noisy", "crowded", "voided")),
        (run("b", (130.0, 520.0), unranked_because=Unranked.REPRODUCED), False, 20),
        (run("b", unranked_because=Unranked.REPRODUCED), True, 0),
        (run("b", **FAILED), False, 10),
        (run("b", **FAILED | {"ending": Ending(verdict=Verdict.INFRASTRUCTURE_ERROR, message="no")}), False, 30),
    ],
)
def test_a_score_agrees_unless_it_differs_beyond_interval_and_noise(now, reproduced, code):
    found = reproduction(run("a"), now)
    assert found.reproduced is reproduced and found.exit_code == code
    untold = "verdict reproduced; the score cannot be told: "
    words = {True: "reproduced: ", False: "not reproduced: ", None: untold}[reproduced]
    assert rendered.text(found).splitlines()[-1].startswith(words)


@pytest.mark.parametrize(
    ("then", "now", "reason"),
    [
        (run("a"), run("b", spread=(1.0, 20.0, 0.05, 9.0, 0.1)), "holds equality and reaches beyond the noise"),
        (run("a", spread=(1.0, 20.0, 0.05, 9.0, 0.1)), run("b"), "holds equality and reaches beyond the noise"),
        (run("a"), run("b", unranked_because=Unranked.CROWDED), "not ranked now, crowded: other processes"),
        (run("a", unranked_because=Unranked.IMPRECISE), run("b"), "not ranked then, imprecise: its processes differ"),
        (run("a"), run("b", labels=("crowded",)), "crowded: other processes took the processors meanwhile"),
    ],
    ids=["wide now", "wide then", "crowded run", "imprecise run", "crowded cases"],
)
def test_where_the_score_cannot_be_told_only_the_verdict_is_reproduced_and_the_reason_is_said(then, now, reason):
    found = reproduction(then, now)
    last, told = rendered.text(found).splitlines()[-1], rendered.as_json(found)
    assert last.startswith("verdict reproduced; the score cannot be told: ") and reason in last and found.exit_code == 0
    assert told["score"]["told"] == "cannot be told" and told["score"]["agrees"] is told["reproduced"] is None
    assert told["verdict"]["agrees"] is True and reason in told["score"]["reason"]


@pytest.mark.parametrize(("latencies", "told"), [((100.0, 400.0), "agrees"), ((130.0, 520.0), "differs")])
def test_where_the_score_can_be_told_json_says_what_it_is(latencies, told):
    assert rendered.as_json(reproduction(run("a"), run("b", latencies)))["score"]["told"] == told


def test_how_wide_an_interval_may_be_is_what_the_configuration_says():
    now = run("b", (101.0, 404.0), spread=(1.0, 1.05, 0.95, 1.02, 0.98))
    noise = Noise(0.01, True, "made up for a test")
    assert [hold(run("a"), now, noise, 0.95, widest=widest).reproduced for widest in (0.25, 0.01)] == [True, None]


def test_a_score_without_an_interval_is_shown_all_the_same():
    then = run("a", score=Estimate(latency_ns=2e5), device=DEVICE)
    last = rendered.text(reproduction(then, run("b", (130.0, 520.0)))).splitlines()[-1]
    assert "200.0 µs then" in last


def test_in_markdown_each_case_then_and_now_is_a_row_and_what_it_comes_to_the_last_line():
    lines = document.markdown(rendered.parts(reproduction(run("a"), run("b", (130.0, 520.0))))).splitlines()
    header = next(line for line in lines if "then µs" in line)
    assert "now / then" in header and lines[lines.index(header) + 1].startswith("| --- |")
    assert lines[-1].startswith("not reproduced: ")


def test_one_reason_of_both_runs_and_all_cases_is_said_once():
    crowded = {"unranked_because": Unranked.CROWDED, "labels": ("crowded",)}
    said = rendered.text(reproduction(run("a", **crowded), run("b", **crowded)))
    assert said.count("other processes took the processors meanwhile") == 1
    assert "not ranked then and now, crowded: " in said.splitlines()[-1]


def test_reasons_of_single_cases_that_the_last_line_lacks_are_said_once_with_their_cases():
    wide = (1.0, 1.4, 0.7, 1.2, 0.8)
    then, now = run("a", (100.0, 400.0, 900.0)), run("b", (100.0, 400.0, 900.0), labels=("host-bound",))
    below = rendered.compare.table(reproduction(then, now).compared).below
    assert below == []  # the whole comparison's own
    mixed = (*now.measurements[:2], run("c", (900.0, 900.0, 900.0), wide).measurements[2])
    below = rendered.compare.table(reproduction(then, now.model_copy(update={"measurements": mixed})).compared).below
    assert [line for line in below if line.startswith("  n=2: ")] and len(below) == len({*below})
