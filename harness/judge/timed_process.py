"""One fresh process of a submission, timed through all of its benchmark cases."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from contextlib import closing

from harness.judge.entrant import Entrant
from harness.judge.null_worker import NullWorker
from harness.judge.pace import Pace
from harness.judge.session import Session
from harness.judge.sitting import Sitting
from harness.machine.neighbours import Neighbours
from harness.model import Case

Told = Callable[[Case, int, Sitting], None]
"""Is told a case, how many were done before it, and its sitting so far."""


def timed_process(
    entrant: Entrant,
    phase: str,
    paces: Mapping[str, Pace],
    null: NullWorker | None,
    *,
    another_follows: bool = False,
    waiting: list[Session] | None = None,
    told: Told = lambda case, done, sitting: None,
) -> dict[str, Sitting]:
    """The sitting of each case, by its key; the cases are taken in random order. `phase` is what the inputs' seeds come
    from. `waiting`: workers of others that are ours as well and take no processor from this one. Raises what
    `Entrant.sit` raises."""
    sittings: dict[str, Sitting] = {}
    limit_s = entrant.limits.ranked_s
    with entrant.session(another_follows=another_follows, timed=True, limit_s=limit_s) as session:
        idle = [null.ready()] if null is not None else []
        neighbours = Neighbours([session, *entrant.waiting, *(waiting or []), *idle])
        cases = entrant.benchmarks
        for done, case in enumerate(secrets.SystemRandom().sample(cases, len(cases))):
            with closing(entrant.sit(session, case, phase, paces[case.key], null)) as growing:
                for sitting in growing:
                    sittings[case.key] = sitting
                    told(case, done, sitting)
        crowding = neighbours.crowding()
        for sitting in sittings.values():
            sitting.crowding = crowding
        session.finish()
    return sittings
