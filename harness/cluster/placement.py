"""Jobs on the cluster: each is placed, watched, and tried again where a node lost it.

    with contextlib.closing(Placement(address, root)) as placement:
        placement.judge(request, narrate, started) ─► Run

`judge` is called as `judges.judge_apart` is, and blocks its thread. The request's device is a model's slug
(`nvidia-h200`), and Ray finds a card of it that is free; or a card's id, which pins the job to that card. It raises
what `harness.evaluate` raises; a job whose attempts were all lost has the verdict infrastructure error.
"""

from __future__ import annotations

import datetime
import math
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness import catalog
from harness.catalog.config import load_config
from harness.cluster import census, engine, facts, parcel
from harness.cluster.attempts import Attempts
from harness.cluster.census import Node
from harness.cluster.job import ClusterJob, Judging, Task, judge_job
from harness.cluster.pins import Pins, agreed
from harness.cluster.prospects import Prospects
from harness.cluster.watching import LOOK_S, JobEnded, Placed, Watched
from harness.errors import InfrastructureError, PodiumError, UsageError
from harness.library.judges import END_S
from harness.library.request import Request
from harness.model import Device, Ending, Pinned, Problem, Run, Verdict
from harness.progress import Narrate, note

SILENT_S = 60.0
"""Without a sign of life an attempt is lost. A job gives one every two seconds, however long a call takes."""

AWAIT_S = 10.0
"""Between two looks for a node that has what a job wants, and none has. Each asks all nodes."""

LONELY_S = 60.0
"""How long a job waits where no node that lives may judge it."""


class Placement:
    """The way to a cluster. Threads may share it; closing it ends its jobs. Raises as `engine.connect`.

    `pins` hold for all jobs; by default they are this Podium's own code, what the request has pinned, and the versions
    that most of a model's cards with these have, as the nodes are when the first such job is placed. `task` stands in
    the real one's place in tests.
    """

    def __init__(
        self,
        address: str,
        root: Path,
        *,
        pins: Pins | None = None,
        silent_s: float = SILENT_S,
        lonely_s: float = LONELY_S,
        task: Task = judge_job,
    ) -> None:
        self.ray = engine.connect(address)
        self._root, self.silent_s = root, silent_s
        self._task, self._actor = task, self.ray.remote(Judging)
        self._pins, self._agreed = pins, dict[tuple[str, bool, Pinned], Pins]()
        self._nodes: list[Node] = []
        self._parcels: dict[str, tuple[str, Any]] = {}
        self._placed: set[Placed] = set()
        by_client = address.startswith("ray://")
        between_s = silent_s / 2 if by_client else LOOK_S
        self.prospects = Prospects(self.ray, self.nodes, lonely_s, between_s, by_client)
        self._changing = threading.Lock()

    def close(self) -> None:
        """End all jobs, wait until their judges have ended, and leave the cluster."""
        for placed in list(self._placed):
            placed.close()
        until = time.monotonic() + END_S + 2 * LOOK_S
        while self._placed and time.monotonic() < until:
            time.sleep(0.1)
        self.ray.shutdown()

    def nodes(self, anew: bool = True) -> list[Node]:
        """The nodes, as they are now or were when last looked at."""
        if anew or not self._nodes:
            self._nodes = census.take(self.ray)
        return self._nodes

    def cards(self, slug: str) -> list[str]:
        """The ids of all cards of a model, in order, as they were when last looked at."""
        nodes = [node.facts for node in self.nodes(anew=False) if node.facts]
        return sorted(card.id for found in nodes for card in found.cards if card.device.slug == slug)

    def models(self) -> list[tuple[Device, int]]:
        """The models of cards that there are now, and how many cards of each."""
        cards = [card for node in self.nodes() if node.facts for card in node.facts.cards]
        counts = Counter(card.device.slug for card in cards)
        devices = {card.device.slug: card.device for card in cards}
        return [(devices[slug], counts[slug]) for slug in sorted(counts)]

    def device(self, wanted: str = "auto") -> Device:
        """The model that is judged on: of a slug, of a card's id, of a kind (cpu, cuda, rocm), or if there is only one
        the one that there is, GPUs before processors. Raises UsageError where there is none or several,
        InfrastructureError where no node says what it has."""
        self.nodes()
        by_id = self._cards()
        found = {device.slug: device for device in by_id.values()}
        gpus = {slug: device for slug, device in found.items() if device.kind != "cpu"}
        if wanted in found | by_id:
            return (found | by_id)[wanted]
        fitting = gpus or found if wanted == "auto" else {s: d for s, d in found.items() if d.kind == wanted}
        if not found:
            reasons = [f"{node.name}: {node.silent}" for node in self._nodes]
            raise InfrastructureError(
                "no node of the cluster says what it has", "\n  ".join(reasons) or "there is no node: podium node"
            )
        if len(fitting) != 1:
            said = f"the cluster has {', '.join(fitting)}" if fitting else f"no node of the cluster has {wanted}"
            raise UsageError(said, f"name one with --device: {', '.join(sorted(found)) or 'there is none'}")
        return next(iter(fitting.values()))

    def judge(
        self,
        request: Request,
        narrate: Narrate = lambda line: None,
        started: Callable[[Placed], None] = lambda placed: None,
        attempts: Attempts | None = None,
    ) -> Run:
        """The run of `request`. `started` is told what ends the job. Raises JobEnded, UsageError, ProblemError;
        InfrastructureError where no node may judge it."""
        problem = catalog.load_problem(request.root, request.problem)
        placed, attempts = Placed(), attempts or Attempts()
        with self._changing:
            self._placed.add(placed)
        watched = Watched(self, placed, attempts, narrate)
        started(placed)
        try:
            device, card = self._awaited(request, placed, narrate)
            ranked = request.depth == "full" and not request.allow_unsandboxed
            pins = self._pins_for(device.slug, ranked or request.confined, request.pinned)
            while attempts.run is None and not attempts.spent:
                job = self._job(request, problem, device, card, pins, attempts.begin())
                watched.attempt(job, self._parcel(request.root, problem)[1])
        finally:
            watched.end()
            with self._changing:
                self._placed.discard(placed)
        return attempts.run or unjudged(request, problem, device, attempts)

    def _job(
        self, request: Request, problem: Problem, device: Device, card: str | None, pins: Pins, attempt: int
    ) -> ClusterJob:
        return ClusterJob(
            problem=request.problem,
            problem_sha256=problem.sha256,
            parcel=self._parcel(request.root, problem)[0],
            submission=request.submission,
            slug=device.slug,
            kind=device.kind,
            card=card,
            depth=request.depth,
            pins=pins,
            attempt=attempt,
            stop_at_first=request.stop_at_first,
            allow_unsandboxed=request.allow_unsandboxed,
            confined=request.confined,
        )

    def _awaited(self, request: Request, placed: Placed, narrate: Narrate) -> tuple[Device, str | None]:
        """As `_device`. A server's jobs, whose patience is endless, wait for a node that has it: that node, or a head
        with its nodes, may just be started anew. Raises JobEnded."""
        told = ""
        while True:
            try:
                return self._device(request.device)
            except PodiumError as error:
                if self.prospects.lonely_s < math.inf:
                    raise
                if error.message != told:
                    note(narrate, f"{request.submission.name}: waits, because {error.message}")
                told = error.message
            if placed.closing.wait(AWAIT_S):
                raise JobEnded(f"{request.submission.name} was ended before it had a verdict")

    def _device(self, wanted: str) -> tuple[Device, str | None]:
        """The model, and the card if one is named. The nodes are looked at anew where none is known to have it."""
        with self._changing:
            self.nodes(anew=False)
        known = {name: device for card, device in self._cards().items() for name in (card, device.slug)}
        device = known.get(wanted) or self.device(wanted)
        return device, wanted if wanted in self._cards() else None

    def _cards(self) -> dict[str, Device]:
        """The models of all cards, by their ids, as they were when last looked at."""
        return {card.id: card.device for node in self._nodes if node.facts for card in node.facts.cards}

    def _pins_for(self, slug: str, sandbox: bool, pinned: Pinned) -> Pins:
        if self._pins is not None:
            return self._pins
        with self._changing:
            key = slug, sandbox, pinned
            if key not in self._agreed:
                known = [node.facts for node in self.nodes(anew=False) if node.facts]
                self._agreed[key] = agreed(known, facts.code_sha256(), slug, sandbox, pinned)
            return self._agreed[key]

    def _parcel(self, root: Path, problem: Problem) -> tuple[str, Any]:
        """The hash of the problem's files, and Ray's reference to them, which all its jobs share."""
        with self._changing:
            if problem.sha256 not in self._parcels:
                packed = parcel.pack(root, problem)
                self._parcels[problem.sha256] = parcel.sha256_of(packed), self.ray.put(packed)
            return self._parcels[problem.sha256]

    def place(self, job: ClusterJob, reference: Any, avoid: set[str]) -> Any:
        """Hand `job` to Ray; the actor that judges it. Nodes whose numbers are in `avoid` do not get it."""
        selector = job.pins.selector
        if avoid:
            selector["ray.io/node-id"] = f"!in({','.join(sorted(avoid))})"
        actor = self._actor.options(
            max_restarts=0,  # attempts are counted here
            num_cpus=0,
            num_gpus=0 if job.kind == "cpu" else 1,
            resources={job.slug: 1, **({facts.resource_of(job.card): 1} if job.card else {})},
            label_selector=selector,
        )
        return actor.remote(self._task, job.model_dump_json(), [reference])


def unjudged(request: Request, problem: Problem, device: Device, attempts: Attempts) -> Run:
    """The run of a job whose attempts were all lost. No later evaluation takes it for a verdict on the source."""
    now = datetime.datetime.now(datetime.UTC)
    lost = [f"attempt {number}: {why}" for number, why in enumerate(attempts.reasons, 1)]
    message = f"it could not be judged: {len(lost)} attempts were lost, the last because {attempts.reasons[-1]}"
    name = request.submission.name
    return Run(
        id=f"{now:%Y%m%dT%H%M%S}-{secrets.token_hex(3)}-{name.rpartition('/')[2]}",
        problem=problem.name,
        problem_revision=problem.revision,
        problem_sha256=problem.sha256,
        submission=name,
        submission_sha256=request.submission.sha256,
        submission_path=request.submission.path,
        device=device,
        environment={"cluster": {"attempt": attempts.number}},
        started_at=now.isoformat(timespec="milliseconds"),
        duration_s=0,
        ending=Ending(verdict=Verdict.INFRASTRUCTURE_ERROR, message=message, detail="\n".join(lost)),
        master_seed="",
        config=load_config(request.root).model_dump(mode="json"),
    )
