"""configs/eval.yml: how a run is sampled. How long it may take is in each problem's own limits."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, model_validator

from harness.catalog import places, strict_yaml
from harness.model import Value

DUEL_PAIRS = 8
"""Of processes in a duel, unless another number is asked for."""

MOST_DUEL_PAIRS = 128
"""They tell a difference four times smaller than DUEL_PAIRS do, and take sixteen times as long."""


class Sampling(Value):
    """How a benchmark case is sampled on one kind of device.

    After `processes` their spread decides how many more follow, at most `extra_processes`: as many as make the
    half-width of the score's interval at most `target_half_width`, a fraction of the score (`stats.enough`). Where the
    most of them would leave it above twice that, as many follow as bring it to `most_half_width`, and none where the
    most of them would not. In a process after which the judge's own work is further than `anchor_tolerance` from its
    median, as a fraction, the machine was disturbed; None: it is noted and nothing more.

    A run whose score has an interval with a larger half-width than `most_half_width`, a fraction of the score, is not
    ranked; None: all are.

    `fresh`: each timed process has an interpreter of its own. Otherwise those of a run on a CPU are forked from one,
    which takes a second less; they share one layout of memory then, and what that does to latency is not in the
    interval.
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
        """How often to sample a case whose pilot took `pilot_ns`, and whose calls take `judging_s` to make and check.

        The judge's choice, made once and kept.
        """
        affordable = min(self.budget_s * 1e9 / pilot_ns, self.judging_budget_s / judging_s)
        return int(min(max(affordable, self.min_samples), self.max_samples))


class EvalConfig(Value):
    """`rank_worker_timed`: a board without any run that the judge timed ranks those that the submissions' own processes
    timed. It is of boards, so no run stores it."""

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
    """Raises ProblemError naming the file and the key that is wrong."""
    return strict_yaml.read(places.find(root, places.SETTINGS), EvalConfig)
