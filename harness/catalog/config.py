"""configs/eval.yml: how a run is sampled. Time limits are in each problem's own file."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, model_validator

from harness.catalog import places, strict_yaml
from harness.model import Value

DUEL_PAIRS = 8
"""The pairs of processes in a duel, unless the user asks for another number."""

MOST_DUEL_PAIRS = 128
"""The most pairs: they resolve a difference four times smaller than DUEL_PAIRS does, and take sixteen times as long."""


class Sampling(Value):
    """How a benchmark case is sampled on one kind of device.

    After `processes` processes, their spread decides how many more follow (`stats.enough`), at most `extra_processes`.
    The aim is a half-width of the score's interval of at most `target_half_width`, a fraction of the score. If even the
    most processes would leave it above twice the target, the aim is `most_half_width` instead. If they would miss that
    too, none follow.

    The machine was disturbed in a process if the judge's own work after it differs from its median by more than the
    fraction `anchor_tolerance`. None: the difference is recorded only.

    A run is not ranked if the half-width of its score's interval exceeds `most_half_width`, a fraction of the score.
    None: no limit.

    `fresh`: each timed process has its own interpreter. Otherwise the processes of a run are forked from one
    interpreter, on a CPU or an NVIDIA GPU and without bubblewrap. That saves a second each, and more on a GPU. They
    then share one memory layout, and its effect on latency is missing from the interval.
    """

    processes: int = Field(ge=1)
    warmup_calls: int = Field(ge=0)
    pilot_calls: int = Field(ge=1)
    min_samples: int = Field(ge=1)
    max_samples: int = Field(ge=1)
    budget_s: float = Field(gt=0)
    judging_budget_s: float = Field(gt=0)
    extra_processes: int = Field(default=0, ge=0)
    target_half_width: float = Field(default=0.01, gt=0)
    anchor_tolerance: float | None = Field(default=None, gt=0)
    most_half_width: float | None = Field(default=None, gt=0)
    fresh: bool = True

    @model_validator(mode="after")
    def _in_order(self) -> Sampling:
        if self.min_samples > self.max_samples:
            raise ValueError(f"min_samples ({self.min_samples}) is above max_samples ({self.max_samples})")
        return self

    def samples_for(self, pilot_ns: float, judging_s: float) -> int:
        """How often to sample a case. `pilot_ns`: the duration of its pilot. `judging_s`: the time to prepare and check
        one call.

        The judge chooses once per case and keeps the number.
        """
        affordable = min(self.budget_s * 1e9 / pilot_ns, self.judging_budget_s / judging_s)
        return int(min(max(affordable, self.min_samples), self.max_samples))


class EvalConfig(Value):
    """configs/eval.yml as a value. `rank_worker_timed`: a board without any run timed by the judge ranks worker-timed
    runs. It concerns boards, so no run stores it."""

    cpu: Sampling
    gpu: Sampling
    quick_processes: int = Field(default=1, ge=1)
    confidence: float = Field(default=0.95, gt=0, lt=1)
    rank_worker_timed: bool = Field(default=False, exclude=True)

    def sampling(self, device_kind: str, quick: bool) -> Sampling:
        sampling = self.cpu if device_kind == "cpu" else self.gpu
        less = {"processes": self.quick_processes, "extra_processes": 0, "fresh": False} if quick else {}
        return sampling.model_copy(update=less)


def load_config(root: Path) -> EvalConfig:
    """The configuration of `root`. Raises ProblemError that names the file and the wrong key."""
    return strict_yaml.read(places.find(root, places.SETTINGS), EvalConfig)
