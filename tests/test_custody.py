"""Another project's code ends the process that judges, or never ends itself: nobody takes that for a verdict."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from harness import catalog, custody
from harness.errors import InfrastructureError, ProblemError
from harness.judge.guest import limited
from harness.judge.opinion import heard
from harness.judge.reference import open_reference
from harness.judge.reply import Fault
from harness.library import close, evaluate
from harness.machine.device import detect
from harness.model import Verdict
from harness.records.run_file import load_run

CHECKOUT = Path(__file__).parents[1]

pytestmark = pytest.mark.usefixtures("forking")

TASK_YML = """
files:
  - {name: submission.py, source: '@SUBMISSION@'}
  - {name: reference.py, source: reference.py}
tests: [{size: 33, seed: 1}]
benchmarks: [{size: 96, seed: 2}]
"""

REFERENCE = """
import collections, ctypes, faulthandler, itertools, os, torch

ENDINGS = {
    "exit": lambda: os._exit(0),
    "crash": lambda: (faulthandler.disable(), ctypes.string_at(0)),
    "loop": lambda: collections.deque(itertools.repeat(0), maxlen=0),
}

def in_the_midst_of(function):
    if os.environ.get("ENDS_IN") == function:
        ENDINGS[os.environ["HOW"]]()

in_the_midst_of("the import")

def generate_input(size, seed):
    in_the_midst_of("generate_input")
    return torch.randn(size, generator=torch.Generator().manual_seed(seed))

def ref_kernel(data):
    in_the_midst_of("ref_kernel")
    return data * 2

def check_implementation(data, output):
    in_the_midst_of("check_implementation")
    return torch.equal(ref_kernel(data), output), ""
"""

MODEL = """
import os, torch

class Model(torch.nn.Module):
    def forward(self, x):
        if os.environ.get("ENDS_IN") == "Model.forward":
            os._exit(0)
        return x * 2

size = 33

def get_inputs():
    return [torch.randn(size)]

def get_init_inputs():
    return []
"""

WRONG = "def custom_kernel(data):\n    return data * 3\n"


@pytest.fixture
def folder(toy_root):
    """A folder whose functions end the process where the environment says so, with one control."""
    path = toy_root / "guest"
    (path / "solutions/wrong").mkdir(parents=True)
    (path / "task.yml").write_text(TASK_YML)
    (path / "reference.py").write_text(REFERENCE)
    (path / "solutions/wrong/thrice.py").write_text(WRONG)
    return path


def podium(root, *words, **environment):
    """A verb as it is typed: its exit code and what it says on stderr."""
    around = {name: value for name, value in os.environ.items() if name != "PODIUM_CALLER"}
    done = subprocess.run(
        [sys.executable, "-m", "harness", "--root", str(root), *map(str, words)],
        cwd=CHECKOUT,
        env={**around, "HOW": "exit", **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )
    return done.returncode, done.stderr


def ended(function, folder, how="status 0"):
    return f"error: {function} of {folder}/reference.py ended the process that judges, with {how}: there is no verdict"


class TestAVerb:
    @pytest.mark.parametrize(
        ("function", "how", "words"),
        [
            ("check_implementation", "exit", "status 0"),
            pytest.param("generate_input", "exit", "status 0", marks=pytest.mark.slow),
            pytest.param("ref_kernel", "exit", "status 0", marks=pytest.mark.slow),
            pytest.param("the import", "crash", "status -11 (SIGSEGV)", marks=pytest.mark.slow),
        ],
    )
    def test_eval_fails_and_names_what_ended_it(self, toy_root, folder, function, how, words):
        file = folder / "solutions/wrong/thrice.py"
        code, err = podium(toy_root, "eval", folder, file, "--device", "cpu", ENDS_IN=function, HOW=how)
        assert code == 2 and ended(function, folder, words) in err, err
        assert not list((toy_root / "results").rglob("*.json"))

    @pytest.mark.slow
    @pytest.mark.parametrize("verb", ["verify", "check", "replay"])
    def test_so_do_the_other_verbs_that_judge(self, toy_root, folder, verb):
        file = folder / "solutions/wrong/thrice.py"
        words = {"verify": (), "check": (file,), "replay": (file, "size=33", "--seed", "1")}[verb]
        code, err = podium(toy_root, verb, folder, *words, ENDS_IN="ref_kernel")
        assert code == 2 and ended("ref_kernel", folder) in err, err

    @pytest.mark.slow
    def test_so_do_repro_and_a_verdict_stays_what_it_was(self, toy_root, folder):
        file = folder / "solutions/wrong/thrice.py"
        code, err = podium(toy_root, "eval", folder, file, "--device", "cpu")
        assert code == 10, "a verdict's exit code comes through"
        code, err = podium(toy_root, "repro", "thrice", ENDS_IN="generate_input")
        assert code == 2 and ended("generate_input", folder) in err, err

    @pytest.mark.slow
    def test_so_does_eval_of_a_task_of_kernelbench(self, toy_root):
        task, file = toy_root / "task.py", toy_root / "new.py"
        task.write_text(MODEL)
        file.write_text(MODEL.replace("class Model", "class ModelNew"))
        code, err = podium(toy_root, "eval", task, file, "--device", "cpu", ENDS_IN="Model.forward")
        assert code == 2 and f"error: Model.forward of {task} ended the process that judges" in err, err

    @pytest.mark.slow
    def test_a_thread_that_the_folder_leaves_behind_holds_nothing_up(self, toy_root, folder):
        text = "import threading, time\nthreading.Thread(target=time.sleep, args=(1000,)).start()\n" + REFERENCE
        (folder / "reference.py").write_text(text)
        code, err = podium(toy_root, "check", folder, folder / "solutions/wrong/thrice.py")
        assert code == 10, err

    @pytest.mark.slow
    def test_what_the_owner_is_told_by_a_signal_the_judge_is_told(self, toy_root, folder):
        (toy_root / "slow.py").write_text("import time\ndef custom_kernel(data):\n    time.sleep(1000)\n")
        words = ["--root", str(toy_root), "eval", str(folder), str(toy_root / "slow.py"), "--device", "cpu"]
        with subprocess.Popen([sys.executable, "-m", "harness", *words], cwd=CHECKOUT, stderr=subprocess.PIPE) as owner:
            deadline = time.monotonic() + 120
            while not list((toy_root / "tmp").glob("podium-*/work")):
                assert time.monotonic() < deadline and owner.poll() is None
                time.sleep(0.05)
            owner.send_signal(signal.SIGINT)
            _, err = owner.communicate(timeout=120)
        assert owner.returncode == 130 and err.count(b"interrupted") == 1, err
        assert not list((toy_root / "tmp").glob("podium-*")), "the judge has put away what it made"


@pytest.mark.slow(ci=True)
def test_evaluate_raises_and_the_next_call_has_a_judge(toy_root, folder, monkeypatch):
    close()
    monkeypatch.setenv("HOW", "exit")
    monkeypatch.setenv("ENDS_IN", "ref_kernel")
    try:
        with pytest.raises(ProblemError, match=r"ref_kernel of .*/guest/reference.py ended .* with status 0"):
            evaluate(folder, WRONG, "cpu", "verdict", root=toy_root)
        monkeypatch.delenv("ENDS_IN")
        assert evaluate(folder, WRONG, "cpu", "verdict", root=toy_root).ending.verdict.exit_code == 10
    finally:
        close()


CHECKER = """
def check_implementation(data, output):
    if torch.equal(output, data * 3):
        ENDINGS[HOW]()
    if os.environ.get("HANGS_ON_ALL"):
        time.sleep(60)
    return torch.equal(data * 2, output), "it is not twice the input"

HOW = "{how}"

def sleep():
    time.sleep(60)

def take_all():
    torch.empty(2**62, dtype=torch.uint8)

ENDINGS |= {{"sleep": sleep, "memory": take_all}}
import time
"""


class TestACheckerThatSaysNothingOfOneAnswer:
    """It answers to what ref_kernel gives: so the answer is refused, and the job has its verdict."""

    @pytest.fixture
    def opened(self, toy_root, folder):
        """A folder's reference, whose checker ends so when it is asked about three times the input."""

        def made(how, **changes):
            text = REFERENCE.partition("def check_implementation")[0] + CHECKER.format(how=how)
            for old, new in changes.items():
                text = text.replace(old, new)
            (folder / "reference.py").write_text(text)
            reference = open_reference(catalog.load_problem(toy_root, str(folder)), detect(toy_root, "cpu"))
            reference.allow(0.5)
            return reference, reference.generate(reference.problem.cases.test[0], 5)

        return made

    def test_one_that_hangs_in_python_has_refused_it_and_no_further_case_is_tried(self, opened):
        reference, data = opened("sleep")
        assert reference.opinion(data, data * 2).right and not reference.stuck
        said = reference.opinion(data, data * 3)
        assert not said.right and "0.5 s on this output; for ref_kernel's output it answers in " in said.why
        assert reference.stuck

    def test_one_that_runs_out_of_memory_has_refused_it(self, opened):
        reference, data = opened("memory")
        said = reference.opinion(data, data * 3)
        assert not said.right and "it ran out of memory on this output" in said.why, said

    @pytest.mark.parametrize(
        ("how", "words"),
        [
            ("crash", "it ended its process, with status -11 (SIGSEGV) on this output"),
            ("exit", "it ended its process, with status 0 on this output"),
            ("loop", "it took longer than 0.5 s on this output"),
            ("memory", "it ran out of memory on this output"),
        ],
    )
    def test_where_a_judge_has_ended_in_it_it_is_asked_in_a_process_of_its_own(self, opened, monkeypatch, how, words):
        monkeypatch.setattr(custody._here, "careful", True)
        reference, data = opened(how)
        assert reference.opinion(data, data * 2).right and reference.opinion(data, data * 2.5).why == (
            "it is not twice the input"
        )
        said = reference.opinion(data, data * 3)
        assert not said.right and said.why.startswith(words), said
        assert "the checker runs in a child process" in reference.notes[-1]

    def test_one_that_hangs_on_the_references_answer_too_is_the_folders_fault(self, opened, monkeypatch):
        reference, data = opened("sleep")
        monkeypatch.setenv("HANGS_ON_ALL", "1")
        with pytest.raises(ProblemError, match=r"check_implementation .* took longer than 0\.5 s: there is no verdict"):
            reference.opinion(data, data * 3)

    def test_without_a_reference_nobody_is_blamed(self, opened):
        reference, data = opened("sleep", ref_kernel="another_name")
        with pytest.raises(Fault) as raised:
            reference.opinion(data, data * 3)
        assert raised.value.ending.verdict is Verdict.TIMEOUT and not raised.value.ending.verdict.disqualifies
        assert "the problem's checker took longer than 0.5 s on this output" in raised.value.ending.message

    @pytest.mark.slow
    def test_eval_and_evaluate_have_a_verdict_and_a_run_where_the_checker_crashes(self, toy_root, folder, opened):
        opened("crash")
        cases = "[{size: 33, seed: 1}, {size: 34, seed: 1}]"
        (folder / "task.yml").write_text(TASK_YML.replace("[{size: 33, seed: 1}]", cases))
        code, err = podium(toy_root, "eval", folder, folder / "solutions/wrong/thrice.py", "--device", "cpu")
        assert code == 10 and err.count(custody.AGAIN) == 1, err
        (stored,) = (toy_root / "results").rglob("*.json")
        run, told = load_run(stored), []
        assert run.ending.verdict is Verdict.WRONG_ANSWER and "1 not tried" in run.ending.message, run.ending
        assert "it ended its process, with status -11 (SIGSEGV) on this output" in (run.ending.detail or "")
        close()
        try:
            run = evaluate(folder, WRONG, "cpu", "verdict", root=toy_root, narrate=told.append)
            assert run.ending.verdict is Verdict.WRONG_ANSWER and custody.AGAIN in told
            again = evaluate(folder, WRONG.replace("3", "2"), "cpu", "verdict", root=toy_root, narrate=told.append)
            assert again.ending.verdict is Verdict.ACCEPTED and told.count(custody.AGAIN) == 1
        finally:
            close()

    @pytest.mark.slow
    def test_verify_goes_on_with_the_next_control(self, toy_root, folder, opened):
        opened("sleep")
        (folder / "task.yml").write_text(TASK_YML + "test_timeout: 4\nbenchmark_timeout: 4\nranked_timeout: 4\n")
        (folder / "solutions/correct").mkdir()
        (folder / "solutions/correct/thrice.py").write_text(WRONG)
        done = subprocess.run(
            [sys.executable, "-m", "harness", "--root", str(toy_root), "verify", str(folder), "--device", "cpu"],
            cwd=CHECKOUT,
            capture_output=True,
            text=True,
            timeout=300,
        )
        said = "correct/thrice is labelled correct, but got wrong answer: 1 of 2 test cases is wrong, 1 not tried"
        assert done.returncode == 10 and said in done.stdout, (done.stdout, done.stderr)

    @pytest.mark.slow
    def test_one_that_hangs_in_c_has_too(self, toy_root, folder, opened):
        opened("loop")
        (folder / "task.yml").write_text(TASK_YML + "test_timeout: 4\nbenchmark_timeout: 4\nranked_timeout: 4\n")
        code, err = podium(toy_root, "eval", folder, folder / "solutions/wrong/thrice.py", "--device", "cpu")
        assert code == 10 and custody.AGAIN in err, err


@pytest.mark.parametrize("said", [(torch.ones(2), ""), torch.ones(2), (False, torch.ones(2))], ids=["1", "2", "3"])
def test_what_is_neither_true_nor_false_is_no_yes(said):
    found = heard(lambda: said, "the checker")
    assert not found.right and "the checker raises RuntimeError" in found.why


class TestTheNote:
    def test_one_that_was_killed_is_the_machines_fault(self):
        note = custody.Note()
        note.write(what="ref_kernel of there", limit_s=9, until_s=time.monotonic() + 9)
        said = custody.without_verdict(note, -signal.SIGKILL)
        assert isinstance(said, InfrastructureError) and "was killed in ref_kernel of there" in said.message

    def test_one_that_ended_in_code_of_ours_names_the_folder_and_no_function(self):
        said = custody.without_verdict(custody.Note(), 0, Path("/there"))
        assert isinstance(said, InfrastructureError) and "judges by /there has ended with status 0" in said.message

    def test_one_that_ended_after_its_time_took_too_long(self):
        note = custody.Note()
        note.write(what="ref_kernel of there", limit_s=9, until_s=time.monotonic())
        assert "ref_kernel of there took longer than 9 s" in custody.without_verdict(note, 1).message

    def test_a_path_too_long_for_it_is_left_out(self):
        note = custody.Note()
        note.write(what="x" * custody.ROOM)
        assert note.read() == {}


class TestLimits:
    def test_a_loop_in_python_is_ended_even_if_it_catches_what_it_can(self):
        def stubborn():
            for _ in range(2):
                try:
                    while True:
                        pass
                except BaseException:
                    pass
            while True:
                pass

        with (
            pytest.raises(ProblemError, match=r"stubborn of there took longer than 0\.2 s"),
            limited("stubborn of there", 0.2),
        ):
            stubborn()

    def test_nothing_is_ended_later_and_the_old_handler_is_back(self):
        before = signal.getsignal(signal.SIGALRM)
        with limited("this", 0.2):
            pass
        time.sleep(0.4)
        assert signal.getsignal(signal.SIGALRM) is before
        assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)

    @pytest.mark.slow
    def test_a_generator_that_never_ends_is_held_to_the_limit_of_its_stage(self, toy_root, folder):
        """Opening the folder draws two inputs, and may take as long as the longest stage: the third call hangs."""
        (folder / "task.yml").write_text(f"{TASK_YML}test_timeout: 8\n")
        loop = "calls = []\ndef generate_input(size, seed):\n    calls.append(seed)\n    while len(calls) > 2:\n"
        text = REFERENCE.replace("def generate_input(size, seed):\n", f"{loop}        pass\n")
        (folder / "reference.py").write_text(text)
        file = folder / "solutions/wrong/thrice.py"
        code, err = podium(toy_root, "eval", folder, file, "--device", "cpu")
        said = f"error: generate_input of {folder}/reference.py took longer than 8 s: there is no verdict"
        assert code == 2 and said in err, err

    @pytest.mark.slow
    def test_what_is_stuck_in_c_is_ended_with_its_process(self, toy_root, folder):
        (folder / "task.yml").write_text(TASK_YML + "test_timeout: 2\nbenchmark_timeout: 2\nranked_timeout: 2\n")
        file = folder / "solutions/wrong/thrice.py"
        code, err = podium(toy_root, "eval", folder, file, "--device", "cpu", ENDS_IN="ref_kernel", HOW="loop")
        assert code == 2 and f"ref_kernel of {folder}/reference.py took longer than 2 s" in err, err


def test_a_limit_is_the_stages_and_by_default_the_longest(folder, toy_root):
    (folder / "task.yml").write_text(f"{TASK_YML}test_timeout: 20\nranked_timeout: 300\n")
    limits = catalog.load_problem(toy_root, str(folder)).limits
    assert (limits.test_s, limits.longest_stage_s) == (20, 300)
