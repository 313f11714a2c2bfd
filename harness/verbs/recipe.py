"""Everything needed to judge a stored run again: its source, its cases, its sampling and its seed.

An older Podium may not have recorded a setting, or the problem may have lost it. Then the present value is used, and
the recipe says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from harness import catalog
from harness.catalog.config import EvalConfig, load_config
from harness.errors import InfrastructureError, UsageError
from harness.machine.device import detect
from harness.machine.environment import flat
from harness.model import Device, Problem, Run, Submission, Unranked, Verdict
from harness.records.store import Store
from harness.verbs.compare import submission


@dataclass(frozen=True)
class ChangedFact:
    """One fact around the two runs that differs. None: unknown or absent."""

    what: str
    then: str | None
    now: str | None


@dataclass(frozen=True)
class Recipe:
    """Everything needed to judge a run again. `unlike`: the facts of the problem and sampling that could not be
    restored."""

    run: Run
    problem: Problem
    submission: Submission
    config: EvalConfig
    quick: bool
    unlike: tuple[ChangedFact, ...]


def take(root: Path, name: str) -> Recipe:
    """Return the recipe of the run that `name` names, as `show` understands the name.

    Raises UsageError if there is no such run, it was not judged, or its problem has changed to another revision;
    InfrastructureError if its source or seed is lost.
    """
    store = Store(root)
    run = store.read(name)
    if run.ending.verdict is Verdict.INFRASTRUCTURE_ERROR:
        raise UsageError(f"{run.id} was not judged: there is no verdict to reproduce", "judge it where it can run")
    problem = catalog.problem_of(root, run)
    if problem.revision != run.problem_revision:
        raise UsageError(
            f"{run.id} is of revision {run.problem_revision} of {run.problem}, which is at revision {problem.revision}",
            "check out a commit that has that revision",
        )
    if not _is_seed(run.master_seed):
        raise InfrastructureError(f"{run.id} holds no seed of 1 to 64 bytes in hexadecimal: its inputs are lost")
    source = store.source(run.problem, run.submission_sha256)
    config, unlike = _config(run, load_config(root))
    if problem.sha256 != run.problem_sha256:
        unlike.insert(0, ChangedFact("problem files (sha256)", run.problem_sha256[:12], problem.sha256[:12]))
    processes = {len(measurement.samples_ns) for measurement in run.measurements}
    quick = run.unranked_because == Unranked.QUICK or processes == {config.quick_processes}
    return Recipe(run, _with_its_cases(problem, run), submission(run, source), config, quick, tuple(unlike))


def device_for(root: Path, run: Run, wanted: str) -> Device:
    """Return the device to reproduce `run` on. `auto`: a device of the kind that the run was judged on.

    Raises InfrastructureError if there is no such device here, UsageError for a device of another kind.
    """
    if wanted != "auto":
        here = detect(root, wanted)
        if here.kind != run.device.kind:
            where = f"{run.id} was judged on {run.device.name} ({run.device.kind})"
            raise UsageError(f"{where}; {here.name} ({here.kind}) has other cases and another clock")
        return here
    try:
        return detect(root, run.device.kind)
    except UsageError:
        kind = run.device.kind
        message = f"{run.id} was judged on {run.device.name} ({kind}), and no {kind} device is here"
        raise InfrastructureError(message, "reproduce it on a machine that has one") from None


def _is_seed(text: str) -> bool:
    try:
        return 0 < len(bytes.fromhex(text)) <= 64  # the key of BLAKE2b, RFC 7693
    except ValueError:
        return False


def _config(run: Run, present: EvalConfig) -> tuple[EvalConfig, list[ChangedFact]]:
    """Restore the sampling of the run. A setting that the run does not hold (an older Podium) gets its present
    value."""
    known, wanted = present.model_dump(mode="json"), run.config
    kept = {
        key: {**value, **_known_of(wanted.get(key), value)} if isinstance(value, dict) else wanted.get(key, value)
        for key, value in known.items()
    }
    try:
        config = EvalConfig.model_validate(kept)
    except ValidationError as error:
        where = ".".join(map(str, error.errors()[0]["loc"]))
        raise InfrastructureError(f"{run.id} does not say how it was sampled: its {where} is wrong") from None
    before, after = flat(wanted), flat(config.model_dump(mode="json"))
    return config, [ChangedFact(f"sampling {d.what}", d.then, d.now) for d in unequal(before, after)]


def _known_of(values: Any, known: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key in known} if isinstance(values, dict) else {}


def _with_its_cases(problem: Problem, run: Run) -> Problem:
    """Return `problem` with the cases that `run` was judged on.

    An accepted run holds all of its cases. A failed run may have ended before some cases. For these the problem's
    present cases are appended. The same master seed draws the same secret cases, which are not judged twice.
    """
    present = problem.cases_for(run.device.kind)
    tests = tuple(check.case for check in run.checks)
    benchmarks = tuple(measurement.case for measurement in run.measurements)
    if run.ending.verdict is not Verdict.ACCEPTED:
        timed = [*present.benchmark, *(probe for each in present.benchmark for probe in present.probes(each))]
        known = {case.key for case in timed} - {case.key for case in present.test}
        tests = tuple(case for case in tests if case.key not in known)  # a wrong timed call is a check too
        tests += tuple(case for case in present.test if case.key not in {test.key for test in tests})
    cases = present.model_copy(update={"test": tests, "benchmark": benchmarks or present.benchmark})
    return problem.model_copy(update={"cpu" if run.device.kind == "cpu" else "cases": cases})


def unequal(then: Mapping[str, str], now: Mapping[str, str]) -> list[ChangedFact]:
    """Return the facts that differ, by name."""
    names = dict.fromkeys((*then, *now))
    return [ChangedFact(name, then.get(name), now.get(name)) for name in names if then.get(name) != now.get(name)]
