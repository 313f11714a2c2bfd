"""`compare` as a person or a script meets it: what is shown, the JSON document, exit codes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from harness.model import ClockOwner, Ending, Run, Unranked, Verdict
from harness.ranking.comparison import compare_runs
from harness.ranking.speed import Noise
from harness.records.store import Store
from harness.render import compare as rendered
from harness.verbs import compare as versions
from tests.test_comparison import DEVICE, run

CHECKOUT = Path(__file__).resolve().parents[1]
NOISE = Noise(0.01, False, "a default")
OLD = "import torch\n\n\ndef custom_kernel(data):\n    return data[0] * 2\n"
NEW = OLD.replace("data[0] * 2", "data[0] + data[0]")


@pytest.fixture
def store(toy_root):
    """Stores a run as `name` with this source."""
    from harness import catalog

    problem = catalog.load_problem(toy_root, "double")

    def put(name: str, source: str, latencies=(100_000.0, 400_000.0), **changes) -> Run:
        path = toy_root / "submissions" / "double" / f"{name}.py"
        path.write_text(source)
        submission = catalog.load_submission(problem, path)
        fields = {"submission_sha256": submission.sha256, "id": f"20260101T000000-abcdef-{name}"} | changes
        made = run(name, latencies, **fields)
        Store(toy_root).write(made, submission)
        return made

    return put


def test_the_difference_the_cases_and_the_finding_are_shown(podium, store):
    store("old", OLD)
    store("new", NEW, (130_000.0, 520_000.0))
    code, out, _ = podium("compare", "old", "new")
    assert code == 0
    assert "-    return data[0] * 2" in out and "+    return data[0] + data[0]" in out
    assert "n=0" in out and "1.3000" in out and "not calibrated" in out
    assert out.splitlines()[0].startswith("SLOWER: new is slower than old")
    assert out.index("SLOWER") < out.index("1.3000") < out.index("-    return data[0] * 2")


def test_a_run_that_is_held_against_itself_is_named_once(podium, store):
    kept = store("good", OLD)
    code, out, _ = podium("compare", "good", kept.id)
    last = out.splitlines()[0]
    assert (code == 0 and last.startswith(f"SAME: good ({kept.id}) is as fast as itself")) or "against itself" in last
    store("good", OLD, unranked_because=Unranked.CROWDED)
    last = podium("compare", "good", "good")[1].splitlines()[0]
    assert last.count("is not ranked") == 1 and f"good ({kept.id}) against itself" in last and last.count(kept.id) == 2


def test_the_json_is_one_document_with_everything(podium, store):
    store("old", OLD)
    store("new", NEW, (70_000.0, 280_000.0))
    code, out, _ = podium("compare", "old", "new", "--json")
    document = json.loads(out)
    assert code == 0 and document["verdict"] == "faster" and document["noise"]["calibrated"] is False
    assert document["ratio"]["low"] < document["ratio"]["value"] < document["ratio"]["high"] < 1
    assert [case["case"] for case in document["cases"]] == [{"n": 0}, {"n": 1}]
    assert "+    return data[0] + data[0]\n" in document["diff"]


@pytest.fixture
def two_versions(store):
    """Two runs of one file, the second of another source and slower; their ids."""
    first = store("v", OLD)
    return first.id, store("v", NEW, (130_000.0, 520_000.0), id="20260102T000000-fedcba-v").id


def test_two_versions_of_one_file_are_told_apart_by_their_runs(podium, two_versions):
    a, b = (f"v ({run})" for run in two_versions)
    _, out, _ = podium("compare", *two_versions)
    assert f"--- A {a}" in out and f"+++ B {b}" in out
    assert out.splitlines()[0].startswith(f"SLOWER: {b} is slower than {a}: ")
    _, out, _ = podium("compare", *two_versions, "--markdown")
    assert f"--- A {a}" in out and f"{b} is slower than {a}" in out


def test_a_version_without_a_score_is_named_by_its_run(podium, two_versions, store):
    ending = Ending(verdict=Verdict.WRONG_ANSWER, message="1 of 2 test cases is wrong")
    wrong = store("v", OLD + "#", (), id="20260103T000000-a0a0a0-v", ending=ending)
    assert f"v ({wrong.id}) has no score" in podium("compare", two_versions[0], wrong.id)[1]


def test_the_json_names_both_runs_whatever_they_are_called(podium, store, two_versions):
    other = store("other", NEW).id
    for a, b in (two_versions, (two_versions[0], other)):
        document = json.loads(podium("compare", a, b, "--json")[1])
        assert (document["a"]["run"], document["b"]["run"]) == (a, b)
        assert document["a"]["submission"] == "v"


@pytest.mark.parametrize(("percent", "code"), [("0", 20), ("29", 20), ("31", 0)])
def test_a_script_can_fail_on_what_is_slower(podium, store, percent, code):
    store("old", OLD)
    store("new", NEW, (130_000.0, 520_000.0))
    assert podium("compare", "old", "new", "--fail-if-slower", percent)[0] == code
    assert podium("compare", "new", "old", "--fail-if-slower", percent)[0] == 0


@pytest.mark.parametrize("reason", ["voided", "crowded", "unstable", "quick", "noisy"])
def test_what_is_not_ranked_is_called_neither_slower_nor_faster_and_it_is_said_why(podium, store, reason):
    store("old", OLD)
    store("new", NEW, (130_000.0, 520_000.0), unranked_because=reason)
    code, out, err = podium("compare", "old", "new", "--fail-if-slower", "0")
    assert code == 0 and f"AMBIGUOUS: new against old: new is not ranked, {reason}: " in out.splitlines()[0]
    assert out.count("is not ranked") == 1  # and not once a case besides
    assert "it cannot be told whether new is slower, so this does not fail; --duel times both in turns" in err
    assert "it cannot be told" not in podium("compare", "old", "new")[2]


def test_a_configuration_that_ranks_worker_s_times_compares_them(podium, store, toy_root):
    own = {"clock": ClockOwner.WORKER, "unranked_because": "worker-timed"}
    store("old", OLD, **own)
    store("new", NEW, (130_000.0, 520_000.0), **own)
    assert "not ranked, worker-timed" in podium("compare", "old", "new")[1].splitlines()[0]
    config = toy_root / "configs" / "eval.yml"
    config.write_text(config.read_text() + "rank_worker_timed: true\n")
    assert podium("compare", "old", "new", "--fail-if-slower", "0")[0] == 20


def test_a_script_does_not_pass_what_has_no_score(podium, store):
    store("old", OLD)
    store("new", NEW, (), ending=Ending(verdict=Verdict.WRONG_ANSWER, message="1 of 2 test cases is wrong"))
    code, out, _ = podium("compare", "old", "new", "--fail-if-slower", "5")
    assert code == 10 and "AMBIGUOUS: new against old: new has no score: wrong answer" in out
    assert podium("compare", "old", "new")[0] == 0


def test_runs_of_other_devices_or_revisions_are_refused_in_a_sentence(podium, store):
    store("old", OLD)
    store("elsewhere", NEW, device=DEVICE.model_copy(update={"slug": "crate", "name": "Crate"}))
    store("later", NEW + "\n", problem_revision=2)
    for name, words in (("elsewhere", "old ran on Box, elsewhere on Crate"), ("later", "one of revision 2")):
        code, out, err = podium("compare", "old", name)
        assert code == 2 and words in err and not out and "Traceback" not in err


def test_times_of_two_clocks_are_refused_in_a_sentence(podium, store):
    store("old", OLD, clock=ClockOwner.WORKER)
    store("new", NEW)
    code, out, err = podium("compare", "old", "new")
    assert (code, out) == (2, "") and "the judge timed new, the submission's own process timed old" in err


def test_a_run_that_is_not_there_is_a_sentence(podium, store):
    store("old", OLD)
    code, _, err = podium("compare", "old", "nowhere")
    assert code == 2 and "there is no run nowhere" in err


def test_a_source_that_is_not_what_was_judged_is_refused(podium, store, toy_root):
    store("old", OLD)
    store("new", NEW)
    for source in (toy_root / "results" / "local" / "double" / "sources").glob("*.py"):
        source.write_text("# changed\n")
    code, _, err = podium("compare", "old", "new")
    assert code == 30 and "the sha256 differs" in err


def test_a_wide_terminal_shows_the_sources_side_by_side():
    compared = compare_runs(run("old"), run("new"), NOISE, 0.95)
    wide = rendered.text(compared, OLD, NEW, width=170, colour=False)
    (line,) = [line for line in wide.splitlines() if "data[0] * 2" in line]
    assert "data[0] + data[0]" in line and line.index("data[0] * 2") < line.index("data[0] + data[0]")
    narrow = rendered.text(compared, OLD, NEW, width=100, colour=False)
    assert not any("data[0] * 2" in line and "data[0] + data[0]" in line for line in narrow.splitlines())


@pytest.mark.parametrize("width", [100, 170])
def test_colours_are_for_terminals(width):
    compared = compare_runs(run("old"), run("new"), NOISE, 0.95)
    assert "\x1b[" in rendered.text(compared, OLD, NEW, width=width, colour=True)
    assert "\x1b" not in rendered.text(compared, OLD, NEW, width=width, colour=False)


@pytest.mark.parametrize("width", [100, 170])
def test_a_source_cannot_write_to_the_terminal(width):
    compared = compare_runs(run("old"), run("new"), NOISE, 0.95)
    hostile = OLD + "# \x1b[2J\x1b]0;owned\x07 \u202e [red]no markup[/red]\n"
    shown = rendered.text(compared, OLD, hostile, width=width, colour=False)
    assert "\x1b" not in shown and "\u202e" not in shown and "owned" in shown and "[red]no markup[/red]" in shown


def test_equal_sources_have_no_difference():
    assert "The sources are the same." in rendered.text(compare_runs(run(), run(), NOISE, 0.95), OLD, OLD)


def test_comparing_stored_runs_needs_no_torch(toy_root, store):
    store("old", OLD)
    store("new", NEW)
    script = (
        "import sys; from harness.cli import main\n"
        f"code = main(['--root', {str(toy_root)!r}, 'compare', 'old', 'new'])\n"
        "assert not {'torch', 'triton'} & set(sys.modules), 'imported'\nsys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=CHECKOUT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


CRATE = DEVICE.model_copy(update={"slug": "crate", "name": "Crate"})


@pytest.mark.parametrize(
    "later", [{"device": CRATE}, {"device": CRATE, "latencies": (), "unranked_because": Unranked.INTERPRETED}]
)
def test_two_names_are_compared_on_the_device_that_timed_both_whatever_ran_elsewhere_since(podium, store, later):
    store("old", OLD, id="20260101T000000-abcdef-old")
    store("new", NEW, id="20260101T000001-abcdef-new")
    newest = store("new", NEW, id="20260102T000000-abcdef-new", **later).id
    code, out, _ = podium("compare", "old", "new", "--json")
    assert code == 0 and json.loads(out)["b"]["run"] == "20260101T000001-abcdef-new"
    code, out, _ = podium("compare", "old", newest, "--json")
    assert code == 2 or json.loads(out)["b"]["run"] == newest, "an id is what it says"


@pytest.fixture
def judged_thrice(store):
    """A source with three ranked runs, whose latest is the slowest, and another source; the ids of the three."""
    store("old", OLD)
    scores = ((110_000.0, 440_000.0), (100_000.0, 400_000.0), (190_000.0, 760_000.0))
    return [store("new", NEW, each, id=f"2026010{day}T000000-abcdef-new").id for day, each in enumerate(scores, 1)]


def test_a_name_stands_for_the_run_that_the_board_counts_and_it_is_said_which(podium, judged_thrice, toy_root):
    median, _, latest = judged_thrice
    named_by_file = str(toy_root / "submissions" / "double" / "new.py")
    for name in ("new", named_by_file):
        document = json.loads(podium("compare", "old", name, "--json")[1])
        assert document["b"]["run"] == median
    said = f"new: the board of Box counts run {median}, the median of 3 ranked runs, so it is compared; "
    assert f"{said}the latest run is {latest}" in podium("compare", "old", "new")[1].splitlines()
    assert said not in podium("compare", "old", median)[1]


def test_an_id_or_its_beginning_stands_for_its_own_run_whatever_the_board_counts(podium, judged_thrice):
    for latest in (judged_thrice[-1], judged_thrice[-1][:15]):
        _, out, _ = podium("compare", "old", latest, "--json")
        assert json.loads(out)["b"]["run"] == judged_thrice[-1] and "the board of" not in out


def test_a_source_once_found_wrong_has_no_score_to_compare_as_on_the_board(podium, store):
    store("old", OLD)
    wrong = {"latencies": (), "ending": Ending(verdict=Verdict.WRONG_ANSWER, message="no")}
    found = store("new", NEW, id="20260101T000000-abcdef-new", **wrong).id
    store("new", NEW, id="20260102T000000-abcdef-new")
    code, out, _ = podium("compare", "old", "new", "--fail-if-slower", "5")
    assert code == 10 and f"the board of Box counts run {found}, so it is compared" in out


def test_a_duel_times_the_latest_source_even_if_only_a_first_look_judged_it(store, toy_root):
    store("old", OLD)
    full = store("new", OLD + "# before\n", id="20260101T000000-abcdef-new").id
    look = store("new", NEW, id="20260102T000000-abcdef-new", unranked_because=Unranked.QUICK).id
    assert versions.take_latest(toy_root, "old", "new").b.id == look
    assert versions.take(toy_root, "old", "new").b.id == full


def test_a_right_run_of_another_device_does_not_hide_that_the_source_is_wrong(podium, store):
    store("old", OLD, device=CRATE)
    store("new", NEW, id="20260101T000001-abcdef-new", device=CRATE)
    wrong = {"latencies": (), "ending": Ending(verdict=Verdict.WRONG_ANSWER, message="no")}
    store("new", NEW, id="20260102T000000-abcdef-new", device=CRATE, **wrong)
    code, out, err = podium("compare", "old", "new", "--fail-if-slower", "5")
    assert code == 10 and "wrong answer" in out + err


def test_that_one_is_wrong_is_said_before_that_the_other_was_not_timed(podium, store):
    store("old", OLD, (), unranked_because=Unranked.INTERPRETED)
    store("new", NEW, (), ending=Ending(verdict=Verdict.WRONG_ANSWER, message="no"))
    code, out, _ = podium("compare", "old", "new")
    assert code == 0 and "new has no score: wrong answer" in out.splitlines()[0]


@pytest.mark.parametrize("options", [(), ("--duel", "--device", "cpu")])
def test_runs_of_two_problems_are_not_compared_not_even_in_a_duel(podium, store, options):
    a, b = store("old", OLD).id, store("new", NEW, problem="triple").id
    code, out, err = podium("compare", a, b, *options)
    assert (code, out) == (2, "") and "old is a run of double, new of triple: compare runs of one problem" in err


@pytest.mark.parametrize("percent", ["nan", "inf"])
def test_a_limit_that_is_no_number_lets_nothing_pass(podium, store, percent):
    store("old", OLD)
    store("new", NEW, (130_000.0, 520_000.0))
    code, out, err = podium("compare", "old", "new", "--fail-if-slower", percent)
    assert (code, out) == (2, "") and f"--fail-if-slower {percent} is not a percentage" in err


def test_pairs_are_of_a_duel(podium, store):
    code, out, err = podium("compare", "old", "new", "--pairs", "16")
    assert (code, out) == (2, "") and "--pairs applies to a duel only" in err and "add --duel" in err


@pytest.mark.slow
def test_a_duel_of_stored_runs_times_their_sources_again(podium, toy_root, roomy):
    for name, source, seconds in (("old", OLD, 0.02), ("new", NEW, 0.2)):
        source = "import time\n" + source.replace("    return", f"    time.sleep({seconds})\n    return")
        path = toy_root / "submissions" / "double" / f"{name}.py"
        path.write_text(source)
        assert podium("eval", "double", str(path), "--device", "cpu")[0] == 0
        path.unlink()
    code, out, err = podium(
        "compare", "old", "new", "--duel", "--pairs", "4", "--device", "cpu", "--json", "--fail-if-slower", "5"
    )
    document = json.loads(out)
    assert code == 20 and document["verdict"] == "slower" and "pair 4 of 4" in err
    assert len(document["samples"][0]["a_samples_ns"]) == 4
    assert document["a"]["run"].endswith("-old") and document["b"]["run"].endswith("-new")


def test_runs_of_an_older_revision_are_named_by_compare_and_in_the_list(podium, store, toy_root):
    from harness import catalog

    present = catalog.load_problem(toy_root, "double").sha256
    store("old", OLD)
    store("new", NEW, problem_sha256=present, id="20260102T000000-abcdef-new")
    listed = {row.split()[1]: row for row in podium("show", "double")[1].splitlines() if "abcdef" in row}
    of_older = {name: "of an older revision" in row for name, row in listed.items()}
    assert of_older == {"20260101T000000-abcdef-old": True, "20260102T000000-abcdef-new": False}
    store("other", OLD)
    assert "other and old: of an older revision of the problem" in podium("compare", "other", "old")[1]
    store("one", OLD, problem_sha256=present)
    assert "of an older revision" not in podium("compare", "one", "new")[1]


@pytest.mark.parametrize("reason", [Unranked.INTERPRETED, Unranked.EMULATED])
def test_of_runs_that_were_not_timed_it_says_what_gives_times(podium, store, toy_root, reason):
    untimed = {"measurements": (), "score": None, "unranked_because": reason}
    old, new = store("old", OLD, **untimed), store("new", NEW, **untimed)
    (told,) = [line for line in podium("compare", "old", "new")[1].splitlines() if "to get times" in line]
    files = f"{old.submission_path} {new.submission_path}"
    assert told.endswith(f"on a machine with a GPU: python3 -m harness --root {toy_root} eval double {files}")
    err = podium("compare", "old", "new", "--fail-if-slower", "0")[2]
    assert "does not fail" in err and "--duel" not in err, "what was not timed cannot be timed in turns here"
    later = store("new", NEW + "#", id="20260102T000000-fedcba-new", **untimed)
    (told,) = [line for line in podium("compare", new.id, later.id)[1].splitlines() if "to get times" in line]
    assert told.endswith(f"compare {new.id} {later.id} --duel"), "one file cannot hold both sources"
    store("timed", OLD + "#")
    assert "to get times" in podium("compare", "timed", "new")[1]
    wrong = Ending(verdict=Verdict.WRONG_ANSWER, message="1 of 2 test cases is wrong")
    store("wrong", OLD + "##", (), ending=wrong)
    for a, b in (("wrong", "new"), ("timed", "timed")):
        assert "to get times" not in podium("compare", a, b)[1]
