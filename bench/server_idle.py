"""Measures the effect of idle streams on a server: many sockets request its events and then say nothing, while people
submit.

    python bench/server_idle.py [--idle 10000] [--submissions 200] [--clients 4]

The sockets come from many addresses of the loopback, 100 each, so that more than one address's limit is met. Prints the
number of held and refused streams with the refusals' words, the server's memory before, with and after them, and the
time to accept a submission meanwhile. Fails if a submission was not accepted or has no verdict.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import resource
import statistics
import sys
import tempfile
import threading
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
if __name__ == "__main__":
    sys.path[0] = str(ROOT)

from bench.server_load import Load, ServerProcess, prepare  # noqa: E402

OF_AN_ADDRESS = 100
AT_ONCE = 200
ANSWER_S = 60.0


def main() -> None:
    """Print what was found."""
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--idle", type=int, default=10_000)
    words.add_argument("--submissions", type=int, default=200)
    words.add_argument("--clients", type=int, default=4)
    given = words.parse_args()
    _allow_files(given.idle + 500)
    print(f"load before: {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors")
    with tempfile.TemporaryDirectory(prefix="podium-idle-") as folder:
        root = Path(folder)
        prepare(root)
        server = ServerProcess(root)
        try:
            asyncio.run(_measure(root, server, given.idle, given.submissions, given.clients))
        finally:
            server.end()


def _allow_files(wanted: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < wanted:
        raise SystemExit(f"{wanted:,} files may not be open at once here: ulimit -Hn says {hard:,}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))


async def _measure(root: Path, server: ServerProcess, idle: int, submissions: int, clients: int) -> None:
    before = await asyncio.to_thread(_load, root, server, submissions, clients)
    print(f"without them: {_words(before)}; the server has {server.memory_mb:.0f} MB")
    slots = asyncio.Semaphore(AT_ONCE)
    opened = await asyncio.gather(*(_stream(server.port, number, slots) for number in range(idle)))
    held = [writer for said, writer in opened if said == HELD]
    counted = Counter(said for said, _ in opened)
    for said, count in counted.most_common():
        print(f"  {count:6,} of {idle:,}: {said}")
    print(f"with them the server has {server.memory_mb:.0f} MB and {server.files:,} open files")
    during = await asyncio.to_thread(_load, root, server, submissions, clients)
    print(f"with {len(held)} held: {_words(during)}")
    for _, writer in opened:
        if writer is not None:
            writer.close()
    await asyncio.sleep(2.0)
    print(f"after them the server has {server.memory_mb:.0f} MB and {server.files:,} open files")


HELD = "the stream is open"


async def _stream(port: int, number: int, slots: asyncio.Semaphore) -> tuple[str, asyncio.StreamWriter | None]:
    """What one that asks for the events is told. Its socket stays open as long as the server wants."""
    address = f"127.0.{1 + number // OF_AN_ADDRESS // 250}.{1 + number // OF_AN_ADDRESS % 250}"
    async with slots:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(address, 0))
            writer.write(b"GET /live HTTP/1.1\r\nHost: x\r\n\r\n")
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), ANSWER_S)
            status = int(head.split()[1])
            if status == 200:
                return HELD, writer
            said = (await asyncio.wait_for(reader.read(4096), ANSWER_S)).decode().strip()
        except (OSError, asyncio.IncompleteReadError, TimeoutError) as error:
            return f"cut without an answer ({type(error).__name__})", None
    with contextlib.suppress(ValueError, KeyError, TypeError):
        said = json.loads(said)["detail"]
    return f"{status} {said}", writer


def _load(root: Path, server: ServerProcess, submissions: int, clients: int) -> list[float]:
    """How long accepting each took, in seconds."""
    load = Load(root, server.url, clients, "leaderboard")
    threads = load.begin(submissions)
    for thread in threads:
        thread.join()
    load.await_verdicts()
    assert not load.found.refused, load.found.refused[:3]
    assert threading.active_count() < 100
    return load.found.accept_s


def _words(accept_s: list[float]) -> str:
    at = statistics.quantiles(accept_s, n=100)
    return f"{len(accept_s)} submissions accepted, p50 {at[49] * 1e3:.0f} ms, p99 {at[98] * 1e3:.0f} ms"


if __name__ == "__main__":
    main()
