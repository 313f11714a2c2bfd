"""The marks of a run: the labels of its cases, and the reason why it is not ranked. Files store them by value.

A stored run of an older Podium may hold other marks (`tick-limited`). They stay plain text.
"""

from __future__ import annotations

import enum


class Label(enum.StrEnum):
    """A remark on one case's latency."""

    HOST_BOUND = "host-bound"
    COPIED = "copied"
    CROWDED = "crowded"
    VOIDED = "voided"
    IMPRECISE = "imprecise"
    LATENCY_BOUND = "latency-bound"
    TOO_SHORT = "too-short"
    WORKER_TIMED = "worker-timed"

    @property
    def why(self) -> str:
        """Why a case gets this label."""
        return _LABELLED[self]


class Unranked(enum.StrEnum):
    """Why a run is not ranked. If several reasons hold, a run has the first one in the order of `evaluate`.

    unjudged: this machine cannot judge the run, for example because a kernel cannot be interpreted. This is not a
    verdict on the submission, but judging again here would end the same way. noisy: schema version 1 only. of an older
    revision: shown by boards, never stored in a run.
    """

    UNJUDGED = "unjudged"
    INTERPRETED = "interpreted"
    EMULATED = "emulated"
    SKIPPED = "skipped"
    CHOSEN = "chosen cases"
    QUICK = "quick"
    VOIDED = "voided"
    CROWDED = "crowded"
    UNSTABLE = "unstable"
    IMPRECISE = "imprecise"
    BELOW_FLOOR = "below the floor"
    UNSANDBOXED = "unsandboxed"
    WORKER_TIMED = "worker-timed"
    REPRODUCED = "repro"
    NOISY = "noisy"
    OLDER = "of an older revision"

    @property
    def why(self) -> str:
        """The reason in words."""
        return _UNRANKED[self]


DISTURBED = (Unranked.CROWDED, Unranked.NOISY, Unranked.UNSTABLE, Unranked.VOIDED)
"""Reasons that are the machine's fault: another attempt may be ranked."""

OLDER_SOURCE = "older source"
"""The mark that boards show if a submission's file has changed since it was judged. The run stays ranked: it is true of
the source that it judged."""

_VOIDED = "more than a tenth of the calls, or a quarter of one case's, had to be taken again"
_CROWDED = "other processes took the processors meanwhile"
_WORKER_TIMED = "the submission's own process timed it"

_LABELLED = {
    Label.HOST_BOUND: "the call waits for the device, so the host's work is in its latency",
    Label.COPIED: "an output was not allocated by torch in the call, so it was copied within the timed interval",
    Label.CROWDED: _CROWDED,
    Label.VOIDED: _VOIDED,
    Label.IMPRECISE: "its processes differ by more than a ranked score allows",
    Label.LATENCY_BOUND: "a launch alone takes as long as half the floor",
    Label.TOO_SHORT: "it takes less than the clock's bound on a CPU, 150 µs, and counts with that",
    Label.WORKER_TIMED: _WORKER_TIMED,
}
_UNRANKED = {
    Unranked.UNJUDGED: "this machine cannot judge it",
    Unranked.INTERPRETED: "verified through Triton's interpreter; interpreted times are not measurements",
    Unranked.EMULATED: "verified in the emulator, which does not model time",
    Unranked.SKIPPED: "some cases do not fit this device's memory and were left out",
    Unranked.CHOSEN: "only the cases that were asked for were judged",
    Unranked.QUICK: "a quick look with one process",
    Unranked.VOIDED: _VOIDED,
    Unranked.CROWDED: _CROWDED,
    Unranked.UNSTABLE: "the machine became slower while it was timed",
    Unranked.IMPRECISE: "its processes differ so much that the score's interval, or its cases', is too wide to rank by",
    Unranked.BELOW_FLOOR: "it was faster than the device's datasheet allows",
    Unranked.UNSANDBOXED: "nothing confined the submission",
    Unranked.WORKER_TIMED: _WORKER_TIMED,
    Unranked.REPRODUCED: "judged with the seeds of an earlier run, so its inputs could be known",
    Unranked.NOISY: "the judge's own clock could not confirm the times",
    Unranked.OLDER: "the problem's files have changed since it was judged",
}
