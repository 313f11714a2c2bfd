"""Profile a submission that passed its tests: calls of every benchmark case under torch.profiler, in its worker.

    deal ─► pour ─► worker: profiled call ─► ProfileReply ─► ProfiledCase

Only the form of the worker's report is checked: a submission that lies here misleads its own author.
"""

from __future__ import annotations

import statistics
from collections import defaultdict

import torch

from harness.judge.calls import Series
from harness.judge.entrant import Entrant
from harness.judge.reply import ProfileReply
from harness.judge.session import Session
from harness.model import Case, ProfiledCase, ProfiledPart
from harness.model.profiled import LONGEST_PART, MOST_PARTS
from harness.model.value import SHORTEST_NS
from harness.progress import Narrate, Step, tell

CALLS = 3
MOST_CASES = 16


def profiled(entrant: Entrant, narrate: Narrate) -> list[ProfiledCase]:
    """Profile each benchmark case, with fresh inputs in each call. Raises Fault.

    If kernels are interpreted or emulated, which is slow and gives no meaningful time, only the first test case is
    called, and the profile holds counts instead of times.
    """
    simulated = entrant.caller.untimed
    cases = entrant.tests[:1] if simulated else entrant.benchmarks[:MOST_CASES]
    found = []
    with entrant.session(limit_s=entrant.limits.benchmark_s) as session:
        for number, case in enumerate(cases):
            tell(narrate, Step("profile", case.label, number, len(cases), f"profiling {case.label}"))
            with entrant.series("profile", case) as series:
                found.append(_case(entrant, session, series, simulated))
        session.finish()
    return found


def _case(entrant: Entrant, session: Session, series: Series, simulated: bool) -> ProfiledCase:
    case = series.case
    if simulated:
        before, after = (_call(entrant, session, series, looked_at=False) for _ in range(2))
        launches, executed = after.launches - before.launches, after.executed - before.executed
        return ProfiledCase(case=case, calls=1, launches=max(launches, 0), instructions=max(executed, 0))
    _call(entrant, session, series, looked_at=False)  # compiles
    replies = [_call(entrant, session, series, looked_at=True) for _ in range(1 + CALLS)]
    return _added_up(case, replies[1:])  # the first includes the start of the profiler


def _added_up(case: Case, replies: list[ProfileReply]) -> ProfiledCase:
    sums: dict[str, tuple[int, float]] = defaultdict(lambda: (0, 0.0))
    for reply in replies:
        for part in reply.parts:
            count, own_ns = sums[part.name]
            sums[part.name] = (count + part.count, own_ns + part.self_ns)
    calls = len(replies)
    in_order = sorted(sums.items(), key=lambda part: -part[1][1])[:MOST_PARTS]
    return ProfiledCase(
        case=case,
        calls=calls,
        call_ns=statistics.median(reply.call_ns or SHORTEST_NS for reply in replies),
        parts=tuple(ProfiledPart(name=name, count=n / calls, self_ns=ns / calls) for name, (n, ns) in in_order),
    )


def _call(entrant: Entrant, session: Session, series: Series, looked_at: bool) -> ProfileReply:
    """Make one call with fresh inputs. Raises Fault."""
    entrant.deadline.check()
    call = series.deal(everything=False)
    entrant.caller.set_up(session, series.case)
    session.map(call.arena)
    series.stage.set_up(call.arena, call.places)
    series.stage.pour()
    if call.arena.on_device:
        torch.cuda.synchronize()
    asked = {"looked_at": looked_at, "most_parts": MOST_PARTS, "longest_name": LONGEST_PART}
    return session.profile({**call.request, **asked}, series.case.label)
