"""The progress of an evaluation, told to its caller: to a log as lines, to a terminal as steps.

    tell(narrate, Step) ─┬─► narrate.step(Step)      every step, if `narrate` can show a bar (render/progress)
                         └─► narrate(Step.line)      else only the steps that have a line
    note(narrate, line) ─┬─► narrate.note(line)      if `narrate` keeps a log of what happens, too (server/narration)
                         └─► narrate(line)

Steps are told between the calls of a submission, never during one, so that showing them costs no measured time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from harness.model import CaseCheck

Narrate = Callable[[str], None]


@dataclass(frozen=True)
class Step:
    """The state of an evaluation: `done` of `total` cases in the phase `doing` (test, pilot, timing, control).

    `line`: the text for a log. `check`: the result of the test case that this step completed. `who`: the submission, if
    there are several. `sample`: the number of the call, and of how many.
    """

    doing: str
    case: str
    done: float
    total: int
    line: str | None = None
    check: CaseCheck | None = None
    who: str = ""
    sample: tuple[int, int] | None = None


def tell(narrate: Narrate, step: Step) -> None:
    """Pass on `step`, or only its line if `narrate` shows no steps."""
    show = getattr(narrate, "step", None)
    if show is not None:
        show(step)
    elif step.line is not None:
        narrate(step.line)


def note(narrate: Narrate, line: str) -> None:
    """Pass on a `line` that a log has as well: what happened to the evaluation, not how far it is."""
    getattr(narrate, "note", narrate)(line)


def named(narrate: Narrate, who: str, place: str = "") -> Narrate:
    """`narrate` for one of several submissions. Its lines begin with the name; its steps also have its `place`."""
    return _NamedSteps(narrate, who, place) if hasattr(narrate, "step") else _Named(narrate, who)


def about(seconds: float) -> str:
    """Format an expected duration, rounded: `about 40 s`, `about 3 min`."""
    if seconds < 90:
        return f"about {max(round(seconds), 1)} s"
    return f"about {round(seconds / 60)} min"


class _Named:
    def __init__(self, narrate: Narrate, who: str) -> None:
        self._narrate, self._who = narrate, who

    def __call__(self, line: str) -> None:
        self._narrate(f"{self._who}: {line}")


class _NamedSteps(_Named):
    def __init__(self, narrate: Narrate, who: str, place: str) -> None:
        super().__init__(narrate, who)
        self._place = place

    def step(self, step: Step) -> None:
        tell(self._narrate, replace(step, who=f"{self._who} {self._place}".rstrip()))
