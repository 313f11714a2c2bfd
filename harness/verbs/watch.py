"""Judge one file again at each save, until the user stops. The quickest findings come first.

    saved ─► unchanged ─► compiles ─► loads ─► smallest test case ─► all test cases ─► quick timing, one process
      ▲                      │          │               │                  │                   │
      └── again at each save ◄──────────┴───────────────┴──────────────────┴───────────────────┘  a failure ends it

When the file is saved again, the judging under way ends at its next step. Nothing is ranked or stored, because the file
is still being edited.
"""

from __future__ import annotations

import functools
import hashlib
import os
import stat
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from harness import catalog
from harness.catalog.config import EvalConfig, load_config
from harness.errors import UsageError, judging
from harness.machine import lock
from harness.model import Device, Ending, Problem, Run, Submission, Verdict, all_tests
from harness.progress import Step
from harness.verbs.check import smallest_first

POLL_S = 0.2
SETTLE_S = 0.15
"""Editors write a file in pieces, or replace it by another. So it must stay unchanged for this many seconds."""

_COARSE_NS = 2_000_000_000
"""Some file systems date changes only to a second or two. A file changed more recently than this is read even if its
date is the same."""


@dataclass(frozen=True)
class Feedback:
    """The current knowledge about a save, `after_s` seconds after it: one sentence, and details that help to correct
    the file.

    `run`: the run, once a judging has finished. `before`: the last earlier run of this watch that has a score.
    """

    message: str
    after_s: float | None = None
    detail: str | None = None
    run: Run | None = None
    before: Run | None = None


Show = Callable[[Feedback], None]


class Saves:
    """The saves of one file, found by polling: its date first, then its content."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._status: tuple[int, ...] | None = None
        self._judged: str | None = None

    def next(self, show: Show) -> bytes:
        """Wait until the file has new content that stays unchanged, and return it. If the file is gone, say so once."""
        said = False
        while True:
            found = self._read()
            if found is None and not said:
                time.sleep(SETTLE_S)
                if self._read() is None:  # replacing a file takes less time than this
                    why = "cannot be read" if self._path.exists() else "is gone"
                    show(Feedback(f"{self._path} {why}: waiting for it"))
                    said = True
            elif found is not None and _hash(found) != self._judged:
                time.sleep(SETTLE_S)
                if self._read() == found:
                    return found
                continue
            time.sleep(POLL_S)

    def judge(self, content: bytes) -> None:
        """Record that `content` needs no further judging."""
        self._judged = _hash(content)

    def another(self) -> bool:
        """Whether the file has content that was not judged yet. Cheap enough to call between any two calls."""
        try:
            status = os.stat(self._path)
        except OSError:
            return False
        now = (status.st_mtime_ns, status.st_size, status.st_ino)
        if now == self._status and time.time_ns() - status.st_mtime_ns > _COARSE_NS:
            return False
        found = self._read()
        if found is not None and _hash(found) == self._judged:
            self._status = now
        return found is not None and _hash(found) != self._judged

    def _read(self) -> bytes | None:
        """Read the file, up to one byte beyond the size limit. Return None if it cannot be read now."""
        try:
            if not stat.S_ISREG(os.stat(self._path).st_mode):
                return None
            with self._path.open("rb") as file:
                return file.read(catalog.MAX_SOURCE_BYTES + 1)
        except OSError:
            return None


class _SavedAgain(Exception):
    """The file has newer content, so the judging under way no longer matters."""


def watch(root: Path, problem: Problem, path: Path, device: Device, show: Show, *, stop_at_first: bool = False) -> None:
    """Judge the file at each save. With `stop_at_first`, stop each judging at the first wrong test case. The function
    ends only by an exception: KeyboardInterrupt, InfrastructureError, ProblemError, or UsageError if there is no such
    file at the start."""
    catalog.load_submission(problem, path)
    config, cases = load_config(root), problem.cases_for(device.kind)
    ordered = cases.model_copy(update={"test": smallest_first(problem, cases.test, device)})
    problem = problem.model_copy(update={"cpu" if device.kind == "cpu" else "cases": ordered})
    saves, before = Saves(path), None
    while True:
        content = saves.next(show)
        try:
            submission = catalog.load_submission(problem, path)
        except UsageError as error:
            if path.exists():
                saves.judge(content)
                show(Feedback(error.message))
            continue
        saves.judge(submission.source)
        run = _judge(problem, submission, device, config, saves, show, before, stop_at_first)
        before = run if run is not None and run.score is not None else before


def syntax_error(submission: Submission) -> Ending | None:
    """Return the error that keeps the source from being Python, or None. Nothing of the source runs."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(submission.source, submission.path, "exec", dont_inherit=True)
    except SyntaxError as error:
        detail = "".join(traceback.format_exception_only(error))
        return Ending(verdict=Verdict.COMPILE_ERROR, message=f"line {error.lineno or 1}: {error.msg}", detail=detail)
    except (ValueError, RecursionError, MemoryError, OverflowError) as error:
        return Ending(verdict=Verdict.COMPILE_ERROR, message=str(error) or type(error).__name__)
    return None


def _judge(
    problem: Problem,
    submission: Submission,
    device: Device,
    config: EvalConfig,
    saves: Saves,
    show: Show,
    before: Run | None,
    stop_at_first: bool,
) -> Run | None:
    """Judge one save. Return its run, or None if the judging did not finish."""
    from harness.judge.evaluate import evaluate  # imports torch

    saved = time.monotonic()
    show(Feedback(f"{submission.name} {submission.sha256[:8]}"))
    flaw = syntax_error(submission)
    if flaw is not None:
        show(Feedback(f"{flaw.verdict.words}: {flaw.message}", time.monotonic() - saved, flaw.detail))
        return None
    narrator = _Narrator(saves, show, saved)
    try:
        limit_s = problem.limits.evaluation_s
        with lock.hold_if_gpu(device, narrator, limit_s, narrator.look) as expect, judging(submission.name):
            alone = functools.partial(lock.hold_to_time, expect, device, narrator, limit_s, narrator.look)
            run = evaluate(
                problem,
                submission,
                device,
                config,
                quick=True,
                stop_at_first=stop_at_first,
                exclusive=alone,
                narrate=narrator,
            )
    except _SavedAgain:
        return None
    words = "" if run.ending.verdict is Verdict.ACCEPTED else f"{run.ending.verdict.words}: "
    # The first wrong case was shown at once. The sentence may refer to a later case that tells more.
    detail = None if run.ending.detail == narrator.shown else run.ending.detail
    show(Feedback(f"{words}{run.ending.message}", time.monotonic() - saved, detail, run, before))
    return run


class _Narrator:
    """Turns an evaluation's steps into feedback, and ends it when the file is saved again."""

    def __init__(self, saves: Saves, show: Show, saved: float) -> None:
        self._saves, self._show, self._saved = saves, show, saved
        self.shown: str | None = None
        self._found_bad = False

    def __call__(self, line: str) -> None:
        self._show(Feedback(line, time.monotonic() - self._saved))

    def look(self) -> None:
        """Raise _SavedAgain if the file has newer content."""
        if self._saves.another():
            raise _SavedAgain

    def step(self, step: Step) -> None:
        self.look()
        check = step.check
        if step.doing == "test" and step.done == 0:
            self("it loads")
        elif check is None or self._found_bad:
            return
        elif check.verdict not in (Verdict.ACCEPTED, Verdict.WRONG_ANSWER):
            self._found_bad = True
            self(f"{check.verdict.words} on {step.case}")
        elif check.verdict is not Verdict.ACCEPTED:
            self.shown, self._found_bad = check.report, True
            self._show(Feedback(f"wrong on {step.case}", time.monotonic() - self._saved, check.report))
        elif step.done == step.total:
            self(f"right on {all_tests(step.total)}")
        elif step.done == 1:
            self(f"right on the smallest test case, {step.case}")


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
