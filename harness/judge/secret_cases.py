"""The secret choices of a run, derived from its master seed, so that they can be repeated with it.

    drawn     cases that are checked
    probe     a call among the timed ones, of another case with the same shapes

Each number is a keyed hash of its use. So none reveals another, and a change to one family's ranges does not change the
numbers of the others.
"""

from __future__ import annotations

from harness.judge.seeds import Seeds, derive_seed
from harness.model import Case, Cases, Run


def drawn(cases: Cases, master_seed: str) -> tuple[Case, ...]:
    """The cases that a run with `master_seed` draws from `cases.secret`. Fewer than `cases.secret_count` if two are
    equal."""
    found: dict[str, Case] = {}
    for index, family in enumerate(cases.secret):
        for number in range(family.count):
            label = f"secret case/{index}/{number}"

            def secret_number(parameter: str, below: int, place: int, label: str = label) -> int:
                # 2^63 is so large beside any range that no value is favoured by more than one part in 10^12.
                return derive_seed(master_seed, f"{label}/{parameter}/{place}") % below

            case = family.case(secret_number)
            found.setdefault(case.key, case)
    return tuple(found.values())


def untried(cases: Cases, run: Run) -> int:
    """How many cases `run` had drawn from `cases.secret` but did not judge."""
    judged = {case.key for case in cases.test} | {check.case.key for check in run.checks}
    return sum(case.key not in judged for case in drawn(cases, run.master_seed))


def probe(cases: Cases, case: Case, seeds: Seeds, count: int) -> tuple[int, Case | None]:
    """The number of the sample of `case` before which a probe is put, below `count`, and the probe; None if there is
    none."""
    probes = cases.probes(case)
    return seeds.of_probe("place") % count, probes[seeds.of_probe("case") % len(probes)] if probes else None
