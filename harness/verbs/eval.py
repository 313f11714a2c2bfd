"""What is to be judged, and judging it: one submission after another: a GPU is ours alone meanwhile, the
processors while they are timed.

Each run is stored as soon as it has its verdict, so that whatever interrupts a long evaluation costs one run at most;
started again, it goes on with what has none.
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
"""Files that are named before the first is judged."""

MOST_AT_ONCE = 4
"""Workers that are started at once, each of which takes 0.2 GB of memory."""

LATEST = 5
"""Stored runs of a kind that are asked how long they took."""


def submissions_to_judge(
    root: Path,
    problem: Problem,
    files: Sequence[Path],
    device: Device,
    quick: bool,
    allow_unsandboxed: bool = False,
) -> list[Submission]:
    """The named files, each once; without any, every submission of the problem whose source has no verdict on this
    device that a board would rank: one of the problem's present files, timed by the judge where it can. On a CPU those
    that can be ranked there come first: not those that name Triton, which is interpreted and takes long, harness.hip,
    which needs a GPU, or NoDevice, by which a submission refuses a device.

    Raises UsageError for a file that cannot be one, and for two that would have one name on the board.
    """
    if files:
        named = [catalog.load_submission(problem, path) for path in files]
        for one, other in itertools.combinations(named, 2):
            if one.name == other.name and one.sha256 != other.sha256:
                raise UsageError(f"{one.path} and {other.path} would both be {one.name} on the board", "rename one")
        return list({(each.name, each.sha256): each for each in named}.values())
    if problem.foreign is not None and not catalog.submissions(root, problem):
        raise UsageError(f"submissions/{problem.name} has no file to judge", "name the FILE that is to be judged")
    # Linux refuses to judge without a sandbox; elsewhere such a run would end as unranked again.
    unsandboxed = sys.platform != "linux" and not allow_unsandboxed
    with Store(root).index() as index:
        judged = index.judged(problem, device.slug, quick, unsandboxed, worker_timed=device.kind == "rocm")
    waiting = [submission for submission in catalog.submissions(root, problem) if submission.sha256 not in judged]
    return sorted(waiting, key=_for_gpus_only) if device.kind == "cpu" else waiting


def _for_gpus_only(submission: Submission) -> bool:
    """Whether it looks as if no processor could rank it."""
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
    """Judge `submissions` in order and store each run, of which `stored` is told; none if `problem` has only the cases
    that were `chosen`. With `stop_at_first` the first wrong test case ends a run.

    Raises InfrastructureError when results cannot be stored or nothing confines the worker, ProblemError when the
    problem's own code fails.
    """
    if not submissions:
        return []
    store = Store(root)
    store.check_writable()
    config = load_config(root)
    import harness.judge.evaluate  # imports torch, before anything is said  # noqa: F401
    from harness.judge.spare import Spare

    tier = isolation_tier(device, quick or allow_unsandboxed, narrate)
    narrate(f"judging on {device.name}, isolation: {tier}")
    narrate(problem.limits.sentence)
    # Of one file the processors are held only when it is known how long that will be.
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
    """Whether it looks as if it were checked here and not timed: the two kinds take their own time."""
    return device.kind == "cpu" and _for_gpus_only(submission)


def _to_start_ahead(submissions: Sequence[Submission], device: Device) -> int:
    """How many workers are started beside that of the first of `submissions`, for those behind it: one a processor
    together, where all of them are checked only, which takes less than a worker's start."""
    untimed = itertools.takewhile(lambda submission: _untimed(submission, device), submissions)
    return max(min(sum(1 for _ in untimed), os.cpu_count() or 1, MOST_AT_ONCE) - 1, 0)


def _took_before(store: Store, problem: Problem, device: Device, quick: bool) -> dict[bool, list[float]]:
    """What the latest stored runs on this kind of device took, in seconds: of those that were not timed, and others."""
    with store.index() as index:
        runs = [run for run in index.runs() if run.problem == problem.name and run.device == device.slug]
    found: dict[bool, list[float]] = {}
    for entry in sorted(runs, key=lambda run: run.started_at, reverse=True):
        of_kind = found.setdefault(entry.unranked == Unranked.INTERPRETED, [])
        same_kind = entry.unranked == Unranked.INTERPRETED or (entry.unranked == Unranked.QUICK) == quick
        if entry.verdict is Verdict.ACCEPTED and same_kind and len(of_kind) < LATEST:
            with contextlib.suppress(InfrastructureError):  # removed or damaged meanwhile
                of_kind.append(store.load(entry).duration_s)
    return {kind: took_s for kind, took_s in found.items() if took_s}


def _agenda(submissions: Sequence[Submission], device: Device, stored_s: Mapping[bool, list[float]]) -> str:
    """`3 files: one, two, three; about 5 min if they take as long as stored runs here`: in the order of judging."""
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
        of_each = " of each kind" if 0 < untimed < len(names) else ""
        return f"{line}; how long all of them take is told after the first{of_each}"
    return f"{line}; {about(left_s)} if they take as long as stored runs here"


def _which_file(
    number: int,
    submissions: Sequence[Submission],
    device: Device,
    took_s: Mapping[bool, list[float]],
    stored_s: Mapping[bool, list[float]],
) -> str:
    """`, file 3 of 10, about 5 min left if the rest take as long as those`: after `took_s` for the files before."""
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
    """What `submissions` are expected to take: each as long as those of its kind before it, else as stored runs of its
    kind; None if nothing is known of some."""
    left_s = 0.0
    for submission in submissions:
        kind = _untimed(submission, device)
        known = took_s.get(kind) or stored_s.get(kind)
        if not known:
            return None
        left_s += statistics.fmean(known)
    return left_s


def _with_the_rest(expect: lock.Expect, rest_s: float | None) -> lock.Expect:
    """What tells `expect` of all files, told of one, where the others take `rest_s`; nothing if that is not known."""
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
    """The run of one submission, with what a scanner says of its source; stored nowhere. `place`: 3/10, of several
    files. Options as of `judge.evaluate`; who calls this on a GPU holds its lock, and got `expect`. Raises as
    `judge`."""
    from harness.judge.evaluate import evaluate

    def alone() -> AbstractContextManager[object]:
        if spare is not None:
            spare.close()  # what waits looks around now and then
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
    """The tier in force. Raises InfrastructureError where there could be one and is none, unless that is `tolerated`.

    A system without any sandbox of ours (macOS) judges all the same; its runs are shown and not ranked.
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
