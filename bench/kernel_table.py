"""Writes the tables of docs/kernels.md and docs/rivals.md from the published runs and the output of bench/tune.py.
Takes no time.

    python bench/kernel_table.py [bench/measured/kernels-*.jsonl ...]

    {"device", "date", "torch", "triton", "null_us", ..} the conditions of the lines below it
    {"problem", "variant", "case", "floor_us", "us"}     "error" instead of "us" if there is no time

A bundled kernel's cell is its latency, by the judge's clock, in the run under results/published that stands for it on
that device's board, with the share of the limit (floor / latency). The number after the dot is its time by a pair of
events in the worker: in the run's own pilot or, without such a run, in bench/tune.py's process. Rivals are not
submissions, so they have only times by events, which are longer by a launch. Worker-timed runs are left out.

A variant is "PROBLEM/SUBMISSION OPTIONS" or "PROBLEM/rival NAME". Of a submission's variants only the one without
options counts: it is `custom_kernel`. If a line occurs twice, the later one counts. Rewrites both pages between their
two marks. The text around the marks is written by hand.
"""

from __future__ import annotations

import argparse
import ast
import json
import math
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import tabulate

from harness.model import Case, ClockOwner, Run, of_limit, told_apart
from harness.records.entry import of_run, standing
from harness.records.run_file import load_run
from harness.records.store import Store
from harness.render.figures import percent

ROOT = Path(__file__).resolve().parents[1]

tabulate.MIN_PADDING = 0  # another module may have set it; the page must not depend on that

BEGIN, END = "<!-- tables: python bench/kernel_table.py -->", "<!-- end of tables -->"

PROBLEMS = ["kv_replicate", "fmha", "kv_decode", "mla", "prefill"]
TARGETS = {
    "kv_replicate/triton_fused": 85,
    "fmha/triton_rows": 80,
    "kv_decode/cuda_cluster": 75,
    "kv_decode/triton_split_kv": 75,
    "mla/gluon_fp8": 60,
    "mla/gluon_bf16": 85,
    "prefill/gluon_hopper": 60,
    "prefill/cuda_hopper": 70,  # that of FlashAttention-3, spaced (docs/rivals.md)
}
"""Wanted shares of the limit in percent, by the floor of the format that is read: geometric mean over the cases with a
floor above LONG_US."""

FORMATS = {"mla": ("mxfp4", "fp8", "bf16")}
"""Problems that leave the choice of the data's format: their formats, the one with the lowest floor first."""

NO_SLOWER = {"mla/gluon_mxfp4": "mla/gluon_fp8"}
"""A kernel that must be no slower than another: geometric mean over its own cases with a floor above LONG_US."""

LONG_US = 20.0

Times = dict[str, dict[str, tuple[float | None, float]]]
"""Microseconds by events and the floor, by kernel and case. None where only a judged run has times."""


class Judged(NamedTuple):
    """A case in a run by the judge's clock: its latency, and its time by the worker's own events in the pilot."""

    us: float
    events_us: float | None


Runs = dict[str, dict[str, Judged]]
"""By kernel and case."""

Dates = dict[str, dict[str, str]]
"""When a case was measured by events, by kernel and case."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path)
    files = parser.parse_args().files or sorted((ROOT / "bench" / "measured").glob("kernels-*.jsonl"))
    made = generated(files)
    for page in made:
        document = ROOT / "docs" / page
        document.write_text(renewed(document.read_text(), made[page]))


def renewed(text: str, made: str) -> str:
    """A page's text with these tables between its marks."""
    head, _, rest = text.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return f"{head}{BEGIN}\n\n{made}\n\n{END}{tail}"


def generated(files: Sequence[Path]) -> dict[str, str]:
    """The tables of each page of docs/, from `files` and the published runs."""
    rows = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    times: Times = {}
    dates: Dates = {}
    nulls: dict[str, float] = {}
    for row in rows:
        if "device" in row:
            measured_on = row
        elif "us" in row and (" " not in row["variant"] or "/rival " in row["variant"]):
            times.setdefault(row["variant"], {})[row["case"]] = (row["us"], row["floor_us"])
            dates.setdefault(row["variant"], {})[row["case"]] = measured_on["date"]
            nulls[row["variant"]] = measured_on["null_us"]
    runs = published(measured_on["device"])
    judged = {kernel: latencies(run) for kernel, run in runs.items()}
    for kernel in TARGETS.keys() & runs.keys() - times.keys():
        times[kernel] = {m.case.label: (None, m.floor.latency_ns / 1e3) for m in runs[kernel].measurements if m.floor}
    board = {kernel: on_board(run) for kernel, run in runs.items()}
    kernels = [machine(measured_on, nulls), changes(runs), targets(times, judged, nulls, board)]
    rivals = [machine(measured_on, nulls), days(dates), *(table(problem, times, judged) for problem in PROBLEMS)]
    return {"kernels.md": "\n\n".join(filter(None, kernels)), "rivals.md": "\n\n".join(rivals)}


def machine(measured_on: dict[str, Any], nulls: dict[str, float]) -> str:
    return (
        f"Measured on {measured_on['device']} with torch {measured_on['torch']} and Triton {measured_on['triton']}, "
        f"with cold caches.\nBy events a kernel that does next to nothing takes {min(nulls.values()):.2f} to "
        f"{max(nulls.values()):.2f} µs, by the process."
    )


def days(dates: Dates) -> str:
    """The dates of the measurements by events. A kernel stands at that of most of its cases; the rest are counted."""
    found = {kernel: Counter(cases.values()).most_common() for kernel, cases in dates.items()}
    most = {kernel: each[0][0] for kernel, each in found.items()}
    usual, *others = (date for date, _ in Counter(most.values()).most_common())
    rows = [[date, kernels] for date in others for kernels in measured_at(date, most)]
    for kernel, each in found.items():
        problem, name = kernel.replace("rival ", "").split("/", 1)
        rows += [[date, f"{problem} ({name}), {cases} of {len(dates[kernel])} cases"] for date, cases in each[1:]]
    rows.append([usual, "all others"])
    return tabulate.tabulate(rows, ["by events on", "kernels"], tablefmt="pipe", disable_numparse=True)


def measured_at(date: str, dates: dict[str, str]) -> list[str]:
    """The problems with kernels of that date. If only some of a problem's kernels have it, they are named."""
    names = []
    for problem in PROBLEMS:
        mine = {kernel: found for kernel, found in dates.items() if kernel.startswith(problem + "/")}
        chosen = [kernel for kernel, found in mine.items() if found == date]
        if chosen:
            own = [kernel.removeprefix(problem + "/").removeprefix("rival ") for kernel in chosen]
            names.append(problem if len(chosen) == len(mine) else f"{problem} ({'; '.join(own)})")
    return names


def changes(runs: dict[str, Run]) -> str:
    """The judged files that hold another source now: changed in docstrings and comments only, or in code."""
    words, code = [], []
    for kernel, run in sorted(runs.items()):
        judged = Store(ROOT).source(run.problem, run.submission_sha256)
        now = (ROOT / "submissions" / f"{kernel}.py").read_bytes()
        if now != judged:
            (words if same_code(now, judged) else code).append(kernel)
    told = [f"in words alone: {', '.join(words)}" if words else "", f"in code: {', '.join(code)}" if code else ""]
    return f"Files that have changed since their judged run, {'; '.join(filter(None, told))}." if words or code else ""


DOCUMENTED = ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef


def same_code(one: bytes, other: bytes) -> bool:
    """True if two sources differ at most in docstrings and comments."""
    trees = [ast.parse(source) for source in (one, other)]
    for node in (node for tree in trees for node in ast.walk(tree)):
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node) is not None:
            del node.body[0]
    return ast.dump(trees[0]) == ast.dump(trees[1])


def published(device: str) -> dict[str, Run]:
    """The run by the judge's clock that stands for each kernel on its board, of those under results/published. Where
    no run is of the problem's present revision, that of its latest one."""
    runs: dict[str, list[Run]] = {}
    for path in sorted((ROOT / "results" / "published").glob("*/*/*.json")):
        run = load_run(path)
        if run.device.name == device and run.ranked and run.clock is ClockOwner.JUDGE:
            runs.setdefault(f"{run.problem}/{run.submission}", []).append(run)
    found = {}
    for kernel, each in runs.items():
        latest = max(each, key=lambda run: run.started_at).problem_sha256
        by_id = {run.id: run for run in each if run.problem_sha256 == latest}
        found[kernel] = by_id[standing([of_run("", run) for run in by_id.values()]).id]
    return found


def latencies(run: Run) -> dict[str, Judged]:
    return {
        m.case.label: Judged(m.latency.latency_ns / 1e3, None if m.inside_ns is None else m.inside_ns / 1e3)
        for m in run.measurements
    }


def on_board(run: Run) -> str:
    """The score's share of the limit, as on the board: `24 % (mxfp4)`."""
    entry = of_run("", run)
    return f"{_share(entry.floor_ns, entry.score_ns)} ({entry.floor_format})"


def targets(times: Times, judged: Runs, nulls: dict[str, float], board: dict[str, str]) -> str:
    """Which targets are met, and the short cases, which should stay within twice the null kernel and the floor.

    Short cases are timed by events, back to back, by the process that also timed the null kernel.
    """
    rows = []
    for kernel, wanted in TARGETS.items():
        found = times.get(kernel, {})
        in_run = {case: (one.us, found[case][1]) for case, one in judged.get(kernel, {}).items() if case in found}
        shares = [mean_share(in_run), mean_share(found)]
        decisive = shares[0] or shares[1]
        short = [(us, floor) for us, floor in found.values() if us is not None and floor <= LONG_US]
        within = sum(us <= 2 * (nulls[kernel] + floor) for us, floor in short)
        rows.append(
            [
                named(kernel, times),
                f"{wanted} %",
                "not measured" if shares[0] is None else f"{shares[0]:.1f} %",
                "not measured" if shares[1] is None else f"{shares[1]:.1f} %",
                "" if decisive is None else "met" if decisive >= wanted else "missed",
                f"{within} of {len(short)}" if short else "none",
                board.get(kernel, "not measured"),
            ]
        )
    for kernel, other in NO_SLOWER.items():
        long = {case for case, (_, floor) in times.get(kernel, {}).items() if floor > LONG_US}
        in_run = slower(
            *({case: one.us for case, one in judged.get(name, {}).items()} for name in (kernel, other)), long
        )
        sampled = slower(
            *({case: us for case, (us, _) in times.get(name, {}).items() if us} for name in (kernel, other)), long
        )
        decisive = in_run or sampled
        rows.append(
            [
                kernel,
                f"1 × {other.partition('/')[2]}",
                "not measured" if in_run is None else f"{in_run:.2f} ×",
                "not measured" if sampled is None else f"{sampled:.2f} ×",
                "" if decisive is None else "met" if decisive <= 1 else "missed",
                "",
                board.get(kernel, "not measured"),
            ]
        )
    head = ["kernel", "target", "judged run", "back to back, by events", ""]
    head += [f"cases of ≤ {LONG_US:.0f} µs within 2 × (null + floor)", "score on the board"]
    return "## Targets, of the limit\n\n" + tabulate.tabulate(rows, head, tablefmt="pipe", disable_numparse=True)


def mean_share(found: Mapping[str, tuple[float | None, float]]) -> float | None:
    """The long cases' share of the limit: the geometric mean, in percent."""
    shares = [share for us, floor in found.values() if floor > LONG_US and (share := of_limit(floor, us))]
    return 100 * math.exp(sum(map(math.log, shares)) / len(shares)) if shares else None


def slower(latencies: dict[str, float], others: dict[str, float], cases: set[str]) -> float | None:
    """The ratio of the latencies to the others, in the geometric mean over those of `cases` that both have."""
    both = latencies.keys() & others.keys() & cases
    return math.exp(sum(math.log(latencies[case] / others[case]) for case in both) / len(both)) if both else None


def table(problem: str, times: Times, judged: Runs) -> str:
    """One line per case, one column per kernel: the bundled kernels, then the rivals."""
    mine = {kernel: found for kernel, found in times.items() if kernel.startswith(problem + "/")}
    ours = [kernel for kernel in mine if "/rival " not in kernel]
    rivals = [kernel for kernel in mine if "/rival " in kernel]
    cases = list(dict.fromkeys(case for found in mine.values() for case in found))
    labels, common = told_apart([Case(parameters=dict(word.split("=", 1) for word in case.split())) for case in cases])
    rows = []
    for case, label in zip(cases, labels, strict=True):
        floors = sorted({round(found[case][1], 1) for kernel, found in mine.items() if case in found})
        rows.append(
            [
                label,
                " / ".join(f"{floor:.1f}" for floor in floors),
                *(cell(mine[kernel].get(case), judged.get(kernel, {}).get(case)) for kernel in ours + rivals),
            ]
        )
    names = [named(kernel, times).partition("/")[2].removeprefix("rival ") for kernel in ours + rivals]
    formats = f": {' / '.join(FORMATS[problem])}" if problem in FORMATS else ""
    shown = tabulate.tabulate(rows, ["case", f"floor µs{formats}", *names], tablefmt="pipe", disable_numparse=True)
    return f"## {problem}\n\n" + (f"Every case: `{common}`.\n\n" if common else "") + shown


def named(kernel: str, times: Times) -> str:
    """The kernel's name. If its problem has several formats, with the format of its floor."""
    problem = kernel.partition("/")[0]
    if problem not in FORMATS:
        return kernel
    case, (_, floor) = max(times[kernel].items(), key=lambda item: item[1][1])
    floors = sorted(
        {found[case][1] for other, found in times.items() if other.startswith(f"{problem}/") and case in found}
    )
    return f"{kernel} ({FORMATS[problem][floors.index(floor)]})"


def cell(by_events: tuple[float | None, float] | None, judged: Judged | None = None) -> str:
    """A cell such as `31.7 (38 %) · 34.1`: judged latency, share of the limit, time by events. Without a judged run
    only the time by events."""
    if by_events is None:
        return ""
    us, floor = by_events
    if judged is None:
        return "" if us is None else f"{us:.1f} ({_share(floor, us)})"
    beside = judged.events_us if judged.events_us is not None else us
    return f"{judged.us:.1f} ({_share(floor, judged.us)})" + ("" if beside is None else f" · {beside:.1f}")


def _share(floor: float | None, us: float | None) -> str:
    return percent(of_limit(floor, us)).replace("\N{NO-BREAK SPACE}", " ")


if __name__ == "__main__":
    main()
