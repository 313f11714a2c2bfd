"""Measures how long pours of more than a time slice take, and whether work can hide in one.

    python bench/pours.py [--device auto] [--out DIR] [--seconds 60]        GPUs of NVIDIA's only

For inputs of each size null calls are made in three manners. In a `sandwich` the call runs when the judge's slice ends
within the pour. `stopped`, nothing waits to run. `gated` is how the calls of such a case are timed: what it has more
than `stopped` is what an honest call needs. The judge takes the longest of its own gated pours as `usual`. `room` is
what a pour may have more than that before its call is void. It must be below two switches (`constant`).

Then an honest submission and one that hides work are timed `gated`. The latter has a share of its work in a stream
without a gate, behind a kernel that waits. Without that kernel the device comes to the share before the judge pours.
With a kernel that waits for longer than a slice, it comes to it again when the judge's slice ends, within a longer
pour. What it computes then is right if that share has been poured. `right` counts the calls whose answer is right and
whose time counts, `right and void` those that are right and do not count. Times are in microseconds.
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

from bench.experiment import judging, measuring, not_measured, options, report, toy
from harness.judge.calls import FailedCall
from harness.judge.clock import Answer
from harness.judge.session import Session
from harness.model import Case, Manner

NAME = "pours"
SIZES = (1 << 18, 1 << 17)
"""Rows: 4 and 2 GiB. An H200 pours 4 GiB in 2.44 ms, longer than a slice, and 2 GiB in 1.4 ms."""

CALLS, DROPPED = 12, 3
MANNERS = (Manner.SANDWICH, Manner.STOPPED, Manner.GATED)
TRIES = ((0.0, 0), (0.1, 0), (0.1, 1200), (0.1, 2300), (0.1, 2500), (0.1, 3000), (0.1, 5000), (0.001, 2500))
"""The share of the rows that is computed in a stream without a gate, and the microseconds that this stream waits
before. A case has so many rows more than its size as the place of its try in this list: by that the submission knows
it."""

ROW = 4096
"""Elements that one element of the answer is the sum of. The answer is small, so its check takes no memory to speak of
beside the input, of which a device holds several copies."""

SUMS = """
import torch

def generate_input(variant, rows, seed, device):
    generator = torch.Generator(device).manual_seed(seed)
    return torch.randn(rows, {row}, generator=generator, device=device), {{}}

def ref_kernel(data):
    return data[0].sum(1)

def cost(variant, rows):
    return {{"float32": {{"bytes": 4 * rows * {row}, "flops": {{}}}}}}
"""

SOURCE = """
import torch

TRIES = {tries}
side, seen, cycles = None, set(), 0

def cycles_per_us():
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda._sleep(1000)
    begin.record()
    torch.cuda._sleep(10_000_000)
    end.record()
    end.synchronize()
    return 10_000 / begin.elapsed_time(end)

def custom_kernel(data):
    global side, cycles
    x = data[0]
    share, wait_us = TRIES[x.shape[0] % len(TRIES)]
    y, early = torch.empty_like(x[:, 0]), int(x.shape[0] * share)
    if x.shape[0] not in seen:  # the first call of a case is not timed: its inputs are already there
        seen.add(x.shape[0])
        early, cycles = 0, cycles or cycles_per_us()
    if early:
        side = side or torch.cuda.Stream()
        with torch.cuda.stream(side):
            if wait_us:
                torch.cuda._sleep(int(wait_us * cycles))
            torch.sum(x[:early], 1, out=y[:early])
        torch.cuda.current_stream().wait_stream(side)
    torch.sum(x[early:], 1, out=y[early:])
    return y
"""


def main() -> None:
    given = options(__doc__, 60)
    if given.device.kind != "cuda":
        not_measured(NAME, given.device, "two processes share only a GPU of NVIDIA's in this way")
        return
    sizes = [1 << 8, *(size + place for size in SIZES for place in range(len(TRIES)))]
    cases = [Case(parameters={"variant": "A", "rows": rows}) for rows in sizes]
    rows: list[dict[str, Any]] = []
    hidden: list[dict[str, Any]] = []
    end = time.monotonic() + given.seconds
    with measuring(given.device), tempfile.TemporaryDirectory() as folder:
        source, reference = SOURCE.replace("{tries}", repr(TRIES)), SUMS.format(row=ROW)
        made = toy(Path(folder), reference, [case.parameters for case in cases], source)
        with judging(given.device, *made) as judge, judge.entrant.session() as session:
            for number, case in enumerate(cases[1:]):
                if time.monotonic() > end:
                    break
                share, wait_us = TRIES[number % len(TRIES)]
                if not share:
                    rows.append(pours(judge, case, cases[0]))
                    print(rows[-1], flush=True)
                hidden.append({"share": share, "waits": wait_us, **calls(judge, session, case)})
                print(hidden[-1], flush=True)
                if "failed" in hidden[-1]:  # its worker has ended
                    break
            session.finish()
    report(NAME, given.device, "what is computed within a pour", hidden, pours=rows)


def pours(judge: Any, case: Case, smallest: Case) -> dict[str, Any]:
    """The pours of null calls in each manner: least and median."""
    caller, clocks = judge.entrant.caller, judge.entrant.clocks
    row: dict[str, Any] = {"GiB": case.parameters["rows"] * ROW / (1 << 28)}  # type: ignore[operator]
    with judge.series(case) as series:
        for manner in MANNERS:
            clock, null = clocks.of(manner), judge._null.ready()
            taken = [caller.put_null(null, series, clock).pour_ns / 1e3 for _ in range(DROPPED + CALLS)][DROPPED:]
            row |= {f"{manner.value}, least": min(taken), f"{manner.value}, median": statistics.median(taken)}
            row |= {f"{manner.value}, most": max(taken)}
    with judge.series(smallest) as series:  # the worker of null calls gives the memory of this case back
        caller.put_null(judge._null.ready(), series, clocks.of(Manner.SANDWICH))
    usual_ns, constants = caller.constants.pour_ns[case.key], caller.constants
    return {
        **row,
        "usual": usual_ns / 1e3,
        "room": constants._more_ns(usual_ns, Manner.GATED) / 1e3,
        "constant": constants.of(Manner.SANDWICH) / 1e3,
    }


def calls(judge: Any, session: Session, case: Case) -> dict[str, Any]:
    """The submission's gated calls: their latency, and how many are right and not void."""
    caller, clock = judge.entrant.caller, judge.entrant.clocks.of(Manner.GATED)
    found: list[Answer] = []
    right = {True: 0, False: 0}
    with judge.series(case) as series:
        caller.put(session, series, judge.entrant.clocks.for_checks, everything=False)
        for _ in range(DROPPED + CALLS):
            try:
                check, answer = caller.put(session, series, clock, everything=False)
            except FailedCall as failed:
                return {"GiB": case.parameters["rows"] * ROW / (1 << 28), "failed": str(failed)}  # type: ignore[operator]
            found.append(answer)
            right[answer.void is None] += check is not None and check.verdict.value == "accepted"
    sound = [answer.elapsed_ns for answer in found[DROPPED:] if answer.void is None]
    constant_ns = caller.constants.of(Manner.GATED)
    return {
        "GiB": case.parameters["rows"] * ROW / (1 << 28),  # type: ignore[operator]
        "latency": (statistics.median(sound) - constant_ns) / 1e3 if sound else None,
        "pour": statistics.median(answer.pour_ns for answer in found[DROPPED:]) / 1e3,
        "right": right[True],
        "right and void": right[False],
        "void": sorted(answer.void.value for answer in found if answer.void is not None)[:3],
        "voids": sum(answer.void is not None for answer in found),
    }


if __name__ == "__main__":
    main()
