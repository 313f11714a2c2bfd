"""What is to be judged, and judging it: one submission after another: a GPU is ours alone meanwhile, the
processors while they are timed.

Each run is stored as soon as it has its verdict, so that whatever interrupts a long evaluation costs one run at most;
started again, it goes on with what has none.
"""

from __future__ import annotations

import itertools
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from harness import catalog
from harness.catalog import foreign, triage
from harness.catalog.config import EvalConfig, load_config
from harness.errors import InfrastructureError, UsageError, judging
from harness.machine import lock
from harness.model import Device, Problem, Run, Submission, outcome
from harness.progress import Narrate, about, named
from harness.records.store import Store
from harness.sandbox import tiers

if TYPE_CHECKING:
    from harness.judge.spare import Spare


def submissions_to_judge(
    root: Path,
    problem: Problem,
    files: Sequence[Path],
    device: Device,
    quick: bool,
    allow_unsandboxed: bool = False,
) -> list[Submission]:
    """The named files; without any, every submission of the problem whose source has no verdict on this device that a
    board would rank: one of the problem's present files, timed by the judge where it can. On a CPU those that can be
    ranked there come first: not those that name Triton, which is interpreted and takes long, or NoDevice, by which a
    submission refuses a device.

    Raises UsageError for a file that cannot be one, and for two that would have one name on the board.
    """
    if files:
        named = [catalog.load_submission(problem, path) for path in files]
        for one, other in itertools.combinations(named, 2):
            if one.name == other.name and one.sha256 != other.sha256:
                raise UsageError(f"{one.path} and {other.path} would both be {one.name} on the board", "rename one")
        return named
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
    return "triton" in submission.text or "NoDevice" in submission.text


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

    tier = isolation_tier(device, quick or allow_unsandboxed, narrate)
    narrate(f"judging on {device.name}, isolation: {tier}")
    narrate(problem.limits.sentence)
    runs: list[Run] = []
    baselines = 0 if quick else len(foreign.baselines(problem))
    with lock.hold_if_gpu(device, narrate, problem.limits.evaluation_s * len(submissions) * (1 + baselines)):
        for number, submission in enumerate(submissions):
            which = _which_file([run.duration_s for run in runs], len(submissions))
            narrate(f"{submission.name}: loading (limit {problem.limits.load_s:g} s){which}")
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
            if not chosen:
                stored(run)
    return runs


def _which_file(took_s: Sequence[float], count: int) -> str:
    """`, file 3 of 10, about 5 min left if the rest take as long as those`: after `took_s` for the files before."""
    if count == 1:
        return ""
    left_s = (count - len(took_s)) * statistics.fmean(took_s or [0.0])
    left = f", {about(left_s)} left if the rest take as long as those" if took_s else ""
    return f", file {len(took_s) + 1} of {count}{left}"


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
) -> Run:
    """The run of one submission, with what a scanner says of its source; stored nowhere. `place`: 3/10, of several
    files. Options as of `judge.evaluate`; who calls this on a GPU holds its lock. Raises as `judge`."""
    from harness.judge.evaluate import evaluate

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
            exclusive=lambda: lock.hold(device, narrate, problem.limits.evaluation_s),
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
    if not isolation.confines and not tolerated:
        if sys.platform == "linux":
            raise InfrastructureError(
                "nothing here can confine a submission, so its run could not be ranked",
                f"{tiers.HOW_TO_GET_ONE}; --quick judges without ranking, --allow-unsandboxed ranks all the same",
            )
        narrate("nothing here confines submissions: runs are shown but not ranked, unless --allow-unsandboxed is given")
    return isolation.tier
