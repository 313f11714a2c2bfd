"""Measures the server's board page with 1,000 to 100,000 runs, and the cost of keeping it up to date.

    python bench/board_page.py [--runs 1000 10000 100000] [--each 20] [--problem mla]

The runs are synthetic: the published runs of a problem, copied into a temporary folder with other names, scores, dates
and sources. Nothing is judged, and the folder is removed. Each submission has `--each` runs, half of them of its latest
source. A twenty-fifth of all runs fail. Each file has as many samples as a real run.

first index   every file read, parsed and indexed once, as after `rm results/index.sqlite`
start         a server that starts with the index on disk: files are looked at, boards are ranked
one more run  the time from storing a run until the board shows it. If a look at all files takes more than 0.2 s, the
              server compares the folders' lists of names instead; full looks then take at most a tenth of the time,
              and each about as long as `start`
page          GET of the board, its first page of 50 rows, heat map and plots, through the application: the median and
              the worst of 20, none from a cache; `304`: the client has it already (ETag)
last page     the same for the last page
CPU           the processor time (user and system) of a page, which a busy machine does not change; `again`: of another
              page of the same state of the board, whose plots are cached
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from fastapi import FastAPI

from harness import catalog
from harness.server.board import LiveSite, view
from harness.server.serving import Serving
from harness.server.store import Database

ROOT = Path(__file__).resolve().parents[1]
REPEATS = 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problem", default="mla")
    parser.add_argument("--runs", type=int, nargs="+", default=[1_000, 10_000, 100_000])
    parser.add_argument("--each", type=int, default=20, help="runs of one submission's name")
    asked = parser.parse_args()
    print("Synthetic runs: copies of published ones with other names, scores and dates. Nothing was judged.")
    head = (
        "runs",
        "ranked",
        "files",
        "first index",
        "start",
        "one more run",
        "page",
        "worst",
        "CPU",
        "CPU again",
        "last page",
        "304",
    )
    print("  ".join(f"{name:>12}" for name in head))
    for count in asked.runs:
        print("  ".join(f"{cell:>12}" for cell in measured(asked.problem, count, asked.each)), flush=True)


def measured(problem: str, count: int, each: int) -> list[str]:
    """One row of the table."""
    with tempfile.TemporaryDirectory(prefix="podium-synthetic-") as folder:
        root = Path(folder)
        for name in ("problems", "configs", "submissions", "reference"):
            (root / name).symlink_to(ROOT / name)
        files, size, device = _write(root, problem, count, each)
        serving = Serving(root, Database(str(root / "podium.sqlite")), all_problems=True)
        first = LiveSite(serving)
        first_s = _seconds(first.results.refresh)
        site = LiveSite(serving)
        start_s = _seconds(site.results.refresh)
        _copy(root, files, count, each)
        more_s = _seconds(site.results.refresh)
        app = FastAPI()
        app.include_router(site.router)
        address = f"/board/{problem}/{device}"
        live = site.results.boards[problem, device]
        assert live.runs == count + 1
        ranked = len(live.board.standings)
        last = f"{address}?page={-(-ranked // 50)}"
        pages, cpu = _pages(app, address, anew=True)
        _, again = _pages(app, address)
        ends, _ = _pages(app, last, anew=True)
        tag = _get(app, address)[1]
        known, _ = _pages(app, address, tag, 304)
        cells = [f"{count:,}", f"{ranked:,}", f"{size / 1e9:.2f} GB", f"{first_s:.1f} s", f"{start_s:.2f} s"]
        cells += [f"{more_s:.2f} s", f"{statistics.median(pages):.1f} ms", f"{max(pages):.1f} ms"]
        return [
            *cells,
            f"{cpu:.1f} ms",
            f"{again:.1f} ms",
            f"{statistics.median(ends):.1f} ms",
            f"{statistics.median(known):.1f} ms",
        ]


def _pages(app: FastAPI, address: str, tag: str = "", due: int = 200, anew: bool = False) -> tuple[list[float], float]:
    """Milliseconds of each of REPEATS requests, and the processor time of one on average. `anew`: nothing is kept of
    what the pages of a board have in common, as after a run was stored."""
    _get(app, address)  # templates are compiled once for a server
    times, begun = [], time.process_time()
    for _ in range(REPEATS):
        if anew:
            view.forget()
        start = time.perf_counter()
        status, _tag = _get(app, address, tag)
        times.append(1e3 * (time.perf_counter() - start))
        assert status == due
    return times, 1e3 * (time.process_time() - begun) / REPEATS


def _get(app: FastAPI, address: str, tag: str = "") -> tuple[int, str]:
    """The status and the ETag of an answer, asked of the application itself: no network is in the figures."""
    path, _, query = address.partition("?")
    headers = [(b"host", b"localhost"), *([(b"if-none-match", tag.encode())] if tag else [])]
    scope: dict[str, Any] = {"type": "http", "method": "GET", "scheme": "http", "http_version": "1.1"}
    scope |= {"path": path, "raw_path": path.encode(), "root_path": "", "query_string": query.encode()}
    scope |= {"headers": headers, "client": ("127.0.0.1", 1), "server": ("localhost", 80)}
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(app(scope, receive, send))
    return sent[0]["status"], dict(sent[0]["headers"]).get(b"etag", b"").decode()


def _seconds(act: Callable[[], object]) -> float:
    start = time.perf_counter()
    act()
    return time.perf_counter() - start


def _write(root: Path, problem: str, count: int, each: int) -> tuple[list[dict[str, Any]], int, str]:
    """`count` runs in results/local; what they are copied from, the bytes of all, the device."""
    present = catalog.load_problem(ROOT, problem)
    found = [json.loads(path.read_text()) for path in sorted((ROOT / "results/published" / problem).glob("*/*.json"))]
    models = [run for run in found if run["score"] and run["ending"]["verdict"] == "accepted"]
    for run in models:
        run |= {"problem_revision": present.revision, "problem_sha256": present.sha256}
    size = sum(_copy(root, models, number, each).stat().st_size for number in range(count))
    return models, size, models[0]["device"]["slug"]


def _copy(root: Path, models: list[dict[str, Any]], number: int, each: int) -> Path:
    """A run that differs from its model in everything that a board goes by."""
    chance = random.Random(number)
    author, of_author = divmod(number, each)
    model = models[author % len(models)]
    began = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(minutes=2 * number)
    factor = 3 ** chance.uniform(-1, 1) * 0.999 ** (number / 100)
    name = f"synthetic_{author}"
    own: dict[str, Any] = {
        "id": f"{began:%Y%m%dT%H%M%S}-{number % 0xFFFFFF:06x}-{name}",
        "submission": name,
        "submission_sha256": f"{2 * author + (of_author >= each // 2):064x}",
        "submission_path": f"submissions/{model['problem']}/{name}.py",
        "started_at": began.isoformat(),
        "score": {key: ns * factor for key, ns in model["score"].items()},
        "ending": model["ending"],
        "output": "synthetic",
    }
    if number % 25 == 24:
        own |= {"ending": {"verdict": "runtime_error", "message": "synthetic", "detail": None}, "score": None}
    path = root / "results/local" / model["problem"] / model["device"]["slug"] / f"{own['id']}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    if "rest" not in model:  # most of a file is the same in each copy: written once
        model["rest"] = json.dumps({key: value for key, value in model.items() if key not in own})
    path.write_text(f"{json.dumps(own)[:-1]}, {model['rest'][1:]}")
    return path


if __name__ == "__main__":
    main()
