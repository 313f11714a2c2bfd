"""Faults that are nobody's attack: killed, filled, corrupted, raced. Each ends with the right verdict or with exit code
30 and a sentence that says what to do; what was stored before is intact, and judging again goes on.

Ctrl-C and two evaluations at once are in test_cli, a judge killed between two steps of writing in test_store, fork
bombs and what fills memory or disk in test_sandbox.
"""

import contextlib
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from pathlib import Path

import pytest
import torch
from test_cli import CHECKOUT, HONEST, PATIENCE_S, command, submit
from test_judging import judge
from test_store import DEVICE, content, folder, make_run, put, root, unprivileged  # noqa: F401

from harness import catalog
from harness.cli import main
from harness.errors import InfrastructureError, ProblemError
from harness.judge.reference import Reference
from harness.machine.device import check_answers, detect
from harness.model import Ending, Estimate, Verdict
from harness.records.run_file import load_run
from harness.sandbox import enclosure
from harness.sandbox.footprint import descendants, process_table
from tests.processes import alive, below, name_of

pytestmark = pytest.mark.usefixtures("forking")

SLOW = """
import time
time.sleep(1)
def custom_kernel(data):
    time.sleep(0.2)
    return data[0] * 2
"""


@contextlib.contextmanager
def evaluation(checkout, *arguments, program=None):
    """`eval double` in a process of its own, killed at the end whatever happens."""
    words = command(checkout, "eval", "double", "--quick", *arguments)
    if program is not None:
        words = [sys.executable, "-c", textwrap.dedent(program), *words[3:]]
    process = subprocess.Popen(words, cwd=CHECKOUT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        process.stderr.close()


def finished(checkout, *arguments, program=None):
    """The exit code of an evaluation, and what it said on stdout and stderr."""
    with evaluation(checkout, *arguments, program=program) as process:
        out, err = process.communicate(timeout=PATIENCE_S)
        assert "Traceback" not in err, err
        return process.returncode, out, err


def await_line(process, start):
    """Read what the judge narrates up to a line with `start` in it."""
    said = []
    for line in process.stderr:
        said.append(line)
        if start in line:
            return
    raise AssertionError(f"{start!r} was never said:\n{''.join(said)}")


def assert_gone(pids):
    deadline = time.monotonic() + PATIENCE_S
    while left := [pid for pid in pids if alive(pid)]:
        assert time.monotonic() < deadline, [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in left]
        time.sleep(0.05)


def stored(checkout):
    """The names of the submissions that have runs, every one of which is read."""
    files = [path for path in (checkout / "results").rglob("*.json") if not path.name.startswith(".")]
    return sorted(load_run(path).submission for path in files)


def scratch_left(checkout):
    return [path for path in (checkout / "tmp").iterdir() if path.is_dir() and path.name.startswith("podium-")]


@pytest.mark.slow
class TestAKilledJudge:
    @pytest.mark.parametrize("moment", ["loading", "test 1 of", "test 2 of", "pilot", "timing, process 1"])
    def test_leaves_no_process_and_no_part_of_a_run_and_judging_again_goes_on(self, toy_root, moment):
        put(toy_root, make_run("20260101-earlier"))
        earlier = (folder(toy_root) / "20260101-earlier.json").read_bytes()
        submit(toy_root, "slow", SLOW)
        with evaluation(toy_root) as process:
            await_line(process, moment)
            # Loading and timing are announced before there is a worker for them.
            workers = set()
            while not any(name_of(pid) == "podium-worker" for pid in workers):
                assert process.poll() is None
                workers = descendants(process.pid, process_table())
            process.kill()
            process.wait()
        assert_gone(workers)
        assert stored(toy_root) == ["mine"]
        code, _, err = finished(toy_root)
        assert code == 0 and "slow: loading" in err
        assert stored(toy_root) == ["mine", "slow"] and scratch_left(toy_root) == []
        assert (folder(toy_root) / "20260101-earlier.json").read_bytes() == earlier

    @pytest.mark.parametrize("file", [1, 2], ids=["source", "run"])
    def test_while_storing_leaves_no_part_of_a_run_and_judging_again_goes_on(self, toy_root, file):
        submit(toy_root, "honest", HONEST)
        program = f"""
            import os, signal, sys
            from harness.cli import main
            calls, replace = [], os.replace
            def killed(*arguments):
                calls.append(arguments)
                if len(calls) == {file}:
                    os.kill(os.getpid(), signal.SIGKILL)
                return replace(*arguments)
            os.replace = killed
            main(sys.argv[1:])
        """
        with evaluation(toy_root, program=program) as process:
            process.communicate(timeout=PATIENCE_S)
            assert process.returncode == -9
        assert stored(toy_root) == []
        code, out, _ = finished(toy_root)
        assert code == 0 and stored(toy_root) == ["honest"] and "Left alone" not in out

    def test_costs_one_run_of_several(self, toy_root):
        submit(toy_root, "a_first", HONEST)
        submit(toy_root, "b_second", SLOW)
        with evaluation(toy_root) as process:
            await_line(process, "b_second: test 1 of")
            process.kill()
        code, _, err = finished(toy_root)
        assert code == 0 and "b_second: loading" in err and "a_first: loading" not in err
        assert stored(toy_root) == ["a_first", "b_second"]


class TestAWorkerThat:
    @pytest.fixture(autouse=True)
    def _nothing_is_left(self, toy_root):
        yield
        assert_gone(below(os.getpid()))
        assert scratch_left(toy_root) == []

    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("where", "limits", "said"),
        [
            ("import", {"load_s": 8}, "loading took longer than the limit of 8 s"),
            ("call", {"call_s": 3}, "a call with rows=4 cols=8 took longer than the limit of 3 s"),
        ],
    )
    def test_hangs_in_c_holding_the_interpreter_and_deaf_to_signals_times_out(
        self, toy_root, limited, where, limits, said
    ):
        hang = "ctypes.PyDLL(None).sleep(10**6)"
        source = f"""
            import ctypes, signal
            signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
            {hang if where == "import" else ""}
            def custom_kernel(data):
                {hang}
        """
        limited(**limits)
        run = judge(toy_root, source, timed=False)
        assert run.ending.verdict is Verdict.TIMEOUT and run.ending.message == said

    @pytest.mark.slow(ci=True)
    def test_hangs_in_a_kernel_times_out(self, toy_root, limited):
        limited(call_s=3)
        source = """
            import triton, triton.language as tl
            @triton.jit
            def spin(X, n):
                i = 0
                while i < n:
                    i = i * 1
                tl.store(X, 1.0)
            def custom_kernel(data):
                spin[(1,)](data[0], 8)
        """
        run = judge(toy_root, source, timed=False)
        assert run.ending.verdict is Verdict.TIMEOUT and "a call with rows=4" in run.ending.message

    @pytest.mark.parametrize(("where", "during"), [("import", "loading"), ("thread", "a call with rows=4 cols=8")])
    def test_crashes_at_import_or_in_a_thread_is_a_runtime_error(self, toy_root, where, during):
        source = {
            "import": "import ctypes\nctypes.string_at(0)",
            "thread": """
                import ctypes, threading
                def custom_kernel(data):
                    thread = threading.Thread(target=ctypes.string_at, args=(0,))
                    thread.start()
                    thread.join()
            """,
        }[where]
        run = judge(toy_root, source, timed=False)
        assert run.ending.verdict is Verdict.RUNTIME_ERROR
        assert "SIGSEGV" in run.ending.message and during in run.ending.message

    def test_asks_for_more_memory_than_it_may_have_gets_an_error_of_its_own(self, toy_root, monkeypatch):
        monkeypatch.setattr(enclosure, "_max_memory_bytes", lambda: 3 << 30)
        source = """
            import torch
            def custom_kernel(data):
                return torch.ones(1 << 30)  # 4 GiB
        """
        run = judge(toy_root, source, timed=False)
        assert run.ending.verdict is Verdict.RUNTIME_ERROR and "memory" in run.ending.message

    @pytest.mark.slow
    def test_prints_ten_gigabytes_does_not_fill_the_judge(self, toy_root):
        printing = """
            import os
            block, printed = b"x" * (1 << 20), False
            def custom_kernel(data):
                global printed
                for _ in range(0 if printed else 10 * 1024):
                    os.write(1, block)
                printed = True
                return data[0] * 2
        """
        path = submit(toy_root, "endless", textwrap.dedent(printing))
        peak_kib = 0
        with evaluation(toy_root, str(path)) as process:
            while process.poll() is None:
                status = Path(f"/proc/{process.pid}/status").read_text()
                if peak := re.search(r"VmHWM:\s+(\d+)", status):  # gone once it has ended
                    peak_kib = int(peak[1])
                time.sleep(0.1)
            assert process.returncode == 0, process.stderr.read()
        print(f"the judge took at most {peak_kib / 1024:.0f} MiB")
        assert 0 < peak_kib < 2 << 20, "of which a judge with torch has some hundred thousand"
        (path,) = (toy_root / "results" / "local" / "double").glob("*/2*.json")
        assert path.stat().st_size < 1 << 20


class TestAFullDisk:
    """A file system of half a megabyte, really full."""

    @pytest.fixture
    def small(self, tmp_path):
        place = tmp_path / "small"
        place.mkdir()
        mounted = os.geteuid() == 0 and shutil.which("mount")
        made = mounted and subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(place)], capture_output=True, check=False
        )
        if not made or made.returncode:
            pytest.skip("only root can mount a small file system, and not in every container")
        yield place
        subprocess.run(["umount", "-l", str(place)], check=True)

    def fill(self, place):
        with (place / "filling").open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(b"x" * 4096)

    @pytest.mark.slow
    def test_costs_the_run_that_cannot_be_stored_and_no_other(self, toy_root, small):
        (toy_root / "results").rmdir()
        (toy_root / "results").symlink_to(small)
        put(toy_root, make_run("20260101-earlier"))
        submit(toy_root, "honest", HONEST)
        self.fill(small)  # before there is an index: an index that cannot be kept up is removed, which makes room
        code, _, err = finished(toy_root)
        assert code == 30 and "No space left on device" in err and "make room" in err
        assert stored(toy_root) == ["mine"]
        assert main(["--root", str(toy_root), "leaderboard", "double"]) == 0
        assert not list(small.rglob(".writing-*"))
        (small / "filling").unlink()
        assert finished(toy_root)[0] == 0 and stored(toy_root) == ["honest", "mine"]

    @pytest.mark.parametrize(
        "words",
        [
            ("eval", "double", "--quick"),
            ("replay", "double", "FILE", "rows=3 cols=5", "--seed", "1"),
            ("verify", "double"),
        ],
        ids=lambda words: words[0],
    )
    def test_where_workers_write_is_said(self, toy_root, small, monkeypatch, capsys, words):
        file = submit(toy_root, "honest", HONEST)
        (toy_root / "problems/double/controls/accepted").mkdir(parents=True)
        (toy_root / "problems/double/controls/accepted/honest.py").write_text(HONEST)
        self.fill(small)
        # Not through $TMPDIR: where that is full from the beginning, Python takes /tmp.
        monkeypatch.setattr(tempfile, "tempdir", str(small))
        assert main(["--root", str(toy_root), *(str(file) if word == "FILE" else word for word in words)]) == 30
        err = capsys.readouterr().err
        assert "honest could not be judged: " in err and "No space left on device" in err and str(small) in err
        assert stored(toy_root) == []


class TestForeignThingsInResults:
    def shown(self, toy_root, capsys):
        code = main(["--root", str(toy_root), "leaderboard", "double"])
        return code, capsys.readouterr().out

    @pytest.mark.parametrize(
        "name",
        [
            *["local/double/odd", "local/odd", "published", "local/double/test-1000/odd.json"],
            *["local/double/test-1000/sub/odd.json", "index.sqlite"],
        ],
    )
    @pytest.mark.parametrize("thing", ["file", "directory", "loop", "pipe"])
    def test_whatever_it_is_and_wherever_boards_are_shown_and_runs_stored(self, toy_root, capsys, name, thing):
        put(toy_root, make_run("20260101-earlier"))
        path = toy_root / "results" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        {
            "file": lambda: path.write_bytes(os.urandom(100)),
            "directory": path.mkdir,
            "loop": lambda: path.symlink_to(path),
            "pipe": lambda: os.mkfifo(path),
        }[thing]()
        code, out = self.shown(toy_root, capsys)
        assert code == 0 and "mine" in out
        put(toy_root, make_run("20260102-later", submission="other"))
        code, out = self.shown(toy_root, capsys)
        assert code == 0 and "mine" in out and "other" in out
        assert os.path.lexists(path)

    @pytest.mark.parametrize("name", ["", "local", "local/double", "local/double/cpu"])
    def test_a_file_where_a_directory_is_due_is_said(self, toy_root, capsys, name):
        submit(toy_root, "honest", HONEST)
        slug = detect(toy_root, "cpu").slug
        path = toy_root / "results" / name.replace("cpu", slug)
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            path.rmdir()
        path.write_text("notes")
        code = main(["--root", str(toy_root), "eval", "double", "--quick"])
        err = capsys.readouterr().err
        assert code == 30 and str(path.parent if name else path) in err and path.read_text() == "notes"

    @pytest.mark.parametrize("mode", [0o000, 0o300, 0o600], ids=["closed", "no listing", "no passage"])
    def test_a_directory_that_cannot_be_read_is_reported_and_the_rest_is_shown(self, mode):
        base = Path(tempfile.mkdtemp(prefix="podium-test-"))
        try:
            base.chmod(0o777)
            with unprivileged():
                put(base, make_run("one"))
                put(base, make_run("two", submission="two", device=DEVICE.model_copy(update={"slug": "other"})))
                (base / "results/local/double/other").chmod(mode)
                paths, _, entries, faults = content(base)
                assert paths.keys() == {"one"} and len(entries) == 1
                assert [path.split("/")[:3] for path, _ in faults] == [["local", "double", "other"]]
                (base / "results/local/double/other").chmod(0o755)
                assert content(base)[0].keys() == {"one", "two"} and content(base)[3] == []
        finally:
            (base / "results/local/double/other").chmod(0o755)
            shutil.rmtree(base)

    def test_an_unreadable_file_is_reported_and_the_rest_is_shown(self):
        base = Path(tempfile.mkdtemp(prefix="podium-test-"))
        try:
            base.chmod(0o777)
            with unprivileged():
                put(base, make_run("one"), make_run("two"))
                (folder(base) / "two.json").chmod(0)
                paths, _, _, faults = content(base)
                assert paths.keys() == {"one"} and "Permission denied" in faults[0][1]
                (folder(base) / "two.json").chmod(0o644)
                assert content(base)[0].keys() == {"one", "two"}
        finally:
            shutil.rmtree(base)

    def test_one_run_cannot_keep_the_board_from_being_shown(self, root):  # noqa: F811
        """Files that say what no judge writes, and a board or `show` would fail on."""
        good = json.loads(make_run("odd").model_dump_json())
        odd = {
            "isolation": {**good, "environment": {"isolation": {"tier": 1}}},
            "packages": {**good, "environment": {"packages": "none"}},
            "interval": {**good, "score": {"latency_ns": 1.0, "low_ns": 0.0, "high_ns": 1.0}},
            "infinite": {**good, "score": {"latency_ns": "Infinity"}},
            "no samples": {**good, "measurements": [{**good["measurements"][0], "samples_ns": []}]},
            "no sample": {**good, "measurements": [{**good["measurements"][0], "samples_ns": [[]]}]},
        }
        put(root, make_run())
        for name, document in odd.items():
            (folder(root) / f"{name}.json").write_text(json.dumps({**document, "id": name}))
        paths, _, _, faults = content(root)
        assert paths.keys() == {"run-1"}
        assert {Path(path).stem for path, _ in faults} == odd.keys()


class TestAnIndexInUse:
    @pytest.mark.parametrize("harm", ["delete", "overwrite", "truncate"])
    def test_that_is_spoilt_meanwhile_costs_no_run_and_shows_all(self, root, harm):  # noqa: F811
        put(root, *(make_run(f"run-{number}") for number in range(5)))
        expected = content(root)
        path, stop = root / "results" / "index.sqlite", threading.Event()
        rng = random.Random(3)

        def spoil():
            while not stop.is_set():
                with contextlib.suppress(OSError):
                    if harm == "delete":
                        path.unlink()
                    elif harm == "overwrite":
                        path.write_bytes(rng.randbytes(20_000))
                    else:
                        os.truncate(path, rng.randrange(path.stat().st_size + 1))
                time.sleep(0.001)

        spoiler = threading.Thread(target=spoil)
        spoiler.start()
        try:
            for _ in range(60):
                assert content(root) == expected
        finally:
            stop.set()
            spoiler.join()
        assert content(root) == expected

    def test_a_folder_that_vanishes_while_it_is_read_is_no_error(self, root, monkeypatch):  # noqa: F811
        put(root, make_run("one"), make_run("two", device=DEVICE.model_copy(update={"slug": "other"})))
        scandir = os.scandir

        def vanishing(path="."):
            if str(path).endswith("/other") and os.path.exists(path):
                os.rename(path, root / "gone")
            return scandir(path)

        monkeypatch.setattr(os, "scandir", vanishing)
        assert content(root)[0].keys() == {"one"}
        monkeypatch.undo()
        assert content(root)[0].keys() == {"one"} and content(root)[3] == []


class TestADeviceThatDisappears:
    def test_under_a_worker_is_a_runtime_error_that_says_what_the_driver_said(self, toy_root):
        """A fake: what torch raises when a kernel of a submission has broken the device's context."""
        source = """
            import torch
            def custom_kernel(data):
                raise torch.AcceleratorError("CUDA error: unspecified launch failure")
        """
        run = judge(toy_root, source, timed=False)
        assert run.ending.verdict is Verdict.RUNTIME_ERROR
        assert "CUDA error: unspecified launch failure" in run.ending.message

    def test_while_a_worker_uses_it_is_not_put_to_the_submission(self, toy_root, monkeypatch, capsys):
        """A fake: the worker fails, and then the judge finds that the device does not answer it either."""

        def gone(device):
            raise InfrastructureError(f"{device.name} no longer answers", "look at it")

        monkeypatch.setattr("harness.judge.evaluate.check_answers", gone)
        submit(toy_root, "unlucky", "def custom_kernel(data):\n    raise RuntimeError('CUDA error: unknown error')\n")
        assert main(["--root", str(toy_root), "eval", "double", "--quick"]) == 30
        assert "no longer answers" in capsys.readouterr().err and stored(toy_root) == []

    @pytest.mark.parametrize("answers", [False, True])
    def test_while_the_judge_uses_it_is_no_crash_and_a_fault_of_the_judge_s_is(
        self, toy_root, monkeypatch, capsys, answers
    ):
        """A fake: torch fails in the judge while it checks an answer. The device answers afterwards, or not."""

        def broken(*_, **__):
            raise torch.AcceleratorError("CUDA error: unknown error")

        def asked(device):
            if not answers:
                raise InfrastructureError(f"{device.name} no longer answers", "look at it")

        monkeypatch.setattr("harness.judge.calls.Caller._check", broken)
        monkeypatch.setattr("harness.machine.device.check_answers", asked)
        submit(toy_root, "honest", "def custom_kernel(data):\n    return data[0] * 2\n")
        if answers:
            with pytest.raises(torch.AcceleratorError):
                main(["--root", str(toy_root), "eval", "double", "--quick"])
        else:
            assert main(["--root", str(toy_root), "eval", "double", "--quick"]) == 30
            assert "no longer answers" in capsys.readouterr().err and stored(toy_root) == []

    def test_is_noticed_when_it_is_asked(self, monkeypatch):
        def gone(*_, **__):
            raise torch.AcceleratorError("CUDA error: unknown error\nCompile with TORCH_USE_CUDA_DSA")

        check_answers(DEVICE.model_copy(update={"kind": "cpu"}))
        monkeypatch.setattr(torch, "ones", gone)
        with pytest.raises(InfrastructureError, match=r"Test 1000 no longer answers: CUDA error: unknown error\n  see"):
            check_answers(DEVICE)

    @pytest.mark.parametrize(
        ("error", "due"),
        [
            (torch.AcceleratorError("CUDA error: no CUDA-capable device is detected"), InfrastructureError),
            (RuntimeError("HIP error: the operation cannot be performed"), InfrastructureError),
            (torch.OutOfMemoryError("CUDA out of memory"), InfrastructureError),
            (RuntimeError("shapes cannot be multiplied"), ProblemError),
        ],
    )
    def test_under_the_judge_is_the_machine_s_fault_not_the_problem_s(self, toy_root, error, due):
        """A fake: the problem's own code meets the error that torch raises for a device that is gone."""
        problem = catalog.load_problem(toy_root, "double")
        reference = Reference(problem, detect(toy_root, "cpu"))

        def generate_input(**_):
            raise error

        reference._module.generate_input = generate_input
        with pytest.raises(due) as caught:
            reference.generate(problem.cpu.test[0], 1)
        assert str(error) in caught.value.message
        if due is InfrastructureError:
            assert caught.value.exit_code == 30 and caught.value.hint


class TestWhatIsShown:
    def test_an_infinite_error_is_still_json(self, toy_root, capsys):
        put(toy_root, make_run(error=float("inf"), verdict=Verdict.WRONG_ANSWER, score=None))
        assert main(["--root", str(toy_root), "leaderboard", "double", "--json"]) == 0

        def refuse(constant):
            raise AssertionError(f"{constant} is no JSON")

        (board,) = json.loads(capsys.readouterr().out, parse_constant=refuse)["boards"]
        assert board["unranked"][0]["error"] == "Infinity"

    def test_a_message_cannot_command_the_terminal_that_shows_it(self):
        message = "\x1b[31mred\x1b[0m \x1b[2J\x1b]0;title\x07 \u202eevil\r\nover\rwritten\ttab\n\x9b1A"
        shown = Ending(verdict=Verdict.RUNTIME_ERROR, message=message).message
        assert "red " in shown and "\ttab\n" in shown
        assert not set(shown) & {"\x1b", "\x07", "\r", "\u202e", "\x9b"}

    def test_scores_that_no_clock_gives_have_an_interval_all_the_same(self):
        from harness.ranking.stats import estimate
        from harness.render.figures import microseconds

        wide = estimate([1e-300, 1e14], 0.95)
        assert Estimate.model_validate_json(wide.model_dump_json()) == wide and microseconds(wide)
