"""E3: is the cache cold when the timed call begins, and what do the dirty lines of a plain write sweep cost?

    python bench/e3_cold_cache.py [--device auto] [--out DIR] [--seconds 60]        on a GPU; less than two minutes

A submission reads a buffer of 8 to 40 MiB, which fits in an H200's L2 cache. The judge's clock times it; the flush is
in the judge's process. Before each read comes one of these preparations, in random order:

    warm            no flush; a buffer of the worker's own that the previous call has read
    write           a write sweep of another buffer, as do_bench and most competitions do
    write, read     ours: a write sweep, then a read sweep of a third buffer
    rotated         no flush; each call reads the least recently read part of 1.5 GiB: cold, nothing dirty
    ours, rotated   both
    poured          no flush; the input, which the judge has just poured
    poured, ours    the input, flushed as in an evaluation

`still cached` is the share of the way from cold to warm that our flush leaves: (rotated - ours) / (rotated - warm), of
interquartile means, with `ours, rotated` for rotated. At most 2 % either way is called cold. `poured still cached` is
the same for the poured input, relative to its warm state after the pour. `dirty` is the time that the write sweep alone
adds to a cold read.

The subtracted constant is measured with null calls after the same preparation, beside the other calls. The floor is the
buffer's size over the datasheet's bandwidth. The bandwidth of a 2 GiB read is shown beside it.
"""

from __future__ import annotations

import itertools
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from bench.experiment import (
    Judging,
    Raw,
    Untouched,
    WriteSweep,
    judging,
    measuring,
    not_measured,
    options,
    report,
    toy,
)
from harness.judge.caches import caches_of
from harness.judge.session import Session
from harness.model import Case, Device
from harness.ranking.stats import interquartile_mean

NAME = "e3_cold_cache"
SIZES_MIB = (8, 16, 24, 32, 40)
LARGE_MIB = 2048
PREPARATIONS = {
    "warm": ("own", "none"),
    "write": ("own", "write"),
    "write, read": ("own", "ours"),
    "rotated": ("rotated", "none"),
    "ours, rotated": ("rotated", "ours"),
    "poured": ("poured", "none"),
    "poured, ours": ("poured", "ours"),
}
"""The buffer that is read, and the flush before it."""

RUN = 8
COLD_WITHIN = 0.02

REFERENCE = """
import torch

def generate_input(mib, buffer, flush, seed, device):
    generator = torch.Generator(device).manual_seed(seed)
    elements = (mib << 20) // 4 if buffer == "poured" else 2048
    return torch.randn(elements, generator=generator, device=device), {"mib": mib, "buffer": buffer}

def ref_kernel(data):
    return torch.zeros(1, device=data[0].device)

def cost(mib, buffer, flush):
    return {"float32": {"bytes": mib << 20, "flops": {}}}
"""

SUBMISSION = """
import torch
import triton
import triton.language as tl

BLOCK = 8192  # elements a program reads: 32 KiB in 8 warps, 8 loads of 16 bytes a thread in flight

pool = torch.ones(2 << 28, device="cuda")  # 2 GiB
rotated = pool[: 3 << 27]
sums = torch.empty(len(pool) // BLOCK, device="cuda")
at = 0


@triton.jit
def read_blocks(values_ptr, sums_ptr, BLOCK: tl.constexpr):
    block = tl.program_id(0).to(tl.int64)
    values = tl.load(values_ptr + block * BLOCK + tl.arange(0, BLOCK))
    tl.store(sums_ptr + block, tl.sum(values, 0))


def custom_kernel(data):
    global at
    elements, buffer = (data[1]["mib"] << 20) // 4, data[1]["buffer"]
    if buffer == "poured":
        values = data[0]
    elif buffer == "rotated":
        at = at if at + elements <= len(rotated) else 0
        values = rotated[at : at + elements]
        at += elements
    else:
        values = pool[-elements:]  # no part of what is rotated, but for the 2 GiB
    read_blocks[(elements // BLOCK,)](values, sums, BLOCK=BLOCK, num_warps=8)
    return sums[:1]
"""


def main() -> None:
    given = options(__doc__, 60)
    if given.device.kind == "cpu":
        return not_measured(NAME, given.device, "it needs a GPU: python bench/e3_cold_cache.py --device cuda")
    with measuring(given.device), tempfile.TemporaryDirectory() as folder:
        raw = Raw(given.out, NAME, ("size_mib", "preparation", "round", "elapsed_ns", "null_ns"))
        usual = _case(SIZES_MIB[0], "write, read").parameters  # the clock is calibrated with this case
        with judging(given.device, *toy(Path(folder), REFERENCE, [usual], SUBMISSION)) as judge:
            latencies, large_bytes_per_s = _measure(judge, given.seconds, raw)
    rows = [_row(size, latencies, given.device.bandwidth_bytes_per_s) for size in SIZES_MIB]
    undecided = [f"{row['MiB']} MiB" for row in rows if row["cold"] != "yes"]
    headline = (
        f"cold after our flush: {'at every size' if not undecided else 'not shown for ' + ', '.join(undecided)}; "
        f"a write sweep alone adds {max(row['dirty %'] for row in rows):.1f} % at most; a read of 2 GiB reaches "
        f"{large_bytes_per_s / 1e12:.2f} TB/s"
    )
    report(NAME, given.device, headline, rows, large_read_bytes_per_s=large_bytes_per_s, voids=judge.voids)


def _measure(judge: Judging, seconds: float, raw: Raw) -> tuple[dict[tuple[int, str], list[float]], float]:
    """Latencies by size and preparation, and the bandwidth of a large read in bytes per second."""
    device: Device = judge.device
    flushers = {"none": Untouched(), "write": WriteSweep(device), "ours": caches_of(device)}
    latencies: dict[tuple[int, str], list[float]] = {}
    end = time.monotonic() + seconds
    with judge.entrant.session() as session:
        large_ns = _run(judge, session, LARGE_MIB, "write, read", flushers, 20)
        large_bytes_per_s = (LARGE_MIB << 20) / interquartile_mean([a - b for a, b in large_ns]) * 1e9
        for round_ in itertools.count():
            for size in random.sample(SIZES_MIB, len(SIZES_MIB)):
                for preparation in random.sample(list(PREPARATIONS), len(PREPARATIONS)):
                    if round_ and time.monotonic() > end:
                        return latencies, large_bytes_per_s
                    found = _run(judge, session, size, preparation, flushers, RUN)
                    # The mean of a run's null calls, which scatter by less than a microsecond each.
                    less_ns = interquartile_mean([null for _, null in found])
                    latencies.setdefault((size, preparation), []).extend(elapsed - less_ns for elapsed, _ in found)
                    raw.add(*((size, preparation, round_, *both) for both in found))
    raise AssertionError


def _run(
    judge: Judging, session: Session, size: int, preparation: str, flushers: dict[str, Any], count: int
) -> list[tuple[float, float]]:
    """Calls in a row, so that warm data stay warm, and then as many null calls."""
    with judge.series(_case(size, preparation), flushers[PREPARATIONS[preparation][1]]) as series:
        elapsed = [answer.elapsed_ns for answer, _ in judge.take(session, series, count)]
        nulls = [judge.null(series).elapsed_ns for _ in range(2 + count)][2:]
    return list(zip(elapsed, nulls, strict=True))


def _case(size_mib: int, preparation: str) -> Case:
    buffer, flush = PREPARATIONS[preparation]
    return Case(parameters={"mib": size_mib, "buffer": buffer, "flush": flush})


def _row(size: int, latencies: dict[tuple[int, str], list[float]], bandwidth: float | None) -> dict[str, Any]:
    us = {name: interquartile_mean(latencies[size, name]) / 1e3 for name in PREPARATIONS}
    cached = still_cached(us["warm"], us["write, read"], us["ours, rotated"])
    of_the_pour = still_cached(us["poured"], us["poured, ours"], us["ours, rotated"])
    decided = "cannot tell" if cached is None else "yes" if abs(cached) <= COLD_WITHIN else "NO"
    return {
        "MiB": size,
        "samples": len(latencies[size, "warm"]),
        "floor us": (size << 20) / bandwidth * 1e6 if bandwidth else None,
        **{f"{name} us": value for name, value in us.items()},
        "still cached %": None if cached is None else 100 * cached,
        "poured still cached %": None if of_the_pour is None else 100 * of_the_pour,
        "dirty %": 100 * (us["write"] / us["ours, rotated"] - 1),
        "cold": decided,
    }


def still_cached(warm_us: float, ours_us: float, cold_us: float) -> float | None:
    """The share of the difference between cold and warm that is left. None if they differ by less than 5 %."""
    return (cold_us - ours_us) / (cold_us - warm_us) if cold_us > 1.05 * warm_us else None


if __name__ == "__main__":
    main()
