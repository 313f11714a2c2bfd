"""How often the judge's own clock objects to honest submissions, and by how much it never does.

    python bench/honest_clock.py [--device auto] [--runs 20] [--seconds 540] [--waits]

Each run judges a submission that does as it says on ten cases of 10 µs to 100 ms, in one timed process. One that the
clock objects to is set aside and timed again, as in any run; three objections to one case are a verdict, an alarm. What
comes out is what `harness/judge/clock.py` takes its margins from: time besides the interval, less the share of the
latency that is allowed anyway.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tabulate import tabulate

from harness import catalog, config
from harness.device import detect
from harness.judge import clock
from harness.judge.evaluate import evaluate
from harness.machine_lock import hold
from harness.model import Run, Verdict

ROOT = Path(__file__).resolve().parents[1]
CASES = {
    "cpu": [(64, 2), (2048, 16), (8192, 32), (65536, 16), (65536, 64), (2**20, 8), (2**20, 24), (2**22, 10),
            (2**22, 100), (2**22, 340)],
    "gpu": [(4096, 4), (4096, 12), (2**20, 16), (2**22, 24), (2**24, 8), (2**24, 24), (2**26, 16), (2**26, 48),
            (2**27, 64), (2**27, 200)],
}  # fmt: skip
"""Elements of the input, and how many kernels pass over them: about 10 µs to 100 ms."""

REFERENCE = """
import torch

def generate_input(elements, passes, seed, device="cuda"):
    generator = torch.Generator(device).manual_seed(seed)
    return torch.randn(elements, generator=generator, device=device), {"passes": passes}

def ref_kernel(data):
    return data[0] + data[1]["passes"]

def cost(elements, passes):
    return {"float32": {"bytes": 1, "flops": {}}}
"""

SUBMISSION = """
import torch

def custom_kernel(data):
    out = data[0] + 1
    WAIT
    for _ in range(data[1]["passes"] - 1):
        out += 1
    return out
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=540, help="start no run after so much time")
    parser.add_argument("--waits", action="store_true", help="the submission waits for the device in its calls")
    options = parser.parse_args()
    here = detect(ROOT, options.device)
    if options.waits and here.kind == "cpu":
        parser.error("--waits needs a GPU: a CPU has computed when the call returns")
    margin = clock.MARGINS[here.kind]
    began, rows, alarms, objections, processes = time.monotonic(), {}, [], [], 0
    with tempfile.TemporaryDirectory() as folder, hold(here, lambda line: print(line, file=sys.stderr)):
        root = Path(folder)
        root.chmod(0o755)
        problem = _problem(root, CASES["cpu" if here.kind == "cpu" else "gpu"], options.waits)
        submission = catalog.load_submission(problem, root / "submissions" / "honest" / "passes.py")
        for number in range(options.runs):
            if time.monotonic() - began > options.seconds:
                break
            run = evaluate(problem, submission, here, config.load_config(ROOT), quick=True)
            if run.ending.verdict is not Verdict.ACCEPTED:
                alarms.append(run.ending.message)
            _note(run, margin, rows)
            processes += len(run.rounds)
            objections += [each.objection for each in run.rounds if each.objection is not None]
            print(f"run {number + 1}: {run.ending.verdict.words}, {run.duration_s:.0f} s", file=sys.stderr, flush=True)
    table = [
        {"case": case, "runs": len(seen), "latency us": sorted(row[0] for row in seen)[len(seen) // 2] / 1e3}
        | _spread("hidden", [row[1] for row in seen])
        | _spread("idle excess", [row[2] for row in seen])
        for case, seen in rows.items()
    ]
    count = sum(len(seen) for seen in rows.values())
    print(f"the judge's clock and honest submissions on {here.name}, {time.strftime('%Y-%m-%d')}")
    print(tabulate(table, headers="keys", floatfmt=",.1f"))
    hidden_us, excess_us = (max(row[f"{what} max us"] for row in table) for what in ("hidden", "idle excess"))
    print(f"{len(alarms)} alarms in {count} measurements of honest work")
    print(f"{len(objections)} of {processes} processes were set aside and timed again")
    for what, share, most_us, allowed_ns in (
        ("hidden", margin.hidden_share, hidden_us, margin.hidden_ns),
        ("idle excess", margin.idle_share, excess_us, margin.idle_ns),
    ):
        print(f"most {what}, {share:.0%} of the latency aside: {most_us:,.0f} us of {allowed_ns / 1e3:,.0f} allowed")
    print(*alarms, *objections, sep="\n")
    found = {"bench": "honest_clock", "device": here.name, "rows": table, "alarms": alarms, "objections": objections}
    print(json.dumps({**found, "processes": processes}))


def _note(run: Run, margin: clock.Margin, rows: dict[str, list[tuple[float, float, float]]]) -> None:
    """Put the run's cases into `rows`."""
    for measured in run.measurements:
        latency_ns = measured.latency.latency_ns
        hidden_ns = min(measured.hidden_ns) - margin.hidden_share * latency_ns
        excess_ns = min(measured.idle_excess_ns) - margin.idle_share * latency_ns
        rows.setdefault(measured.case.label, []).append((latency_ns, hidden_ns, excess_ns))


def _spread(what: str, values_ns: list[float]) -> dict[str, float]:
    ordered = sorted(values_ns)
    return {f"{what} med us": ordered[len(ordered) // 2] / 1e3, f"{what} max us": ordered[-1] / 1e3}


def _problem(root: Path, cases: list[tuple[int, int]], waits: bool):  # type: ignore[no-untyped-def]
    """A problem of its own under `root`, with an honest submission."""
    folder = root / "problems" / "honest"
    for path in (folder, root / "submissions" / "honest"):
        path.mkdir(parents=True)
    (folder / "reference.py").write_text(REFERENCE)
    (root / "submissions" / "honest" / "passes.py").write_text(
        SUBMISSION.replace("WAIT", "torch.cuda.synchronize()" if waits else "pass")
    )
    listed = ", ".join(f"{{elements: {elements}, passes: {passes}}}" for elements, passes in cases)
    both = f"{{test: [{{elements: 64, passes: 2}}], benchmark: [{listed}]}}"
    (folder / "problem.yml").write_text(
        f"name: honest\ntitle: x\ndescription: x\nrevision: 1\ninputs: [x, config]\noutputs: [y]\naxes: {{y: [row]}}\n"
        f"tolerances: {{close: {{rel_l2: 0.001}}}}\ncases: {both}\ncpu: {both}\n"
    )
    return catalog.load_problem(root, "honest")


if __name__ == "__main__":
    main()
