"""The command line, as a person or a script meets it: exit codes, one sentence for bad input, clean streams."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from harness import catalog
from harness.catalog.config import load_config
from harness.cli import main
from harness.machine import lock, neighbours
from harness.machine.device import detect
from harness.model import Case, ClockOwner, Estimate, Manner, Measurement
from harness.records import scan
from harness.records.store import Store
from harness.verbs import eval as evaluation
from harness.verbs.agenda import Agenda
from tests.boards import store as kept
from tests.conftest import EVAL_YML
from tests.processes import alive, working_in
from tests.test_store import DEVICE, SUBMISSION, make_run

CHECKOUT = Path(__file__).resolve().parents[1]
HONEST = "def custom_kernel(data):\n    return data[0] * 2\n"
WRONG = "def custom_kernel(data):\n    return data[0] * 3\n"
PATIENCE_S = 300
"""What happens in seconds on an idle machine has happened by then on a busy one; a test that fails waits for it."""


def submit(root: Path, name: str, source: str) -> Path:
    path = root / "submissions" / "double" / f"{name}.py"
    path.write_text(source)
    return path


def command(root: Path, *arguments: str) -> list[str]:
    """`python3 -m harness` with the processor's lock in `root`: an evaluation elsewhere does not hold it up."""
    program = "import pathlib, runpy; from harness.machine import lock; "
    program += f"lock.FOLDERS = (pathlib.Path({str(root)!r}, 'tmp'),); "
    program += "runpy.run_module('harness', run_name='__main__', alter_sys=True)"
    return [sys.executable, "-c", program, "--root", str(root), *arguments]


def test_where_there_is_no_submission_it_is_said_how_to_get_one(podium, toy_root):
    for path in (toy_root / "submissions" / "double").glob("*.py"):
        path.unlink()
    code, out, _ = podium("eval", "double")
    assert code == 0 and "There is no submission yet: " in out and "new double mine" in out and "Nothing new" not in out


def test_a_run_that_is_truncated_after_it_was_indexed_is_on_no_board_list_or_report(podium, toy_root, monkeypatch):
    monkeypatch.setattr(scan, "SETTLED_NS", 0)
    page = toy_root / "board.html"
    looks = [("leaderboard", "double"), ("show",), ("report", "double", "--out", str(page))]

    def shown(look):
        code, out, _ = podium(*look)
        assert code == 0
        return re.sub(r"<[^>]*>", "", page.read_text()) if look[0] == "report" else out

    sha256 = catalog.load_problem(toy_root, "double").sha256
    ids = [f"20260101T000000-{number}-{name}" for number, name in enumerate(("whole", "spoilt"))]
    for run_id in ids:
        run = make_run(run_id, submission=run_id.split("-")[2], problem_sha256=sha256)
        path = Store(toy_root).write(run, SUBMISSION)
    assert all("whole" in shown(look) and "spoilt" in shown(look) for look in looks)
    path.write_bytes(path.read_bytes()[:700])
    for look in looks:
        (line,) = [line for line in shown(look).splitlines() if "spoilt" in line]
        assert path.name in line and "is not a run" in line and "whole" in shown(look)
    for look in [("leaderboard", "double", "--json"), ("show", "--json")]:
        assert list(json.loads(podium(*look)[1])["left_alone"]) == [f"local/double/test-1000/{path.name}"]
    for name in ("spoilt", path.stem, path.stem[:20]):
        code, out, err = podium("show", name)
        assert (code, out) == (30, "") and f"{path.name} is not a run" in err


def test_a_name_whose_later_run_is_spoilt_shows_the_run_before_and_says_so(podium, toy_root):
    submission = catalog.load_submission(catalog.load_problem(toy_root, "double"), submit(toy_root, "mine", HONEST))
    ids = [f"20260101T00000{number}-aaaaaa-mine" for number in range(2)]
    runs = [make_run(run_id, submission_sha256=submission.sha256) for run_id in ids]
    first, later = (Store(toy_root).write(run, submission) for run in runs)
    later.write_bytes(later.read_bytes()[:300])
    for words in (("show", "mine"), ("show", "mine", "--json"), ("compare", "mine", "mine"), ("repro", "mine")):
        _, _, err = podium(*words)
        assert err.startswith(f"Left alone in results/: {later.relative_to(toy_root / 'results')}: is not a run"), words
        assert err.count("Left alone") == 1
    assert ids[0] in podium("show", "mine")[1]
    assert "Left alone" not in podium("show", first.stem)[2] + podium("show", first.stem[:18])[2]


def test_eval_judges_what_is_new_and_shows_the_board(podium, toy_root, roomy):
    submit(toy_root, "honest", HONEST)
    code, out, err = podium("eval", "double")
    assert code == 0 and "honest" in out and out.rstrip().splitlines()[-1].startswith("accepted: honest")
    assert "test 1 of" in err and "test 1 of" not in out
    code, out, _ = podium("eval", "double")
    assert code == 0 and "Nothing new" in out


def test_a_changed_file_is_judged_again_and_the_rest_is_not(podium, toy_root, roomy):
    submit(toy_root, "one", HONEST)
    submit(toy_root, "two", WRONG)
    podium("eval", "double")
    submit(toy_root, "two", WRONG + "# changed\n")
    _, _, err = podium("eval", "double")
    assert "two:" in err and "one:" not in err


def test_the_exit_code_is_that_of_the_first_failure_in_the_order_named(podium, toy_root):
    honest, wrong = submit(toy_root, "a", HONEST), submit(toy_root, "b", WRONG)
    broken = submit(toy_root, "c", "syntax error here")
    assert podium("eval", "double", str(honest), str(broken), str(wrong))[0] == 11
    assert podium("eval", "double", str(wrong), str(broken))[0] == 10


def test_a_bare_root_takes_from_the_checkout_what_it_lacks_and_a_checkout_takes_nothing(tmp_path, capsys, podium):
    (tmp_path / "bare").mkdir()
    assert main(["--root", str(tmp_path / "bare"), "problems", "--json"]) == 0
    assert {"kv_replicate", "mla"} <= {each["name"] for each in json.loads(capsys.readouterr().out)}
    assert load_config(tmp_path / "bare") == load_config(CHECKOUT)
    assert [each["name"] for each in json.loads(podium("problems", "--json")[1])] == ["double"]


def test_what_is_looked_at_takes_this_machine_s_device_by_the_name_that_eval_has_for_it(podium, toy_root):
    here = detect(toy_root, "cpu")
    for number, device in enumerate((here, DEVICE)):
        Store(toy_root).write(make_run(f"20260101T00000{number}-1-x", device=device), SUBMISSION)
    shown = json.loads(podium("leaderboard", "double", "--device", "cpu", "--json")[1])["boards"]
    assert [board["device"] for board in shown] == [here.name]
    assert podium("leaderboard", "double", "--device", here.slug, "--json") == podium(
        "leaderboard", "double", "--device", "cpu", "--json"
    )
    assert podium("report", "double", "--device", "cpu", "--json")[0] == 0
    by_name = json.loads(podium("leaderboard", "double", "--device", DEVICE.name, "--json")[1])["boards"]
    assert [board["device"] for board in by_name] == [DEVICE.name] and DEVICE.name != DEVICE.slug
    assert "torch sees no GPU" in podium("leaderboard", "double", "--device", "cuda:99")[2]


def test_what_is_looked_at_takes_a_part_of_a_device_s_name_in_any_case_if_it_fits_one_that_has_runs(
    podium, toy_root, tmp_path
):
    for number, name in enumerate(("NVIDIA H200", "NVIDIA H100 PCIe", "AMD Instinct MI300X")):
        device = DEVICE.model_copy(update={"name": name, "slug": name.lower().replace(" ", "-")})
        Store(toy_root).write(make_run(f"20260101T00000{number}-1-x", device=device), SUBMISSION)
    verbs = ("leaderboard", "double"), ("report", "double", "--out", str(tmp_path / "board.html"))
    for verb in verbs:
        whole = podium(*verb, "--device", "nvidia-h200", "--json")
        assert whole[0] == 0 and "NVIDIA H200" in whole[1] and "MI300X" not in whole[1]
        for part in ("H200", "h200", "NVIDIA H200", "nvidia_h200"):
            assert podium(*verb, "--device", part, "--json") == whole
        code, out, err = podium(*verb, "--device", "NVIDIA")
        assert (code, out) == (2, "") and "fits 2 devices with runs: nvidia-h100-pcie, nvidia-h200" in err
        for other in ("H20", "B200"):  # an H20 is no H200: a number matches whole
            code, out, err = podium(*verb, "--device", other)
            assert (code, out) == (2, "") and f"there are no runs of double on {other!r}" in err
            assert "these devices have runs: amd-instinct-mi300x, nvidia-h100-pcie, nvidia-h200" in err
    assert "MI300X" in podium("leaderboard", "double", "--device", "mi300")[1]


def test_a_root_without_problems_says_so(tmp_path, capsys):
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "eval.yml").write_text(EVAL_YML)
    assert main(["--root", str(tmp_path), "problems"]) == 0
    assert capsys.readouterr().out == "No problems here.\n"


def test_two_files_that_would_share_a_name_on_the_board_are_not_judged_together(podium, toy_root):
    one = submit(toy_root, "mine", HONEST)
    (toy_root / "elsewhere").mkdir()
    other = toy_root / "elsewhere" / "mine.py"
    other.write_text(WRONG)
    code, out, err = podium("eval", "double", str(one), str(other))
    assert (code, out) == (2, "") and f"{one} and {other} would both be mine on the board" in err
    assert not list((toy_root / "results").rglob("2*.json"))


def test_a_wrong_submission_is_left_out_of_the_board_with_the_reason(podium, toy_root):
    submit(toy_root, "honest", HONEST)
    submit(toy_root, "wrong", WRONG)
    code, out, _ = podium("eval", "double")
    assert code == 10
    table = out[out.index("left out (1)") :]
    assert "wrong" in table and "honest" not in table.split("\n\n")[0]


def test_json_is_exactly_one_document(podium, toy_root):
    path = submit(toy_root, "honest", HONEST)
    code, out, _ = podium("eval", "double", str(path), "--json")
    document = json.loads(out)
    assert code == 0 and document["runs"][0]["ending"]["verdict"] == "accepted"
    for arguments in (("leaderboard", "double"), ("problems",), ("show", document["runs"][0]["id"])):
        assert json.loads(podium(*arguments, "--json")[1])


def test_show_says_of_a_run_without_times_that_nothing_was_timed(podium, toy_root):
    podium("eval", "double", str(submit(toy_root, "wrong", WRONG)))
    assert "clock          nothing was timed" in podium("show", "wrong")[1].splitlines()


def test_show_finds_a_run_by_its_submission_its_id_and_how_that_begins_and_by_no_other_part(podium, toy_root):
    path = submit(toy_root, "honest", HONEST)
    run = json.loads(podium("eval", "double", str(path), "--json")[1])["runs"][0]
    for name in (run["id"], run["id"][:12], "honest"):
        code, out, _ = podium("show", name)
        assert code == 0 and run["id"] in out and "rows=" in out
    for part in (run["id"][9:22], "hones", "onest"):
        code, _, err = podium("show", part)
        assert code == 2 and f"no run {part}" in err
    code, _, err = podium("show", "nonsense")
    assert code == 2 and "no run nonsense" in err


@pytest.mark.parametrize("verb", ["eval", "check", "leaderboard", "import"])
def test_a_word_that_no_file_can_have_as_its_name_is_one_sentence(podium, verb):
    word = 300 * "a"
    code, out, err = podium(verb, word, *(["mine.py"] if verb in ("eval", "check") else []))
    assert (code, out, err) == (2, "", f"error: no file can have a name as long as {word}\n")


def test_a_run_is_found_by_the_file_that_it_judged_and_by_no_other_of_its_name(podium, toy_root, monkeypatch):
    file = submit(toy_root, "honest", HONEST)
    run = make_run("20260101T000000-1-honest", submission="honest", submission_path="submissions/double/honest.py")
    Store(toy_root).write(run, SUBMISSION)
    monkeypatch.chdir(toy_root)
    for name in (str(file), "submissions/double/honest.py"):
        code, out, _ = podium("show", name)
        assert code == 0 and run.id in out
        assert podium("compare", name, "honest")[0] == podium("compare", "honest", "honest")[0]
    (toy_root / "honest.py").write_text(HONEST)
    code, _, err = podium("show", "honest.py")
    assert code == 2 and "honest.py has no run\n  `eval` judges it" in err


def test_a_run_is_found_by_a_file_elsewhere_of_its_name_that_holds_its_source(podium, toy_root):
    known = catalog.load_submission(catalog.load_problem(toy_root, "double"), submit(toy_root, "honest", HONEST))
    run = make_run("20260101T000000-1-honest", submission="honest", submission_sha256=known.sha256)
    Store(toy_root).write(run.model_copy(update={"submission_path": known.path}), known)
    (toy_root / "elsewhere").mkdir()
    moved = toy_root / "elsewhere" / "honest.py"
    moved.write_text(HONEST)
    code, out, _ = podium("show", str(moved))
    assert code == 0 and run.id in out
    moved.write_text(WRONG)
    assert podium("show", str(moved))[0] == 2


def test_show_of_a_problem_lists_its_runs_unless_a_submission_is_called_so(podium, toy_root):
    for number, (problem, name) in enumerate([("double", "mine"), ("other", "yours")]):
        run = make_run(f"20260101T000000-{number}-{name}", submission=name)
        Store(toy_root).write(run.model_copy(update={"problem": problem}), SUBMISSION)
    code, out, _ = podium("show", "double")
    assert code == 0 and "0-mine" in out and "yours" not in out and "yours" in podium("show")[1]
    assert [run["submission"] for run in json.loads(podium("show", "double", "--json")[1])["runs"]] == ["mine"]
    Store(toy_root).write(make_run("20260102T000000-2-double", submission="double"), SUBMISSION)
    assert "20260102T000000-2-double (schema" in podium("show", "double")[1]


def test_show_of_a_failed_run_ends_with_what_is_wrong_and_has_no_configuration_of_other_devices(podium, toy_root):
    podium("eval", "double", str(submit(toy_root, "wrong", WRONG)))
    out = podium("show", "wrong")[1]
    assert out.index("Configuration:") < out.index(f"reproduce: python3 -m harness --root {toy_root} replay")
    assert "cpu processes" in out and "gpu processes" not in out


def test_where_the_print_of_a_failing_call_is_cut_it_is_said_what_has_all_of_it(podium, toy_root):
    print_many = "def custom_kernel(data):\n    print(*range(900, 950), sep='\\n')\n    return data[0] * 3\n"
    path = submit(toy_root, "talks", print_many)
    _, out, _ = podium("eval", "double", str(path), "--quick")
    (told,) = [line for line in out.splitlines() if line.startswith("It printed")]
    name = re.fullmatch(r"It printed \(the last 8 of \d+ lines; all: .* --root \S+ show (\S+)\):", told)[1]
    assert "  949" in out and "  900" not in out and "900" in podium("show", name)[1].partition("What it printed:")[2]
    _, out, _ = podium("eval", "double", str(path), "--case", "1")
    assert re.search(r"It printed \(the last 8 of \d+ lines; all: --json\):", out)


def test_show_without_a_run_lists_what_is_stored_the_latest_first_and_as_data_last(podium, toy_root):
    assert podium("show")[:2] == (0, "No runs yet.\n")
    honest, wrong = submit(toy_root, "honest", HONEST), submit(toy_root, "wrong", WRONG)
    podium("eval", "double", "--quick", str(honest), str(wrong))
    code, out, _ = podium("show")
    lines = [line for line in out.splitlines() if "double" in line]
    assert code == 0 and len(lines) == 2 and "clock" not in out
    assert "-wrong " in lines[0] and "wrong answer" in lines[0]
    assert "-honest " in lines[1] and "accepted" in lines[1] and "quick" in lines[1]
    listed = json.loads(podium("show", "--json")[1])["runs"]
    assert [(run["submission"], run["verdict"]) for run in listed] == [
        ("honest", "accepted"),
        ("wrong", "wrong_answer"),
    ]
    assert podium("show", "--markdown")[1].startswith("| run")


def test_the_latest_run_is_last_on_a_terminal_too_low_for_the_list(podium, toy_root, monkeypatch):
    for number in range(5):
        Store(toy_root).write(make_run(f"20260101T00000{number}-{number}-mine", submission="mine"), SUBMISSION)

    def listed(*words):
        return re.findall(r"T00000(\d)-", podium("show", *words)[1])

    newest_first = [*"43210"]
    assert listed() == newest_first, "without a terminal"
    rows = len(podium("show")[1].splitlines())
    for lines, order in ((rows + 2, newest_first), (rows + 1, newest_first[::-1])):
        monkeypatch.setenv("LINES", str(lines))
        assert listed() == listed("double") == order
    assert listed("--markdown") == newest_first
    assert podium("show", "--csv")[1].index("T000000") < podium("show", "--csv")[1].index("T000004")


def test_the_list_of_runs_says_whether_the_file_still_holds_the_source_that_was_judged(podium, toy_root):
    def source():
        (line,) = [line for line in podium("show", "double")[1].splitlines() if "-honest " in line]
        return re.search(r"(current|older source|no file)\W*$", line)[1]

    path = submit(toy_root, "honest", HONEST)
    podium("eval", "double", "--quick", str(path))
    assert source() == "current"
    submit(toy_root, "honest", HONEST + "# changed\n")
    assert source() == "older source"
    assert [run["older_source"] for run in json.loads(podium("show", "--json")[1])["runs"]] == [True]
    path.unlink()
    assert source() == "no file"


def test_show_and_compare_say_that_a_file_is_not_what_was_judged_any_more(podium, toy_root):
    path = submit(toy_root, "honest", HONEST)
    podium("eval", "double", "--quick", str(path))
    assert "changed" not in podium("show", "honest")[2]
    submit(toy_root, "honest", HONEST + "# changed\n")
    for arguments in (("show", "honest"), ("compare", "honest", "honest")):
        code, _, err = podium(*arguments)
        assert code == 0 and err.count("honest.py has changed since it was judged") == 1
    path.unlink()
    assert "changed" not in podium("show", "honest")[2]


def test_a_run_whose_file_has_changed_is_marked_on_the_board_and_stays_ranked(podium, toy_root):
    path = submit(toy_root, "mine", HONEST)
    problem = catalog.load_problem(toy_root, "double")
    submission = catalog.load_submission(problem, path)
    run = make_run(
        problem_sha256=problem.sha256,
        submission_sha256=submission.sha256,
        submission_path=str(path.relative_to(toy_root)),
    )
    Store(toy_root).write(run, submission)
    assert "older source" not in podium("leaderboard", "double")[1]
    submit(toy_root, "mine", HONEST + "# changed\n")
    out = podium("leaderboard", "double")[1]
    assert "│ 1    │ mine" in out and out.count("older source") == 2
    ranked = json.loads(podium("leaderboard", "double", "--json")[1])["boards"][0]["ranked"]
    assert [(each["submission"], each["older_source"]) for each in ranked] == [("mine", True)]
    page = toy_root / "board.html"
    podium("report", "double", "--out", str(page))
    assert "older source</span>" in page.read_text()
    path.unlink()
    assert "older source" not in podium("leaderboard", "double")[1]


def timed(latency_ns: float, bound_ns: float) -> Measurement:
    return Measurement(
        case=Case(parameters={"rows": round(latency_ns), "cols": 4}),
        samples_ns=((latency_ns,),),
        latency=Estimate(latency_ns=latency_ns),
        manner=Manner.SANDWICH,
        bound_ns=bound_ns,
    )


@pytest.mark.parametrize(("kind", "least_ns", "share"), [("cuda", 300, 0.02), ("rocm", 300, 0.02), ("cpu", 5e4, 0.05)])
def test_leaderboard_shows_each_case_and_the_bound_that_is_worth_a_word(podium, toy_root, kind, least_ns, share):
    sha256 = catalog.load_problem(toy_root, "double").sha256
    cases = [timed(latency, least_ns + share * latency + more) for latency, more in ((1e6, -100), (2e6, 1e6))]
    device = DEVICE.model_copy(update={"kind": kind})
    run = make_run(problem_sha256=sha256, measurements=tuple(cases), device=device)
    Store(toy_root).write(run, SUBMISSION)
    assert "rows=1000000" not in podium("leaderboard", "double")[1]
    code, out, _ = podium("leaderboard", "double", "--cases")
    narrow, wide = (next(line for line in out.splitlines() if f"rows={n}" in line) for n in (1_000_000, 2_000_000))
    bounds = [line.split("│")[3].strip() for line in (narrow, wide)]
    assert (
        code == 0 and "mine; every case: cols=4" in out and bounds[0] == "" and float(bounds[1].replace(",", "")) > 1e3
    )
    document = json.loads(podium("leaderboard", "double", "--cases", "--json")[1])["boards"][0]
    assert document["clock"] == "judge" and document["problem_sha256"] == sha256
    assert [case["bound_ns"] for case in document["cases"]["mine"]] == [case.bound_ns for case in cases]
    assert podium("leaderboard", "double", "--cases", "--markdown")[1].count("| rows=") == 2


def test_a_device_on_which_nothing_is_ranked_comes_last(podium, toy_root):
    sha256 = catalog.load_problem(toy_root, "double").sha256
    for number, (slug, problem_sha256) in enumerate((("a-card", "0" * 64), ("b-card", sha256))):
        device = DEVICE.model_copy(update={"slug": slug, "name": slug})
        run = make_run(
            id=f"run-{number}", problem_sha256=problem_sha256, measurements=(timed(1e6, 1e3),), device=device
        )
        Store(toy_root).write(run, SUBMISSION)
    boards = json.loads(podium("leaderboard", "double", "--json")[1])["boards"]
    (part,) = json.loads(podium("report", "double", "--json")[1])["problems"]
    assert [board["device"] for board in boards] == ["b-card", "a-card"]
    assert [shelf["name"] for shelf in part["devices"]] == ["b-card", "a-card"]


def test_a_run_says_whose_clock_it_has_wherever_it_is_shown(podium, toy_root):
    sha256 = catalog.load_problem(toy_root, "double").sha256
    Store(toy_root).write(make_run(problem_sha256=sha256, clock="worker", schema_version=1), SUBMISSION)
    for verb in (("show",), ("show", "run-1"), ("leaderboard", "double")):
        for form in ((), ("--markdown",)):
            assert "worker-timed" in podium(*verb, *form)[1], (verb, form)
        assert '"worker' in podium(*verb, "--json")[1], verb
    assert "a submission can change such a time" in podium("show")[1]
    board = json.loads(podium("leaderboard", "double", "--json")[1])["boards"][0]
    assert not board["ranked"] and board["unranked"][0]["unranked"] == "worker-timed"


@pytest.mark.parametrize(
    ("changes", "waiting"),
    [
        ({}, {"cpu": False, "cuda": False, "rocm": False}),
        ({"clock": "worker"}, {"cpu": True, "cuda": True, "rocm": False}),
        ({"problem_sha256": "dd"}, {"cpu": True, "cuda": True, "rocm": True}),
    ],
    ids=["judged", "worker-timed", "older"],
)
def test_eval_judges_again_what_no_board_of_now_would_rank(toy_root, changes, waiting):
    problem = catalog.load_problem(toy_root, "double")
    submission = catalog.load_submission(problem, submit(toy_root, "mine", HONEST))
    for kind, expected in waiting.items():
        device = DEVICE.model_copy(update={"kind": kind, "slug": kind})
        fields = {"submission_sha256": submission.sha256, "problem_sha256": problem.sha256, "device": device} | changes
        fields["run_id"] = f"run-{kind}"
        Store(toy_root).write(make_run(**fields), submission)
        found = evaluation.submissions_to_judge(toy_root, problem, [], device, quick=False)
        assert [each.name for each in found] == ["mine"] * expected, kind


def test_without_files_what_a_cpu_can_rank_comes_first(toy_root, in_triton):
    submit(toy_root, "a_kernel", in_triton)
    submit(toy_root, "b_refuses", "class NoDevice(Exception): ...\n" + HONEST)
    submit(toy_root, "c_inline", "from harness.hip import Module\n" + HONEST)
    submit(toy_root, "plain", HONEST)
    problem = catalog.load_problem(toy_root, "double")
    others = ["a_kernel", "b_refuses", "c_inline"]
    for kind, expected in (("cpu", ["plain", *others]), ("cuda", [*others, "plain"])):
        device = DEVICE.model_copy(update={"kind": kind, "slug": kind})
        found = evaluation.submissions_to_judge(toy_root, problem, [], device, quick=False)
        assert [each.name for each in found] == expected


@pytest.mark.parametrize(
    ("kind", "processors", "ahead"),
    [("cpu", 2, [0, 1, 1, 0]), ("cpu", 1, [0] * 4), ("cpu", 64, [0, 2, 1, 0]), ("cuda", 2, [0] * 4)],
    ids=["two", "one", "many", "a GPU"],
)
def test_beside_a_file_that_is_only_checked_workers_for_those_behind_it_start(monkeypatch, kind, processors, ahead):
    """One a processor, and none beside a file that is timed."""
    monkeypatch.setattr(os, "cpu_count", lambda: processors)
    files = [SimpleNamespace(text=text) for text in ("", "import triton", "import triton", "import triton")]
    device = DEVICE.model_copy(update={"kind": kind})
    agenda = Agenda(files, device, {})
    assert [agenda.to_start_ahead(number) for number in range(len(files))] == ahead


def test_no_worker_that_waits_is_there_while_one_is_timed(toy_root, monkeypatch):
    order = []
    spare = SimpleNamespace(close=lambda: order.append("closed"))
    monkeypatch.setattr(evaluation.lock, "hold_to_time", lambda *_: order.append("alone"))

    def evaluate(*_, exclusive, spare, **others):
        exclusive()
        return make_run()

    monkeypatch.setattr("harness.judge.evaluate.evaluate", evaluate)
    problem = catalog.load_problem(toy_root, "double")
    submission = catalog.load_submission(problem, submit(toy_root, "mine", HONEST))
    evaluation.judge_one(problem, submission, DEVICE, load_config(toy_root), print, quick=False, spare=spare)
    assert order == ["closed", "alone"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("eval", "duoble"), "did you mean double?"),
        (("leaderboard", "doubl"), "did you mean double?"),
        (("show", "doubl"), "did you mean double?"),
        (("evla", "double"), "did you mean eval?"),
        (("eval", "double", "--devcie", "cpu"), "--device"),
        (("eval", "double", "nowhere.py"), "no file nowhere.py"),
        (("eval", "double", "--device", "tpu"), "not a device"),
        (("eval", "double", "--device", "cuda:99"), "torch sees no GPU"),
        (("eval",), "PROBLEM"),
    ],
)
def test_a_misspelt_word_is_answered_in_a_sentence_with_exit_code_2(podium, arguments, words):
    code, out, err = podium(*arguments)
    assert code == 2 and words in err and "Traceback" not in err and not out


def test_a_broken_problem_is_named_by_file_and_key(podium, toy_root):
    yml = toy_root / "problems" / "double" / "problem.yml"
    yml.write_text(yml.read_text().replace("title:", "titel:"))
    code, _, err = podium("leaderboard", "double")
    assert code == 2 and "problem.yml" in err and ("titel" in err or "title" in err)


def test_a_reference_that_cannot_be_imported_is_the_organisers_fault_not_the_submissions(podium, toy_root):
    submit(toy_root, "honest", HONEST)
    reference = toy_root / "problems" / "double" / "reference.py"
    reference.write_text("import no_such_module\n" + reference.read_text())
    code, _, err = podium("eval", "double")
    assert code == 2 and "reference.py cannot be imported" in err
    assert not list((toy_root / "results").rglob("2*.json"))


def test_a_corrupt_result_is_left_alone_and_reported(podium, toy_root):
    submit(toy_root, "honest", HONEST)
    podium("eval", "double")
    (stored,) = (toy_root / "results" / "local" / "double").glob("*/2*.json")
    corrupt = stored.with_name("corrupt.json")
    corrupt.write_text('{"half": ')
    code, out, _ = podium("leaderboard", "double")
    assert code == 0 and "honest" in out and "corrupt.json: is not a run" in out
    assert corrupt.read_text() == '{"half": '


def test_results_that_cannot_be_written_stop_it_before_anything_is_judged(podium, toy_root):
    submit(toy_root, "honest", HONEST)
    results = toy_root / "results"
    for path in results.rglob("*"):
        path.unlink() if path.is_file() else None
    results.rmdir() if results.exists() else None
    results.write_text("a file where the directory should be")
    code, _, err = podium("eval", "double")
    assert code == 30 and "results" in err and "Traceback" not in err and "test 1 of" not in err


def test_the_boards_need_no_torch(toy_root):
    script = (
        "import sys; from harness.cli import main\n"
        "import harness.records.store, harness.ranking.board, harness.ranking.stats\n"
        f"code = main(['--root', {str(toy_root)!r}, 'leaderboard', 'double'])\n"
        "assert not {'torch', 'triton', 'scipy'} & set(sys.modules), 'imported'\nsys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=CHECKOUT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def _read_until(process: subprocess.Popen[bytes], words: bytes) -> None:
    said = b""
    while words not in said and (part := os.read(process.stderr.fileno(), 1 << 12)):
        said += part
    assert words in said


def _started_with(lines: str, *words: str) -> subprocess.CompletedProcess:
    """`python3 -m harness WORDS` in a Python that has carried out these lines."""
    script = f"import runpy, signal, sys\n{lines}\nsys.argv[1:] = {words!r}\n"
    script += "runpy.run_module('harness', run_name='__main__')"
    return subprocess.run(
        [sys.executable, "-c", script], cwd=CHECKOUT, capture_output=True, text=True, timeout=PATIENCE_S
    )


@pytest.mark.parametrize("imported", ["click", "harness.cli.looking"])
def test_ctrl_c_while_the_command_line_is_imported_ends_it(imported):
    done = _started_with(
        f"""
class Watches:
    def find_spec(self, name, *others):
        if name == {imported!r}:
            signal.raise_signal(signal.SIGINT)
sys.meta_path.insert(0, Watches())
""",
        "leaderboard",
        "mla",
    )
    assert (done.returncode, done.stdout) == (130, "") and "interrupted" in done.stderr
    assert "Traceback" not in done.stderr


def test_ctrl_c_in_code_that_is_compiled_from_text_ends_it_with_an_exit_code_and_not_by_a_signal(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(
        """
import sys
class Watches:
    def find_spec(self, name, *others):
        if name == "click":
            exec("import signal; signal.raise_signal(signal.SIGINT)")
sys.meta_path.insert(0, Watches())
"""
    )
    done = subprocess.run(
        [sys.executable, "-m", "harness", "leaderboard", "mla"],
        cwd=CHECKOUT,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 130 and "interrupted" in done.stderr


@pytest.mark.slow(ci=True)
@pytest.mark.parametrize(
    "moment",
    [*(pytest.param(moment, marks=pytest.mark.slow) for moment in (b"judging on", b"test 1 of")), b"timing, process 1"],
)
def test_ctrl_c_leaves_no_process_and_no_half_run(toy_root, forking, moment):
    submit(toy_root, "slow", "import time\ndef custom_kernel(data):\n    time.sleep(0.2)\n    return data[0] * 2\n")
    process = subprocess.Popen(
        command(toy_root, "eval", "double"), cwd=CHECKOUT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    _read_until(process, moment)
    process.send_signal(signal.SIGINT)
    _, rest = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130 and b"interrupted" in rest and b"Traceback" not in rest
    assert not list((toy_root / "results").rglob("2*.json"))
    assert not working_in(toy_root)


@pytest.mark.slow(ci=True)
def test_a_killed_judge_takes_its_worker_along(toy_root, forking):
    submit(toy_root, "slow", "import time\ndef custom_kernel(data):\n    time.sleep(600)\n")
    process = subprocess.Popen(
        command(toy_root, "eval", "double"), cwd=CHECKOUT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    _read_until(process, b"test 1 of")
    workers = working_in(toy_root)
    assert workers
    process.kill()
    process.communicate()
    deadline = time.monotonic() + PATIENCE_S
    while any(alive(pid) for pid in workers) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not any(alive(pid) for pid in workers) and not working_in(toy_root)


@pytest.mark.slow
def test_two_evaluations_at_once_queue_for_the_device_and_lose_nothing(toy_root, forking):
    """Both come while this process has the processor's lock, so that they wait however fast one of them is."""
    first, second = submit(toy_root, "one", HONEST), submit(toy_root, "two", HONEST + "# two\n")
    commands = [command(toy_root, "eval", "double", str(path)) for path in (first, second)]
    with lock.hold(detect(toy_root, "cpu"), lambda line: None):
        processes = [subprocess.Popen(words, cwd=CHECKOUT, stderr=subprocess.PIPE) for words in commands]
        for process in processes:
            _read_until(process, b"waiting for it to finish")
    said = [process.communicate(timeout=PATIENCE_S)[1].decode() for process in processes]
    assert [process.returncode for process in processes] == [0, 0], said
    runs = list((toy_root / "results" / "local" / "double").glob("*/2*.json"))
    assert {json.loads(path.read_text())["submission"] for path in runs} == {"one", "two"}


def test_verify_passes_good_controls_and_names_bad_ones(podium, toy_root):
    controls = toy_root / "problems" / "double" / "controls"
    for folder, source in (("accepted", HONEST), ("wrong_answer", WRONG)):
        (controls / folder).mkdir(parents=True, exist_ok=True)
        (controls / folder / "control.py").write_text(source)
    code, out, _ = podium("verify", "double")
    assert code == 0 and "every tolerance by itself rejects every wrong_answer control" in out
    assert re.search("│ ∞ max_mismatch +│", out) and "∞: the limit is 0" in out
    (controls / "wrong_answer" / "fine.py").write_text(HONEST)
    code, out, _ = podium("verify", "double")
    assert code == 10 and "wrong_answer/fine must get wrong answer, but got accepted" in out
    assert "the tolerance close does not reject wrong_answer/fine" in out


def test_verify_names_a_problem_that_breaks_its_own_promises(podium, toy_root):
    problem = toy_root / "problems" / "double"
    (problem / "controls" / "accepted").mkdir(parents=True, exist_ok=True)
    (problem / "controls" / "accepted" / "control.py").write_text(HONEST)
    promises, source = ((problem / name).read_text() for name in ("problem.yml", "reference.py"))

    def verified(reference: str, axes: str = "[row, col]") -> tuple[int, str]:
        (problem / "reference.py").write_text(reference)
        (problem / "problem.yml").write_text(promises.replace("y: [row, col]", f"y: {axes}"))
        code, out, _ = podium("verify", "double")
        return code, out

    assert verified(source)[0] == 0
    code, out = verified(source.replace("manual_seed(seed)", "manual_seed(0)"))
    assert code == 10 and "double: generate_input draws the same inputs from any seed" in out
    code, out = verified(source.replace("manual_seed(seed)", "manual_seed(torch.seed() % 2**62)"))
    assert code == 10 and "double: generate_input draws other inputs from the same seed" in out
    code, out = verified(source, "[row, col, lane]")
    assert code == 10 and "double: axes names 3 axes of y, which has 2" in out
    assert verified(source, "[row, col]\n  x: [row, col]")[0] == 0
    code, out = verified(source, "[row, col]\n  x: [row]")
    assert code == 10 and "double: axes names 1 axes of x, which has 2" in out


@pytest.mark.slow
def test_without_files_what_a_cpu_can_rank_is_judged_first_and_the_board_is_shown_as_it_grows(
    podium, toy_root, in_triton, roomy
):
    submit(toy_root, "a_kernel", in_triton)
    submit(toy_root, "plain", HONEST)
    submit(toy_root, "slower", HONEST + "# and a comment\n")
    code, _, err = podium("eval", "double")
    order = [err.index(f"{name}: loading") for name in ("plain", "slower", "a_kernel")]
    assert code == 0 and order == sorted(order)
    assert re.search(r"^board so far: 1 plain [\d,.]+ µs$", err, re.MULTILINE)


def test_the_version_is_the_packages():
    metadata = pytest.importorskip("hatchling.metadata.core", reason="hatchling reads the version from pyproject.toml")
    from hatchling.plugin.manager import PluginManager

    version = metadata.ProjectMetadata(str(CHECKOUT), PluginManager()).version
    said = subprocess.run([sys.executable, "-m", "harness", "--version"], cwd=CHECKOUT, capture_output=True, text=True)
    assert said.stdout == f"Podium {version}\n"


def test_cases_that_are_asked_for_are_judged_alone_and_the_run_is_neither_ranked_nor_stored(podium, toy_root, roomy):
    path = str(submit(toy_root, "honest", HONEST))
    for words, cases in (
        (["--case", "1"], ["rows=64 cols=64"]),
        (["--case", "rows=3 cols=5"], ["rows=3 cols=5"]),
        (["-k", "cols=5"], ["rows=3 cols=5"]),
        (["-k", "rows=", "-k", "4"], ["rows=4 cols=8"]),
    ):
        code, out, _ = podium("eval", "double", path, *words, "--json")
        (run,) = json.loads(out)["runs"]
        judged = [each["case"] for each in (*run["checks"], *run["measurements"])]
        assert [" ".join(f"{k}={v}" for k, v in case["parameters"].items()) for case in judged] == cases
        assert code == 0 and run["unranked_because"] == "chosen cases"
    assert not list((toy_root / "results").rglob("2*.json"))
    out = podium("eval", "double", path, "--case", "1")[1]
    assert "all timed calls are right" in out and "all 0" not in out
    assert "64" in out and "not ranked: chosen cases" in out and "(show " not in out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--case", "2"], "double has no benchmark case 2"),
        (["--case", "rows=3 cols=6"], "double has no case 'rows=3 cols=6'"),
        (["-k", "depth"], "no case of double has 'depth'"),
        (["--watch", "-k", "depth"], "no case of double has 'depth'"),
    ],
)
def test_a_case_that_there_is_not_is_refused(podium, toy_root, words, said):
    path = str(submit(toy_root, "honest", HONEST))
    code, out, err = podium("eval", "double", path, *words)
    assert (code, out) == (2, "") and said in err
    assert "need the FILE" in podium("eval", "double", "--case", "1")[2]


def test_at_the_first_wrong_case_it_stops_if_asked_to(podium, toy_root):
    path = str(submit(toy_root, "wrong", WRONG))
    for words, tried in ((["-x"], 1), ([], 2)):
        code, out, _ = podium("eval", "double", path, *words, "--json")
        (run,) = json.loads(out)["runs"]
        assert code == 10 and len(run["checks"]) == tried
        assert run["ending"]["message"].startswith(
            "1 of 2 test cases is wrong, 1 not tried; it is " if words else "2 of 2 test cases are wrong; the one shown"
        )


@pytest.mark.parametrize("words", [[], ["-k", "cols"]])
def test_what_was_not_tried_after_the_first_wrong_case_is_listed_once(podium, toy_root, words):
    path = str(submit(toy_root, "wrong", WRONG))
    stopped, all_tried = (podium("eval", "double", path, *words, *stop)[1] for stop in (["-x"], []))
    assert re.search("^  not tried  .*  rows=3 cols=5$", stopped, re.MULTILINE) and "not tried" not in all_tried
    assert len(re.findall("^  wrong  ", stopped, re.MULTILINE)) == 1


def test_a_quick_look_shows_the_latency_of_each_case_and_a_run_for_the_board_does_not(podium, toy_root):
    path = str(submit(toy_root, "right", HONEST))
    quick, whole = (podium("eval", "double", path, *words)[1] for words in (["--quick"], []))
    assert re.search(r"^│ case +│ latency µs", quick, re.MULTILINE) and "rows=64 cols=64" in quick
    assert "rows=64 cols=64" not in whole


def test_a_quick_look_on_a_crowded_machine_says_so_and_what_that_means(podium, toy_root, monkeypatch):
    monkeypatch.setattr(neighbours, "MOST_FOR_OTHERS", -1.0)
    monkeypatch.setattr(neighbours, "LEAST_IDLE", 2.0)
    _, out, _ = podium("eval", "double", str(submit(toy_root, "right", HONEST)), "--quick")
    assert "crowded: other processes took the processors meanwhile" in out
    assert "not ranked: quick, crowded" in out.splitlines()[-1]


@pytest.mark.slow(ci=True)
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="only Linux has a device that is always full")
@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("look", [("--version",), ("--help",), ("leaderboard", "double"), ("problems", "--json")])
def test_a_full_disk_behind_stdout_is_one_sentence(toy_root, look, unbuffered):
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            command(toy_root, *look),
            cwd=CHECKOUT,
            env=os.environ | {"PYTHONUNBUFFERED": unbuffered},
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert (done.returncode, done.stderr) == (30, "error: stdout cannot be written: No space left on device\n")


def test_an_error_of_the_system_that_is_not_of_stdout_is_still_a_bug_of_ours(toy_root, monkeypatch):
    def fails(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("harness.cli.looking.print_parts", fails)
    with pytest.raises(OSError, match="No space left"):
        main(["--root", str(toy_root), "problems"])


def test_a_run_that_its_board_does_not_rank_says_why_when_it_is_shown(podium, toy_root):
    kept(toy_root, "ranked")
    kept(toy_root, "own", clock=ClockOwner.WORKER, schema_version=1)
    kept(toy_root, "old", problem_sha256="0" * 64, clock=ClockOwner.WORKER, schema_version=1)
    kept(toy_root, "hasty", unranked_because="quick")
    told = {name: podium("show", name)[1] for name in ("ranked", "own", "old", "hasty")}
    said = {name: re.search(r"^not ranked +(.*)$", out, re.MULTILINE) for name, out in told.items()}
    assert said["ranked"] is None
    assert said["own"][1].startswith("the submission's own process timed it: judge it again")
    assert said["old"][1].startswith("the problem's files have changed since it was judged: judge it again; ")
    assert "the submission's own process timed it" in said["old"][1]
    assert said["hasty"][1] == "a quick look with one process"


def test_a_run_whose_problem_is_gone_says_of_itself_why_it_is_not_ranked(podium, toy_root):
    kept(toy_root, "hasty", unranked_because="quick")
    (toy_root / "problems" / "double").rename(toy_root / "problems" / "other")
    code, out, _ = podium("show", "hasty")
    assert code == 0 and "a quick look with one process" in out
