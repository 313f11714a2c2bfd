"""Whether a job that waits may still begin, and what to say where no node may judge it."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable
from typing import Any

from harness.cluster import census, facts
from harness.cluster.census import Node
from harness.cluster.job import ClusterJob
from harness.cluster.watching import HINT_S
from harness.errors import InfrastructureError


class Prospects:
    """Of all jobs of a Placement. Threads may share it.

    `look` brings the nodes as they are now. The head is asked for processes at most every `between_s`; `by_client`: on
    a node, as Ray's client does. `lonely_s`: how long a job waits where no node that lives may judge it.
    """

    def __init__(
        self, ray: Any, look: Callable[[], list[Node]], lonely_s: float, between_s: float, by_client: bool
    ) -> None:
        self.lonely_s = lonely_s
        self._ray, self._look, self._between_s, self._by_client = ray, look, between_s, by_client
        self._started, self._looked = dict[str, str](), -math.inf
        self._nodes: list[Node] = []
        self._heard, self._hinted, self._asked = time.monotonic(), False, -math.inf
        self._asking = threading.Lock()

    def node_of(self, actor: Any) -> str | None:
        """The number of the node where Ray has given `actor` a card and a process, which may have said nothing yet;
        None where it waits. The head is asked once for all jobs that wait; seldom by Ray's client, where that starts a
        process on a node."""
        with self._asking:
            if time.monotonic() - self._looked > self._between_s:
                self._looked = time.monotonic()
                with contextlib.suppress(Exception):  # the head is busy, or lost: it is asked again
                    self._started = self._of_ray_s(census.with_process)
            return self._started.get(actor._actor_id.hex())

    def last_node_of(self, actor: Any) -> str | None:
        """The number of the node where `actor` has ended; None where the head does not say."""
        with contextlib.suppress(Exception):
            found: str | None = self._of_ray_s(census.node_of, actor._actor_id.hex())
            return found
        return None

    def _of_ray_s(self, look: Callable[..., Any], *words: str) -> Any:
        """What `look` finds in the head's tables. Raises Ray's errors."""
        if not self._by_client:
            return look(*words)
        asked = self._ray.remote(look).options(num_cpus=0, max_retries=0).remote(*words)
        return self._ray.get(asked, timeout=census.ANSWER_S)

    def may_run(self, job: ClusterJob, avoid: set[str]) -> bool:
        """Whether a node that lives now may judge `job`, if only it were free."""
        selector = job.pins.selector
        return any(
            node["Alive"]
            and node["NodeID"] not in avoid
            and node["Resources"].get(job.slug, 0) >= 1
            and (job.card is None or facts.resource_of(job.card) in node["Resources"])
            and selector.items() <= node.get("Labels", {}).items()
            for node in self._ray.nodes()
        )

    def heard(self) -> None:
        """A job has said a word."""
        self._heard, self._hinted = time.monotonic(), False

    def hint_is_due(self) -> bool:
        """Whether no job has said a word for HINT_S. Of many jobs that wait only the first is told so."""
        with self._asking:
            due = not self._hinted and time.monotonic() - self._heard > HINT_S
            self._hinted = self._hinted or due
            return due

    def anybody(self, job: ClusterJob, avoid: set[str]) -> bool:
        """Whether a node answers that may judge `job` and is busy. The nodes are asked where no job has said a word for
        `lonely_s`, once for all jobs that wait."""
        if time.monotonic() - self._heard <= self.lonely_s:
            return True
        with self._asking:
            if time.monotonic() - self._asked > census.ANSWER_S:
                self._nodes = self._look()
                self._asked = time.monotonic()
            return any(self._refusal(node, job, avoid) is None for node in self._nodes)

    def _refusal(self, node: Node, job: ClusterJob, avoid: set[str]) -> str | None:
        """Why the node does not judge `job`; None if it is busy. What is free by Ray's books and by its own takes it
        within seconds."""
        if refused := node.refuses(job.pins, job.slug):
            return "; ".join(refused)
        if job.card and node.facts and job.card not in {card.id for card in node.facts.cards}:
            return f"it has no card {job.card}"
        if node.id in avoid:
            return "an attempt was lost or refused there, and the job avoids it"
        wanted = facts.resource_of(job.card) if job.card else job.slug
        free = self._ray.available_resources().get(wanted, 0) >= 1
        if free and node.facts and len(node.running) < node.facts.counts[job.slug]:
            return "it answers and is free, and Ray does not start the job there: see whether the head reaches it"
        return None

    def why_nobody(self, job: ClusterJob, avoid: set[str]) -> InfrastructureError:
        """What to say where no node may judge `job`."""
        known = {node.name: self._refusal(node, job, avoid) or "it is busy" for node in self._look()}
        reasons = [f"{name}: {why}" for name, why in known.items()]
        return InfrastructureError(
            f"no node of the cluster may judge on {job.slug}", "\n  ".join(reasons) or "there is no node: podium node"
        )
