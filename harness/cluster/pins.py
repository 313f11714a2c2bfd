"""What a job asks of the node that judges it, so that the runs of a board are of one kind.

Pins ─┬─► labels: Ray offers the job to no other node
      └─► differences: the node looks again as the job arrives, and `podium cluster` says what it lacks
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from harness.cluster.facts import Inventory, label
from harness.model import Pinned

ANYTHING = Pinned()
"""Nothing is pinned."""

LABEL = "podium."
"""What the names of Podium's labels begin with."""


class Pins(Pinned):
    """Versions, the hash of Podium's code, and whether a sandbox must hold. None: any will do."""

    code: str | None = None
    sandbox: bool = True

    @property
    def selector(self) -> dict[str, str]:
        """The labels that a node must have, as Ray's `label_selector` takes them."""
        wanted = {**({"code": self.code[:16]} if self.code else {}), **self.versions}
        found = {f"{LABEL}{name}": label(value) for name, value in wanted.items()}
        return found | ({f"{LABEL}sandbox": "yes"} if self.sandbox else {})


def labels(facts: Inventory) -> dict[str, str]:
    """Those of a node, as `ray start --labels` takes them."""
    values = {"code": facts.code[:16], **facts.versions}
    values["sandbox"] = "yes" if facts.sandbox else "no"
    return {f"{LABEL}{name}": label(value) for name, value in values.items()}


def differences(pins: Pins, facts: Inventory) -> list[str]:
    """Why a node may not judge a job, a sentence each; none if it may."""
    found = []
    if pins.code is not None and facts.code != pins.code:
        found.append(f"its Podium is another: code {facts.code[:12]}, pinned is {pins.code[:12]}")
    found += pins.differences(facts.versions)
    if pins.sandbox and facts.sandbox is None:
        found.append("no sandbox holds there")
    return found


def agreed(nodes: Sequence[Inventory], code: str, slug: str, sandbox: bool = True, pinned: Pinned = ANYTHING) -> Pins:
    """Pins for jobs on cards of `slug`: this code, what the competition has `pinned`, and for the rest the versions
    that most cards of the nodes with these have (of equally many the first in the alphabet), so that one board has runs
    of one kind."""
    cards: Counter[tuple[str | None, str | None, str | None]] = Counter()
    for facts in nodes:
        if facts.code == code and facts.counts.get(slug) and not pinned.differences(facts.versions):
            cards[facts.torch, facts.triton, facts.driver] += facts.counts[slug]
    if not cards:
        return Pins(code=code, sandbox=sandbox, **pinned.versions)
    most = max(cards.values())
    torch, triton, driver = min((key for key, count in cards.items() if count == most), key=str)
    return Pins(code=code, torch=torch, triton=triton, driver=driver, sandbox=sandbox)
