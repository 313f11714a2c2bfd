"""All submissions of an evaluation at once: Ray has them wait until a card is free. Runs are stored as they arrive."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path

from harness.cluster.link import Link
from harness.cluster.watching import Placed
from harness.library.request import Request
from harness.model import Device, Problem, Run, Submission, outcome
from harness.progress import Narrate
from harness.records.store import Store

MOST_AT_ONCE = 64
"""Jobs that Ray is told of; the others wait here."""


def judge(
    link: Link,
    root: Path,
    problem: Problem,
    submissions: Sequence[Submission],
    device: Device,
    quick: bool,
    narrate: Narrate,
    stored: Callable[[Run], None] = lambda run: None,
    *,
    card: str | None = None,
    allow_unsandboxed: bool = False,
    stop_at_first: bool = False,
) -> list[Run]:
    """Judge `submissions` on cards like `device`, wherever one is free or on this `card`, and store each run; the runs
    in the order of the submissions. Ctrl-C ends all of them. Raises as `verbs.eval.judge` and `Link.judge`."""
    if not submissions:
        return []
    store = Store(root)
    store.check_writable()
    telling, ending = threading.Lock(), threading.Event()
    placed: set[Placed] = set()

    def tell(line: str) -> None:
        with telling:
            narrate(line)

    def started(each: Placed) -> None:
        placed.add(each)
        if ending.is_set():
            each.close()

    def run_of(submission: Submission) -> Run:
        request = Request(
            root=root,
            problem=problem.name,
            submission=submission,
            device=card or device.slug,
            depth="quick" if quick else "full",
            stop_at_first=stop_at_first,
            allow_unsandboxed=allow_unsandboxed,
        )
        return link.judge(request, tell, started)

    tell(f"judging {len(submissions)} on the cluster's {device.name}")
    tell(problem.limits.sentence)
    runs: dict[int, Run] = {}
    with ThreadPoolExecutor(min(len(submissions), MOST_AT_ONCE)) as executor:
        numbers: dict[Future[Run], int] = {executor.submit(run_of, each): n for n, each in enumerate(submissions)}
        try:
            for done in _as_they_end(numbers):
                number, run = numbers[done], done.result()
                store.write(run, submissions[number])
                runs[number] = run
                words = outcome(run.ending.verdict, run.unranked_because)
                tell(f"{submissions[number].name}: {words}, {run.duration_s:.1f} s")
                stored(run)
        except BaseException:
            ending.set()
            for each_future in numbers:
                each_future.cancel()
            for each_placed in list(placed):
                each_placed.close()
            raise
    return [runs[number] for number in range(len(submissions))]


def _as_they_end(futures: Iterable[Future[Run]]) -> Iterator[Future[Run]]:
    """Yield each future when it is done. The wait ends every second, so that Ctrl-C is noticed."""
    waiting = set(futures)
    while waiting:
        done, waiting = wait(waiting, timeout=1.0, return_when=FIRST_COMPLETED)
        yield from done
