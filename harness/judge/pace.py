"""How the calls of a case are made: how many, and in which manner; found out by a pilot and fixed from then on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.judge.clock import Answer, Void
from harness.judge.null_calls import GATED_ABOVE_NS, LONG_ABOVE_NS
from harness.model import Manner


@dataclass(frozen=True)
class Pace:
    """`count` calls in each process, in this `manner`. `inside_ns`: what the worker's own events say of one.
    `own_constant`: whether the manner's own constant is subtracted, or the least that there is: what a submission
    brings about by itself must not pay. `copied`: an output is copied in the time that counts, at most `copied_bytes`
    of them all. `outputs`: how many values a call returns. `of_a_model`: a call is one of a
    module of torch's."""

    count: int
    manner: Manner
    inside_ns: float | None = None
    own_constant: bool = True
    copied: bool = False
    copied_bytes: int = 0
    outputs: int = 1
    of_a_model: bool = False


_LONGER = {Manner.SANDWICH: Manner.LONG, Manner.GATED: Manner.GATED_LONG}
_BEHIND_A_GATE = {Manner.SANDWICH: Manner.GATED, Manner.LONG: Manner.GATED_LONG}


def first_manner(pour_ns: float) -> Manner:
    """The manner to try first on a GPU."""
    return Manner.GATED if pour_ns > GATED_ABOVE_NS else Manner.SANDWICH


def next_manner(manner: Manner, answers: Sequence[Answer], right: Sequence[bool], constant_ns: float) -> Manner | None:
    """What to try when `manner` has been, of which these are the answers and whether their outputs were right; None if
    it suits. A call that is slow to enqueue waits at a gate, one that is longer than a time slice has a word behind it,
    and one that needs its inputs earlier gets them before it is made: it waits for the device, or has another engine of
    the device copy them. That goes well most of the time, so one wrong answer is enough, and so is one stream
    that waited for its host."""
    if manner in (Manner.STOPPED, Manner.WORKER):
        return None
    slow = sum(answer.void is Void.SLOW_TO_ARM for answer in answers)
    sound = [answer for answer, is_right in zip(answers, right, strict=True) if answer.void is None and is_right]
    failed = sum(answer.void is Void.FAILED_ARMED for answer in answers)
    waited = any(answer.void is Void.NEEDS_ITS_HOST for answer in answers)
    wrong = sum(answer.void is None and not is_right for answer, is_right in zip(answers, right, strict=True))
    timed = [answer for answer in answers if answer.void in (None, Void.CUT)]
    too_long = sum(answer.void is Void.CUT or answer.elapsed_ns - constant_ns > LONG_ABOVE_NS for answer in timed)
    if manner in _LONGER and 2 * too_long > len(timed):
        return _LONGER[manner]  # cut off by the end of the slice, it may look wrong
    if wrong or waited or 2 * failed > len(answers) or not (sound or slow):
        return Manner.STOPPED
    if 2 * slow > len(answers):
        return _BEHIND_A_GATE.get(manner, Manner.STOPPED)
    return None
