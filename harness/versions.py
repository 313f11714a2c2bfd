"""Two stored runs with their sources, to be compared as they were measured or timed again in turns.

take(root, A, B) ─► Versions ─► compare      from what is stored
                           └──► duel         on the device that is here; nothing is stored
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from harness import calibration, catalog, comparison
from harness.comparison import Comparison, PairedMeasurement
from harness.config import load_config
from harness.errors import InfrastructureError, UsageError
from harness.model import Device, Run, Submission
from harness.store import Store

SLOWER_EXIT_CODE = 20


@dataclass(frozen=True)
class Versions:
    """Two runs of one problem, and the source that each judged."""

    a: Run
    b: Run
    a_source: bytes
    b_source: bytes

    @property
    def texts(self) -> tuple[str, str]:
        """Both sources, for people."""
        return self.a_source.decode("utf-8", "replace"), self.b_source.decode("utf-8", "replace")


def take(root: Path, a: str, b: str) -> Versions:
    """The runs that `a` and `b` name, as `show` understands them. Raises UsageError, InfrastructureError."""
    store = Store(root)
    old, new = store.read(a), store.read(b)
    return Versions(old, new, _source(root, old), _source(root, new))


def compare(root: Path, versions: Versions) -> Comparison:
    """B's stored run against A's. Raises UsageError where they are no measurements of the same thing."""
    comparison.check_comparable(versions.a, versions.b)
    noise = calibration.noise(root, versions.a.device, "runs")
    return comparison.compare_runs(versions.a, versions.b, noise, load_config(root).confidence)


def duel(
    root: Path, versions: Versions, device: Device, narrate: Callable[[str], None]
) -> tuple[Comparison, tuple[PairedMeasurement, ...]]:
    """B against A, timed again in turns on `device`; with every sample.

    Raises UsageError, and judge.duel.Disqualified where one of them fails.
    """
    from harness import docket
    from harness.judge import duel as judge  # imports torch

    a, b = versions.a, versions.b
    if a.problem != b.problem:
        raise UsageError(f"{a.submission} is a run of {a.problem}, {b.submission} of {b.problem}: compare runs of one")
    problem, config = catalog.load_problem(root, a.problem), load_config(root)
    noise = calibration.noise(root, device, "duel")
    with docket.device_to_ourselves(device, narrate):
        found = judge.duel(
            problem,
            _submission(a, versions.a_source),
            _submission(b, versions.b_source),
            device,
            config,
            pairs=judge.PAIRS,
            narrate=narrate,
        )
    names = (a.submission, b.submission)
    compared = comparison.compare_pairs(problem.name, device.name, names, found.measurements, noise, config.confidence)
    return compared, found.measurements


def exit_code(versions: Versions, compared: Comparison, percent: float) -> int:
    """20 if B was found slower than A by more than `percent`; where one has no score, its verdict's code."""
    if compared.slower_by(percent):
        return SLOWER_EXIT_CODE
    if compared.finding.ratio is None:
        return versions.b.ending.verdict.exit_code or versions.a.ending.verdict.exit_code
    return 0


def _submission(run: Run, source: bytes) -> Submission:
    return Submission(
        name=run.submission,
        problem=run.problem,
        sha256=run.submission_sha256,
        source=source,
        path=run.submission_path,
    )


def _source(root: Path, run: Run) -> bytes:
    """The source that `run` judged, as stored beside it."""
    for path in sorted((root / "results").glob(f"*/{run.problem}/sources/{run.submission_sha256}.py")):
        source = path.read_bytes()
        if hashlib.sha256(source).hexdigest() != run.submission_sha256:
            raise InfrastructureError(f"{path} is not what {run.id} judged: its sha256 differs")
        return source
    raise InfrastructureError(f"the source of {run.id} is not in results/: {run.submission_sha256[:12]}.py")
