"""`podium cluster`: the nodes of a cluster, their cards and versions, what runs there and what is wrong with them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic import ValidationError

from harness.cluster import facts, job, parcel
from harness.cluster.facts import Inventory
from harness.cluster.pins import Pins, differences
from harness.model import Pinned
from harness.render.document import Part, Table

ANSWER_S = 30.0
"""How long a node may take to say what it has. Ray starts a process there first."""


@dataclass(frozen=True)
class Node:
    """One node. `facts` is None where it does not tell, and `silent` says why."""

    id: str
    address: str
    alive: bool
    facts: Inventory | None = None
    silent: str = ""
    running: tuple[dict[str, Any], ...] = ()
    parcels: tuple[str, ...] = ()
    wrong: tuple[str, ...] = field(default=())

    @property
    def name(self) -> str:
        return f"{self.facts.host} ({self.address})" if self.facts else self.address

    def refuses(self, pins: Pins, slug: str) -> list[str]:
        """Why it may not judge a job with these pins; none if it may."""
        if self.facts is None:
            return [self.silent]
        return [*differences(pins, self.facts), *([] if self.facts.counts.get(slug) else [f"it has no {slug}"])]


def tell() -> dict[str, Any]:
    """What a node says of itself. Runs there."""
    found = facts.now()
    folder = parcel.cache()
    return {
        "facts": found.model_dump_json() if found else None,
        "running": job.running(),
        "parcels": sorted(path.name for path in folder.glob("*")) if folder.is_dir() else [],
    }


def with_process() -> dict[str, str]:
    """The living actors that Ray has given a process, whether or not it answers, by their numbers with those of their
    nodes. Runs in a process that is connected to a node, or on one."""
    from ray._private import state  # public is only what Ray's dashboard is asked for, and `node` starts none

    living = [state.actors(actor_state_name=name) for name in ("PENDING_CREATION", "ALIVE")]
    return {number: str(each["Address"]["NodeID"]) for found in living for number, each in found.items() if each["Pid"]}


def node_of(number: str) -> str | None:
    """The number of an actor's node, also where it has ended; None where it had none. Runs as `with_process`."""
    from ray._private import state

    actor = state.actors(number)
    return str(actor["Address"]["NodeID"]) if actor and actor["Pid"] else None


def present(known: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of all nodes that Ray knows those that live, and then one for each machine where only dead ones are known: Ray
    keeps a node that died when its machine has joined again."""
    ordered = sorted(known, key=lambda node: (not node["Alive"], node["NodeManagerAddress"], node["NodeID"]))
    machines, found = set(), []
    for node in ordered:
        machine = node["NodeManagerAddress"], node["NodeManagerHostname"]
        if node["Alive"] or machine not in machines:
            found.append(node)
        machines.add(machine)
    return found


def take(ray: Any, pinned: Mapping[str, Pinned] = {}) -> list[Node]:
    """The nodes that are `present`; each that answers within ANSWER_S with its facts."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    known = present(ray.nodes())
    task = ray.remote(tell)
    asked = {
        node["NodeID"]: task.options(
            num_cpus=0, max_retries=0, scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        ).remote()
        for node in known
        if node["Alive"]
    }
    until = time.monotonic() + ANSWER_S
    nodes = []
    for node in known:
        number, address = node["NodeID"], node["NodeManagerAddress"]
        if number not in asked:
            nodes.append(Node(number, address, False, silent="it is dead"))
            continue
        try:
            said = ray.get(asked[number], timeout=max(until - time.monotonic(), 0.1))
        except Exception as error:  # it died meanwhile, is stuck, or cannot import Podium
            why = f"it does not say what it has: {type(error).__name__}: {' '.join(str(error).split())[:200]}"
            nodes.append(Node(number, address, True, silent=why))
            continue
        nodes.append(answering(number, address, said))
    return judged(nodes, facts.code_sha256(), pinned)


def answering(number: str, address: str, said: Mapping[str, Any]) -> Node:
    """The node that has `said` this by `tell`. Its Podium may be another."""
    found, silent = None, ""
    if said["facts"] is None:
        silent = "it was not started by `podium node`"
    else:
        try:
            found = Inventory.model_validate_json(said["facts"])
        except ValidationError:
            silent = "its Podium is another, and says what it has in another form"
    return Node(number, address, True, found, silent, tuple(said["running"]), tuple(said["parcels"]))


def judged(nodes: Sequence[Node], code: str, pinned: Mapping[str, Pinned] = {}) -> list[Node]:
    """The nodes, each with what is `wrong` with it. `code` is the hash of this Podium's; `pinned` is by competition."""
    told = [node.facts for node in nodes if node.facts]
    usual = {name: _most([getattr(each, name) for each in told]) for name in ("torch", "triton", "driver", "python")}
    found = [[*_wrong(node, code, usual, pinned), *_shared(node, nodes)] for node in nodes]
    return [replace(node, wrong=tuple(wrong)) for node, wrong in zip(nodes, found, strict=True)]


def _shared(node: Node, nodes: Sequence[Node]) -> list[str]:
    """Cards that another node has too, by their ids: Ray gives such a card to two jobs at once."""
    return [
        f"{card.id} is a card of {other.name}, too: each may give it to a job"
        for card in (node.facts.cards if node.facts else ())
        for other in nodes
        if other.id != node.id and other.facts and card.id in {each.id for each in other.facts.cards}
    ]


def _wrong(node: Node, code: str, usual: dict[str, str | None], pinned: Mapping[str, Pinned]) -> list[str]:
    found = node.facts
    if found is None:
        return [node.silent]
    wrong = []
    if found.code != code:
        wrong.append(f"other code than here: {found.code[:12]}, here {code[:12]}; it gets no jobs from here")
    for name, most in usual.items():
        has = getattr(found, name)
        if has != most and (name != "driver" or has is not None):
            wrong.append(f"{name} is {has or 'missing'}, most nodes have {most or 'none'}")
    for competition, versions in pinned.items():
        wrong += [f"it may not judge {competition}: {why}" for why in versions.differences(found.versions)]
    if found.sandbox is None:
        wrong.append("no sandbox holds: runs that are to be ranked are not judged there")
    wrong += [f"{card} has vanished: it was there as `podium node` started" for card in found.vanished]
    wrong += [f"{card.id} is busy with {', '.join(card.others)}" for card in found.cards if card.others]
    wrong += [f"{slug} was never calibrated there" for slug in found.counts if slug not in found.calibrated]
    return wrong


def _most(values: Sequence[str | None]) -> str | None:
    """The most frequent; of equally many the first in the alphabet."""
    counts = Counter(value for value in values if value is not None)
    return min(counts, key=lambda value: (-counts[value], value)) if counts else None


def as_json(nodes: Sequence[Node]) -> dict[str, Any]:
    """All of it, as data."""
    return {
        "code": facts.code_sha256(),
        "nodes": [
            {
                "id": node.id,
                "address": node.address,
                "alive": node.alive,
                "facts": node.facts.model_dump(mode="json") if node.facts else None,
                "running": list(node.running),
                "parcels": list(node.parcels),
                "wrong": list(node.wrong),
            }
            for node in nodes
        ],
    }


def parts(nodes: Sequence[Node]) -> list[Part]:
    """A row a node; below, what runs and what is wrong."""
    rows, below = [], []
    for node in nodes:
        found = node.facts
        cards = ", ".join(f"{count} × {slug}" for slug, count in found.counts.items()) if found else ""
        state = "dead" if not node.alive else f"{len(node.running)} running" if node.running else "idle"
        versions = [found.torch, found.triton, found.driver, found.code[:12]] if found else ["", "", "", ""]
        rows.append([node.name, state, cards, *(version or "" for version in versions)])
        for each in node.running:
            since = max(time.time() - each["since"], 0)
            again = f", attempt {each['attempt']}" if each["attempt"] > 1 else ""
            line = f"{node.name}: {each['problem']} {each['submission']} on {each['card']}, for {since:.0f} s{again}"
            below.append(line)
    wrong = [f"{node.name}: {why}" for node in nodes for why in node.wrong]
    below += ["What is wrong:", *(f"  {line}" for line in wrong)] if wrong else ["Nothing is wrong."]
    return [Table(["node", "", "cards", "torch", "triton", "driver", "code"], rows, below)]
