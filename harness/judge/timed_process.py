"""One fresh process of a submission, timed through all of its benchmark cases."""

from __future__ import annotations

import secrets
from collections.abc import Generator, Mapping
from contextlib import closing

from harness.judge.entrant import Entrant
from harness.judge.null_worker import NullWorker
from harness.judge.pace import Pace
from harness.judge.session import Session
from harness.judge.sitting import Sitting
from harness.machine.neighbours import Neighbours
from harness.model import Case


def timed_process(
    entrant: Entrant,
    phase: str,
    paces: Mapping[str, Pace],
    null: NullWorker | None,
    *,
    another_follows: bool = False,
    waiting: list[Session] | None = None,
) -> Generator[tuple[Case, int, Sitting], None, None]:
    """Yields after each sample its case, how many cases were done before, and the case's sitting, which grows. Cases
    are taken in random order; how crowded it was all sittings know at the end.

    phase: what the inputs' seeds come from. waiting: workers of others that are ours as well. Raises what `Entrant.sit`
    raises.
    """
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
                    yield case, done, sitting
        crowding = neighbours.crowding()
        for sitting in sittings.values():
            sitting.crowding = crowding
        session.finish()
