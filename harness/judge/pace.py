"""The pace of a case: how many calls are made, and in which manner. A pilot finds it; it is fixed from then on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from harness.judge.clock import Answer, Void
from harness.judge.null_calls import GATED_ABOVE_NS, LONG_ABOVE_NS
from harness.model import Manner
from harness.model.eligibility import MOST_VOID_OF_A_CASE


@dataclass(frozen=True)
class Pace:
    """How the calls of a case are made in each process: `count` calls in this `manner`.

    `inside_ns`: the time of a call by the worker's own events. `own_constant`: subtract the manner's own constant;
    otherwise the smallest one, because a submission must gain nothing from a manner that it causes itself. `copied`: an
    output is copied within the timed interval. `copied_bytes`: the most bytes copied so, over all outputs. `outputs`:
    the number of returned values. `of_a_model`: a call runs a torch module.
    """

    count: int
    manner: Manner
    inside_ns: float | None = None
    own_constant: bool = True
    copied: bool = False
    copied_bytes: int = 0
    outputs: int = 1
    of_a_model: bool = False


ROOM_NS = 1.4e6
"""Least time to enqueue a call for a long one to be held. On a slow host 9 of 35 calls of a case of `prefill` took
longer than they may (H200, 2026-11-29). A gate costs a long call nothing that its bound would show."""

_LONGER = {Manner.SANDWICH: Manner.LONG, Manner.GATED: Manner.GATED_LONG}
_BEHIND_A_GATE = {Manner.SANDWICH: Manner.GATED, Manner.LONG: Manner.GATED_LONG}


def first_manner(pour_ns: float) -> Manner:
    """The manner to try first on a GPU."""
    return Manner.GATED if pour_ns > GATED_ABOVE_NS else Manner.SANDWICH


def next_manner(
    manner: Manner, answers: Sequence[Answer], right: Sequence[bool], constant_ns: float, room_ns: float = math.inf
) -> Manner | None:
    """Choose the manner to try after `manner`; None if `manner` suits. `answers` are its calls, `right` says which had
    right outputs. While the device is held, a worker has `room_ns` to enqueue a call.

    A call that is slow to enqueue waits at a gate, if more of its calls are late than may be void. Where the pour is
    long, a call may be enqueued in time and yet too late: the judge's slice ends within the pour, as if others used the
    device. A call longer than a time slice has a word written after it, and waits at a gate if there is little room. A
    call that needs its inputs earlier gets them before it is made: it waits for the device, or another engine of the
    device copies its inputs. Such calls succeed most of the time, so one wrong answer is enough, and so is one stream
    that waited for its host.
    """
    if manner in (Manner.STOPPED, Manner.WORKER):
        return None
    slow = sum(answer.void is Void.SLOW_TO_ARM for answer in answers)
    taken = 0 if manner.gated else sum(answer.void is Void.DISTURBED for answer in answers)
    late = (slow + taken) / len(answers) > (0.5 if manner.gated else MOST_VOID_OF_A_CASE)
    sound = [answer for answer, is_right in zip(answers, right, strict=True) if answer.void is None and is_right]
    failed = sum(answer.void is Void.FAILED_ARMED for answer in answers)
    waited = any(answer.void is Void.NEEDS_ITS_HOST for answer in answers)
    wrong = sum(answer.void is None and not is_right for answer, is_right in zip(answers, right, strict=True))
    timed = [answer for answer in answers if answer.void in (None, Void.CUT)]
    too_long = sum(answer.void is Void.CUT or answer.elapsed_ns - constant_ns > LONG_ABOVE_NS for answer in timed)
    if manner in _LONGER and 2 * too_long > len(timed):
        longer = _LONGER[manner]  # tested first: a call cut off by the end of the slice may look wrong
        return _BEHIND_A_GATE[longer] if longer is Manner.LONG and room_ns < ROOM_NS else longer
    if wrong or waited or 2 * failed > len(answers) or not (sound or late):
        return Manner.STOPPED
    if late:
        return _BEHIND_A_GATE.get(manner, Manner.STOPPED)
    return None
