"""What a run draws in secret, from its master seed: the same again for whoever has that.

    drawn     cases that are checked
    probe     a call among the timed ones, with other inputs of their shape

Each number is a keyed hash of where it is used. So none tells anything of another, and a change of one family's ranges
leaves what is drawn of the others as it was.
"""

from __future__ import annotations

from harness.judge.seeds import Seeds, derive_seed
from harness.model import Case, Cases, Run


def drawn(cases: Cases, master_seed: str) -> tuple[Case, ...]:
    """What a run with `master_seed` draws of `cases.secret`; fewer than `cases.secret_count` where two are the same."""
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
    """How many cases `run` had drawn of `cases.secret` and did not come to."""
    judged = {case.key for case in cases.test} | {check.case.key for check in run.checks}
    return sum(case.key not in judged for case in drawn(cases, run.master_seed))


def probe(cases: Cases, case: Case, seeds: Seeds, count: int) -> tuple[int, Case | None]:
    """Before which of `count` samples of `case` a probe is put, and which; None if there is none to put."""
    probes = cases.probes(case)
    return seeds.of_probe("place") % count, probes[seeds.of_probe("case") % len(probes)] if probes else None
