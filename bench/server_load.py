"""Tests the server under load: many submissions at once, and kills, with a stand-in for the judge.

    python bench/server_load.py [--submissions 1000] [--clients 50]     each client sends one after another
    python bench/server_load.py --kills 20 --clients 4                  kill -9 at random moments, and restarts
    python bench/server_load.py --real --submissions 20 --clients 4     through the real judge, mode test
    python bench/server_load.py --database postgresql://                with a PostgreSQL of its own

Prints the time to accept (p50, p99, most), the verdicts per second, and the load before. Fails if an accepted
submission has no verdict, if one was judged twice (unless the server was killed), if a run is stored twice, or if one
person's submissions were judged in another order than they were sent.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
if __name__ == "__main__":
    sys.path[0] = str(ROOT)

from bench.stand_in import LOG  # noqa: E402
from harness.server.store import Database  # noqa: E402
from harness.server.store.rows import JobState  # noqa: E402

SOURCE = "def custom_kernel(data):\n    k, v, k_out, v_out, config = data\n    return k, v  # {number} of {person}\n"
PATIENCE_S = 600.0
STAND_IN = "bench.stand_in"


@dataclass
class Found:
    """What came of a load: seconds of accepting each, what was accepted by whom, seconds until all was judged, and
    for how many the server itself (since its last start, without the judge) had a processor."""

    accept_s: list[float] = field(default_factory=list)
    accepted: dict[int, str] = field(default_factory=dict)
    refused: list[str] = field(default_factory=list)
    accepting_s: float = 0.0
    whole_s: float = 0.0
    kills: int = 0
    processor_s: float = 0.0


class ServerProcess:
    """A server in a process of its own, which can be killed and started anew at the same address. `module` serves where
    the judge is not real."""

    def __init__(
        self,
        root: Path,
        delay_s: float = 0.02,
        real: bool = False,
        database: str | None = None,
        module: str = STAND_IN,
    ) -> None:
        self._root, self._real, self._module = root, real, module
        self._words = ["--database", database] if database is not None else []
        if not real and module == STAND_IN:
            self._words += ["--delay", str(delay_s)]
        self.port = 0
        self._start()

    def _start(self) -> None:
        log = (self._root / "server.log").open("ab")
        if self._real:
            command = [sys.executable, "-m", "harness", "--root", str(self._root), "serve", "--device", "cpu"]
            command += ["--port", str(self.port)]
        else:
            command = [sys.executable, "-m", self._module, "serve", str(self._root), "--port", str(self.port)]
        command += self._words
        begun = log.tell()
        self.process = subprocess.Popen(command, cwd=ROOT, stderr=log, stdout=subprocess.DEVNULL)
        log.close()
        until = time.monotonic() + 120
        while True:
            said = (self._root / "server.log").read_bytes()[begun:].decode()
            if (found := re.search(r"http://127\.0\.0\.1:(\d+)/ serves", said)) is not None:
                self.port = int(found[1])
                return
            if self.process.poll() is not None or time.monotonic() > until:
                raise SystemExit(f"the server does not start: {said}")
            time.sleep(0.02)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def processor_s(self) -> float:
        """For how many seconds this process had a processor."""
        ticks = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()[11:13]
        return sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")

    @property
    def memory_mb(self) -> float:
        """What it holds in memory, in 10^6 bytes."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 1e6

    @property
    def files(self) -> int:
        """How many files it has open."""
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def kill(self) -> None:
        """kill -9, and start it anew."""
        self.process.kill()
        self.process.wait()
        self._start()

    def end(self) -> None:
        """As Ctrl-C does."""
        self.process.terminate()
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def prepare(root: Path) -> None:
    """A root with the problem kv_replicate, the configuration and one competition without limits that matter."""
    for name in ("configs", "problems", "reference", "submissions"):
        shutil.copytree(ROOT / name, root / name)
    (root / "results").mkdir()
    shutil.rmtree(root / "configs" / "competitions", ignore_errors=True)
    (root / "configs" / "competitions").mkdir()
    limits = "limits: {per_hour: 100000, waiting: 100000}"
    (root / "configs" / "competitions" / "load.yml").write_text(f"title: Load\nproblem: kv_replicate\n{limits}\n")


def send(url: str, client: str, source: str, mode: str) -> int:
    """The number of an accepted submission. Raises OSError, urllib.error.HTTPError."""
    edge = "0123456789abcdef"
    body = (
        f'--{edge}\r\nContent-Disposition: form-data; name="file"; filename="mine.py"\r\n\r\n{source}\r\n--{edge}--\r\n'
    )
    headers = {"X-Popcorn-Cli-Id": client, "Content-Type": f"multipart/form-data; boundary={edge}"}
    request = urllib.request.Request(f"{url}/submission/load/CPU/{mode}", body.encode(), headers, method="POST")
    with urllib.request.urlopen(request, timeout=60) as answer:
        return int(json.loads(answer.read())["details"]["id"])


class Load:
    """`clients` people who each send one submission after another to `url`; `found` is what came of it."""

    def __init__(self, root: Path, url: str, clients: int, mode: str, database: str | None = None) -> None:
        self.database = Database(database or str(root / "results" / "server" / "podium.sqlite"))
        self.people = {f"person{number}": self.database.people.add(f"person{number}") for number in range(clients)}
        self.url, self._mode = url, mode
        self.found, self._telling, self.stopped = Found(), threading.Lock(), threading.Event()

    def begin(self, submissions: int) -> list[threading.Thread]:
        """Send so many in all, in a thread a person."""
        left = iter(range(submissions))
        threads = [threading.Thread(target=self._send_all, args=(person, left)) for person in self.people]
        for thread in threads:
            thread.start()
        return threads

    def _send_all(self, person: str, left: Iterator[int]) -> None:
        number, found = None, self.found
        while not self.stopped.is_set():
            with self._telling:
                number = next(left, None) if number is None else number
            if number is None:
                return
            begun = time.monotonic()
            source = SOURCE.format(number=number, person=person)
            try:
                accepted = send(self.url, self.people[person], source, self._mode)
            except urllib.error.HTTPError as error:
                with self._telling:
                    found.refused.append(f"{error.code}: {error.read()[:200]!r}")
            except (OSError, http.client.HTTPException):  # it was killed: sent again, and if need be judged twice
                time.sleep(0.05)
                continue
            else:
                with self._telling:
                    found.accept_s.append(time.monotonic() - begun)
                    found.accepted[accepted] = person
            number = None

    def await_verdicts(self) -> None:
        """Raises AssertionError after PATIENCE_S."""
        until = time.monotonic() + PATIENCE_S
        while self.database.queue.totals().keys() & {"pending", "running"}:
            assert time.monotonic() < until, f"no verdict after {PATIENCE_S:g} s: {self.database.queue.totals()}"
            time.sleep(0.1)


def load(
    root: Path,
    submissions: int,
    clients: int,
    kills: int = 0,
    seed: int = 0,
    real: bool = False,
    delay_s: float = 0.02,
    database: str | None = None,
) -> Found:
    """Send `submissions` by `clients` at once while the server is killed `kills` times; wait for every verdict.

    root: as `prepare` makes it. Raises AssertionError where something was lost, doubled or out of order.
    """
    server = ServerProcess(root, delay_s, real, database)
    sending = Load(root, server.url, clients, "test" if real else "leaderboard", database)
    found = sending.found
    begun = time.monotonic()
    try:
        threads = sending.begin(submissions)
        moments = random.Random(seed)
        for _ in range(kills):
            time.sleep(moments.uniform(0.02, 1.0))
            server.kill()
            found.kills += 1
        for thread in threads:
            thread.join()
        found.accepting_s = time.monotonic() - begun
        sending.await_verdicts()
        found.whole_s = time.monotonic() - begun
        found.processor_s = server.processor_s
    finally:
        sending.stopped.set()
        server.end()
    check(root, sending.database, found, real)
    sending.database.close()
    return found


def check(root: Path, database: Database, found: Found, real: bool = False, ordered: bool = True) -> None:
    """Nothing lost, nothing judged or stored twice, everyone's order kept (if `ordered`: several cards keep none)."""
    for number in found.accepted:
        row = database.queue.submission(number)
        assert row is not None, f"submission {number} was accepted and is not there"
        assert row.state in (JobState.SUCCEEDED, JobState.FAILED), f"submission {number} is {row.state}"
        runs = database.queue.runs(number)
        assert len(runs) == 1, f"submission {number} has {len(runs)} runs"
    stored = [path.stem for path in (root / "results").glob("*/*/*/*.json")]
    with database.connections.reading() as rows:
        known = [run for (run,) in rows("SELECT id FROM runs")]
        finished = rows("SELECT s.user_id, j.ended_at, s.id FROM submissions s JOIN jobs j ON j.submission_id = s.id")
    assert sorted(stored) == sorted(known), "the runs in results/ are not those of the database"
    for user in {user for user, _, _ in finished} if ordered else ():
        ends = [(at, number) for owner, at, number in finished if owner == user]
        assert [number for _, number in sorted(ends)] == sorted(number for _, number in ends), f"order of user {user}"
    if not found.kills and not real:
        judged = (root / LOG).read_text().splitlines()
        assert len(judged) == len(set(judged)) == len(known), "something was judged twice"
    assert not found.refused, found.refused[:3]


@contextlib.contextmanager
def _database(url: str | None) -> Iterator[str | None]:
    if url != "postgresql://":
        yield url
        return
    from tests.databases import Postgres

    own = Postgres(fsync="on")
    try:
        yield own.url
    finally:
        own.close()


def main() -> None:
    """Print what was measured."""
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--submissions", type=int, default=1000)
    words.add_argument("--clients", type=int, default=50)
    words.add_argument("--kills", type=int, default=0)
    words.add_argument("--seed", type=int, default=random.randrange(10**6))
    words.add_argument("--real", action="store_true", help="the real judge, in mode test")
    words.add_argument("--database", help="a URL; postgresql:// alone starts a PostgreSQL for this")
    given = words.parse_args()
    print(f"load before: {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors; seed {given.seed}")
    with tempfile.TemporaryDirectory(prefix="podium-load-") as folder:
        root = Path(folder)
        prepare(root)
        with _database(given.database) as database:
            found = load(root, given.submissions, given.clients, given.kills, given.seed, given.real, database=database)
    at = statistics.quantiles(found.accept_s, n=100)
    print(f"accepted {len(found.accepted)} of {given.submissions} sent by {given.clients} clients; {found.kills} kills")
    print(f"accepting: p50 {at[49] * 1e3:.0f} ms, p99 {at[98] * 1e3:.0f} ms, most {max(found.accept_s) * 1e3:.0f} ms")
    rate = len(found.accepted) / found.accepting_s
    print(f"accepted {rate:.0f} a second while all were sent; load now {os.getloadavg()[0]:.1f}")
    print(f"all judged after {found.whole_s:.1f} s: {len(found.accepted) / found.whole_s:.1f} verdicts a second")
    print(f"the server had a processor for {found.processor_s / len(found.accepted) * 1e3:.1f} ms a submission")
    print("none lost, none judged twice, none stored twice, everyone's order kept" if not found.kills else
          "every accepted one has its verdict, and no run is stored twice")  # fmt: skip


if __name__ == "__main__":
    main()
