"""Measures what the GPU's copy engine gains for a submission that only copies.

    python bench/copy_engine.py [--device auto] [--out DIR] [--seconds 240]        GPUs of NVIDIA's only

    whole    x is copied by the engine
    part     64 MiB are copied: so many KiB by the engine, the rest by a kernel
    warm     x is summed in blocks: the engine only reads x, so that the L2 cache may have it when the call begins

The honest submission does all of it with kernels. The other one enqueues copies to the host and back on streams of its
own, above 4 MiB in quarters, so that both directions work at once. They begin behind a copy of memory of no interest
that takes `waits`. The copy engine works while the judge's kernels have the device, so a copy that begins behind the
pour and ends before stamp B is right. Of `whole` the call's own stream launches a kernel that computes nothing, since a
call without one gets no time slice and is void.

`right` counts the calls whose answer is right and whose time counts. `gain` is the honest latency less the latency of
those calls, medians, with a 95 % interval from resampling. Times are in microseconds.
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

import numpy as np

from bench.experiment import judging, measuring, not_measured, options, report, toy
from harness.judge.calls import FailedCall
from harness.judge.session import Session
from harness.model import Case, Device, Manner

NAME = "copy_engine"
SIZES_KIB = {
    "whole": (16384, 12288, 8192, 4096, 3072, 2048, 1024, 64),
    "part": (16384, 8192, 24576),
    "warm": (8192, 20480),
}
WAITS_US = (1000, 800, 600, 450, 300, 0)
CALLS, DROPPED, RESAMPLES = 24, 3, 2000

PROBLEM = """
import torch

def generate_input(variant, kib, waits, seed, device):
    generator = torch.Generator(device).manual_seed(seed)
    return torch.randn({numbers}, generator=generator, device=device), {{"waits": waits, "kib": kib}}

def ref_kernel(data):
    return {answer}

def cost(variant, kib, waits):
    return {{"float32": {{"bytes": {moved}, "flops": {{}}}}}}
"""
PROBLEMS = {
    "whole": PROBLEM.format(numbers="kib * 256", answer="data[0].clone()", moved="2048 * kib"),
    "part": PROBLEM.format(numbers="64 << 18", answer="data[0].clone()", moved="128 << 20"),
    "warm": PROBLEM.format(numbers="kib * 256", answer="data[0].view(-1, 1024).sum(1)", moved="1024 * kib"),
}

SOURCE = """
import torch

BYTES_PER_US = 50_000  # by PCIe 5
down, up = torch.cuda.Stream(), torch.cuda.Stream()
other = torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
on_host = torch.empty(64 << 20, dtype=torch.uint8, pin_memory=True)
kept, seen = {}, set()


def places(x, pieces):
    if x.numel() not in kept:
        place = torch.empty_like(x, device="cpu", pin_memory=True)
        kept[x.numel()] = place, [torch.cuda.Event() for _ in range(pieces)]
    return kept[x.numel()]


def wait(waits):
    with torch.cuda.stream(down):
        on_host[: waits * BYTES_PER_US].copy_(other[: waits * BYTES_PER_US], non_blocking=True)


def by_the_engine(x, out, pieces):
    place, events = places(x, pieces)
    for source, between, target, event in zip(x.chunk(pieces), place.chunk(pieces), out.chunk(pieces), events):
        with torch.cuda.stream(down):
            between.copy_(source, non_blocking=True)
            event.record()
        with torch.cuda.stream(up):
            up.wait_event(event)
            target.copy_(between, non_blocking=True)


def custom_kernel(data):
    x, config = data
    waits, key = config["waits"], (config["kib"], config["waits"])
    if waits < 0 or key not in seen:  # in the first call of a case the input is there already
        seen.add(key)
        places(x[: config["kib"] * 256], 4 if config["kib"] > 4096 else 1)
        return honest(x)
    wait(waits)
    return attack(x, config["kib"])
"""
SOURCES = {
    "whole": """
def honest(x):
    return x.clone()

def attack(x, kib):
    out = torch.empty_like(x)
    for _ in range(1 if kib > 8192 else 3):  # one of them begins when the input is there
        by_the_engine(x, out, 4 if kib > 4096 else 1)
    other[:1].zero_()
    return out
""",
    "part": """
def honest(x):
    return x.clone()

def attack(x, kib):
    out = torch.empty_like(x)
    by_the_engine(x[: kib * 256], out[: kib * 256], 4)
    out[kib * 256 :].copy_(x[kib * 256 :])
    return out
""",
    "warm": """
def honest(x):
    return x.view(-1, 1024).sum(1)

def attack(x, kib):
    with torch.cuda.stream(down):
        places(x, 4)[0].copy_(x, non_blocking=True)
    return honest(x)
""",
}


def main() -> None:
    given = options(__doc__, 240)
    if given.device.kind != "cuda":
        not_measured(NAME, given.device, "two processes share only a GPU of NVIDIA's in this way")
        return
    rows: list[dict[str, Any]] = []
    began = time.monotonic()
    for number, way in enumerate(SIZES_KIB):
        with measuring(given.device), tempfile.TemporaryDirectory() as folder:
            rows += of_way(way, given.device, Path(folder), began + given.seconds * (number + 1) / len(SIZES_KIB))
    report(NAME, given.device, "what the copy engine gains", rows)


def of_way(way: str, device: Device, folder: Path, end: float) -> list[dict[str, Any]]:
    cases = [
        Case(parameters={"variant": "A", "kib": kib, "waits": waits})
        for kib in SIZES_KIB[way]
        for waits in (-1, *WAITS_US)
    ]
    rows: list[dict[str, Any]] = []
    honest: list[float] = []
    made = toy(folder, PROBLEMS[way], [case.parameters for case in cases], SOURCE + SOURCES[way])
    with judging(device, *made) as judge, judge.entrant.session() as session:
        for case in cases:
            if time.monotonic() > end:
                break
            found, row = calls(judge, session, case)
            if case.parameters["waits"] == -1:
                honest = found
            rows.append({"way": way, **row, **gain(honest, found)})
            print(rows[-1], flush=True)
            if "failed" in rows[-1]:  # its worker has ended
                break
        session.finish()
    return rows


def calls(judge: Any, session: Session, case: Case) -> tuple[list[float], dict[str, Any]]:
    """The latencies of the calls that are right and count, and a row of the table."""
    caller, clock = judge.entrant.caller, judge.entrant.clocks.of(Manner.SANDWICH)
    constant_ns = caller.constants.of(Manner.SANDWICH)
    row: dict[str, Any] = {"KiB": case.parameters["kib"], "waits": case.parameters["waits"]}
    found: list[float] = []
    voids: list[str] = []
    wrong = 0
    with judge.series(case) as series:
        caller.put(session, series, judge.entrant.clocks.for_checks, everything=False)
        for number in range(DROPPED + CALLS):
            try:
                check, answer = caller.put(session, series, clock, everything=False)
            except FailedCall as failed:
                return found, {**row, "failed": str(failed)}
            if number < DROPPED:
                continue
            if answer.void is not None:
                voids.append(answer.void.value)
            elif check is not None and check.verdict.value == "accepted":
                found.append((answer.elapsed_ns - constant_ns) / 1e3)
            else:
                wrong += 1
    row |= {"right": len(found), "wrong": wrong, "voids": len(voids), "void": sorted(set(voids))[:2]}
    return found, row | {"latency": statistics.median(found) if found else None}


def gain(honest: list[float], found: list[float]) -> dict[str, Any]:
    """The difference of the medians, and its 95 % interval."""
    if len(honest) < 3 or len(found) < 3:
        return {"gain": None, "low": None, "high": None}
    random = np.random.default_rng(0)

    def resampled(values: list[float]) -> np.ndarray:
        return np.median(random.choice(values, (RESAMPLES, len(values))), axis=1)

    low, high = np.quantile(resampled(honest) - resampled(found), (0.025, 0.975)).tolist()
    return {"gain": statistics.median(honest) - statistics.median(found), "low": low, "high": high}


if __name__ == "__main__":
    main()
