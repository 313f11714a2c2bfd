"""A stored run judged again as it was: its source, its cases, its sampling, its seeds; on the device that is here.

recipe.take(root, RUN) ─► Recipe ─► reproduce ─► Reproduction     what differs around it, verdict and score then and now

    verdicts differ                                        not reproduced; exit code: whichever verdict is no 0
    same verdict, the ratio of the scores is beyond both   not reproduced; exit code 20
    its interval and the device's noise
    same verdict, the scores cannot be told                the verdict is reproduced, with the reason; 0
    same verdict, anything else                            reproduced; 0

Scores cannot be told where there is no interval, a wide one, another device or a run whose times are not to be trusted.

With the same seeds every call has the inputs that it had then: on the same versions a deterministic kernel errs by the
same amount to the last digit. Since those inputs are known, the new run is stored and shown but never ranked.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from harness.catalog import foreign, triage
from harness.catalog.config import load_config
from harness.errors import judging
from harness.machine import lock
from harness.machine.environment import flat
from harness.model import (
    ClockOwner,
    Device,
    Label,
    Run,
    TimedBaseline,
    Unranked,
    Verdict,
)
from harness.progress import Narrate
from harness.ranking import comparison
from harness.ranking.comparison import Comparison
from harness.ranking.doubt import doubt
from harness.ranking.speed import Noise, Speed
from harness.records.store import Store
from harness.sandbox import tiers
from harness.verbs import calibration
from harness.verbs.recipe import ChangedFact, Recipe, unequal

DISAGREES_EXIT_CODE = 20
WIDEST = 0.25
"""Half-width of the ratio's interval, a fraction of the ratio, beyond which scores that may be equal are not called so,
where the configuration has no `most_half_width`."""


@dataclass(frozen=True)
class Reproduction:
    """A run then and now. `doubt` says why their scores cannot be held against each other, if they cannot; `compared`
    is None where they are not even of one device."""

    then: Run
    now: Run
    differences: tuple[ChangedFact, ...]
    compared: Comparison | None
    doubt: str | None

    @property
    def reason(self) -> str:
        """What can be said of the scores, and why."""
        return self.doubt or (self.compared.finding.reason if self.compared else "")

    @property
    def verdict_agrees(self) -> bool:
        return self.then.ending.verdict is self.now.ending.verdict

    @property
    def score_agrees(self) -> bool | None:
        """None: undecided. Scores agree unless one is faster beyond the interval of their ratio and the noise."""
        ratio = self.compared.finding.ratio if self.compared else None
        if self.doubt or self.compared is None or ratio is None or ratio.low is None:
            return None
        return self.compared.finding.speed not in (Speed.FASTER, Speed.SLOWER)

    @property
    def reproduced(self) -> bool | None:
        """None: the verdict is the same, and the scores cannot be told apart or held together."""
        if not self.verdict_agrees:
            return False
        return True if self.then.score is None and self.now.score is None else self.score_agrees

    @property
    def baselines(self) -> list[tuple[TimedBaseline, TimedBaseline]]:
        """Those that were timed in turns with the submission both then and now."""
        now = {each.name: each for each in self.now.baselines}
        return [(each, now[each.name]) for each in self.then.baselines if each.name in now]

    @property
    def same_errors(self) -> tuple[int, int]:
        """Of the cases checked in both runs: how many err by the same amount to the last digit, and how many are."""
        old = {check.case.key: check.error for check in self.then.checks}
        both = [(old[check.case.key], check.error) for check in self.now.checks if check.case.key in old]
        return sum(then == now for then, now in both), len(both)

    @property
    def exit_code(self) -> int:
        then, now = self.then.ending.verdict, self.now.ending.verdict
        if not self.verdict_agrees:
            return now.exit_code or then.exit_code
        return DISAGREES_EXIT_CODE if self.reproduced is False else 0


def reproduce(root: Path, recipe: Recipe, device: Device, narrate: Narrate) -> Reproduction:
    """Judge again on `device`, store the run and hold it against the one that was.

    Raises InfrastructureError, ProblemError as an evaluation does.
    """
    store = Store(root)
    store.check_writable()
    from harness.judge.evaluate import evaluate  # imports torch

    then = recipe.run
    narrate(f"judging {then.id} again on {device.name}, isolation: {tiers.strongest(device).tier}")
    narrate(recipe.problem.limits.sentence)
    # Those that come with the problem, if the run was timed in turns with them.
    baselines = foreign.baselines(recipe.problem) if then.baselines and not recipe.quick else []
    limit_s = recipe.problem.limits.evaluation_s * (1 + len(baselines))
    with lock.hold_if_gpu(device, narrate, limit_s) as expect, judging(then.id):
        expect(then.duration_s)
        run = evaluate(
            recipe.problem,
            recipe.submission,
            device,
            recipe.config,
            quick=recipe.quick,
            master_seed=then.master_seed,
            exclusive=lambda: lock.hold_to_time(expect, device, narrate, limit_s),
            narrate=narrate,
            baselines=baselines,
        )
    noise = calibration.noise(root, device, None)
    differences, rank_worker_timed = (*recipe.unlike, *_differences(then, run)), load_config(root).rank_worker_timed
    widest = recipe.config.sampling(device.kind, quick=False).most_half_width or WIDEST
    found = hold(then, run, noise, recipe.config.confidence, differences, rank_worker_timed, widest)
    if run.ending.verdict is Verdict.INFRASTRUCTURE_ERROR:
        return found
    again = {"id": f"{run.id}-repro", "reproduces": then.id, "triage": triage.scan(recipe.submission.text)}
    now = run.model_copy(update={**again, "unranked_because": Unranked.REPRODUCED})
    store.write(now, recipe.submission)
    return replace(found, now=now)


def hold(
    then: Run,
    now: Run,
    noise: Noise,
    confidence: float,
    differences: tuple[ChangedFact, ...] = (),
    rank_worker_timed: bool = False,
    widest: float = WIDEST,
) -> Reproduction:
    """The run `now` against the one that it reproduces."""
    if then.device.slug != now.device.slug:
        where = f"timed on {then.device.name} then, on {now.device.name} now"
        return Reproduction(then, now, differences, None, where)
    if then.clock is not now.clock and then.score and now.score:
        who = {ClockOwner.JUDGE: "the judge", ClockOwner.WORKER: "the submission's own process"}
        return Reproduction(then, now, differences, None, f"{who[then.clock]} timed it then, {who[now.clock]} now")
    old, new = map(_but_for_its_seeds, (then, now))
    times: dict[str, list[str]] = {}
    for run, when in ((old, "then"), (new, "now")):
        if why := doubt(run, rank_worker_timed):
            times.setdefault(why, []).append(when)
    doubts = [f"not ranked {' and '.join(when)}, {why}" for why, when in times.items()]
    if then.problem_sha256 != now.problem_sha256:
        doubts.append("the problem's files changed between the two, its revision did not")
    compared = comparison.compare_runs(old, new, noise, confidence, rank_worker_timed)
    if not doubts and _cannot_be_told(compared, widest):
        doubts.append(compared.finding.reason)
    return Reproduction(then, now, differences, compared, "; ".join(doubts) or None)


def _cannot_be_told(compared: Comparison, widest: float) -> bool:
    """Whether scores that were not told apart may be far apart: others disturbed them, or the interval is wide."""
    ratio, labels = compared.finding.ratio, {label for case in compared.cases for label in case.labels}
    if compared.finding.speed is not Speed.AMBIGUOUS or ratio is None or ratio.high is None:
        return False
    return bool(labels & {Label.CROWDED, Label.VOIDED}) or ratio.high > ratio.value * (1 + widest)


def _but_for_its_seeds(run: Run) -> Run:
    """`run`, as if its seeds had been its own: that they are known is no doubt about either of two that have them."""
    known = run.unranked_because == Unranked.REPRODUCED
    return run.model_copy(update={"unranked_because": None}) if known else run


def _differences(then: Run, now: Run) -> Iterator[ChangedFact]:
    """What of the device and of the rest of the environment is not the same."""
    devices = [flat(run.device.model_dump(mode="json", exclude={"torch_device"})) for run in (then, now)]
    for difference in unequal(*devices):
        yield ChangedFact(f"device {difference.what}", difference.then, difference.now)
    yield from unequal(flat(then.environment), flat(now.environment))
