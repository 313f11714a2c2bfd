"""Measures how long a null call takes in processes that come one after another under one judge, as in a run.

    python bench/switches.py [--device auto] [--out DIR] [--seconds 100]        GPUs of NVIDIA's only

In each process null calls are timed before it loads a submission, after that, and after its last call. Between two
processes the judge computes what it computes between two processes of a run (harness/judge/anchor.py). If the judge
took one constant for all, `the call` less that would differ from process to process as null calls do. Less the
process's own (harness/judge/offsets.py) it should not. Times are in microseconds.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import torch

from bench.experiment import Judging, Raw, judging, measuring, not_measured, one_pass, options, report
from harness.judge.anchor import Anchor
from harness.judge.calls import Series
from harness.judge.session import Session
from harness.model import Case, Manner
from harness.ranking.stats import interquartile_mean

NAME = "switches"
PROCESSES = 40
NULL_CALLS, CALLS, DROPPED = 40, 30, 4
ELEMENTS = 1 << 22


def main() -> None:
    given = options(__doc__, 100)
    if given.device.kind != "cuda":
        not_measured(NAME, given.device, "two processes share only a GPU of NVIDIA's in this way")
        return
    torch.cuda.set_device(given.device.torch_device)
    case, end = Case(parameters={"variant": "A", "elements": ELEMENTS}), time.monotonic() + given.seconds
    found: list[dict[str, float]] = []
    with (
        measuring(given.device),
        tempfile.TemporaryDirectory() as folder,
        judging(given.device, *one_pass(Path(folder), [case.parameters])) as judge,
    ):
        anchor, raw = Anchor(given.device, None), None
        while len(found) < PROCESSES and time.monotonic() < end:
            anchor.begin()
            found.append(one_process(judge, case))
            raw = raw or Raw(given.out, NAME, ("process", *found[0]))
            raw.add((len(found), *found[-1].values()))
        constant_us = judge.constant_ns / 1e3
    by_run = [each["call"] - constant_us for each in found]
    by_process = [each["call"] - each["null, prepared"] for each in found]
    spreads = [statistics.stdev(values) if len(values) > 1 else 0.0 for values in (by_run, by_process)]
    report(
        NAME,
        given.device,
        f"{len(found)} processes: less the run's constant, {constant_us:.2f} us, the call differs by a standard "
        f"deviation of {spreads[0]:.2f} us; less the process's own by {spreads[1]:.2f} us",
        found,
        constant_us=constant_us,
    )


def one_process(judge: Judging, case: Case) -> dict[str, float]:
    entrant = judge.entrant
    with judge.series(case) as series, entrant.prepared() as session:
        row = {"null, prepared": null_us(judge, session, series)}
        session.load(entrant.path)
        row["null, loaded"] = null_us(judge, session, series)
        row["call"] = interquartile_mean([answer.elapsed_ns / 1e3 for answer, _ in judge.take(session, series, CALLS)])
        row["null, at its end"] = null_us(judge, session, series)
        session.finish()
    return row


def null_us(judge: Judging, session: Session, series: Series) -> float:
    clock = judge.entrant.clocks.of(Manner.SANDWICH)
    answers: list[Any] = [judge.entrant.caller.put_null(session, series, clock) for _ in range(DROPPED + NULL_CALLS)]
    return interquartile_mean([answer.elapsed_ns / 1e3 for answer in answers[DROPPED:] if answer.void is None])


if __name__ == "__main__":
    main()
