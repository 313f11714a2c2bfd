"""The marks of a run: the labels of its cases, and the reason why it is not ranked. Files store them by value.

Which of them a run earns: judge/marks. A stored run may hold others, of an older Podium (`tick-limited`): those stay
the text that they are.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping

_VOIDED = "more than a tenth of the calls, or a quarter of one case's, had to be taken again"
_CROWDED = "other processes took the processors meanwhile"
_WORKER_TIMED = "the submission's own process timed it"


class _Mark(enum.StrEnum):
    """A word with what it means: `why`, how a case or a run comes by it."""

    why: str

    def __new__(cls, word: str, why: str = "") -> _Mark:
        if not why:
            raise TypeError(f"{cls.__name__}: say of {word} how a run comes by it")
        mark = str.__new__(cls, word)
        mark._value_, mark.why = word, why
        return mark


class Label(_Mark):
    """What to know of one case's latency."""

    HOST_BOUND = "host-bound", "the call waits for the device, so the host's work is in its latency"
    COPIED = "copied", "an output was not allocated by torch in the call, so it was copied within the timed interval"
    CROWDED = "crowded", _CROWDED
    VOIDED = "voided", _VOIDED
    IMPRECISE = "imprecise", "its processes differ by more than a score may that is ranked"
    LATENCY_BOUND = "latency-bound", "a launch alone takes as long as half the floor"
    TOO_SHORT = "too-short", "it takes less than the clock's bound on a CPU, 150 µs, and counts with that"
    WORKER_TIMED = "worker-timed", _WORKER_TIMED


class Unranked(_Mark):
    """Why a run is not ranked. Of several reasons a run has the first that holds, in this order.

    unjudged: this machine cannot judge it, a kernel that cannot be interpreted, say; no verdict on the submission, but
    judging again here would end the same way. repro: the last that a judge gives, since `repro` asks what else there
    was. noisy: of schema version 1 only. of an older revision: a board says so, no run does.
    """

    UNJUDGED = "unjudged", "this machine cannot judge it"
    INTERPRETED = "interpreted", "verified through Triton's interpreter; interpreted time is no measurement"
    EMULATED = "emulated", "verified in the emulator, which tells nothing of time"
    CHOSEN = "chosen cases", "only the cases that were asked for were judged"
    SKIPPED = "skipped", "some cases do not fit this device's memory and were left out"
    QUICK = "quick", "a quick look with one process"
    VOIDED = "voided", _VOIDED
    CROWDED = "crowded", _CROWDED
    UNSTABLE = "unstable", "the machine became slower while it was timed"
    IMPRECISE = (
        "imprecise",
        "its processes differ so much that the score's interval, or its cases', is too wide to rank by",
    )
    BELOW_FLOOR = "below the floor", "it was faster than the device's datasheet allows"
    UNSANDBOXED = "unsandboxed", "nothing confined the submission"
    WORKER_TIMED = "worker-timed", _WORKER_TIMED
    REPRODUCED = "repro", "judged with the seeds of an earlier run, so its inputs could be known"
    NOISY = "noisy", "the judge's own clock could not confirm the times"
    OLDER = "of an older revision", "the problem's files have changed since it was judged"

    @classmethod
    def first(cls, holds: Mapping[Unranked, bool]) -> Unranked | None:
        """The reason that a run has of those that hold."""
        return next((reason for reason in cls if holds.get(reason)), None)


DISTURBED = (Unranked.CROWDED, Unranked.NOISY, Unranked.UNSTABLE, Unranked.VOIDED)
"""Reasons that are the machine's fault: another attempt may be ranked."""

OLDER_SOURCE = "older source"
"""The mark on boards of a run whose file has changed since it was judged. It stays ranked: it is true of its source."""
