"""configs/eval.yml: how a run is sampled. How long it may take is in each problem's own limits."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, model_validator

from harness import strict_yaml
from harness.model import Value


class Sampling(Value):
    """How a benchmark case is sampled on one kind of device."""

    processes: int = Field(ge=1)
    warmup_calls: int = Field(ge=0)
    pilot_calls: int = Field(ge=1)
    idle_calls: int = Field(ge=1)
    min_samples: int = Field(ge=1)
    max_samples: int = Field(ge=1)
    budget_s: float = Field(gt=0)
    judging_budget_s: float = Field(gt=0)

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
    cpu: Sampling
    gpu: Sampling
    quick_processes: int = Field(default=1, ge=1)
    confidence: float = Field(default=0.95, gt=0, lt=1)

    def sampling(self, device_kind: str, quick: bool) -> Sampling:
        sampling = self.cpu if device_kind == "cpu" else self.gpu
        return sampling.model_copy(update={"processes": self.quick_processes}) if quick else sampling


def load_config(root: Path) -> EvalConfig:
    """Raises ProblemError naming the file and the key that is wrong."""
    return strict_yaml.read(root / "configs" / "eval.yml", EvalConfig)
