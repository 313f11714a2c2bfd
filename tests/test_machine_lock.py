"""The lock of a card: one for each, at one place for all users, and nobody waits for himself."""

import contextlib
import json
import os
import re
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from test_judging import HONEST, judge

from harness import catalog
from harness.cli import main
from harness.errors import InfrastructureError
from harness.judge import evaluate as judging
from harness.judge.reply import Fault
from harness.machine import device, lock, lock_note
from harness.machine.lock import hold, hold_if_gpu
from harness.model import Device, Verdict
from harness.verbs import eval as evaluation
from harness.verbs import verify as verification

ROOT = Path(__file__).resolve().parents[1]
PROGRAM = """
import os, sys
from pathlib import Path
folder, card, uid, limit = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
from harness.machine import device, lock
from harness.model import Device
lock.FOLDERS = (Path(folder),)
device.card = lambda _: card
here = Device(kind="cpu", name="Card", slug="card", arch="x", torch_device="cpu", memory_bytes=1, flush_bytes=1)
if uid:
    os.setuid(uid)
with lock.hold(here, lambda line: print(line, flush=True), limit or None):
    print("held", flush=True)
    sys.stdin.read()
"""
NOBODY = 65534


@pytest.fixture
def folder(monkeypatch):
    """A place for locks that is open to all, as /tmp is; pytest's own directories are closed to other users."""
    with tempfile.TemporaryDirectory(prefix="locks_") as path:
        os.chmod(path, 0o1777)
        monkeypatch.setattr(lock, "FOLDERS", (Path(path),))
        yield Path(path)


@pytest.fixture
def others(folder):
    """Starts another process that takes a lock; all are ended when the test is."""
    with ExitStack() as stack:

        def start(card: str = "cpu", uid: int = 0, limit_s: float = 0, **environment: str) -> subprocess.Popen:
            words = [sys.executable, "-c", PROGRAM, str(folder), card, str(uid), str(limit_s)]
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
            process = subprocess.Popen(words, cwd=ROOT, text=True, env={**os.environ, **environment}, **pipes)
            stack.callback(process.communicate)
            stack.callback(process.kill)
            return process

        yield start


def gpu(number: int = 0) -> Device:
    return Device(
        kind="cuda", name="Card", slug="card", arch="x", torch_device=f"cuda:{number}", memory_bytes=1, flush_bytes=1
    )


CPU = device.detect(ROOT, "cpu")


def test_who_comes_second_waits_and_is_told_for_whom(folder, others):
    first = others()
    assert first.stdout.readline() == "held\n"
    second = others()
    said = second.stdout.readline()
    whose = rf" \(process {first.pid}, running for \d+ s\)" if sys.platform == "linux" else ""
    assert re.fullmatch(rf"another evaluation{whose} has Card: waiting for it to finish\n", said)
    first.kill()
    assert second.stdout.readline() == "held\n"


def test_who_has_something_else_to_look_at_may_give_up_the_wait_or_gets_the_lock(folder, others):
    first = others()
    assert first.stdout.readline() == "held\n"
    looks = []

    def look():
        looks.append("looked")
        if len(looks) == 2:
            raise KeyError("something else")

    with pytest.raises(KeyError), hold(CPU, waiting=look):
        pytest.fail("it was another's")
    with hold(CPU, waiting=first.kill):
        assert first.wait() and others().stdout.readline().startswith("another evaluation")


SECONDS_LEFT = r"[3-7]\d s"  # of 70: the other process takes a while to begin
needs_proc = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells who holds a lock")


@needs_proc
@pytest.mark.parametrize(("limit_s", "more"), [(1620, r"27 min"), (70, SECONDS_LEFT)])
def test_who_waits_is_told_for_how_long_at_most(folder, others, limit_s, more):
    assert others(limit_s=limit_s).stdout.readline() == "held\n"
    said = others().stdout.readline()
    assert re.search(rf"has Card: waiting for it to finish, at most about {more} more\n", said), said


@needs_proc
def test_who_waits_is_told_how_long_it_is_likely_to_be_where_the_holder_can_tell(folder, others):
    with hold(CPU, limit_s=1620) as expect, hold(CPU, limit_s=5) as unheard:
        expect(70)
        unheard(3)
        said = others().stdout.readline()
    assert re.search(rf"has Card: waiting for it to finish, about {SECONDS_LEFT} more, at most about 27 min\n", said), (
        said
    )


@needs_proc
def test_an_evaluation_says_after_its_first_process_how_long_it_is_likely_to_hold_the_device(toy_root, roomy):
    told = []
    judge(toy_root, HONEST, exclusive=lambda: contextlib.nullcontext(told.append))
    assert told and all(seconds > 0 for seconds in told)


@pytest.fixture
def notes(monkeypatch):
    """What is written on notes of how long a lock is likely to be held."""
    told: list[float] = []
    monkeypatch.setattr(lock_note, "left_beside", lambda path, limit_s: contextlib.nullcontext(told.append))
    return told


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    """The lock of the processors is held all along, as that of a GPU is."""
    monkeypatch.setattr(lock, "hold_if_gpu", hold)
    monkeypatch.setattr(device, "card", lambda here: "card")


@pytest.fixture
def evaluated(toy_root, roomy):
    """Judges and stores as many files; their runs."""

    def evaluated(count, device=CPU):
        problem, folder = catalog.load_problem(toy_root, "double"), toy_root / "submissions" / "double"
        for number in range(count):
            (folder / f"file{number}.py").write_text(f"{HONEST}# {number}\n")
        files = [catalog.load_submission(problem, folder / f"file{number}.py") for number in range(count)]
        return evaluation.judge(toy_root, problem, files, device, False, lambda line: None)

    return evaluated


def test_on_processors_an_evaluation_tells_who_waits_how_long_its_own_timing_takes(folder, notes, evaluated):
    (run,) = evaluated(1)
    assert notes and all(0 < seconds < run.duration_s for seconds in notes)


@pytest.mark.slow
def test_on_a_gpu_the_note_is_of_all_files_once_it_is_known_how_long_one_takes(folder, notes, evaluated, as_on_a_gpu):
    first, _, _ = evaluated(3)
    assert notes[0] == pytest.approx(2 * first.duration_s)  # of the first file nothing is known of the others
    timed = notes[1]
    assert timed > first.duration_s  # the second's own processes, and the third


def test_what_stored_runs_took_is_told_as_soon_as_a_gpu_is_taken(folder, notes, evaluated, as_on_a_gpu, monkeypatch):
    (first,) = evaluated(1)
    notes.clear()
    gpu_like = CPU.model_copy(update={"kind": "gpu of a test"})
    monkeypatch.setattr(evaluation, "judge_one", lambda *_, **__: first)
    monkeypatch.setattr(evaluation, "isolation_tier", lambda *_: "process")
    evaluated(1, gpu_like)
    assert notes == [pytest.approx(first.duration_s)]


def test_what_times_within_a_lock_that_is_held_already_tells_that_one(folder, notes):
    outer: list[float] = []
    with hold(CPU, limit_s=600), lock.hold_to_time(outer.append, CPU, limit_s=60) as expect:
        expect(40)
    assert (outer, notes) == ([40], [])
    with lock.hold_to_time(lambda seconds: None, CPU, limit_s=60) as expect:
        expect(30)
    assert notes == [30]


@needs_proc
def test_who_comes_when_the_time_is_up_is_told_no_time(folder, others):
    assert others(limit_s=0.001).stdout.readline() == "held\n"
    assert others().stdout.readline().endswith("waiting for it to finish\n")


@needs_proc
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
@pytest.mark.parametrize(("first", "second"), [(0, NOBODY), (NOBODY, 0), (NOBODY, NOBODY - 1)])
def test_another_user_is_told_for_how_long_as_well(folder, others, first, second):
    assert others(uid=first, limit_s=600).stdout.readline() == "held\n"
    assert "at most about 10 min more" in others(uid=second).stdout.readline()


def test_the_note_is_gone_when_the_lock_is_given_back(folder):
    with hold(CPU, limit_s=600):
        assert len(list(folder.iterdir())) == (2 if sys.platform == "linux" else 1)
    assert [path.name for path in folder.iterdir()] == ["podium-cpu.lock"]


@needs_proc
class TestNote:
    """`said` is what the waiter makes of a note of this process."""

    @pytest.fixture
    def said(self, folder):
        path = folder / "podium-cpu.lock"

        def said(text: str | bytes) -> float | None:
            note = folder / f"podium-cpu.lock.{os.geteuid()}"
            note.write_bytes(text if isinstance(text, bytes) else text.encode())
            return lock_note.left_s(path, os.getpid())

        return said

    def note(self, **changes) -> str:
        whole = {"pid": os.getpid(), "start": lock_note.started(os.getpid()), "until_s": time.monotonic() + 600}
        return json.dumps({key: value for key, value in (whole | changes).items() if value is not None})

    def test_that_is_whole_says_how_long(self, said):
        assert 590 < said(self.note()) <= 600 and lock_note.words(600) == "at most about 10 min more"

    @pytest.mark.parametrize(
        "changes",
        [
            {"start": 1},
            {"pid": 1},
            {"until_s": None},
            {"start": None},
            {"until_s": "soon"},
            {"until_s": [1]},
            {"until_s": float("nan")},
            {"until_s": float("inf")},
            {"until_s": 1e300},
            {"until_s": -1e300},
            {"until_s": 0},
            {"until_s": 10**400},
        ],
    )
    def test_of_another_process_an_older_version_or_another_clock_says_nothing(self, said, changes):
        assert said(self.note(**changes)) is None

    @pytest.mark.parametrize(
        "text", ["", "4012 eval mla", "[]", "null", "7", '"x"', "[" * 900, b"\xff\x00{", b" " * 5000 + b"{}"]
    )
    def test_that_is_garbage_says_nothing(self, said, text):
        assert said(text) is None

    @pytest.mark.parametrize("kind", ["link", "pipe", "directory"])
    def test_that_is_no_ordinary_file_is_neither_followed_nor_waited_for(self, folder, tmp_path, kind):
        note, target = folder / f"podium-cpu.lock.{os.geteuid()}", tmp_path / "precious"
        target.write_text(self.note())
        {"link": lambda: note.symlink_to(target), "pipe": lambda: os.mkfifo(note), "directory": note.mkdir}[kind]()
        assert lock_note.left_s(folder / "podium-cpu.lock", os.getpid()) is None
        before = target.read_text()
        with hold(CPU, limit_s=600):
            pass
        assert target.read_text() == before

    def test_does_not_depend_on_the_clock_that_can_be_set(self, said, monkeypatch):
        text = self.note()
        monkeypatch.setattr(time, "time", lambda: 0.0)
        assert 590 < said(text) <= 600

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
    def test_of_another_user_says_nothing(self, folder, said):
        said(self.note())
        os.chown(folder / "podium-cpu.lock.0", NOBODY, NOBODY)
        assert lock_note.left_s(folder / "podium-cpu.lock", os.getpid()) is None


def test_the_place_does_not_depend_on_the_directory_for_temporary_files(folder, others, tmp_path):
    first = others(TMPDIR=str(tmp_path))
    assert first.stdout.readline() == "held\n"
    assert "waiting for it to finish" in others(TMPDIR="/var/tmp").stdout.readline()
    assert [path.name for path in folder.iterdir()] == ["podium-cpu.lock"]


@pytest.mark.slow(ci=True)
def test_eight_cards_of_one_model_are_used_at_once(folder, others):
    cards = [others(f"GPU-{number}") for number in range(8)]
    assert [card.stdout.readline() for card in cards] == ["held\n"] * 8


def test_a_thread_that_has_the_lock_goes_on_and_gives_it_back_at_the_end(folder, others):
    told = []
    with hold(CPU, told.append):
        with hold(CPU, told.append):
            pass
        second = others()
        assert "waiting for it to finish" in second.stdout.readline()
    assert second.stdout.readline() == "held\n" and not told


def test_another_thread_waits(folder):
    told, order = [], []

    def second() -> None:
        with hold(CPU, told.append):
            order.append("second")

    with hold(CPU):
        thread = threading.Thread(target=second)
        thread.start()
        thread.join(0.2)
        order.append("first")
    thread.join(10)
    assert order == ["first", "second"] and "of this process has" in told[0]


def test_who_waits_can_be_interrupted(folder, others):
    assert others().stdout.readline() == "held\n"
    second = others()
    assert "waiting" in second.stdout.readline()
    second.send_signal(signal.SIGINT)
    assert "KeyboardInterrupt" in second.stdout.read() and second.wait(10) != 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
@pytest.mark.parametrize(("first", "second"), [(0, NOBODY), (NOBODY, 0), (NOBODY, NOBODY - 1)])
def test_root_and_other_users_share_the_lock_whoever_made_the_file(folder, others, first, second):
    holder = others(uid=first)
    assert holder.stdout.readline() == "held\n"
    waiter = others(uid=second)
    assert f"(process {holder.pid}, running" in waiter.stdout.readline()
    holder.kill()
    assert waiter.stdout.readline() == "held\n"


def test_nobody_can_write_to_the_file_whatever_the_umask(folder):
    before = os.umask(0o077)
    try:
        with hold(CPU):
            (lock,) = folder.iterdir()
            assert stat.S_IMODE(lock.stat().st_mode) == 0o444
    finally:
        os.umask(before)


@pytest.mark.parametrize("kind", ["link", "link to nothing", "pipe", "directory"])
def test_what_others_put_in_the_place_of_the_file_is_neither_followed_nor_waited_for(folder, tmp_path, kind):
    path, target = folder / "podium-cpu.lock", tmp_path / "precious"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    else:
        path.symlink_to(target)
        if kind == "link":
            target.write_text("as it was")
    with pytest.raises(InfrastructureError, match=r"podium-cpu.lock cannot be taken: \w+"), hold(CPU):
        pass
    assert not target.exists() if kind != "link" else target.read_text() == "as it was"


def test_a_file_that_was_removed_while_one_waited_locks_nobody_out(folder, others):
    first = others()
    assert first.stdout.readline() == "held\n"
    second = others()
    assert "waiting" in second.stdout.readline()
    (folder / "podium-cpu.lock").unlink()
    first.kill()
    assert second.stdout.readline() == "held\n"
    assert f"(process {second.pid}, running" in others().stdout.readline()  # it locked the file that has the name now


def test_a_folder_that_only_some_may_write_to_is_nobodys(folder, monkeypatch, tmp_path):
    tmp_path.chmod(0o755)
    monkeypatch.setattr(lock, "FOLDERS", (tmp_path, folder))
    with hold(CPU):
        assert [path.parent for path in (*tmp_path.iterdir(), *folder.iterdir())] == [folder]
    monkeypatch.setattr(lock, "FOLDERS", (tmp_path,))
    with pytest.raises(InfrastructureError, match="needs a folder in which every user can make files"), hold(CPU):
        pass


@pytest.mark.parametrize(
    ("told", "card"),
    [
        ({"uuid": "6d7bc2ee-05a0", "pci_domain_id": 0, "pci_bus_id": 15, "pci_device_id": 0}, "GPU-6d7bc2ee-05a0"),
        ({"uuid": "0000-0000", "pci_domain_id": 0, "pci_bus_id": 15, "pci_device_id": 0}, "PCI-0000:0f:00.0"),
        ({"pci_domain_id": 1, "pci_bus_id": 15, "pci_device_id": 0}, "PCI-0001:0f:00.0"),
        ({}, "card-3"),
    ],
)
def test_a_card_is_told_by_the_surest_thing_that_is_known_of_it(monkeypatch, told, card):
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda name: SimpleNamespace(**told))
    assert device.card(gpu(3)) == card


def test_the_processors_are_one_card_however_many_this_process_may_use():
    assert device.card(CPU) == device.card(CPU.model_copy(update={"slug": "epyc-2-cpus"})) == "cpu"


class TestWhoTakesIt:
    """`held` is how often the lock was held when something was computed, `limits` for how long at most."""

    @pytest.fixture
    def limits(self):
        return []

    @pytest.fixture
    def held(self, monkeypatch, folder, limits):
        monkeypatch.setattr(device, "card", lambda here: here.kind)
        depth = [0]

        class Counting:
            def __enter__(self):
                depth[0] += 1

            def __exit__(self, *_):
                depth[0] -= 1

        def hold(here, narrate, limit_s=None, waiting=None):
            limits.append(limit_s)
            return Counting()

        monkeypatch.setattr(lock, "hold", hold)
        return depth

    @pytest.mark.parametrize(("here", "outside"), [(CPU, 0), (gpu(), 1)])
    def test_an_evaluation_has_a_gpu_all_along_and_processors_when_it_asks(
        self, toy_root, monkeypatch, held, limits, here, outside
    ):
        problem = catalog.load_problem(toy_root, "double")
        path = toy_root / "submissions" / "double" / "one.py"
        path.write_text("")
        seen = []

        def evaluate(*_, exclusive, **__):
            seen.append(held[0])
            with exclusive():
                seen.append(held[0])
            raise OSError("enough")

        monkeypatch.setattr(judging, "evaluate", evaluate)
        monkeypatch.setattr(evaluation, "isolation_tier", lambda *_: "process")
        with pytest.raises(InfrastructureError, match="enough"):
            evaluation.judge(
                toy_root, problem, [catalog.load_submission(problem, path)], here, False, lambda line: None
            )
        assert seen == [outside, outside + 1] and limits == [problem.limits.evaluation_s] * seen[1]

    @pytest.mark.parametrize(("here", "times"), [(CPU, 0), (gpu(), 1)])
    def test_a_verification_has_a_gpu_to_itself_and_leaves_processors_to_others(
        self, toy_root, monkeypatch, held, limits, here, times
    ):
        problem = catalog.load_problem(toy_root, "double")
        (problem.folder / "controls" / "accepted").mkdir(parents=True, exist_ok=True)
        (problem.folder / "controls" / "accepted" / "control.py").write_text("")
        seen = []

        def evaluate(*_, **__):
            seen.append(held[0])
            raise OSError("enough")

        monkeypatch.setattr(judging, "evaluate", evaluate)
        monkeypatch.setattr(verification, "_broken_promises", lambda *_: [str(held[0])])
        with pytest.raises(InfrastructureError, match="enough"):
            list(verification.verify(toy_root, problem, here, lambda line: None))
        assert set(seen) == {times} and verification.broken_promises(problem, here) == [str(times)]
        assert limits == [None] * 2 * times

    @pytest.mark.parametrize(("here", "times"), [(CPU, 0), (gpu(), 1)])
    def test_a_replay_has_a_gpu_to_itself(self, toy_root, monkeypatch, held, limits, here, times):
        file = toy_root / "mine.py"
        file.write_text("")
        case = catalog.load_problem(toy_root, "double").cases.test[0].label
        seen = []

        def replay(*_):
            seen.append(held[0])
            raise Fault(Verdict.TIMEOUT, "enough")

        monkeypatch.setattr(judging, "replay", replay)
        monkeypatch.setattr(device, "detect", lambda *_: here)
        verdict = main(["--root", str(toy_root), "replay", "double", str(file), case, "--seed", "1"])
        assert verdict == Verdict.TIMEOUT.exit_code and seen == [times] and limits == [1800.0] * times


def test_on_processors_only_what_is_timed_takes_the_lock(folder):
    with hold_if_gpu(CPU):
        assert not list(folder.iterdir())
