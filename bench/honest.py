"""Measures how much room tolerances leave to honest work, and how clearly they refuse wrong work, over many seeds.

    python bench/honest.py [--problem NAME ...] [--seeds 60] [--calls 2] [--benchmarks 1] [-k TEXT ...]
        [--cases TEXT ...] [--wrong]
    python bench/honest.py --device cuda [--jobs 12] ...

On a GPU it runs all bundled files written for it, over the GPU's cases that move at most `--most-mb`, without simulated
entries. `--seconds` is for a rented machine: the results so far are reported when the time is over.

Each seed is a run. It has the CPU's test cases and the secret cases of that run, each with the judge's usual two calls
and, separately, with as many calls as an interpreted kernel gets. It has `--calls` timed calls of each of
`--benchmarks` benchmark cases, fewer than a run of `eval --quick` makes, and one call of each of their probes. All
answers are compared as the judge compares (bench/standing):

    honest   simulated arithmetic (bench/mla_ways, bench/honest_rounding), the problem's accepted controls and the
             bundled files in plain torch
    --wrong  mla's wrong arithmetic, the controls that must be refused, and last the answers known to be wrong but
             accepted (the READMEs; bench/mla_ways.PASSES, bench/passes)

Columns: for mla the range of the figures over many calls (gains, the parts of problems/mla/reference.py), and the
scatter of rows; a value over its limit, for single calls and over all calls, the largest of all seeds for honest work
and the least for wrong work; the limit that is nearest, or the furthest behind, in most seeds; and in how many seeds
the tolerance refuses. For a wrong file it is the loosest tolerance. A figure of a run is that of its worst group. The
line of JSON also has the `worst_calls`: of each entry the ten single calls nearest to a limit, with limit and case.
`-k` selects entries with one of some texts in their names. `--cases` selects cases with all of some texts in their
descriptions.
"""

from __future__ import annotations

import argparse
import math
import pickle
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial
from multiprocessing import TimeoutError, get_context
from multiprocessing.pool import IMapIterator
from pathlib import Path
from typing import Any

if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import torch

from bench import honest_rounding, mla_ways, passes
from bench.answers import TEST_CALLS, dealt
from bench.entries import Desk, Entry, Kernel
from bench.experiment import ROOT, report
from bench.standing import Standing
from harness import catalog
from harness.hip import NoDevice
from harness.judge.examination import ALL_TESTS
from harness.judge.tally import Tally
from harness.machine import device as devices
from harness.model import Case, Device, Problem

INTERPRETED = "all test cases, interpreted"

QUICK = "torch_*.py"
"""Bundled files that a CPU can run."""


CLAIMS = {"torch_bf16": "mxfp4"}
"""Tolerances of files whose names do not show them: this one's scores are bf16."""


def honest(problem: Problem, device: str = "cpu") -> list[Entry]:
    bundled = ROOT / "submissions" / problem.name
    if device != "cpu":
        files = sorted(path for path in bundled.glob("*.py") if not path.stem.startswith("aiter"))
        return [Kernel.of(path, _claimed(problem, path)) for path in files]
    simulated: Sequence[Entry] = ()
    if problem.name == "mla":
        simulated = mla_ways.HONEST
    elif problem.name != "kv_replicate":
        simulated = honest_rounding.entries(problem)
    files = [
        *(problem.folder / "controls" / "accepted").glob("*.py"),
        *bundled.glob(QUICK),
    ]
    return [*simulated, *(Kernel.of(path, _claimed(problem, path)) for path in sorted(files))]


def wrong(problem: Problem) -> list[Entry]:
    files = sorted((problem.folder / "controls" / "wrong_answer").glob("*.py"))
    simulated = mla_ways.WRONG if problem.name == "mla" else []
    return [*simulated, *(Kernel.of(path, list(problem.tolerances)[-1]) for path in files)]


def passing(problem: Problem) -> list[Entry]:
    """Wrong entries that are accepted."""
    return [*(mla_ways.PASSES if problem.name == "mla" else ()), *passes.entries(problem)]


def _claimed(problem: Problem, path: Path) -> str:
    """The tolerance named in a file's name, or the strictest."""
    named = next((name for name in problem.tolerances if name in path.stem), next(iter(problem.tolerances)))
    return CLAIMS.get(path.stem, named)


def stand(
    problem: Problem,
    seed: int,
    benchmarks: int,
    calls: int,
    entries: Sequence[Entry],
    device: str = "cpu",
    most_bytes: float = math.inf,
    of_cases: Sequence[str] = (),
) -> dict[str, Standing]:
    """How each entry meets the tolerances in the run of one seed. Entries that are not for the device are left out.
    Only calls of cases whose labels contain all of `of_cases` count. Without such a call there is no entry."""
    torch.set_num_threads(1)
    standings = {entry.name: Standing() for entry in entries}
    found = devices.detect(ROOT, device)
    timed = _timed(problem, found, benchmarks)
    for group in dealt(problem, found, seed, timed, calls, whole=True, most_bytes=most_bytes):
        for number, (case, call) in enumerate(group.calls):
            if not all(text in case.label for text in of_cases):
                continue
            desk, tolerances = Desk(problem.name, case, call), problem.tolerances_for(case)
            if device != "cpu":
                torch.cuda.empty_cache()  # other seeds share the GPU's memory
            for entry in entries:
                if entry.name not in standings:
                    continue
                try:
                    held, outcome = entry.answered(desk)
                except NoDevice:  # written for another GPU
                    del standings[entry.name]
                    continue
                standings[entry.name].hold(tallied(group.what, number), held, tolerances, outcome)
    return {name: standing for name, standing in standings.items() if standing.worst}


def _timed(problem: Problem, device: Device, benchmarks: int) -> Sequence[Case]:
    """The first benchmark cases. For prefill on a CPU the last ones, because int8 shows in late rows."""
    cases = problem.cases_for(device.kind).benchmark
    if device.kind != "cpu":
        return cases[:benchmarks]
    return cases[len(cases) - benchmarks :] if problem.name == "prefill" else cases[:benchmarks]


def tallied(what: str | None, number: int) -> list[str]:
    """The names under which a group's call counts. An interpreted kernel gets the first test case twice and the others
    once (judge/entrant)."""
    if what == ALL_TESTS and (number < TEST_CALLS or number % TEST_CALLS == 0):
        return [ALL_TESTS, INTERPRETED]
    return [] if what is None else [what]


WORST_CALLS = 10

FIGURES = (
    "gain",
    "row_gain",
    "head_gain",
    "dim_gain",
    "lighter_half",
    "lightest_tenth",
    "rope",
    "rope_slice",
    "rope_scale",
    "latent_scale",
    "moved_rope",
    "stretch",
    "tile_end",
    "end_key",
    "overlap",
)


def row(problem: str, entry: Entry, standings: Sequence[Standing], is_wrong: bool) -> dict[str, Any]:
    """A row of the table: the summary of the runs of all seeds."""
    tallies = [tally for standing in standings for tally, _ in standing.groups.values()]
    name, worst = entry.tolerance, min if is_wrong else max
    return {
        "problem": problem,
        "what": entry.name,
        "tolerance": name,
        **(figures(tallies) if problem == "mla" else {}),
        "one call / limit": worst(standing.single[name] for standing in standings),
        "all calls / limit": worst(standing.over_all(name) for standing in standings),
        "worst / limit": worst(standing.nearest(name).ratio for standing in standings),
        "limit": Counter(standing.nearest(name).limit for standing in standings).most_common(1)[0][0],
        "runs": len(standings),
        "refused": sum(standing.rejected(name) for standing in standings),
    }


def worst_calls(entry: Entry, standings: Sequence[Standing]) -> list[dict[str, Any]]:
    """The worst call of each run, for the ten worst runs."""
    name = entry.tolerance
    found = sorted(standings, key=lambda standing: -standing.single[name])[:WORST_CALLS]
    return [
        {"limit": each.worst[name].limit, "over limit": each.worst[name].ratio, "case": each.worst_case[name]}
        for each in found
    ]


def figures(tallies: Sequence[Tally]) -> dict[str, str]:
    """The range of each figure; for heads, dims and slices over all of them. After a ~ the largest scatter of rows
    about it."""
    found = {}
    for name in FIGURES:
        ratios = [each for tally in tallies if (each := tally.ratios(name)) is not None]
        if not ratios:
            continue  # its output could not be compared
        values = torch.cat([each.value for each in ratios])
        spread = max(float(each.spread.max()) for each in ratios)
        found[name] = f"{_span(values[~values.isnan()].tolist())} ~{spread:.3f}"
    cells = torch.cat([tally.cells.value.flatten() for tally in tallies if tally.cells is not None] or [torch.empty(0)])
    found["cell_gain"] = _span(cells[~cells.isnan()].tolist())
    found["dim_rel_l2"] = _span(tally.dim_rel_l2 for tally in tallies)
    found["row_rms"] = _span(tally.row_rms for tally in tallies)
    found["head_rms"] = _span(tally.head_rms for tally in tallies)
    return found


def _span(values: Iterable[float | None]) -> str:
    known = [value for value in values if value is not None]
    return "" if not known else f"{min(known):.3f} to {max(known):.3f}"


def by_group(entry: Entry, standings: Sequence[Standing]) -> dict[str, dict[str, str]]:
    """`figures` for each group."""
    found = {}
    for what in standings[0].groups:
        tallies = [standing.groups[what][0] for standing in standings if what in standing.groups]
        limits = standings[0].groups[what][1][entry.tolerance]
        over = [excess.ratio for tally in tallies if (excess := tally.excess(limits)) is not None]
        found[what] = {**figures(tallies), "over limit": _span(over)}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problem", nargs="+", default=catalog.problem_names(ROOT), help="all, unless some are named")
    parser.add_argument("--seeds", type=int, default=60)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--calls", type=int, default=2, help="timed calls of a benchmark case")
    parser.add_argument("--benchmarks", type=int, default=1, help="CPU benchmark cases, from the first on")
    parser.add_argument(
        "-k", nargs="+", default=[""], metavar="TEXT", help="only entries with one of these in their names"
    )
    parser.add_argument(
        "--cases", nargs="+", default=[], metavar="TEXT", help="only cases with all of these in their descriptions"
    )
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seconds", type=float, default=1e9, help="wait no longer for the seeds of one problem")
    parser.add_argument("--most-mb", type=float, default=700.0, help="the most that a test case on a GPU may move")
    parser.add_argument("--wrong", action="store_true", help="entries that must be refused, instead of honest ones")
    given = parser.parse_args()
    device, started = devices.detect(ROOT, given.device), time.monotonic()
    if given.wrong and device.kind != "cpu":
        parser.error("what is wrong is asked on a CPU only")
    most_bytes = math.inf if device.kind == "cpu" else given.most_mb * 1e6
    rows, groups, nearest, failed = [], {}, {}, 0
    with get_context("spawn").Pool(given.jobs) as pool:
        for name in given.problem:
            seeds = range(given.first_seed, given.first_seed + given.seeds)
            asked = name, given.wrong, given.k, given.benchmarks, given.calls, given.device, most_bytes, given.cases
            runs, faults = _within(given.seconds, pool.imap_unordered(partial(_stand, asked), seeds))
            failed += faults
            passing_too = {entry.name for entry in passing(catalog.load_problem(ROOT, name))}
            for entry in _asked(name, given.wrong, given.k, given.device):
                standings = [run[entry.name] for run in runs if entry.name in run]
                if not standings:
                    continue
                expected = "no" if not given.wrong else "no, README" if entry.name in passing_too else "yes"
                rows.append({**row(name, entry, standings, given.wrong), "to be refused": expected})
                nearest[entry.name] = worst_calls(entry, standings)
                if name == "mla":
                    groups[entry.name] = by_group(entry, standings)
    facts = {"seeds": given.seeds, "calls": given.calls, "seconds": round(time.monotonic() - started, 1)}
    report("honest", device, headline(rows), rows, groups=groups, worst_calls=nearest, failed=failed, **facts)
    sys.exit(1 if failed else 0)


def _within(seconds: float, waited_for: IMapIterator[bytes]) -> tuple[list[dict[str, Standing]], int]:
    """The results of the seeds that finish in time, and the number of failed seeds. Failures are reported as they
    occur."""
    found, failed, started = [], 0, time.monotonic()
    while True:
        try:
            found.append(pickle.loads(waited_for.next(seconds - (time.monotonic() - started))))
        except (StopIteration, TimeoutError):
            return found, failed
        except Exception as error:
            failed += 1
            print(f"a seed came to nothing: {error}", file=sys.stderr, flush=True)


def headline(rows: Sequence[dict[str, Any]]) -> str:
    """How many runs are refused, of those that should be and of those that should not."""
    found = []
    for words, expected in [("honest", "no"), ("wrong", "yes"), ("wrong but known to pass", "no, README")]:
        of = [(line["refused"], line["runs"]) for line in rows if line["to be refused"] == expected]
        if of:
            refused, runs = map(sum, zip(*of, strict=True))
            found.append(f"{refused} of {runs} {words} runs are refused")
    return "; ".join(found)


def _asked(name: str, is_wrong: bool, texts: Sequence[str], device: str) -> list[Entry]:
    problem = catalog.load_problem(ROOT, name)
    found = [*wrong(problem), *passing(problem)] if is_wrong else honest(problem, device)
    return [entry for entry in found if any(text in entry.name for text in texts)]


def _stand(asked: tuple[str, bool, Sequence[str], int, int, str, float, Sequence[str]], seed: int) -> bytes:
    """Returns pickled standings. torch would share each tensor by its own file descriptor, and there are too few."""
    name, is_wrong, texts, benchmarks, calls, device, most_bytes, of_cases = asked
    entries = _asked(name, is_wrong, texts, device)
    found = stand(catalog.load_problem(ROOT, name), seed, benchmarks, calls, entries, device, most_bytes, of_cases)
    print(f"{name}: seed {seed}", file=sys.stderr, flush=True)
    return pickle.dumps(found)


if __name__ == "__main__":
    main()
