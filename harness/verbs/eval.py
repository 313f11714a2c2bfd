"""Choose the submissions to judge, and judge them one after another.

During an evaluation a GPU is reserved for this process. On a CPU, all processors are reserved while a submission is
timed. Each run is stored as soon as it has a verdict, so an interruption loses one run at most. A second start
continues with the submissions that have no verdict.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from harness import catalog
from harness.catalog import foreign, triage
from harness.catalog.config import EvalConfig, load_config
from harness.errors import InfrastructureError, UsageError, judging
from harness.machine import lock
from harness.model import Device, Problem, Run, Submission, Unranked, Verdict, outcome
from harness.progress import Narrate, about, named
from harness.records.store import Store
from harness.sandbox import tiers

if TYPE_CHECKING:
    from harness.judge.spare import Spare

NAMED = 6
"""The most files whose names are listed before the first is judged."""

MOST_AT_ONCE = 4
"""The most workers that are started at once. Each takes 0.2 GB of memory."""

LATEST = 5
"""The number of stored runs of each kind whose duration is read."""


def submissions_to_judge(
    root: Path,
    problem: Problem,
    files: Sequence[Path],
    device: Device,
    quick: bool,
    allow_unsandboxed: bool = False,
) -> list[Submission]:
    """Return the named files, each once. Without names, return every submission that has no verdict on this device
    which a board would rank. Such a verdict belongs to the present files of the problem and was timed by the judge
    where the judge can time.

    On a CPU, submissions that can be ranked there come first. The others name Triton (interpreted, and slow),
    harness.hip (needs a GPU) or NoDevice (by which a submission refuses a device).

    Raises UsageError for a file that cannot be a submission, and for two files that would share a name on the board.
    """
    if files:
        named = [catalog.load_submission(problem, path) for path in files]
        for one, other in itertools.combinations(named, 2):
            if one.name == other.name and one.sha256 != other.sha256:
                raise UsageError(f"{one.path} and {other.path} would both be {one.name} on the board", "rename one")
        return list({(each.name, each.sha256): each for each in named}.values())
    if problem.foreign is not None and not catalog.submissions(root, problem):
        raise UsageError(f"submissions/{problem.name} has no file to judge", "name the FILE that is to be judged")
    # On Linux a run without a sandbox is refused. Elsewhere it would only end as unranked again.
    unsandboxed = sys.platform != "linux" and not allow_unsandboxed
    with Store(root).index() as index:
        judged = index.judged(problem, device.slug, quick, unsandboxed, worker_timed=device.kind == "rocm")
    waiting = [submission for submission in catalog.submissions(root, problem) if submission.sha256 not in judged]
    return sorted(waiting, key=_for_gpus_only) if device.kind == "cpu" else waiting


def _for_gpus_only(submission: Submission) -> bool:
    """Whether the source suggests that no CPU run of it could be ranked."""
    return any(word in submission.text for word in ("triton", "harness.hip", "NoDevice"))


def judge(
    root: Path,
    problem: Problem,
    submissions: Sequence[Submission],
    device: Device,
    quick: bool,
    narrate: Narrate,
    allow_unsandboxed: bool = False,
    stored: Callable[[Run], None] = lambda run: None,
    *,
    chosen: bool = False,
    stop_at_first: bool = False,
) -> list[Run]:
    """Judge `submissions` in order. Store each run, then pass it to `stored`. With `chosen`, `problem` holds only the
    cases that the user chose, and nothing is stored. With `stop_at_first` the first wrong test case ends a run.

    Raises InfrastructureError when results cannot be stored or there is no sandbox, ProblemError when the problem's own
    code fails.
    """
    if not submissions:
        return []
    store = Store(root)
    store.check_writable()
    config = load_config(root)
    import harness.judge.evaluate  # imports torch, before the first message  # noqa: F401
    from harness.judge.spare import Spare

    tier = isolation_tier(device, quick or allow_unsandboxed, narrate)
    narrate(f"judging on {device.name}, isolation: {tier}")
    narrate(problem.limits.sentence)
    # For a single file the processors are reserved only if the duration is known.
    known = not chosen and (len(submissions) > 1 or device.kind != "cpu")
    stored_s = _took_before(store, problem, device, quick) if known else {}
    if len(submissions) > 1:
        narrate(_agenda(submissions, device, stored_s))
    runs: list[Run] = []
    took_s: dict[bool, list[float]] = {}
    baselines = 0 if quick else len(foreign.baselines(problem))
    whole_s = problem.limits.evaluation_s * len(submissions) * (1 + baselines)
    with lock.hold_if_gpu(device, narrate, whole_s) as expect, contextlib.closing(Spare()) as spare:
        for number, submission in enumerate(submissions):
            spare.ahead = _to_start_ahead(submissions[number:], device)
            which = _which_file(number, submissions, device, took_s, stored_s)
            narrate(f"{submission.name}: loading (limit {problem.limits.load_s:g} s){which}")
            of_all = _with_the_rest(expect, _left_s(submissions[number + 1 :], device, took_s, stored_s))
            if (likely_s := _left_s([submission], device, took_s, stored_s)) is not None:
                of_all(likely_s)
            run = judge_one(
                problem,
                submission,
                device,
                config,
                narrate,
                place=f"{number + 1}/{len(submissions)}" if len(submissions) > 1 else "",
                quick=quick,
                chosen=chosen,
                stop_at_first=stop_at_first,
                allow_unsandboxed=allow_unsandboxed,
                spare=spare,
                expect=of_all,
            )
            try:
                if not chosen:
                    store.write(run, submission)
            except InfrastructureError:
                narrate(f"{submission.name}: {run.ending.verdict.words}: {run.ending.message} (not stored)")
                raise
            words = outcome(run.ending.verdict, run.unranked_because)
            narrate(f"{submission.name}: {words}, {run.duration_s:.1f} s")
            runs.append(run)
            took_s.setdefault(_untimed(submission, device), []).append(run.duration_s)
            if not chosen:
                stored(run)
    return runs


def _untimed(submission: Submission, device: Device) -> bool:
    """Whether the submission will probably be checked here but not timed. The two kinds take different times."""
    return device.kind == "cpu" and _for_gpus_only(submission)


def _to_start_ahead(submissions: Sequence[Submission], device: Device) -> int:
    """Return how many workers to start ahead, for the submissions after the first. If all of them are only checked,
    there is one worker for each processor, because a check takes less time than the start of a worker."""
    untimed = itertools.takewhile(lambda submission: _untimed(submission, device), submissions)
    return max(min(sum(1 for _ in untimed), os.cpu_count() or 1, MOST_AT_ONCE) - 1, 0)


def _took_before(store: Store, problem: Problem, device: Device, quick: bool) -> dict[bool, list[float]]:
    """Return the durations in seconds of the latest stored runs on this kind of device. Key True: runs that were not
    timed. Key False: the others."""
    with store.index() as index:
        runs = [run for run in index.runs() if run.problem == problem.name and run.device == device.slug]
    found: dict[bool, list[float]] = {}
    for entry in sorted(runs, key=lambda run: run.started_at, reverse=True):
        of_kind = found.setdefault(entry.unranked == Unranked.INTERPRETED, [])
        same_kind = entry.unranked == Unranked.INTERPRETED or (entry.unranked == Unranked.QUICK) == quick
        if entry.verdict is Verdict.ACCEPTED and same_kind and len(of_kind) < LATEST:
            with contextlib.suppress(InfrastructureError):  # the file was removed or damaged
                of_kind.append(store.load(entry).duration_s)
    return {kind: took_s for kind, took_s in found.items() if took_s}


def _agenda(submissions: Sequence[Submission], device: Device, stored_s: Mapping[bool, list[float]]) -> str:
    """Describe the work, in the order of judging: `3 files: one, two, three; about 5 min if they take as long as stored
    runs here`."""
    names = [submission.name for submission in submissions]
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    line = f"{len(names)} files: {', '.join(names[:NAMED])}{more}"
    untimed = sum(_untimed(submission, device) for submission in submissions)
    if untimed:
        last = all(_untimed(submission, device) for submission in submissions[-untimed:])
        which = f"the last {untimed}" if last and untimed < len(names) else f"{untimed} of them"
        line += f"; {which} use Triton or inline HIP, or refuse a processor: they are checked here, not timed"
    left_s = _left_s(submissions, device, {}, stored_s)
    if left_s is None:
        return f"{line}; how long all of them take is told after the first"
    return f"{line}; {about(left_s)} if they take as long as stored runs here"


def _which_file(
    number: int,
    submissions: Sequence[Submission],
    device: Device,
    took_s: Mapping[bool, list[float]],
    stored_s: Mapping[bool, list[float]],
) -> str:
    """Return `, file 3 of 10, about 5 min left if the rest take as long as those`. `took_s`: durations of the files
    before."""
    if len(submissions) == 1:
        return ""
    left_s = _left_s(submissions[number:], device, took_s, stored_s) if took_s else None
    left = f", {about(left_s)} left if the rest take as long as those" if left_s is not None else ""
    return f", file {number + 1} of {len(submissions)}{left}"


def _left_s(
    submissions: Sequence[Submission],
    device: Device,
    took_s: Mapping[bool, list[float]],
    stored_s: Mapping[bool, list[float]],
) -> float | None:
    """Estimate the seconds that `submissions` will take, or return None if some cannot be estimated. Each is expected
    to take as long as earlier files of its kind, else as stored runs of its kind, else as any earlier file."""
    every = [each for times in took_s.values() for each in times]
    left_s = 0.0
    for submission in submissions:
        kind = _untimed(submission, device)
        known = took_s.get(kind) or stored_s.get(kind) or every
        if not known:
            return None
        left_s += statistics.fmean(known)
    return left_s


def _with_the_rest(expect: lock.Expect, rest_s: float | None) -> lock.Expect:
    """Return a function that passes `expect` the time for all files, given the time for one. `rest_s`: the time for the
    other files. If it is unknown, nothing is passed on."""
    return lock.unheard if rest_s is None else lambda seconds: expect(seconds + rest_s)


def judge_one(
    problem: Problem,
    submission: Submission,
    device: Device,
    config: EvalConfig,
    narrate: Narrate,
    *,
    place: str = "",
    quick: bool,
    timed: bool = True,
    profiles: bool = False,
    chosen: bool = False,
    stop_at_first: bool = False,
    allow_unsandboxed: bool = False,
    spare: Spare | None = None,
    expect: lock.Expect = lock.unheard,
) -> Run:
    """Judge one submission and return its run, with the findings of the source scanner. Stores nothing.

    `place`: such as 3/10, for one of several files. The other options are those of `judge.evaluate`. On a GPU the
      caller must hold the device's lock, which gave it `expect`. Raises as `judge` does.
    """
    from harness.judge.evaluate import evaluate

    def alone() -> AbstractContextManager[object]:
        if spare is not None:
            spare.close()  # a waiting worker polls now and then, which would disturb the timing
        return lock.hold_to_time(expect, device, narrate, problem.limits.evaluation_s)

    with judging(submission.name):
        run = evaluate(
            problem,
            submission,
            device,
            config,
            quick=quick,
            timed=timed,
            profiles=profiles,
            chosen=chosen,
            stop_at_first=stop_at_first,
            allow_unsandboxed=allow_unsandboxed,
            exclusive=alone,
            narrate=named(narrate, submission.name, place),
            spare=spare,
            baselines=[] if quick or not timed else foreign.baselines(problem),
        )
    return run.model_copy(update={"triage": triage.scan(submission.text)})


def isolation_tier(device: Device, tolerated: bool, narrate: Narrate = lambda line: None) -> str:
    """Return the sandbox tier in force. Raises InfrastructureError if a sandbox is possible here but there is none,
    unless `tolerated`.

    A system for which Podium has no sandbox (macOS) still judges. Its runs are shown, not ranked.
    """
    isolation = tiers.strongest(device)
    if trouble := tiers.bubblewrap_refused(device):
        narrate(f"bubblewrap is installed and does not hold here: {trouble}")
    if not isolation.confines and not tolerated:
        if sys.platform == "linux":
            raise InfrastructureError(
                "nothing here can confine a submission, so its run could not be ranked",
                f"{tiers.HOW_TO_GET_ONE}; --quick judges without ranking, --allow-unsandboxed ranks all the same",
            )
        narrate("nothing here confines submissions: runs are shown but not ranked, unless --allow-unsandboxed is given")
    return isolation.tier
