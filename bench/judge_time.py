"""Measures where the time of an evaluation goes: by activity of the judge, and for each benchmark case within one call.

    python bench/judge_time.py PROBLEM [FILE] [--device auto] [--full]        as long as an evaluation, a --quick one

The first table has the seconds of starting and loading workers, tests, calibrating the clock, the pilot, the timed
processes, their null calls, the judge's own two computations between them (`anchor`), ending workers, and the rest. A
worker that starts during other work counts only with the time that the judge waits for it. The second table has the
milliseconds of a call, the mean over a case's timed calls and warm-ups:

    generate, expect, deal     fresh inputs, their expected outputs, and the rest of making the call
    set up, map, begin         guards; memory that the worker maps; requesting the call, until the worker is ready
    hold, arm, stop            on a GPU: the device held while the worker enqueues its call and is stopped
    await, stop                on a CPU: until the worker stands still, and the call itself, until it has stopped again
    pour, flush, snapshot      on a GPU only enqueued; the wait for them counts under clock
    look                       the same for comparing the inputs that must not change with the poured ones
    clock                      the rest between the first and the last of them: on a GPU mostly the call
    reply, aftermath           the worker's answer, and its waiting for the device
    check                      comparing outputs with the expectation
    null call                  on a CPU: the null call beside each counted call

No part contains another. Prints both tables and one line of JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import inspect
import json
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import torch
from tabulate import tabulate

from harness import catalog
from harness.catalog.config import load_config
from harness.judge.anchor import Anchor
from harness.judge.calls import Caller
from harness.judge.clock import StopClock
from harness.judge.entrant import Entrant
from harness.judge.evaluate import evaluate
from harness.judge.inputs import Dealer
from harness.judge.reference import Reference
from harness.judge.sandwich import Sandwich
from harness.judge.session import Session
from harness.judge.stage import Stage
from harness.judge.worker_clock import WorkerClock
from harness.machine import device as devices
from harness.machine.lock import hold
from harness.sandbox.leash import Leash

ROOT = Path(__file__).resolve().parents[1]

PHASES = {"check": "tests", "calibrate": "calibration", "pilot": "pilot", "sit": "timing"}
"""Methods of Entrant."""

PARTS: dict[str, dict[type, tuple[str, ...]]] = {
    "start": {Session: ("__init__", "prepare", "load")},
    "anchor": {Anchor: ("begin", "end_round")},
    "end": {Session: ("finish", "kill")},
    "generate": {Reference: ("generate", "next_input")},
    "expect": {Reference: ("expect", "exact")},
    "deal": {Dealer: ("deal",)},
    "map": {Session: ("map",)},
    "set up": {Stage: ("set_up",)},
    "begin": {Session: ("begin",)},
    "hold, arm, stop": {Sandwich: ("_hold_and_pour", "_gate_and_pour")},
    "await": {Session: ("await_stop",)},
    "stop": {Leash: ("stop", "await_others", "others_at_rest", "others_ran", "ran_while_stopped")},
    "pour": {Stage: ("pour",)},
    "flush": {Stage: ("flush",)},
    "snapshot": {Stage: ("snapshot",)},
    "look": {Stage: ("look",)},
    "reply": {Session: ("reply",)},
    "aftermath": {Session: ("aftermath",)},
    "check": {Caller: ("_check",)},
    "null call": {Caller: ("put_null",)},
    "clock": {clock: ("time",) for clock in (StopClock, Sandwich, WorkerClock)},
}
OPAQUE = {"null call", "start", "end", "anchor"}
"""Work inside these parts counts as theirs."""

DEVICE_WORKS = {"generate", "expect", "check"}
"""A GPU is awaited at the end of these parts; otherwise their work would count in the next part."""

REST, NULL_CALLS = "rest", "null calls of processes"


class Ledger:
    """Seconds by phase, case and part: the time of a part's own code, without the parts inside it."""

    def __init__(self, on_gpu: bool) -> None:
        self._on_gpu = on_gpu
        self.seconds: defaultdict[tuple[str, str, str], float] = defaultdict(float)
        self.calls: Counter[str] = Counter()
        self.phase, self.case = REST, ""
        self._open: list[str] = [REST]
        self._since = time.perf_counter()

    def _turn(self) -> None:
        """Add the time since the last turn to the open part."""
        now = time.perf_counter()
        self.seconds[self.phase, self.case, self._open[-1]] += now - self._since
        self._since = now

    @contextlib.contextmanager
    def part(self, name: str) -> Iterator[None]:
        if self._open[-1] in OPAQUE:
            yield
            return
        self._turn()
        self._open.append(name)
        try:
            yield
            if self._on_gpu and name in DEVICE_WORKS:
                torch.cuda.synchronize()
        finally:
            self._turn()
            self._open.pop()

    @contextlib.contextmanager
    def in_phase(self, name: str, case: str) -> Iterator[None]:
        self._turn()
        before, (self.phase, self.case) = (self.phase, self.case), (name, case)
        try:
            yield
        finally:
            self._turn()
            self.phase, self.case = before

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """Within the block, the judge's methods report to this ledger."""
        with contextlib.ExitStack() as stack:
            for part, owners in PARTS.items():
                for owner, names in owners.items():
                    for name in names:
                        stack.callback(setattr, owner, name, getattr(owner, name))
                        setattr(owner, name, self._reporting(getattr(owner, name), part))
            for name, phase in PHASES.items():
                stack.callback(setattr, Entrant, name, getattr(Entrant, name))
                setattr(Entrant, name, self._in_phase(getattr(Entrant, name), phase))
            self._since = time.perf_counter()
            yield
            self._turn()

    def _reporting(self, method: Any, part: str) -> Any:
        def reporting(*arguments: Any, **more: Any) -> Any:
            if part == "deal":
                self.calls[self.case] += 1
            with self.part(part):
                return method(*arguments, **more)

        return reporting

    def _in_phase(self, method: Any, phase: str) -> Any:
        def entered(entrant: Entrant, *arguments: Any, **more: Any) -> Any:
            with self.in_phase(phase, ""):
                return method(entrant, *arguments, **more)

        def each(entrant: Entrant, *arguments: Any, **more: Any) -> Iterator[Any]:
            case = arguments[1].label
            steps = method(entrant, *arguments, **more)
            with contextlib.closing(steps):
                while True:
                    with self.in_phase(phase, case):
                        try:
                            step = next(steps)
                        except StopIteration:
                            return
                    yield step

        return each if inspect.isgeneratorfunction(method) else entered


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("problem")
    parser.add_argument("file", nargs="?", type=Path)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--full", action="store_true", help="all processes, as in a ranked evaluation")
    options = parser.parse_args()
    here = devices.detect(ROOT, options.device)
    problem = catalog.load_problem(ROOT, options.problem)
    file = options.file or ROOT / "submissions" / problem.name / f"{problem.baselines[0]}.py"
    submission, config = catalog.load_submission(problem, file), load_config(ROOT)
    ledger = Ledger(here.kind != "cpu")
    with hold(here, lambda line: print(line, file=sys.stderr)), ledger.kept():
        run = evaluate(problem, submission, here, config, quick=not options.full)
    phases, cases = by_phase(ledger), by_case(ledger)
    print(f"{problem.name}/{submission.name} on {here.name}: {run.ending.verdict.words}, {run.duration_s:.1f} s")
    print(tabulate([(name, f"{seconds:.2f}") for name, seconds in phases.items()], ["", "s"]))
    print("milliseconds a call")
    print(tabulate(cases, headers="keys", floatfmt=".2f"))
    found = {"bench": "judge_time", "problem": problem.name, "submission": submission.name, "device": here.name}
    print(json.dumps({**found, "duration_s": run.duration_s, "phases_s": phases, "cases_ms": cases}))


def by_phase(ledger: Ledger) -> dict[str, float]:
    """Seconds by phase. Starting and ending workers and the anchor are phases of their own, whenever they happen."""
    phases: defaultdict[str, float] = defaultdict(float)
    own = {"start": "start, load", "end": "end of workers", "anchor": "anchor"}
    for (phase, _, part), seconds in ledger.seconds.items():
        beside = NULL_CALLS if phase == REST and part == "null call" else phase
        phases[own.get(part, beside)] += seconds
    order = ["start, load", *PHASES.values(), NULL_CALLS, "anchor", "end of workers", REST]
    return {name: phases[name] for name in order if name in phases}


def by_case(ledger: Ledger) -> list[dict[str, Any]]:
    """One row per benchmark case, one column per part that any case has, in milliseconds per call."""
    parts = [part for part in [*PARTS, REST] if any(p == part and c for _, c, p in ledger.seconds)]
    rows = []
    for case in dict.fromkeys(case for phase, case, _ in ledger.seconds if phase == "timing" and case):
        each = {part: 1e3 * ledger.seconds["timing", case, part] / max(ledger.calls[case], 1) for part in parts}
        rows.append({"case": case, "calls": ledger.calls[case], **each, "all": sum(each.values())})
    return rows


if __name__ == "__main__":
    main()
