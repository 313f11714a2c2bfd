"""A progress bar on the terminal: the case, the sample, and the time left.

    mine  timing  ━━━━━━━━━━╸━━━━━  7.3/12  sample 9 of 40  0:00:41 left  batch_size=4 q_seq_len=1 kv_seq_len=1024

Nothing is drawn while a submission's call is timed: the bar has no thread and moves only when it is told of a step.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.table import Column
from rich.text import Text

from harness.progress import Narrate, Step
from harness.ranking.board import Board
from harness.render.figures import significant
from harness.render.legible import legible

REFRESH_S = 0.1
WIDE_COLUMNS = 100  # on a narrower terminal the case needs the room of the long bar


def drawable() -> bool:
    """Whether stderr is a terminal that can move its cursor."""
    return sys.stderr.isatty() and os.environ.get("TERM", "dumb") != "dumb" and "CI" not in os.environ


def so_far(boards: Sequence[Board]) -> str:
    """Return one line with the ranked submissions so far: `board so far: 1 mine 812 µs, 2 yours 950 µs`."""
    placed = [
        f"{standing.rank} {standing.entry.submission} {significant(standing.entry.score_ns / 1e3)} µs"
        for board in boards
        for standing in board.standings
        if standing.entry.score_ns is not None
    ]
    return f"board so far: {', '.join(placed)}"


@contextmanager
def bar(console: Console | None = None) -> Iterator[Narrate]:
    """Yield the receiver of steps and lines. Afterwards only the lines stay on the terminal."""
    shown = Bar(console or Console(stderr=True))
    with shown.progress:
        yield shown


class Bar:
    """Shows the last step. A line is printed above the bar and stays."""

    def __init__(self, console: Console) -> None:
        room = Column(ratio=1, no_wrap=True, overflow="ellipsis")
        wide = console.width >= WIDE_COLUMNS
        self.progress = Progress(
            TextColumn("{task.fields[who]}", markup=False),
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=20 if wide else 6),
            TextColumn("{task.fields[share]}", markup=False),
            _Left(),
            TextColumn("{task.fields[case]}", markup=False, table_column=room),
            console=console,
            transient=True,
            expand=True,
            auto_refresh=False,
        )
        self._task = self.progress.add_task("", total=None, visible=False, who="", share="", case="")
        self._phase: tuple[str, str] | None = None
        self._drawn = 0.0

    def __call__(self, line: str) -> None:
        self.progress.console.print(Text(legible(line)))

    def step(self, step: Step) -> None:
        phase = (step.who, step.doing)
        who, case, share = legible(step.who), legible(step.case), _share(step)
        if phase != self._phase:
            what = step.doing
            self.progress.reset(self._task, total=step.total, description=what, who=who, case=case, share=share)
        self.progress.update(self._task, completed=step.done, visible=True, who=who, case=case, share=share)
        if phase != self._phase or time.monotonic() - self._drawn > REFRESH_S:
            self.progress.refresh()
            self._drawn = time.monotonic()
        self._phase = phase


class _Left(ProgressColumn):
    """The time left, estimated from the steps so far."""

    def __init__(self) -> None:
        self._remaining = TimeRemainingColumn()
        super().__init__(Column(no_wrap=True))

    def render(self, task: Task) -> Text:
        if not task.completed or task.time_remaining is None:
            return Text("")
        return Text.assemble(self._remaining.render(task), " left")


def _share(step: Step) -> str:
    share = f"{step.done:.1f}".removesuffix(".0") + f"/{step.total}"
    return f"{share}  sample {step.sample[0]} of {step.sample[1]}" if step.sample else share
