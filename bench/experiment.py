"""The shared parts of the experiments: the device, the judge's clock as in an evaluation, and the form of a report.

    options(doc, seconds)        ─► device, out, seconds
    toy(root, ...), one_pass     ─► a problem of the bench's own, and a submission to it
    judging(device, ...)         ─► Judging: that submission in workers, its calls timed by the judge's clock
    Children(command, ahead)     ─► fresh processes, of which one measures at a time
    Raw                          ─► OUT/<name>.csv, one row per sample, on disk as soon as it is written
    report                       ─► a table for people, then one line of JSON for `bench/gpu.py`

An experiment holds the device's lock while it measures, as an evaluation does.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import functools
import json
import os
import subprocess
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from tabulate import tabulate

from harness import catalog
from harness.catalog.config import load_config
from harness.judge.assembly import Assembly, be_a_quiet_neighbour
from harness.judge.caches import Caches
from harness.judge.calls import Series
from harness.judge.clock import Answer, Clock
from harness.judge.entrant import Entrant
from harness.judge.inputs import Dealer
from harness.judge.null_worker import NullWorker
from harness.judge.reference import Reference
from harness.judge.seeds import Seeds, new_master_seed
from harness.judge.session import Session
from harness.judge.stage import Stage, spans_of
from harness.machine import device as devices
from harness.machine.lock import hold
from harness.model import Case, Device, Manner, Problem, Submission
from harness.ranking.stats import interquartile_mean

ROOT = Path(__file__).resolve().parents[1]

MOST_VOIDS_A_CALL = 3
"""Void calls allowed per counted call, plus twenty. With more, something is wrong that further calls will not fix."""

PROBLEM = """\
name: bench
title: a bench's own
description: what it measures the clock with
revision: 1
inputs: [x, config]
outputs: [y]
axes: {{y: [i]}}
tolerances: {{close: {{rel_l2: 0.01}}}}
cases: {cases}
cpu: {cases}
"""

ONE_PASS = """
import torch

def generate_input(variant, elements, seed, device):
    generator = torch.Generator(device).manual_seed(seed)
    return torch.randn(elements, generator=generator, device=device), {}

def ref_kernel(data):
    return data[0] + 1

def cost(variant, elements):
    return {"float32": {"bytes": 8 * elements, "flops": {}}}
"""

PASSES_ONCE = """
import torch

def custom_kernel(data):
    return data[0] + 1
"""


@dataclass(frozen=True)
class Options:
    """`seconds`: the time that an experiment may spend sampling. Raw samples go to the folder `out`."""

    device: Device
    out: Path
    seconds: float


def options(doc: str | None, seconds: float) -> Options:
    """The options on the command line. Raises UsageError for a device that is not here."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto", help="cpu, cuda, cuda:1 or auto: a GPU if there is one")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "bench", help="where the raw CSV goes")
    parser.add_argument("--seconds", type=float, default=seconds, help="time to spend sampling")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    return Options(devices.detect(ROOT, given.device), given.out, given.seconds)


@contextlib.contextmanager
def measuring(device: Device) -> Iterator[None]:
    """Hold the device's lock, and make the device the current one of this process."""
    with hold(device, lambda line: print(line, file=sys.stderr)):
        if device.kind != "cpu":
            torch.cuda.set_device(device.torch_device)
        yield


def toy(root: Path, reference: str, cases: Sequence[Mapping[str, Any]], source: str) -> tuple[Problem, Submission]:
    """Make the problem `bench` under the empty folder `root`, and the submission `source` to it. Data are (x, config);
    the output is y, with one dimension. `cases` are its benchmark cases; the first is also its test case."""
    root.chmod(0o755)
    problem, submissions = root / "problems" / "bench", root / "submissions" / "bench"
    for folder in (problem, submissions):
        folder.mkdir(parents=True)
    listed = json.dumps({"test": [cases[0]], "benchmark": list(cases)})
    (problem / "problem.yml").write_text(PROBLEM.format(cases=listed))
    (problem / "reference.py").write_text(reference)
    (submissions / "mine.py").write_text(source)
    loaded = catalog.load_problem(root, "bench")
    return loaded, catalog.load_submission(loaded, submissions / "mine.py")


def one_pass(root: Path, cases: Sequence[Mapping[str, Any]]) -> tuple[Problem, Submission]:
    """A toy whose call is an elementwise pass over `elements` float32. Cases have `variant`, a text, and `elements`."""
    return toy(root, ONE_PASS, cases, PASSES_ONCE)


class Judging:
    """A submission's calls as the judge times them, without a check of their outputs.

    `null_ns`: times of null calls on a CPU, one beside each call of `take`. They give the constant. On a GPU the
    constant was measured before.
    """

    def __init__(self, device: Device, reference: Reference, entrant: Entrant, null: NullWorker) -> None:
        self.device, self.entrant, self._reference, self._null = device, entrant, reference, null
        self.manner = Manner.SANDWICH if entrant.clocks.encloses else Manner.STOPPED
        self.null_ns: list[float] = []
        self.voids: Counter[str] = Counter()
        self._warm: set[tuple[Session, str]] = set()

    @property
    def constant_ns(self) -> float:
        """The constant to subtract from `elapsed_ns`."""
        return interquartile_mean(self.null_ns) if self.null_ns else self.entrant.caller.constants.of(self.manner)

    @contextlib.contextmanager
    def series(self, case: Case, caches: Caches | None = None) -> Iterator[Series]:
        """Calls of `case`. `caches`: empties them before each call in the judge's place."""
        seeds = Seeds(new_master_seed(), "bench", case)
        if caches is None:
            with self.entrant.caller.series(seeds, case) as opened:
                yield opened
            return
        dealer, stage = Dealer(self._reference, case, seeds), Stage(self.device, caches)
        try:
            yield Series(case, dealer, stage)
        finally:
            stage.close()
            dealer.close()

    def call(self, session: Session, series: Series, events: bool = False) -> Answer:
        """Make a fresh call. With `events`, the worker of a GPU also times it with its own events."""
        clock = self._with_events if events else self._clock
        answer = clock.time(session, series.stage, series.deal(everything=False), series.case.label)
        return self._seen(answer, series)

    def null(self, series: Series, cycles: int = 1) -> Answer:
        """Make a null call like the last call, in a worker of the judge's own."""
        return self._seen(self.entrant.caller.put_null(self._null.ready(), series, self._clock, cycles), series)

    def take(
        self,
        session: Session,
        series: Series,
        count: int,
        events: bool = False,
        read: Callable[[Answer], Any] = lambda answer: None,
    ) -> list[tuple[Answer, Any]]:
        """`count` calls that are not void, each with the result of `read`. Uncounted calls come first, because the
        first call of a case may compile and others map memory. Raises SystemExit if too many are void."""
        self._warm_up(session, series)
        answers: list[tuple[Answer, Any]] = []
        for _ in range(20 + (1 + MOST_VOIDS_A_CALL) * count):
            if len(answers) == count:
                return answers
            answer = self.call(session, series, events)
            if answer.void is None:
                answers.append((answer, read(answer)))
                if self.device.kind == "cpu" and (empty := self.null(series)).void is None:
                    self.null_ns.append(empty.elapsed_ns)
        raise SystemExit(f"{series.case.label}: too many calls are void: {dict(self.voids)}")

    def _warm_up(self, session: Session, series: Series) -> None:
        if (session, series.case.key) not in self._warm:
            self._warm.add((session, series.case.key))
            clock, call = self.entrant.clocks.for_checks, series.deal(everything=False)
            clock.time(session, series.stage, call, series.case.label)
        self.call(session, series)

    def _seen(self, answer: Answer, series: Series) -> Answer:
        void = self.entrant.caller.constants.void(answer, self.manner, series.case)
        if void is not None:
            self.voids[void.value] += 1
        return replace(answer, void=void)

    @functools.cached_property
    def _clock(self) -> Clock:
        return self.entrant.clocks.of(self.manner)

    @functools.cached_property
    def _with_events(self) -> Clock:
        return self.entrant.clocks.with_events(self.manner)


@contextlib.contextmanager
def judging(device: Device, problem: Problem, submission: Submission, threads: int = 1) -> Iterator[Judging]:
    """`submission` under a judge whose clock is calibrated for `problem`'s benchmark cases. Raises SystemExit if the
    judge's clock does not work."""
    be_a_quiet_neighbour(device.kind)
    reference = Reference(problem, device)
    assembly = Assembly(reference, device, load_config(ROOT).sampling(device.kind, quick=False), threads)
    with (
        assembly.entrant(submission, new_master_seed()) as entrant,
        contextlib.closing(assembly.null_worker()) as null,
    ):
        entrant.calibrate(null)
        if entrant.clocks.why_not:
            raise SystemExit(f"the judge's clock does not work on {device.name}: {entrant.clocks.why_not}")
        yield Judging(device, reference, entrant, null)


def outputs(answer: Answer) -> list[torch.Tensor]:
    """The outputs of a call, as they were when its time was up. Valid until the next call."""
    assert answer.reply is not None and answer.snapshot is not None
    described = answer.reply.outputs
    due = [(output.dtype or "", tuple(output.shape or ())) for output in described]
    return [answer.snapshot.view(span) for span in spans_of(described, [], due)]


class Untouched:
    """Leaves the caches as they are."""

    why_not = ""

    def empty(self, memory: torch.Tensor) -> None:
        pass


class WriteSweep:
    """The write sweep of triton.testing.do_bench before a call, in the size of our flush."""

    why_not = ""

    def __init__(self, device: Device) -> None:
        self._written = torch.empty(device.flush_bytes // 4, dtype=torch.int32, device=device.torch_device)

    def empty(self, memory: torch.Tensor) -> None:
        self._written.zero_()


class Children:
    """Fresh processes of one command. Each measures when it reads a line, and ends with a line of JSON. The next
    `ahead` processes import their modules meanwhile."""

    def __init__(self, command: Sequence[str], ahead: int) -> None:
        self._command, self._ahead = command, ahead
        self._waiting: deque[subprocess.Popen[str]] = deque()

    def __enter__(self) -> Children:
        return self

    def __exit__(self, *_: object) -> None:
        for child in self._waiting:
            child.kill()
            child.communicate()

    def next(self, timeout_s: float, another_follows: bool = True) -> tuple[Any, str]:
        """The result of the next process, and its stderr. Raises RuntimeError with its last words if there is no
        result."""
        while len(self._waiting) < (self._ahead if another_follows else 1):
            pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
            alone = os.environ | {"OMP_NUM_THREADS": "1"}
            self._waiting.append(subprocess.Popen(self._command, text=True, errors="replace", env=alone, **pipes))
        child = self._waiting.popleft()
        try:
            out, log = child.communicate("go\n", timeout=timeout_s)
            return json.loads(out.splitlines()[-1]), log.strip()
        except (subprocess.TimeoutExpired, ValueError, IndexError) as error:
            child.kill()
            raise RuntimeError(f"{type(error).__name__}: {child.communicate()[1][-800:]}") from None


class Raw:
    """A CSV file that is always up to date: added rows are on disk even if the process is killed."""

    def __init__(self, out: Path, name: str, columns: Sequence[str]) -> None:
        self._file = (out / f"{name}.csv").open("w", newline="")
        self._writer = csv.writer(self._file)
        self._writer.writerow(columns)

    def add(self, *rows: Sequence[Any]) -> None:
        self._writer.writerows(rows)
        self._file.flush()


def report(name: str, device: Device, headline: str, rows: Sequence[Mapping[str, Any]], **facts: Any) -> None:
    """Print the table `rows`, the `headline`, and everything including `facts` as one line of JSON."""
    print(f"{name} on {device.name}, {time.strftime('%Y-%m-%d')}")
    print(tabulate(rows, headers="keys", tablefmt="simple_outline", floatfmt=".5g"))
    print(headline)
    document = {"bench": name, "device": device.name, "date": time.strftime("%Y-%m-%d"), "headline": headline}
    print(json.dumps({**document, "rows": list(rows), **facts}, default=float))


def not_measured(name: str, device: Device, why: str) -> None:
    """Report that nothing was measured, and why."""
    print(f"{name}: not measured on {device.name}: {why}")
    print(json.dumps({"bench": name, "device": device.name, "not_measured": why}))
