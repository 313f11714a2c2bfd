"""Backup and restore, by the very lines that docs/server-limits.md gives."""

import re
import shutil
import subprocess
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest

pytest.importorskip("fastapi")

from served import Server, saying

DOCUMENTED = (Path(__file__).resolve().parents[1] / "docs/server-limits.md").read_text()
NAMED = "results/server/podium.sqlite"

pytestmark = [
    pytest.mark.slow(ci=True),
    pytest.mark.skipif(not shutil.which("sqlite3"), reason="sqlite3 is not installed (Debian: apt install sqlite3)"),
]


def lines(part):
    """The lines to type of the block that holds this."""
    (block,) = [block for block in re.findall(r"```\n(\$.*?)\n```", DOCUMENTED, re.DOTALL) if part in block]
    return [line.removeprefix("$ ") for line in block.splitlines()]


def type_in(root, part):
    subprocess.run(["bash", "-ec", "\n".join(lines(part))], cwd=root, check=True, timeout=60)


def served(root, judging=True):
    (root / NAMED).parent.mkdir(parents=True, exist_ok=True)
    return Server(root, database=str(root / NAMED), judging=judging)


@contextmanager
def stored_into(root):
    """Files come and go in `results` all the while, as those of the judge and of the index of runs do."""
    over = threading.Event()

    def store():
        while not over.wait(0.001):
            for folder in ("results", "results/local"):
                path = root / folder / ".index.sqlite-journal"
                path.touch()
                path.unlink()

    writer = threading.Thread(target=store)
    writer.start()
    try:
        yield
    finally:
        over.set()
        writer.join()


@pytest.fixture
def backed_up(toy_root):
    """A competition's first hour: one submission has its verdict, one waits, and then the backup is made."""
    server = served(toy_root)
    client = server.person("ada")
    done = server.judged(client, saying(score_ns=1000))
    server.judge.free.clear()
    waiting = server.sent(client, saying(score_ns=2000), name="second.py")
    with stored_into(toy_root):
        type_in(toy_root, ".backup")
    server.judge.free.set()
    server.over(client, waiting)
    later = server.judged(client, saying(score_ns=3000), name="third.py")
    yield server, client, done, waiting, later["id"]
    server.close()


def test_a_backup_is_its_owners_alone(backed_up, toy_root):
    for name in ("backup.sqlite", "runs.tgz"):
        assert (toy_root / name).stat().st_mode & 0o077 == 0


def test_after_a_restore_every_submission_of_the_backup_has_its_verdict_and_none_is_lost(backed_up, toy_root, tmp_path):
    server, client, done, waiting, later = backed_up
    left = [path for path in (toy_root / "results/server").iterdir() if path.name != "podium.sqlite.lock"]
    killed = tmp_path / "killed"
    killed.mkdir()
    for path in left:  # what kill -9 leaves: the database with the rest of it that was not yet written into its file
        shutil.copy2(path, killed)
    server.close()
    shutil.rmtree(toy_root / "results")
    (toy_root / "results/server").mkdir(parents=True)
    for path in killed.iterdir():
        shutil.copy2(path, toy_root / "results/server")
    assert (toy_root / f"{NAMED}-wal").stat().st_size
    type_in(toy_root, "install")
    restored = served(toy_root)
    try:
        assert restored.over(client, done["id"])["runs"] == done["runs"]
        assert restored.over(client, waiting)["runs"]
        assert restored.ask("GET", f"/user/submissions/{later}", client)[0] == 404
        assert len(list(toy_root.glob("results/local/double/*/*.json"))) == 2
        assert (toy_root / NAMED).stat().st_mode & 0o077 == 0
    finally:
        restored.close()
