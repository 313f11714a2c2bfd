"""Time one fresh process of a submission through all of its benchmark cases."""

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
    """Yield after each sample: its case, the number of cases done before, and the growing sitting of the case.

    Cases are taken in random order. At the end all sittings get the load of the processors. phase: the phase of the
    inputs' seeds. null: the judge's worker for null calls, None if workers time themselves. waiting: other waiting
    workers of the judge's, which do not count as load. Raises what `Entrant.sit` raises.
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
        session.finish()
    less_ns = entrant.offsets.excess_ns(session.offset_ns, null.ready()) if null is not None else 0.0
    for sitting in sittings.values():
        sitting.crowding = crowding
        sitting.subtract_less(less_ns)
