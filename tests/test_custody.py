"""Another project's code ends the process that judges, or never ends itself: nobody takes that for a verdict."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from harness import catalog, custody
from harness.errors import InfrastructureError, ProblemError
from harness.judge.guest import limited
from harness.library import close, evaluate

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
import collections, ctypes, itertools, os, torch

ENDINGS = {
    "exit": lambda: os._exit(0),
    "crash": lambda: ctypes.string_at(0),
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

    @pytest.mark.slow(ci=True)
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
