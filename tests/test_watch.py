"""`eval --watch`: judged at each save, the quickest to know first; nothing that an editor does ends it, Ctrl-C does."""

import fcntl
import os
import signal
import subprocess
import threading
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from harness import catalog
from harness.cli import main
from harness.machine import lock
from harness.machine.device import card, detect
from harness.model import Case, CaseCheck, Estimate, Verdict
from harness.progress import Step
from harness.render import watch as rendered
from harness.verbs import watch
from harness.verbs.watch import Feedback, Saves, syntax_error
from tests.processes import working_in
from tests.test_cli import CHECKOUT, HONEST, WRONG, command, submit
from tests.test_comparison import run

PATIENCE_S = 300


class Watching:
    """`eval double FILE --watch` in a process of its own, and all that it has printed so far."""

    def __init__(self, root: Path, file: Path) -> None:
        words = command(root, "eval", "double", str(file), "--watch", "--device", "cpu")
        self.process = subprocess.Popen(
            words, cwd=CHECKOUT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
        )
        self.printed = ""
        self._seen = 0
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.printed += line

    def expect(self, *words: str) -> str:
        """Wait until these follow each other in what was printed since the last time; all of it up to there."""
        start, deadline = self._seen, time.monotonic() + PATIENCE_S
        for word in words:
            while word not in self.printed[self._seen :]:
                assert self.process.poll() is None, self.printed
                assert time.monotonic() < deadline, f"{word!r} is not in {self.printed[start:]!r}"
                time.sleep(0.05)
            self._seen = self.printed.index(word, self._seen) + len(word)
        return self.printed[start : self._seen]

    def interrupt(self) -> int:
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(PATIENCE_S)


@pytest.fixture
def watching(toy_root, forking):
    started = []

    def start(source: str) -> tuple[Watching, Path]:
        file = submit(toy_root, "mine", source)
        started.append(Watching(toy_root, file))
        return started[-1], file

    yield start
    for process in started:
        if process.process.poll() is None:
            process.process.kill()
            process.process.wait()


@pytest.mark.slow
def test_each_save_is_judged_whatever_way_the_editor_writes_until_ctrl_c(watching, toy_root):
    watched, file = watching(HONEST)
    first = watched.expect("it loads", "right on the smallest test case, rows=3", "right on all 2 test cases", "µs")
    assert "what it was" not in first
    file.write_text("def custom_kernel(data:\n    pass\n")
    watched.expect("compile error: line 1", "def custom_kernel(data:")
    other = file.with_name("mine.py.new")
    other.write_text(WRONG)
    other.replace(file)
    said = watched.expect("it loads", "wrong on rows=3", "worst", "wrong answer: 2 of 2")
    assert "right on" not in said and said.count("reproduce:") == 1
    file.unlink()
    watched.expect("is gone: waiting for it")
    file.write_text("import nowhere\n")
    watched.expect("No module named 'nowhere'", "line 1")
    file.write_text("raise SystemExit(7)\n")
    watched.expect("sys.exit(7)")
    file.write_text(HONEST + "print('seen')\n")
    watched.expect("right on all 2", "× what it was")
    assert watched.interrupt() == 0
    assert "stopped watching" in watched.printed and "Traceback" not in watched.printed.split("stopped")[1]
    assert not list((toy_root / "results").rglob("*.json")) and not working_in(toy_root)


@pytest.mark.slow(ci=True)
def test_ctrl_c_during_a_call_kills_the_worker_and_is_no_failure(watching, toy_root):
    watched, _ = watching("import time\ndef custom_kernel(data):\n    time.sleep(600)\n")
    watched.expect("it loads")
    assert working_in(toy_root)
    assert watched.interrupt() == 0
    assert "Traceback" not in watched.printed and not working_in(toy_root)


@pytest.mark.slow
def test_a_save_ends_the_judging_under_way(watching):
    slow = "import time\ndef custom_kernel(data):\n    time.sleep(1)\n    return data[0] * 2\n"
    watched, file = watching(slow)
    watched.expect("it loads")
    file.write_text(WRONG)
    assert "µs" not in watched.expect("wrong answer: 2 of 2")
    assert watched.interrupt() == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "--watch takes exactly one FILE"),
        (("a.py", "b.py"), "--watch takes exactly one FILE"),
        (("mine.py", "--json"), "neither --json nor --markdown"),
        (("nowhere.py",), "no file nowhere.py"),
        (("mine.txt",), "mine.txt"),
    ],
)
def test_what_cannot_be_watched_is_refused_at_once(toy_root, capsys, words, said):
    code = main(["--root", str(toy_root), "eval", "double", "--watch", *words])
    streams = capsys.readouterr()
    assert code == 2 and said in streams.err and not streams.out


def test_cases_that_are_chosen_are_judged_at_each_save_up_to_the_first_wrong_one(toy_root, monkeypatch, capsys):
    file, judged = submit(toy_root, "mine", WRONG), []

    def evaluate(problem, *_, stop_at_first, **options):
        judged.append(([case.label for case in problem.cpu.test], len(problem.cpu.benchmark), stop_at_first))
        raise KeyboardInterrupt

    monkeypatch.setattr("harness.judge.evaluate.evaluate", evaluate)
    words = ["eval", "double", str(file), "--watch", "--device", "cpu"]
    assert main(["--root", str(toy_root), *words, "-k", "rows=3", "-x"]) == 0
    assert main(["--root", str(toy_root), *words, "--case", "1"]) == 0
    assert main(["--root", str(toy_root), *words]) == 0
    assert judged[:2] == [(["rows=3 cols=5"], 0, True), ([], 1, False)]
    assert len(judged[2][0]) == 2 and judged[2][1:] == (1, False)


class Editor:
    """Does one thing to the file each time that the watch sleeps; the end of the list is Ctrl-C."""

    def __init__(self, monkeypatch, actions) -> None:
        self._actions = iter(actions)
        monkeypatch.setattr(watch.time, "sleep", self._sleep)

    def _sleep(self, _: float) -> None:
        action = next(self._actions, None)
        if action is None:
            raise KeyboardInterrupt
        action()


def nothing():
    pass


def taken_by(saves: Saves, said: list[str]) -> list[bytes]:
    taken = []
    with pytest.raises(KeyboardInterrupt):
        while True:
            taken.append(saves.next(lambda feedback: said.append(feedback.message)))
            saves.judge(taken[-1])
    return taken


@pytest.mark.parametrize(
    ("actions", "taken"),
    [
        (lambda f: [nothing, lambda: f.write_text("b"), nothing], [b"a", b"b"]),
        (lambda f: [nothing, lambda: os.utime(f), nothing, lambda: f.write_text("a"), nothing], [b"a"]),
        # Emptied, then written in two pieces.
        (
            lambda f: [nothing, *(partial(f.write_text, text) for text in ("", "b", "bb")), nothing],
            [b"a", b"bb"],
        ),
        # Gone for a moment, as when a file is replaced: not a word of it.
        (lambda f: [nothing, f.unlink, lambda: f.write_text("b"), nothing, nothing], [b"a", b"b"]),
    ],
    ids=["written", "touched", "in pieces", "replaced"],
)
def test_new_content_is_taken_once_and_only_when_it_stands_still(tmp_path, monkeypatch, actions, taken):
    file = tmp_path / "mine.py"
    file.write_text("a")
    said: list[str] = []
    Editor(monkeypatch, actions(file))
    assert taken_by(Saves(file), said) == taken
    assert not said


def test_a_file_that_is_gone_is_waited_for_and_said_so_once(tmp_path, monkeypatch):
    file = tmp_path / "mine.py"
    said: list[str] = []
    Editor(monkeypatch, [nothing] * 5 + [lambda: file.write_text("a"), nothing, file.unlink, nothing, nothing])
    assert taken_by(Saves(file), said) == [b"a"]
    assert said == [f"{file} is gone: waiting for it"] * 2


def test_what_takes_the_file_s_place_and_is_none_is_waited_out(tmp_path, monkeypatch):
    file = tmp_path / "mine.py"
    os.mkfifo(file)
    said: list[str] = []
    Editor(monkeypatch, [nothing, nothing, file.unlink, lambda: file.write_text("a"), nothing, nothing])
    assert taken_by(Saves(file), said) == [b"a"]
    assert said == [f"{file} cannot be read: waiting for it"]


def test_another_save_is_seen_even_if_date_and_size_are_the_same(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("a")
    saves = Saves(file)
    saves.judge(b"a")
    assert not saves.another()
    status = file.stat()
    file.write_text("b")
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))  # as on a file system that dates by the second
    assert saves.another()
    file.unlink()
    assert not saves.another()


def test_an_old_file_is_not_read_again_and_again(tmp_path, monkeypatch):
    file = tmp_path / "mine.py"
    file.write_text("a")
    os.utime(file, (1e9, 1e9))
    saves = Saves(file)
    saves.judge(b"a")
    assert not saves.another()
    monkeypatch.setattr(Saves, "_read", lambda self: pytest.fail("read"))
    assert not saves.another()


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("def custom_kernel(data)\n", "line 1: expected ':'"),
        ("return 1\n", "line 1: 'return' outside function"),
        ("x = '\0'", "null bytes"),
        ("# coding: nonsense\n", "unknown encoding"),
        ("(" * 5000, "line 1"),
    ],
)
def test_what_is_no_python_is_said_without_running_it(toy_root, source, words):
    file = submit(toy_root, "mine", source)
    flaw = syntax_error(catalog.load_submission(catalog.load_problem(toy_root, "double"), file))
    assert flaw is not None and words in flaw.message


def test_compiling_runs_nothing_and_warns_of_nothing(toy_root, capsys, recwarn):
    file = submit(toy_root, "mine", "import sys\nsys.exit('\\d')\n" + "if 1 is 1: pass\n")
    assert syntax_error(catalog.load_submission(catalog.load_problem(toy_root, "double"), file)) is None
    assert not recwarn and not capsys.readouterr().err


def test_a_submission_s_words_reach_the_terminal_as_text():
    shown = rendered.text(Feedback("runtime error: \x1b[2J", 1.0, "detail \x1b]0;owned\x07"))
    assert "\x1b" not in shown and "owned" in shown


def test_a_quick_timing_is_held_against_the_one_before():
    slow, fast = (run("a", score=Estimate(latency_ns=latency)) for latency in (2000.0, 1000.0))
    assert "0.500 × what it was" in rendered.text(Feedback("all right", 1.0, None, fast, slow))
    assert "no interval" in rendered.text(Feedback("all right", 1.0, None, fast, None))


def test_a_case_that_raises_is_told_at_once_and_the_later_ones_do_not_make_it_right():
    told = []
    narrator = watch._Narrator(SimpleNamespace(another=lambda: False), told.append, time.monotonic())
    for done, verdict in enumerate((Verdict.RUNTIME_ERROR, Verdict.ACCEPTED), 1):
        case = Case(parameters={"n": done})
        check = CaseCheck(case=case, verdict=verdict, tolerance=None, excess={}, error=None)
        narrator.step(Step("test", case.label, done, 2, check=check))
    assert [feedback.message for feedback in told] == ["runtime error on n=1"]
    assert narrator.shown is None  # the detail is shown at the end


def watched_until(root, file, enough) -> list[Feedback]:
    """What a watch in this process has said when it says what is `enough`."""
    told: list[Feedback] = []

    def show(feedback):
        told.append(feedback)
        if enough(feedback):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        watch.watch(root, catalog.load_problem(root, "double"), file, detect(root, "cpu"), show)
    return told


def test_the_case_that_the_last_sentence_calls_shown_is_shown_below_it(toy_root):
    at_once, last = (
        each
        for each in watched_until(toy_root, submit(toy_root, "mine", WRONG), lambda feedback: feedback.run)
        if each.detail
    )
    assert at_once.message == "wrong on rows=3 cols=5" and at_once.detail.startswith("case rows=3 cols=5")
    assert "the one shown is rows=4 cols=8" in last.message and last.detail.startswith("case rows=4 cols=8")
    one = WRONG.replace("* 3", "* (3 if len(data[0]) == 3 else 2)")
    told = watched_until(toy_root, submit(toy_root, "mine", one), lambda feedback: feedback.run)
    assert [each.detail.splitlines()[0] for each in told if each.detail] == ["case rows=3 cols=5"]


def test_a_save_ends_the_wait_for_another_evaluation(toy_root, tmp_path, monkeypatch):
    tmp_path.chmod(0o1777)
    monkeypatch.setattr(lock, "FOLDERS", (tmp_path,))
    file = submit(toy_root, "mine", HONEST)
    taken = tmp_path / f"podium-{card(detect(toy_root, 'cpu'))}.lock"
    taken.touch()

    def enough(feedback):
        if "waiting for it to finish" in feedback.message:
            file.write_text(WRONG)
        return feedback.message.startswith("wrong on")

    with taken.open() as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        said = [feedback.message for feedback in watched_until(toy_root, file, enough)]
    assert sum("waiting for it to finish" in message for message in said) == 1
