"""How an evaluation gets on, told to whoever asked for it: to a log as lines, to a terminal as steps.

    tell(narrate, Step) ─┬─► narrate.step(Step)      every step, where `narrate` can show a bar (render/progress)
                         └─► narrate(Step.line)      else the few that have a line

Told is between the calls of a submission, never during one: whoever shows a step takes no time from what is measured.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from harness.model import CaseCheck

Narrate = Callable[[str], None]


@dataclass(frozen=True)
class Step:
    """Where an evaluation is: `done` of `total` cases in what it is `doing` (test, pilot, timing, control).

    `line` is what a log is told. `check` is the finding on the test case that this step has completed. `who` is the
    submission, where there is more than one; `sample` which call of how many.
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
    """Pass on `step`, or where nobody shows steps, its line."""
    show = getattr(narrate, "step", None)
    if show is not None:
        show(step)
    elif step.line is not None:
        narrate(step.line)


def named(narrate: Narrate, who: str, place: str = "") -> Narrate:
    """`narrate` for one of several submissions: its lines begin with its name, its steps also have its `place`."""
    return _NamedSteps(narrate, who, place) if hasattr(narrate, "step") else _Named(narrate, who)


def about(seconds: float) -> str:
    """A duration that is expected, no more exactly than it can be: `about 40 s`, `about 3 min`."""
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
