"""One job: a submission judged on the card that Ray gave this process, by a judge that is a process of its own.

    Ray's actor: Judging ─► judge_job ─► perform ── asks ──► harness.library.warm_judge, the same judge as of `eval`
                 │ next         yields    lines, a sign of life every two seconds, last the run
                 └ end, or it dies: the judge ends, and all that it has started

The judge gets neither the cluster's token nor any other variable of Ray's.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from pathlib import Path
from typing import Any

from harness import catalog
from harness.cluster import engine, facts, parcel
from harness.cluster.facts import Inventory
from harness.cluster.pins import Pins, differences
from harness.errors import InfrastructureError, PodiumError, UsageError
from harness.library.judges import Judge
from harness.library.request import Depth, Request
from harness.machine import lock_note
from harness.model import Submission, Value

ALIVE_S = 2.0
"""Between two signs of life."""

Said = dict[str, Any]
"""What a job yields has one of these keys: begun, told, alive, refused, error, run."""

Words = Generator[Said, None, None]

Task = Callable[[str, list[Any]], Words]
"""As `judge_job`."""


class ClusterJob(Value):
    """What is to be judged, on a card of which model, and what the node must have. `parcel` is the hash of the
    problem's files, `attempt` counts from 1. `card` is the one that the job is pinned to, whichever Ray gives it;
    `lost_on` are those of the attempts before."""

    problem: str
    problem_sha256: str
    parcel: str
    submission: Submission
    slug: str
    kind: str
    card: str | None = None
    lost_on: tuple[str, ...] = ()
    depth: Depth
    pins: Pins
    attempt: int
    stop_at_first: bool = False
    allow_unsandboxed: bool = False
    confined: bool = False


class Judging:
    """The actor of one job, which takes a card as long as it lives. It is asked for each word, and so every kind of
    Ray's connections can carry them: its client (ray://) has no streams."""

    def __init__(self, task: Task, asked: str, parcels: list[Any]) -> None:
        self._words = task(asked, parcels)

    def next(self) -> Said:
        """What the job says next, as soon as it does."""
        return next(self._words, {"over": "it ended without a result"})

    def end(self) -> None:
        """End the judge, and wait for its end."""
        self._words.close()


def judge_job(asked: str, parcels: list[Any], judge: type[Judge] = Judge) -> Words:
    """What the actor does. `asked` is a ClusterJob as JSON; `parcels` holds a reference to the problem's files, which
    are fetched where this node lacks them. `judge` stands in the real one's place in tests of the cluster itself."""
    import ray

    # From here on silence counts, also while the machine is looked at.
    yield {"alive": time.time(), "on": ray.get_runtime_context().get_node_id() if ray.is_initialized() else None}
    found = facts.now()
    if found is None:
        yield {"refused": ["it was not started by `podium node`"]}
        return
    job = ClusterJob.model_validate_json(asked)
    # On processors all jobs of a node share one card. Ray gives GPUs by the UUIDs that are in CUDA_VISIBLE_DEVICES.
    given = [str(name) for name in ray.get_gpu_ids()]
    card = card_for(job, given[0] if given else found.cards[0].id, found)
    with _noted(job, card):
        yield from perform(job, found, card, lambda: ray.get(parcels[0]), judge)


def card_for(job: ClusterJob, given: str, found: Inventory) -> str:
    """The card to judge on: that of a pinned job, whichever Ray has given it. Ray then believes that its card is free,
    and gives it to another job. That one takes a card of the node that no job has. So does a job that is given a card
    that has vanished, or on which an attempt of it was lost: such a card is always free. It waits if none is."""
    if job.card or job.kind != "cuda":
        return job.card or given
    taken = {str(note["card"]) for note in running()}
    there = [card.id for card in found.cards if card.device.slug == job.slug]
    good = [card for card in there if card not in job.lost_on] or there
    best = [card for card in good if card not in taken] or good
    return given if given in best or not best else best[0]


def perform(
    job: ClusterJob, found: Inventory, card: str, fetch: Callable[[], bytes], judge: type[Judge] = Judge
) -> Words:
    """Judge `job` on this machine, of which these facts were `found`. `fetch` brings the problem's files.

    Closing the generator, or any exception in it, ends the judge.
    """
    refused = differences(job.pins, found)
    if not found.counts.get(job.slug):
        refused.append(f"it has no {job.slug}")
    if job.card and job.card not in {each.id for each in found.cards}:
        refused.append(f"it has no card {job.card}")
    if refused:
        yield {"refused": refused}
        return
    where = {"node": found.host, "card": card, "attempt": job.attempt}
    yield {"begun": where}
    try:
        root = parcel.unpack(job.parcel, fetch)
        problem = catalog.load_problem(root, job.problem)
        if problem.sha256 != job.problem_sha256:
            raise InfrastructureError(f"the files of {job.problem} arrived, and their hash is not the job's")
        request = Request(
            root=root,
            problem=job.problem,
            submission=job.submission,
            device="cpu" if job.kind == "cpu" else "cuda:0",
            depth=job.depth,
            stop_at_first=job.stop_at_first,
            allow_unsandboxed=job.allow_unsandboxed,
            confined=job.confined,
        )
        visible = {"CUDA_VISIBLE_DEVICES": card} if job.kind == "cuda" else {}
        process = judge(clean(os.environ) | visible)
    except PodiumError as error:
        yield _error(error)
        return
    said: queue.Queue[Said] = queue.Queue()
    asking = threading.Thread(target=_ask, args=(process, request, said, where), daemon=True)
    try:
        asking.start()
        while True:
            try:
                item = said.get(timeout=ALIVE_S)
            except queue.Empty:
                item = {"alive": time.time()}
            yield item
            if not {"run", "error"}.isdisjoint(item):
                return
    finally:
        process.close()


def clean(environment: Mapping[str, str]) -> dict[str, str]:
    """Without Ray's variables: the token is among them."""
    return {name: value for name, value in environment.items() if not name.startswith("RAY_") and name != facts.NODE}


def _ask(judge: Judge, request: Request, said: queue.Queue[Said], where: dict[str, Any]) -> None:
    try:
        run = judge.ask({"judge": request.model_dump(mode="json")}, lambda line: said.put({"told": line}))
        run["environment"]["cluster"] = where
        said.put({"run": run, "source_sha256": request.submission.sha256})
    except UsageError as error:  # what was typed has been looked at: its card has vanished, or torch does not see it
        said.put(_error(InfrastructureError(error.message)))
    except PodiumError as error:
        said.put(_error(error))
    except Exception as error:  # a bug of ours: it must not look as if the judge were still at it
        said.put(_error(InfrastructureError(f"{type(error).__name__}: {error}")))


def _error(error: PodiumError) -> Said:
    return {"error": {"kind": type(error).__name__, "message": error.message, "hint": error.hint}}


@contextlib.contextmanager
def _noted(job: ClusterJob, card: str) -> Iterator[None]:
    """Within it, `running` knows of the job."""
    note = _notes() / f"{os.getppid()}-{os.getpid()}.json"
    told = {"problem": job.problem, "submission": job.submission.name, "attempt": job.attempt, "card": card}
    with contextlib.suppress(OSError):
        note.parent.mkdir(parents=True, exist_ok=True)
        process = {"process": os.getpid(), "began": lock_note.started(os.getpid())}
        note.write_text(json.dumps(told | {"since": time.time(), **process}))
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            note.unlink(missing_ok=True)


def running() -> list[dict[str, Any]]:
    """What this node of Ray's judges now. Notes of workers that were killed are removed, also where their numbers are
    other processes' now."""
    found = []
    for note in sorted(_notes().glob(f"{os.getppid()}-*.json")):
        with contextlib.suppress(OSError, ValueError):
            told = json.loads(note.read_text())
            if told.get("began") == _began(told["process"]):
                found.append(told)
            else:
                note.unlink(missing_ok=True)
    return found


def _began(process: int) -> int | None:
    """When a process was started, in ticks since the machine was; None if it has ended."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        return lock_note.started(process)
    return None


def _notes() -> Path:
    """A folder of this machine's own: machines may share the folder around it, and have processes of one number."""
    return parcel.cache().parent / "jobs" / engine.joined_file().name
