"""The marks of a run: the labels of its cases, and the reason why it is not ranked. Files store them by value.

judge/marks decides which marks a run gets. A stored run of an older Podium may hold others (`tick-limited`). They stay
plain text, unless RENAMED has them.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping

_VOIDED = "more than a tenth of the calls, or a quarter of one case's, had to be taken again"
_CROWDED = "other processes took the processors meanwhile"
_WORKER_TIMED = "the submission's own process timed it"


class _Mark(enum.StrEnum):
    """A word and its meaning: `why` a case or a run gets it."""

    why: str

    def __new__(cls, word: str, why: str = "") -> _Mark:
        if not why:
            raise TypeError(f"{cls.__name__}: give the reason why a run gets {word}")
        mark = str.__new__(cls, word)
        mark._value_, mark.why = word, why
        return mark


class Label(_Mark):
    """A remark on one case's latency."""

    HOST_BOUND = "host-bound", "the call waits for the device, so the host's work is in its latency"
    COPIED = "copied", "an output was not allocated by torch in the call, so it was copied within the timed interval"
    CROWDED = "crowded", _CROWDED
    VOIDED = "voided", _VOIDED
    WIDE = "wide", "its interval is wider than that of a ranked score may be"
    LATENCY_BOUND = "latency-bound", "a launch alone takes more than half the floor"
    TOO_SHORT = "too-short", "it takes less than the clock's bound on a CPU, 50 µs, and counts with that"
    WORKER_TIMED = "worker-timed", _WORKER_TIMED


RENAMED = {"imprecise": Label.WIDE}
"""Labels of cases in older runs by their former names. `imprecise` is now said of a run alone (`Unranked`)."""


class Unranked(_Mark):
    """Why a run is not ranked. If several reasons hold, a run has the first one in this order.

    unjudged: this machine cannot judge the run, for example because a kernel cannot be interpreted. This is not a
    verdict on the submission, but judging again here would end the same way. repro: the last reason that a judge gives,
    because `repro` needs any other reason. noisy: schema version 1 only. of an older revision: shown by boards, never
    stored in a run.
    """

    UNJUDGED = "unjudged", "this machine cannot judge it"
    INTERPRETED = (
        "interpreted",
        "verified through Triton's interpreter, which adds fp8 products, and computes exp2 and the like, more exactly "
        "than chips do; interpreted times are not measurements",
    )
    EMULATED = "emulated", "verified in the emulator, which does not model time"
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
        """The first reason that holds, or None."""
        return next((reason for reason in cls if holds.get(reason)), None)


DISTURBED = (Unranked.CROWDED, Unranked.NOISY, Unranked.UNSTABLE, Unranked.VOIDED)
"""Reasons that are the machine's fault: another attempt may be ranked."""

OLDER_SOURCE = "older source"
"""The mark that boards show if a submission's file has changed since it was judged. The run stays ranked: it is true of
the source that it judged."""
