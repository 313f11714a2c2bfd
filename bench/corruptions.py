"""Finds the smallest corruption of an ideal answer that is rejected: by limits on single calls alone, and together with
limits over all calls.

    python bench/corruptions.py [PROBLEM ...] [--calls 8] [--benchmarks 1] [--seed 0]

Answers are computed by attention in plain torch with a fault (bench/faults) and compared as the judge compares
(bench/standing). They cover the CPU's test cases and `--calls` timed calls of the first `--benchmarks` benchmark cases
of mla and of prefill's last one. Nothing else is wrong: memory is left as it should be. A tolerance rejects an answer
if it rejects any call, or the calls' figures together. "before" omits the latter. The printed strength is the weakest
from which on all tried strengths are rejected; `none` means that the strongest is accepted.

mla's answers are computed in two ways: from the fp8 cache, so that only the fault separates them from the reference;
and from the mxfp4 cache with bf16 queries. If cases differ in dtype, each dtype is answered separately, because a fault
may be in one dtype alone. kv_replicate's answers are right copies with something changed (bench/copies).

Then come ten further corruptions of each problem, drawn with `--seed` from bench/faults.GRID, or for kv_replicate from
its own grid.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import torch
from tabulate import tabulate

from bench import copies, faults
from bench.answers import REFERENCE, Arithmetic, Fault, Group, Piece, answer, dealt, pieces
from bench.copies import Copies
from bench.experiment import ROOT, report
from bench.faults import ATTENTION, Corruption, further
from bench.standing import Standing
from harness import catalog
from harness.judge.inputs import Call
from harness.machine import device as devices
from harness.model import Case, Device, Problem, Tolerance

MLA = {"fp8 cache": REFERENCE, "mxfp4 cache": Arithmetic("mxfp4")}
"""What its answers are computed from, but for the fault."""


@dataclass(frozen=True)
class Run:
    """The calls of a run of one problem, taken apart for one arithmetic: `calls` holds what they are tallied under."""

    problem: Problem
    calls: list[tuple[str | None, Case, Call, list[Piece]]]
    arithmetic: Arithmetic | None

    def standing(self, fault: Fault) -> Standing:
        """Where answers with this fault stand."""
        standing = Standing()
        for what, case, call, parts in self.calls:
            out = answer(call, parts, fault, self.arithmetic)
            standing.add([what] if what else [], call, self.tolerances(case), out)
        return standing

    def ideal(self) -> Standing:
        return self.standing(Fault())

    def tolerances(self, case: Case) -> dict[str, Tolerance]:
        return self.problem.tolerances_for(case)


def taken_apart(problem: Problem, groups: Sequence[Group], arithmetic: Arithmetic | None) -> Run:
    return Run(
        problem,
        [
            (group.what, case, call, pieces(problem.name, case, call, arithmetic))
            for group in groups
            for case, call in group.calls
        ],
        arithmetic,
    )


def runs(problem: Problem, device: Device, seed: int, benchmarks: int, calls: int) -> dict[str, Run | Copies]:
    """A run a kind of arithmetic, all of the same inputs; where cases have a dtype, a run of those of each."""
    if problem.name not in ATTENTION:
        return {"copies": Copies(problem, list(dealt(problem, device, seed, (), 0)))}
    timed = {"mla": problem.cpu.benchmark[:benchmarks], "prefill": problem.cpu.benchmark[-1:]}
    found = dealt(problem, device, seed, timed.get(problem.name, ()), calls)
    groups = [Group(group.what, list(group.calls)) for group in found]
    if problem.name == "mla":
        return {name: taken_apart(problem, groups, arithmetic) for name, arithmetic in MLA.items()}
    dtypes = dict.fromkeys(str(case.parameters.get("dtype", "exact")) for case in problem.cpu.test)
    return {
        dtype: taken_apart(problem, [_only(group, dtype) for group in groups] if len(dtypes) > 1 else groups, None)
        for dtype in dtypes
    }


def _only(group: Group, dtype: str) -> Group:
    return Group(group.what, [(case, call) for case, call in group.calls if case.parameters["dtype"] == dtype])


def claims(run: Run | Copies) -> list[str]:
    """The tolerances that the run's answers meet without any fault."""
    ideal = run.ideal()
    return [name for name in run.problem.tolerances if not ideal.rejected(name)]


def smallest(
    run: Run | Copies, corruption: Corruption, claims: Sequence[str]
) -> dict[str, tuple[float | None, float | None]]:
    """By tolerance: the weakest strength from which on all are rejected, by single calls and by all limits.

    From the strongest down to the first that is not rejected by anything."""
    found: dict[str, tuple[float | None, float | None]] = dict.fromkeys(claims, (None, None))
    open_before, open_after = set(claims), set(claims)
    for strength in reversed(corruption.strengths):
        if not open_after:
            break
        standing = run.standing(corruption.fault(strength))
        open_before = {name for name in open_before if standing.rejected(name, single_only=True)}
        open_after = {name for name in open_after if standing.rejected(name)}
        for name in claims:
            before, after = found[name]
            found[name] = strength if name in open_before else before, strength if name in open_after else after
    return found


def table(name: str, kinds: Mapping[str, Run | Copies]) -> list[dict[str, Any]]:
    """A row a tolerance, arithmetic and named corruption."""
    return [
        {
            "problem": name,
            "tolerance": tolerance,
            "arithmetic": kind,
            "corruption": corruption.name,
            "tried": _tried(corruption),
            "before": _told(before),
            "after": _told(after),
        }
        for kind, run in kinds.items()
        for met in [claims(run)]
        for corruption in (*faults.NAMED, *copies.NAMED)
        if name in corruption.problems
        for tolerance, (before, after) in smallest(run, corruption, met).items()
    ]


def drawn(name: str, kinds: Mapping[str, Run | Copies], seed: int) -> list[dict[str, Any]]:
    """A row a tolerance, arithmetic and one of ten further corruptions: found or not."""
    rows = []
    grid = faults.GRID if name in ATTENTION else copies.GRID
    for kind, run in kinds.items():
        met = claims(run)
        for corruption, strength in further(name, seed=seed, grid=grid):
            standing = run.standing(corruption.fault(strength))
            for tolerance in met:
                before, after = standing.rejected(tolerance, single_only=True), standing.rejected(tolerance)
                row = {
                    "problem": name,
                    "tolerance": tolerance,
                    "arithmetic": kind,
                    "further corruption": corruption.name,
                }
                rows.append({**row, "strength": f"{strength:g}", "before": _found(before), "after": _found(after)})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("problems", nargs="*", metavar="PROBLEM", help="all, unless some are named")
    parser.add_argument("--calls", type=int, default=8, help="timed calls of a benchmark case; a quick run makes ten")
    parser.add_argument("--benchmarks", type=int, default=1, help="benchmark cases of mla, from the first on")
    parser.add_argument("--seed", type=int, default=0, help="of the inputs and of the ten further corruptions")
    given = parser.parse_args()
    torch.set_num_threads(1)  # the products are small: more threads take longer where others work too
    started = time.monotonic()
    device = devices.detect(ROOT, "cpu")
    rows, more = [], []
    for name in given.problems or catalog.problem_names(ROOT):
        problem = catalog.load_problem(ROOT, name)
        kinds = runs(problem, device, given.seed, given.benchmarks, given.calls)
        rows += table(name, kinds)
        more += drawn(name, kinds, given.seed)
    stricter = sum(row["before"] != row["after"] for row in rows)
    found = sum(row["after"] == "found" for row in more)
    headline = (
        f"the limits over all calls find a smaller corruption in {stricter} of {len(rows)} rows; "
        f"of {len(more)} further ones {found} are found, {sum(row['before'] == 'found' for row in more)} before"
    )
    print(tabulate(more, headers="keys", tablefmt="simple_outline", disable_numparse=True))
    facts = {"seed": given.seed, "calls": given.calls, "seconds": round(time.monotonic() - started, 1)}
    report("corruptions", device, headline, rows, further=more, **facts)


def _tried(corruption: Corruption) -> str:
    weakest, strongest = corruption.strengths[0], corruption.strengths[-1]
    return f"{weakest:g}" if weakest == strongest else f"{weakest:g} to {strongest:g}"


def _told(strength: float | None) -> str:
    return "none" if strength is None else f"{strength:g}"


def _found(rejected: bool) -> str:
    return "found" if rejected else "not found"


if __name__ == "__main__":
    main()
