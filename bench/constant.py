"""Measures the constant that the judge subtracts from each call, and how much it varies between judges.

    python bench/constant.py [--device auto] [--out DIR] [--seconds 100]        less than two minutes

Runs up to twenty fresh judges, one after another, each in its own process and with fresh workers, as in an evaluation.
Each measures its constant with null calls (calls that compute nothing). On a GPU it does so once, before anything else,
with two switches of the device, and measures the device's time slice with a longer call. On a CPU it measures null
calls beside the counted calls. Then it times a call of a toy problem, a pass over some memory: a hundred times on a GPU
and forty times on a CPU.

`constant` is the interquartile mean, `IQR` the spread of its calls. `the call` is the toy call's time minus the
constant. `by events` is the same call's time by a pair of events in the worker. If the constants were wrong, judges
would differ more in `the call` than in `by events`.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import numpy as np
import torch

from bench.experiment import Children, Judging, Raw, judging, measuring, one_pass, options, report
from harness.judge.null_calls import CYCLES_OF_A_SLICE, constant
from harness.machine.device import Device
from harness.model import Case
from harness.ranking.stats import interquartile_mean

NAME = "constant"
RUNS = 20
CALLS = {"cpu": 40, "cuda": 100}
ELEMENTS = {"cpu": 1 << 18, "cuda": 1 << 22}
AHEAD = {"cpu": 1, "cuda": 4}
"""Judges that import their modules while another one measures."""


def main() -> None:
    given = options(__doc__, 100)
    command = [sys.executable, __file__, "--child", given.device.model_dump_json()]
    end, took_s = time.monotonic() + given.seconds, 0.0
    found: list[dict[str, float | None]] = []
    failures: list[str] = []
    raw: Raw | None = None
    with measuring(given.device), Children(command, AHEAD[given.device.kind]) as children:
        while len(found) < RUNS and len(failures) < 3 and time.monotonic() + took_s < end:
            started = time.monotonic()
            try:
                one, _ = children.next(max(end - started, 1) + 20)
            except RuntimeError as error:
                failures.append(str(error))
                continue
            took_s = time.monotonic() - started
            raw = raw or Raw(given.out, NAME, ("judge", *one))
            raw.add((len(found), *one.values()))
            found.append(one)
    if len(found) < 2:
        raise SystemExit(f"{NAME}: {len(found)} judges measured their constant, two are needed. {failures[-1:]}")
    rows = summary(found)
    by_name = {row["what"]: row for row in rows}
    headline = ", ".join(
        f"{what} {row['median']:.2f} us (from judge to judge {row['least']:.2f} to {row['most']:.2f})"
        for what, row in by_name.items()
        if what in ("constant", "its IQR", "the call", "time slice")
    )
    report(NAME, given.device, f"{len(found)} judges: {headline}", rows, judges=found, failures=failures)


def summary(found: list[dict[str, float | None]]) -> list[dict[str, Any]]:
    """A row a figure, in microseconds: over the judges."""
    rows = []
    for what in found[0]:
        values = [each[what] / 1e3 for each in found if each[what] is not None]  # type: ignore[operator]
        if values:
            rows.append(
                {
                    "what": what.removesuffix("_ns").replace("_", " "),
                    "judges": len(values),
                    "median": statistics.median(values),
                    "least": min(values),
                    "most": max(values),
                    "sd": statistics.stdev(values) if len(values) > 1 else None,
                }
            )
    return rows


def child(device_json: str) -> None:
    """One judge: wait for a line, then print what it has measured, in nanoseconds."""
    device = Device.model_validate_json(device_json)
    case = Case(parameters={"variant": "A", "elements": ELEMENTS[device.kind]})
    if not sys.stdin.readline():
        return
    if device.kind != "cpu":
        torch.cuda.set_device(device.torch_device)
    with (
        tempfile.TemporaryDirectory() as folder,
        judging(device, *one_pass(Path(folder), [case.parameters])) as judge,
        judge.entrant.session() as session,
    ):
        with judge.series(case) as series:
            elapsed = [answer.elapsed_ns for answer, _ in judge.take(session, series, CALLS[device.kind])]
            inside: list[float] = []
            slice_ns = None
            if device.kind != "cpu":
                answers = judge.take(session, series, CALLS[device.kind] // 4, events=True)
                inside = [answer.inside_ns for answer, _ in answers if answer.inside_ns is not None]
                slice_ns = judge.null(series, CYCLES_OF_A_SLICE).elapsed_ns
        session.finish()
        print(json.dumps(_found(judge, elapsed, inside, slice_ns)))


def _found(
    judge: Judging, elapsed: list[float], inside: list[float], slice_ns: float | None
) -> dict[str, float | None]:
    constants = judge.entrant.caller.constants
    own = constants.by_manner.get(judge.manner) or constant(judge.manner, judge.null_ns)
    low, high = np.quantile(elapsed, (0.25, 0.75)).tolist()
    return {
        "constant_ns": own.latency_ns,
        "its IQR_ns": own.spread_ns,
        "the call_ns": interquartile_mean(elapsed) - own.latency_ns,
        "the call's IQR_ns": high - low,
        "by events_ns": interquartile_mean(inside) if inside else None,
        "a null kernel by events_ns": constants.launch_ns,
        "time slice_ns": slice_ns,
    }


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(sys.argv[2])
    else:
        main()
