"""The pilot finds how often a benchmark case is sampled and in which manner. Its calls do not count."""

from __future__ import annotations

import statistics

from harness.catalog.config import Sampling
from harness.judge.calls import Caller, Series
from harness.judge.clock import Answer
from harness.judge.clocks import Clocks
from harness.judge.pace import Pace, first_manner, next_manner
from harness.judge.session import Session
from harness.model import Manner, Verdict

CALLS_TO_CHANGE = 2
"""Before another manner is tried, this many times as many calls are made again: a host may be slow for some calls only.
"""


def pace(caller: Caller, clocks: Clocks, sampling: Sampling, session: Session, series: Series) -> Pace:
    """Return the pace of the case of `series`, from calls that `session` answers. Raises what `Caller.put_timed`
    raises."""
    constants, calls = caller.constants, sampling.pilot_calls
    caller.put_timed(session, series, clocks.for_checks)  # compiles; its time is not used
    if caller.untimed:  # an interpreted call may take a minute
        return Pace(count=0, manner=clocks.for_checks.manner)
    manner: Manner | None = clocks.for_checks.manner
    if clocks.encloses:
        manner = first_manner(constants.pour_ns.get(series.case.key, 0.0))
    given = manner
    while manner is not None:
        tried = manner
        caller.judging_s.clear()
        clock = clocks.with_events(tried)
        answers: list[Answer] = []
        right: list[bool] = []
        for count in (calls, CALLS_TO_CHANGE * calls):
            for _ in range(count):
                check, answer = caller.put(session, series, clock, everything=False)
                answers.append(answer)
                right.append(check is not None and check.verdict is Verdict.ACCEPTED)
            manner = next_manner(tried, answers, right, constants.of(tried), constants.arm_ns(series.case))
            if manner is None:
                break
    if not all(right) and tried in (Manner.STOPPED, Manner.WORKER):
        caller.put_timed(session, series, clocks.for_checks)  # raises WrongTimedCall if it is wrong again
    latency_ns = statistics.median(answer.elapsed_ns for answer in answers) - constants.of(tried)
    inside = [answer.inside_ns for answer in answers if answer.inside_ns is not None]
    return Pace(
        count=sampling.samples_for(max(latency_ns, 1.0), statistics.median(caller.judging_s)),
        manner=tried,
        inside_ns=statistics.median(inside) if inside else None,
        own_constant=tried is given,
        copied=any(output.copied for answer in answers if answer.reply for output in answer.reply.outputs),
        copied_bytes=sum(series.call.fresh_bytes) if series.call is not None else 0,
        outputs=max((len(answer.reply.outputs) for answer in answers if answer.reply), default=1),
        of_a_model=caller.calls_a_model,
    )
