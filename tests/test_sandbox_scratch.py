"""The directory of an evaluation: who may do what in it, and that none stays behind."""

import fcntl
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from harness.sandbox.scratch import scratch
from harness.temporary import remove, remove_abandoned, temporary_folder

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(autouse=True)
def temporary_directory(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


def abandoned(root: Path) -> Path:
    """What a judge that is killed leaves behind."""
    program = """
import os, signal
from harness.sandbox.scratch import scratch
with scratch(b"x") as folder:
    (folder / "work" / "cache").mkdir()
    print(folder, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""
    found = subprocess.run([sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    folder = Path(found.stdout.strip())
    assert folder.parent == root and folder.is_dir()
    return folder


def test_the_submission_cannot_be_written_to_and_all_is_gone_afterwards():
    with scratch(b"source") as folder:
        assert (folder / "submission.py").read_bytes() == b"source"
        assert (folder / "submission.py").stat().st_mode & 0o777 == 0o444
        assert (folder / "work").stat().st_mode & 0o777 == 0o700
    assert not folder.exists()


def test_the_worker_owns_its_directory_alone():
    if os.geteuid() != 0:
        pytest.skip("only root can give a directory away")
    with scratch(b"", uid=60600) as folder:
        assert (folder / "work").stat().st_uid == (folder / "shm").stat().st_uid == 60600
        assert folder.stat().st_uid == (folder / "submission.py").stat().st_uid == 0


def test_what_a_killed_judge_left_is_removed_by_the_next(temporary_directory):
    folder = abandoned(temporary_directory)
    with scratch(b"") as mine:
        assert not folder.exists() and mine.exists()


def test_the_directory_of_a_judge_that_lives_is_left_alone():
    with scratch(b"") as folder:
        subprocess.run(
            [sys.executable, "-c", "from harness.temporary import remove_abandoned as r; r()"],
            cwd=ROOT,
            check=True,
        )
        remove_abandoned()
        assert (folder / "submission.py").exists()


def test_a_directory_that_another_judge_finds_before_it_is_locked_is_made_anew(temporary_directory, monkeypatch):
    locks = []

    def flock_late(lock, how, flock=fcntl.flock):
        locks.append(lock)
        if len(locks) == 1:
            remove_abandoned()  # as another judge does that starts at this moment
        flock(lock, how)

    monkeypatch.setattr(fcntl, "flock", flock_late)
    with scratch(b"source") as folder:
        assert len(locks) > 2 and (folder / "submission.py").read_bytes() == b"source"
        assert [path for path in temporary_directory.iterdir() if path.is_dir()] == [folder]
    assert not folder.exists()


def test_only_what_has_a_lock_of_ours_is_removed(temporary_directory):
    foreign = temporary_directory / "podium-notes"
    foreign.mkdir()
    (foreign / "notes.txt").write_text("mine")
    (temporary_directory / "podium-cpu.lock").write_text("")
    (temporary_directory / "podium-link").symlink_to(foreign)
    target = abandoned(temporary_directory)
    (temporary_directory / "podium-alias").symlink_to(target)
    remove_abandoned()
    assert (foreign / "notes.txt").exists() and (temporary_directory / "podium-cpu.lock").exists()
    assert (temporary_directory / "podium-alias").is_symlink() and not target.exists()


def test_a_link_in_it_is_removed_and_not_followed(temporary_directory):
    kept = temporary_directory / "kept"
    kept.mkdir()
    (kept / "file").write_text("")
    with scratch(b"") as folder:
        (folder / "work" / "link").symlink_to(kept)
    assert not folder.exists() and (kept / "file").exists()


def test_directories_that_the_worker_closed_are_removed_all_the_same(temporary_directory):
    folder = temporary_directory / "folder"
    (folder / "a" / "b").mkdir(parents=True)
    (folder / "a" / "b" / "file").write_text("")
    (folder / "a" / "b").chmod(0)
    (folder / "a").chmod(0)
    remove(folder)
    assert not folder.exists()


def interrupted_at(number: int) -> bool:
    """Whether making a directory comes to so many lines of harness.temporary. At the last of them Ctrl-C comes."""
    seen, made = 0, temporary_folder()

    def line(frame, event, argument):
        nonlocal seen
        if not frame.f_code.co_filename.endswith("harness/temporary.py") or frame.f_code is remove.__code__:
            return None
        seen += event == "line"
        if event == "line" and seen == number:
            sys.settrace(None)
            raise KeyboardInterrupt
        return line

    sys.settrace(line)
    try:
        made.__enter__()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(None)
    made.__exit__(None, None, None)
    return False


def test_ctrl_c_while_a_directory_is_made_leaves_none(temporary_directory):
    lines = 0
    while interrupted_at(lines + 1):
        lines += 1
        assert not list(temporary_directory.glob("podium-*"))
    assert lines > 10
