"""E4: does earlier work change what a run measures?

    python bench/e4_heater.py [--device auto] [--out DIR] [--seconds 50]        on a GPU; a minute and a half

Blocks of calls are timed by the judge's clock. Before each block comes a second of matrix products in the judge's
process (hot) or of nothing (idle), in the order ABBA. A submission makes two kinds of calls: a pass over 64 MiB, bound
by memory, and a product of 2048 x 2048 bfloat16 matrices, bound by arithmetic.

`shift` is the geometric mean of hot over idle of the blocks' interquartile means, minus 1, with Student's t interval
over the pairs. Clock, temperature and power are read by torch.cuda.clock_rate and its like just before and after a
block. They stay empty without nvidia-ml-py or amdsmi.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from tabulate import tabulate

from bench.experiment import Raw, judging, measuring, not_measured, options, report, toy
from harness.model import Case
from harness.ranking.stats import estimate, interquartile_mean

NAME = "e4_heater"
PREPARATION_S = 1.0
BLOCK = 100
CALLS = ("pass over 64 MiB", "product of 2048")
READINGS = ("sm_mhz", "temperature_c", "power_w")

REFERENCE = """
import torch

def generate_input(call, seed, device):
    generator = torch.Generator(device).manual_seed(seed)
    if call == "pass over 64 MiB":
        return torch.randn(16 << 20, generator=generator, device=device), {"call": call}
    return torch.randn(2048 * 2048, generator=generator, device=device).to(torch.bfloat16), {"call": call}

def ref_kernel(data):
    x, config = data
    if config["call"] == "pass over 64 MiB":
        return x + 1
    return torch.mm(x.view(2048, 2048), x.view(2048, 2048)).view(-1)

def cost(call):
    return {"float32": {"bytes": 1, "flops": {}}}
"""

SUBMISSION = """
import torch

def custom_kernel(data):
    x, config = data
    if config["call"] == "pass over 64 MiB":
        return torch.add(x, 1)
    return torch.mm(x.view(2048, 2048), x.view(2048, 2048)).view(-1)
"""


def main() -> None:
    given = options(__doc__, 50)
    if given.device.kind == "cpu":
        return not_measured(NAME, given.device, "it needs a GPU: python bench/e4_heater.py --device cuda")
    import torch

    cases = {name: Case(parameters={"call": name}) for name in CALLS}
    columns = ("block", "state", "call", "number", "latency_ns", *READINGS)
    centres: dict[tuple[str, str], list[float]] = {}
    readings: dict[str, list[tuple[float | None, ...]]] = {"hot": [], "idle": []}
    with measuring(given.device), tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        raw = Raw(given.out, NAME, columns)
        task = toy(Path(folder), REFERENCE, [case.parameters for case in cases.values()], SUBMISSION)
        judge = stack.enter_context(judging(given.device, *task))
        session = stack.enter_context(judge.entrant.session())
        opened = {name: stack.enter_context(judge.series(case)) for name, case in cases.items()}
        heater = _heater(torch)
        for series in opened.values():
            judge.take(session, series, 50)
        end = time.monotonic() + given.seconds
        block = 0
        while time.monotonic() < end or block % 4:
            state = ("hot", "idle", "idle", "hot")[block % 4]
            _prepare(torch, heater if state == "hot" else None)
            before = _readings(torch)
            for name in list(cases) if block % 8 < 4 else list(cases)[::-1]:
                taken = judge.take(session, opened[name], BLOCK)
                latencies = [answer.elapsed_ns - judge.constant_ns for answer, _ in taken]
                centres.setdefault((name, state), []).append(interquartile_mean(latencies))
                raw.add(*((block, state, name, n, value, *before) for n, value in enumerate(latencies)))
            after = _readings(torch)
            readings[state] += [before, after]
            block += 1
    rows = [_row(name, centres) for name in cases]
    states = [{"state": state, **_means(values)} for state, values in readings.items()]
    shifts = [f"{r['call']} {r['shift %']:+.2f} % ({r['low %']:+.2f} .. {r['high %']:+.2f})" for r in rows]
    print(tabulate(states, headers="keys", tablefmt="simple_outline", floatfmt=".1f"))
    headline = f"hot over idle: {'; '.join(shifts)}"
    report(NAME, given.device, headline, rows, states=states, voids=judge.voids)


def _heater(torch: Any) -> Callable[[], Any]:
    large = torch.randn(8192, 8192, device="cuda").to(torch.bfloat16)
    heat = torch.empty_like(large)
    return lambda: torch.mm(large, large, out=heat)


def _prepare(torch: Any, heater: Callable[[], Any] | None) -> None:
    """A second of heat, or of nothing. Either way the device has nothing left to do at the end."""
    end = time.monotonic() + PREPARATION_S
    while time.monotonic() < end:
        if heater is None:
            time.sleep(0.01)
        else:
            for _ in range(10):
                heater()
            torch.cuda.synchronize()


def _readings(torch: Any) -> tuple[float | None, ...]:
    """SM clock, temperature and power of the current device as the driver gives them; None for what it does not."""

    def asked(question: Callable[[], float]) -> float | None:
        with contextlib.suppress(Exception):  # torch raises many kinds: no package, no driver, not supported
            return float(question())
        return None

    milliwatts = asked(torch.cuda.power_draw)
    power_w = None if milliwatts is None else milliwatts / 1e3
    return asked(torch.cuda.clock_rate), asked(torch.cuda.temperature), power_w


def _row(name: str, centres: dict[tuple[str, str], list[float]]) -> dict[str, Any]:
    hot, idle = centres[name, "hot"], centres[name, "idle"]
    shift = estimate([h / i for h, i in zip(hot, idle, strict=True)], 0.95)
    row = {"call": name, "pairs": len(hot), "hot us": sum(hot) / len(hot) / 1e3, "idle us": sum(idle) / len(idle) / 1e3}
    ends = {"shift %": shift.latency_ns, "low %": shift.low_ns, "high %": shift.high_ns}
    return {**row, **{what: 100 * ((value or float("nan")) - 1) for what, value in ends.items()}}


def _means(values: list[tuple[float | None, ...]]) -> dict[str, float | None]:
    known = [[value for value in column if value is not None] for column in zip(*values, strict=True)]
    return {name: sum(column) / len(column) if column else None for name, column in zip(READINGS, known, strict=True)}


if __name__ == "__main__":
    main()
