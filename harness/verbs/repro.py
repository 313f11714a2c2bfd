"""Judge a stored run again with the same source, cases, sampling and seeds, on the device that is here.

    recipe.take(root, RUN) ─► Recipe ─► reproduce ─► Reproduction     differences, verdict and score then and now

    verdicts differ                                       not reproduced; exit code of the run that was not accepted
    same verdict; the scores' ratio exceeds both its      not reproduced; exit code 20
    interval and the device's noise
    same verdict; the scores cannot be compared           the verdict is reproduced; 0, with the reason
    same verdict; anything else                           reproduced; 0

Scores cannot be compared if an interval is missing or wide, the device is another one, or a run's times are not to be
trusted.

With the same seeds every call gets the same inputs again. On the same versions a deterministic kernel then errs by the
same amount to the last digit. Since the inputs are known, the new run is stored and shown but never ranked.
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
from harness.ranking.fleet import Component
from harness.ranking.speed import Noise, Speed
from harness.records.store import Store
from harness.sandbox import tiers
from harness.verbs import calibration, spread
from harness.verbs.recipe import ChangedFact, Recipe, unequal

DISAGREES_EXIT_CODE = 20
WIDEST = 0.25
"""The widest half-width of the ratio's interval, as a fraction of the ratio. Beyond it, scores that are not told apart
are not called equal either. Used if the configuration has no `most_half_width`."""


@dataclass(frozen=True)
class Reproduction:
    """A run then and now. `doubt`: why their scores cannot be compared, or None. `compared`: None if the two runs are
    of different devices or were timed by different processes."""

    then: Run
    now: Run
    differences: tuple[ChangedFact, ...]
    compared: Comparison | None
    doubt: str | None

    @property
    def reason(self) -> str:
        """The conclusion about the scores, with the reason."""
        return self.doubt or (self.compared.finding.reason if self.compared else "")

    @property
    def verdict_agrees(self) -> bool:
        return self.then.ending.verdict is self.now.ending.verdict

    @property
    def score_agrees(self) -> bool | None:
        """Whether the scores agree; None if undecided. They agree unless one is faster beyond the interval of their
        ratio and the noise."""
        ratio = self.compared.finding.ratio if self.compared else None
        if self.doubt or self.compared is None or ratio is None or ratio.low is None:
            return None
        return self.compared.finding.speed not in (Speed.FASTER, Speed.SLOWER)

    @property
    def reproduced(self) -> bool | None:
        """Whether the run is reproduced. None: the verdict is the same, but the scores can be called neither equal nor
        different."""
        if not self.verdict_agrees:
            return False
        return True if self.then.score is None and self.now.score is None else self.score_agrees

    @property
    def baselines(self) -> list[tuple[TimedBaseline, TimedBaseline]]:
        """The baselines that were timed in turns with the submission both then and now."""
        now = {each.name: each for each in self.now.baselines}
        return [(each, now[each.name]) for each in self.then.baselines if each.name in now]

    @property
    def same_errors(self) -> tuple[int, int]:
        """For cases checked in both runs: the number with the same error to the last digit, and the number of cases."""
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
    """Judge the run again on `device`, store the new run and compare it with the old one.

    Raises InfrastructureError and ProblemError, as an evaluation does.
    """
    store = Store(root)
    store.check_writable()
    from harness.judge.evaluate import evaluate  # imports torch

    then = recipe.run
    narrate(f"judging {then.id} again on {device.name}, isolation: {tiers.strongest(device).tier}")
    narrate(recipe.problem.limits.sentence)
    # The problem's own baselines, if the stored run was timed in turns with them.
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
    between = spread.between(root, then, run)
    found = hold(then, run, noise, recipe.config.confidence, differences, rank_worker_timed, widest, between)
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
    between_cards: Component | None = None,
) -> Reproduction:
    """Compare the run `now` with the run that it reproduces. `between_cards`: what a card adds, if two judged them."""
    if then.device.slug != now.device.slug:
        where = f"timed on {then.device.name} then, on {now.device.name} now"
        return Reproduction(then, now, differences, None, where)
    if then.clock is not now.clock and then.score and now.score:
        who = {ClockOwner.JUDGE: "the judge", ClockOwner.WORKER: "the submission's own process"}
        return Reproduction(then, now, differences, None, f"{who[then.clock]} timed it then, {who[now.clock]} now")
    old, new = map(_as_if_with_secret_seeds, (then, now))
    times: dict[str, list[str]] = {}
    for run, when in ((old, "then"), (new, "now")):
        if why := doubt(run, rank_worker_timed):
            times.setdefault(why, []).append(when)
    doubts = [f"not ranked {' and '.join(when)}, {why}" for why, when in times.items()]
    if then.problem_sha256 != now.problem_sha256:
        doubts.append("the problem's files changed between the two, its revision did not")
    compared = comparison.compare_runs(old, new, noise, confidence, rank_worker_timed, between_cards)
    if not doubts and _cannot_be_told(compared, widest):
        doubts.append(compared.finding.reason)
    return Reproduction(then, now, differences, compared, "; ".join(doubts) or None)


def _cannot_be_told(compared: Comparison, widest: float) -> bool:
    """Whether scores that were not told apart may still be far apart: other processes disturbed them, or the interval
    is wide."""
    ratio, labels = compared.finding.ratio, {label for case in compared.cases for label in case.labels}
    if compared.finding.speed is not Speed.AMBIGUOUS or ratio is None or ratio.high is None:
        return False
    return bool(labels & {Label.CROWDED, Label.VOIDED}) or ratio.high > ratio.value * (1 + widest)


def _as_if_with_secret_seeds(run: Run) -> Run:
    """Return `run` without the mark that it reproduces another. Known seeds do not make a comparison doubtful, because
    both runs have the same seeds."""
    known = run.unranked_because == Unranked.REPRODUCED
    return run.model_copy(update={"unranked_because": None}) if known else run


def _differences(then: Run, now: Run) -> Iterator[ChangedFact]:
    """Yield the facts of the device and the rest of the environment that differ."""
    devices = [flat(run.device.model_dump(mode="json", exclude={"torch_device"})) for run in (then, now)]
    for difference in unequal(*devices):
        yield ChangedFact(f"device {difference.what}", difference.then, difference.now)
    yield from unequal(flat(then.environment), flat(now.environment))
