"""Choose the submissions to judge, and judge them one after another.

During an evaluation a GPU is reserved for this process. On a CPU, all processors are reserved while a submission is
timed. Each run is stored as soon as it has a verdict, so an interruption loses one run at most. A second start
continues with the submissions that have no verdict.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from harness import catalog
from harness.catalog import foreign, triage
from harness.catalog.config import EvalConfig, load_config
from harness.errors import InfrastructureError, UsageError, judging
from harness.machine import lock
from harness.model import Device, Problem, Run, Submission, outcome
from harness.progress import Narrate, named
from harness.records.store import Store
from harness.sandbox import tiers
from harness.verbs.agenda import Agenda, for_gpus_only, took_before

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
    return sorted(waiting, key=for_gpus_only) if device.kind == "cpu" else waiting


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
    agenda = Agenda(submissions, device, took_before(store, problem, device, quick) if known else {})
    if len(submissions) > 1:
        narrate(agenda.line)
    runs: list[Run] = []
    baselines = 0 if quick else len(foreign.baselines(problem))
    whole_s = problem.limits.evaluation_s * len(submissions) * (1 + baselines)
    with lock.hold_if_gpu(device, narrate, whole_s) as expect, contextlib.closing(Spare()) as spare:
        for number, submission in enumerate(submissions):
            spare.ahead = agenda.to_start_ahead(number)
            narrate(f"{submission.name}: loading (limit {problem.limits.load_s:g} s){agenda.which(number)}")
            of_all = _with_the_rest(expect, agenda.left_s(number + 1))
            if (likely_s := agenda.left_s(number, number + 1)) is not None:
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
            if not chosen:
                _keep(store, run, submission, narrate)
            words = outcome(run.ending.verdict, run.unranked_because)
            narrate(f"{submission.name}: {words}, {run.duration_s:.1f} s")
            runs.append(run)
            agenda.took(submission, run.duration_s)
            if not chosen:
                stored(run)
    return runs


def _keep(store: Store, run: Run, submission: Submission, narrate: Narrate) -> None:
    """Store `run`. If that raises InfrastructureError, the verdict is told before."""
    try:
        store.write(run, submission)
    except InfrastructureError:
        narrate(f"{submission.name}: {run.ending.verdict.words}: {run.ending.message} (not stored)")
        raise


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
