"""Runs many jobs on a cluster of two nodes on this machine and kills its parts at random. The judge answers at once
(bench/instant.py).

    python -m bench.cluster_kills [--jobs 200] [--every 8] [--kills 9] [--seed 1]   needs root, unshare and ip
    python -m bench.cluster_kills serve ROOT --port 0       the server; the first command starts it, in namespaces

All jobs are sent to a server, which judges them on the cluster. The second node joins after the first kill. Every few
seconds one process gets a signal. About six of eleven hit a worker with a job, which is killed. About one stops it, and
nothing continues it. About three kill a raylet, which is then restarted. About one kills the head, after which all of
Ray is restarted. The first four are one of each kind.

Prints what was hit, and last a line of JSON. Fails if an accepted submission has no verdict or not exactly one run, if
results/ and the database hold different runs, or if the server does not use the node that joined late.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from bench.server_load import PATIENCE_S, Load, ServerProcess, check, prepare
from harness.cluster import node
from harness.cluster.link import Link

HERE = Path(__file__).resolve().parents[1]
ALONE = ["unshare", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]
ADDRESS = "127.0.0.1:6397"
SOONER = {"RAY_gcs_rpc_server_reconnect_timeout_s": "5", "RAY_health_check_period_ms": "1000"}
"""Ray gives up after 5 s without its head, instead of 60, and after 5 s without a node, instead of 15."""

WAIT_S = 10.0
"""How long a kill waits for its process: a worker has a job for a small part of its life, which is mostly its start."""

WEIGHTS = {"worker": 6, "stop": 1, "raylet": 3, "head": 1}
FIRST = ["head", "stop", "worker", "raylet"]
CLIENTS = 4


def serve(root: Path, port: int) -> None:
    """Run a server that judges on the cluster."""
    from harness.server.log import say
    from harness.server.program import serve as run

    def has() -> dict[str, tuple[str, ...]]:
        return {"CPU": tuple(device.slug for device, count in link.models() for _ in range(count))}

    with Link(ADDRESS, root, patient=True, driver="bench.instant", log=say) as link:
        database = str(root / "results" / "server" / "podium.sqlite")
        run(root, database, "127.0.0.1", port, judge=link.judge, elsewhere=has)


def begin(root: Path) -> None:
    """Start a head, which is also a node."""
    node.start(root, True, None, "127.0.0.1", _quiet, port=int(ADDRESS.rpartition(":")[2]))


def join(root: Path) -> None:
    """Start another node."""
    node.start(root, False, ADDRESS, "127.0.0.1", _quiet, beside=True)


def _quiet(line: str) -> None:
    pass


def processes(word: str) -> Iterator[int]:
    """The ids of processes whose program or title contains `word`, but for those that are stopped."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            first = (folder / "cmdline").read_bytes().partition(b"\0")[0]
            state = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()[0]
        except OSError:
            continue
        if word.encode() in first and state != "T":
            yield int(folder.name)


def kill(root: Path, what: str, chance: random.Random) -> bool:
    """Kill or stop one process of this kind, and restart it unless it restarts by itself. False if none came in
    WAIT_S."""
    names = {"worker": "ray::Judging", "stop": "ray::Judging", "raylet": "/raylet/raylet", "head": "/gcs/gcs_server"}
    until = time.monotonic() + WAIT_S
    while not (found := sorted(processes(names[what]))):
        if time.monotonic() > until:
            return False
        time.sleep(0.05)
    os.kill(chance.choice(found), signal.SIGSTOP if what == "stop" else signal.SIGKILL)
    if what == "raylet":
        join(root)
    elif what == "head":
        node.stop()
        begin(root)
        join(root)
    return True


def runners(url: str) -> int:
    """How many cards the server judges on."""
    with urllib.request.urlopen(f"{url}/runner_queue/CPU", timeout=30) as answer:
        found: int = json.load(answer)["available_runners"]
    return found


def judged(root: Path, jobs: int, every_s: float, seed: int, most: float) -> tuple[Counter[str], float]:
    """The kinds of killed and stopped processes until all `jobs` had verdicts, at `most` so many, and the seconds that
    it took. Raises AssertionError."""
    chance, killed = random.Random(seed), Counter[str]()
    begin(root)
    server = ServerProcess(root, module="bench.cluster_kills")
    load = Load(root, server.url, CLIENTS, "leaderboard")
    begun = time.monotonic()
    try:
        threads = load.begin(jobs)
        for thread in threads:
            thread.join()
        first = list(FIRST)
        while load.database.queue.totals().keys() & {"pending", "running"}:
            assert time.monotonic() - begun < 2 * PATIENCE_S, f"no verdicts: {load.database.queue.totals()}"
            time.sleep(chance.uniform(0.5, 1.5) * every_s)
            if sum(killed.values()) >= most:
                continue
            what = first[0] if first else chance.choices([*WEIGHTS], [*WEIGHTS.values()])[0]
            if kill(root, what, chance):
                killed[what] += 1
                first = first[1:]
                print(f"{time.monotonic() - begun:.0f} s: {what}; {load.database.queue.totals()}", flush=True)
        seconds = time.monotonic() - begun
        while (there := runners(server.url)) < 2:
            assert time.monotonic() - begun < seconds + PATIENCE_S, f"{there} nodes are used"
            time.sleep(0.5)
    finally:
        load.stopped.set()
        server.end()
        node.stop()
    load.found.kills = sum(killed.values())
    check(root, load.database, load.found, ordered=False)
    load.database.close()
    return killed, seconds


def inside(jobs: int, every_s: float, seed: int, most: float) -> None:
    """The part that runs in its own namespaces, where Ray's ports are free."""
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    with tempfile.TemporaryDirectory(prefix="podium-kills-") as folder:
        for name in ("HOME", "TMPDIR", "XDG_CACHE_HOME"):
            (Path(folder) / name).mkdir()
            os.environ[name] = str(Path(folder) / name)
        for name in [name for name in os.environ if name.startswith("RAY_")]:
            del os.environ[name]
        os.environ.update(SOONER)
        root = Path(folder) / "root"
        root.mkdir()
        prepare(root)
        try:
            killed, seconds = judged(root, jobs, every_s, seed, most)
        except BaseException:
            print((root / "server.log").read_text()[-3000:], file=sys.stderr)
            raise
    print(f"each of {jobs} has its verdict and one run; {sum(killed.values())} kills, {seconds:.0f} s")
    print(json.dumps({"jobs": jobs, "killed": killed, "seconds": round(seconds), "seed": seed}))


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("what", nargs="?", choices=["kill", "inside", "serve"], default="kill", help=argparse.SUPPRESS)
    words.add_argument("root", nargs="?", type=Path, help=argparse.SUPPRESS)
    words.add_argument("--port", type=int, default=0, help=argparse.SUPPRESS)
    words.add_argument("--jobs", type=int, default=200)
    words.add_argument("--every", type=float, default=8.0, help="seconds between two kills, on average")
    words.add_argument("--kills", type=float, default=math.inf, help="no more than these")
    words.add_argument("--seed", type=int, default=random.randrange(10**6))
    given = words.parse_args()
    if given.what == "serve":
        serve(given.root, given.port)
    elif given.what == "inside":
        inside(given.jobs, given.every, given.seed, given.kills)
    else:
        print(f"load before: {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors; seed {given.seed}", flush=True)
        command = [sys.executable, "-m", "bench.cluster_kills", "inside"]
        command += ["--jobs", str(given.jobs), "--every", str(given.every), "--seed", str(given.seed)]
        command += ["--kills", str(given.kills)]
        raise SystemExit(subprocess.run([*ALONE, *command], cwd=HERE).returncode)


if __name__ == "__main__":
    main()
