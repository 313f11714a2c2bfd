"""How an evaluation gets on: steps in order for a bar on a terminal, the few lines of before for anything else."""

import io
import json
import os
import pty
import re
import subprocess

import pytest
from rich.console import Console

from harness import catalog
from harness.catalog.config import load_config
from harness.judge.duel import duel
from harness.judge.evaluate import evaluate
from harness.machine.device import detect
from harness.progress import Step, about, named, tell
from harness.render import progress
from harness.verbs.agenda import Agenda
from tests.test_cli import CHECKOUT, HONEST, WRONG, command, submit


class Listener:
    def __init__(self) -> None:
        self.lines: list[str] = []
        self.steps: list[Step] = []

    def __call__(self, line: str) -> None:
        self.lines.append(line)

    def step(self, step: Step) -> None:
        self.steps.append(step)


def judged(root, source, told):
    problem = catalog.load_problem(root, "double")
    submission = catalog.load_submission(problem, submit(root, "mine", source))
    return evaluate(problem, submission, detect(root, "cpu"), load_config(root), narrate=told)


def test_every_case_and_sample_is_a_step_and_the_last_step_is_the_whole(toy_root, roomy):
    told = Listener()
    run = judged(toy_root, HONEST, told)
    assert list(dict.fromkeys(step.doing for step in told.steps)) == ["test", "pilot", "timing"] and not told.lines
    tests = [step for step in told.steps if step.doing == "test"]
    assert [(step.done, step.total) for step in tests] == [(0, 2), (1, 2), (1, 2), (2, 2)]
    assert [step.check for step in tests if step.check] == list(run.checks)
    done = [step.done for step in told.steps if step.doing == "timing"]
    assert done == sorted(done) and done[0] == 0 and done[-1] == told.steps[-1].total == 2
    samples = [step.sample for step in told.steps if step.sample]
    assert len(samples) >= sum(map(len, run.measurements[0].samples_ns)) and samples[-1][0] == samples[-1][1]


def test_a_wrong_case_is_told_with_its_report_before_the_next_is_tried(toy_root):
    told = Listener()
    judged(toy_root, WRONG, told)
    first = next(step for step in told.steps if step.check)
    assert first.done == 1 and "reproduce:" in (first.check.report or "")


def test_who_asks_for_lines_gets_those_and_no_step(toy_root, roomy):
    lines: list[str] = []
    judged(toy_root, HONEST, lines.append)
    assert [re.sub(r":.*| \d+ s left$", "", line) for line in lines] == [
        "test 1 of 2",
        "test 2 of 2",
        "pilot",
        "timing, process 1 of 2",
        "timing, process 2 of 2, about",
    ]


def test_a_duel_tells_its_blocks_and_whose_test_it_is(toy_root, roomy):
    told = Listener()
    problem = catalog.load_problem(toy_root, "double")
    both = [catalog.load_submission(problem, submit(toy_root, name, HONEST)) for name in ("a", "b")]
    duel(problem, *both, detect(toy_root, "cpu"), load_config(toy_root), pairs=2, narrate=told)
    assert list(dict.fromkeys((step.who, step.doing) for step in told.steps)) == [
        ("a", "test"),
        ("b", "test"),
        ("a", "pilot"),
        ("b", "pilot"),
        ("", "in turns"),
    ]
    done = [step.done for step in told.steps if step.doing == "in turns"]
    assert done == sorted(done) and done[-1] == told.steps[-1].total == 2


def test_a_name_is_put_before_a_line_and_into_a_step():
    told, lines = Listener(), []
    tell(named(lines.append, "mine"), Step("test", "n=1", 0, 2, "test 1 of 2"))
    tell(named(lines.append, "mine"), Step("test", "n=1", 1, 2))
    tell(named(told, "mine"), Step("test", "n=1", 1, 2))
    tell(named(told, "mine", "3/10"), Step("test", "n=1", 2, 2))
    named(told, "mine")("loading")
    assert lines == ["mine: test 1 of 2"] and told.lines == ["mine: loading"]
    assert [(step.who, step.done) for step in told.steps] == [("mine", 1), ("mine 3/10", 2)]


@pytest.mark.slow(ci=True)
def test_of_several_files_it_is_told_which_one_is_judged_and_how_long_the_rest_may_take(podium, toy_root):
    files = [str(submit(toy_root, name, f"{HONEST}# {name}\n")) for name in ("one", "two", "three")]
    _, _, err = podium("eval", "double", *files, "--quick")
    loading = [line for line in err.splitlines() if ": loading" in line]
    assert loading[0].endswith(", file 1 of 3")
    for number, line in enumerate(loading[1:], 2):
        left = r"about \d+ (s|min) left if the rest take as long as those"
        assert re.search(rf", file {number} of 3, {left}$", line), line
    assert "\n3 files: one, two, three; how long all of them take is told after the first\n" in err
    assert err.index("3 files: ") < err.index(loading[0])
    for name in ("one", "two", "three"):
        submit(toy_root, name, f"def (  # {name}\n")  # whose judging takes a moment
    _, _, again = podium("eval", "double", *files, "--quick")
    expected = r"\n3 files: one, two, three; about \d+ (s|min) if they take as long as stored runs here\n"
    assert re.search(expected, again), again
    _, _, err = podium("eval", "double", files[0], "--quick")
    assert "file 1" not in err and "1 files" not in err


def test_files_of_two_kinds_are_expected_to_take_each_their_own_time(toy_root):
    problem, cpu = catalog.load_problem(toy_root, "double"), detect(toy_root, "cpu")
    sources = {"timed": HONEST, "checked": f"# triton\n{HONEST}", "too": f"# triton 2\n{HONEST}"}
    files = [catalog.load_submission(problem, submit(toy_root, *named)) for named in sources.items()]
    assert Agenda(files, cpu, {False: [10.0], True: [60.0, 80.0]}).line == (
        "3 files: timed, checked, too; the last 2 use Triton or inline HIP, or refuse a processor: "
        "they are checked here, not timed; about 2 min if they take as long as stored runs here"
    )
    unknown = Agenda(files, cpu, {})
    assert unknown.line.endswith("how long all of them take is told after the first of each kind")
    unknown.took(files[0], 10.0)
    assert unknown.which(1) == ", file 2 of 3"
    agenda = Agenda(files, cpu, {True: [20.0]})
    agenda.took(files[0], 10.0)
    assert agenda.which(1) == ", file 2 of 3, about 40 s left if the rest take as long as those"
    agenda.took(files[1], 30.0)
    assert agenda.which(2) == ", file 3 of 3, about 30 s left if the rest take as long as those"


def test_a_duration_that_is_expected_is_told_no_more_exactly_than_it_can_be():
    assert [about(seconds) for seconds in (0.2, 41.4, 200)] == ["about 1 s", "about 41 s", "about 3 min"]


def drawn(*told, width=100, clock=None) -> str:
    output = io.StringIO()
    console = Console(file=output, force_terminal=True, width=width, height=30, color_system=None, get_time=clock)
    with progress.bar(console) as shown:
        for step in told:
            shown(step) if isinstance(step, str) else shown.step(step)
            shown.progress.refresh()
    return output.getvalue()


def test_the_bar_shows_case_sample_and_time_left():
    clock = iter(range(0, 10_000, 3))
    steps = [Step("timing", "rows=64", number / 10, 2, sample=(number, 10), who="mine") for number in range(1, 6)]
    last = drawn(*steps, clock=lambda: float(next(clock)))
    assert "mine timing" in last and "0.5/2  sample 5 of 10" in last and "rows=64" in last
    assert re.search(r"\d:\d\d:\d\d left", last)


@pytest.mark.parametrize("width", [40, 80])
def test_the_bar_stays_on_one_line_however_narrow_the_terminal(width):
    step = Step("timing", "batch_size=1 " * 20, 0.5, 2, sample=(5, 10), who="mine")
    lines = drawn(step, width=width).replace("\x1b[2K", "").replace("\r", "\n").split("\n")
    assert max(len(re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", line)) for line in lines) <= width
    assert sum("timing" in line for line in lines) == sum("mine" in line for line in lines)


def test_a_line_stays_and_neither_it_nor_a_name_commands_the_terminal():
    shown = drawn("[red]loud[/red] \x1b[2Jgone", Step("test", "\x1b]0;owned\x07", 0, 2, who="[b]x\u202e"))
    assert "[red]loud[/red] ‹U+001B›[2Jgone" in shown and "[b]x‹U+202E›" in shown
    assert "\x1b[2J" not in shown and "\x1b]0" not in shown


def on_a_terminal(*words: str) -> tuple[int, str, str]:
    """Exit code, stdout through a pipe, and what a terminal on stderr was sent."""
    ours, theirs = pty.openpty()
    environment = {key: value for key, value in os.environ.items() if key != "CI"} | {"TERM": "xterm"}
    process = subprocess.Popen(words, cwd=CHECKOUT, env=environment, stdout=subprocess.PIPE, stderr=theirs, text=True)
    os.close(theirs)
    sent = b""
    while True:
        try:
            data = os.read(ours, 1 << 16)
        except OSError:  # the other end is closed
            break
        if not data:
            break
        sent += data
    out, _ = process.communicate(timeout=300)
    os.close(ours)
    return process.returncode, out, sent.decode()


@pytest.mark.slow
def test_a_terminal_gets_the_bar_and_json_gets_lines(toy_root, forking):
    file = submit(toy_root, "mine", HONEST)
    words = command(toy_root, "eval", "double", str(file), "--device", "cpu")
    code, out, sent = on_a_terminal(*words)
    assert code == 0 and "mine timing" in sent and "sample" in sent and "test 1 of 2" not in sent
    assert "mine: accepted" in sent and "\x1b" not in out
    assert sent.endswith("\x1b[?25h") or "\x1b[?25h" in sent  # the cursor is back
    code, out, sent = on_a_terminal(*words, "--json")
    assert code == 0 and json.loads(out)["runs"] and "test 1 of 2" in sent and "\x1b" not in sent


def test_verify_counts_its_controls(toy_root):
    from harness.verbs import verify as verification

    folder = toy_root / "problems" / "double" / "controls"
    for verdict, source in (("accepted", HONEST), ("wrong_answer", WRONG)):
        (folder / verdict).mkdir(parents=True)
        (folder / verdict / "one.py").write_text(source)
    told = Listener()
    problem = catalog.load_problem(toy_root, "double")
    list(verification.verify(toy_root, problem, detect(toy_root, "cpu"), told))
    assert sorted(step.done for step in told.steps)[-1] == 2 and {step.total for step in told.steps} == {2}
