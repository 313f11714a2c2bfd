"""E3: is the cache cold when the timed call begins, and what do the dirty lines of a plain write sweep cost?

    python bench/e3_cold_cache.py [--device auto] [--out DIR] [--seconds 20]

A kernel reads a buffer of 8 to 40 MiB, which fits in an H200's L2 cache, timed by the timer that judges submissions
after one of five preparations, in random order:

    warm            no flush: the buffer was read a moment ago
    write           a write sweep of another buffer, as do_bench and most competitions do
    write, read     ours: a write sweep, then a read sweep of a third buffer
    rotated         no flush; each call reads the buffer not read for longest, of 1.5 GiB of them: cold, nothing dirty
    ours, rotated   both

`still cached` is the share of the way from cold to warm that our flush leaves: (rotated - ours) / (rotated - warm), of
interquartile means, with `ours, rotated` for rotated. At most 2 % either way is called cold. `dirty` is what the write
sweep alone adds to the time of a cold read. The floor is the buffer over the datasheet's bandwidth; beside it stands
what a read of 2 GiB reaches.
"""

from __future__ import annotations

import itertools
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import torch
import triton
import triton.language as tl

from bench.experiment import Raw, measuring, not_measured, options, report
from harness.stats import interquartile_mean
from harness.worker.timers import Flusher, GpuTimer

NAME = "e3_cold_cache"
SIZES_MIB = (8, 16, 24, 32, 40)
ROTATED_BYTES = 3 << 29
LARGE_BYTES = 1 << 31
BLOCK = 8192
"""Elements a program reads: 32 KiB in 8 warps, 8 loads of 16 bytes a thread in flight."""

COLD_WITHIN = 0.02


class NoFlush:
    def flush(self) -> None:
        """Leave the caches as they are."""


class WriteSweep:
    """What triton.testing.do_bench does before a call, in the size that we flush."""

    def __init__(self, flush_bytes: int) -> None:
        self._written = torch.empty(flush_bytes // 4, dtype=torch.int32, device="cuda")

    def flush(self) -> None:
        self._written.zero_()


def main() -> None:
    given = options(__doc__, 20)
    if given.device.kind == "cpu":
        return not_measured(NAME, given.device, "it needs a GPU: python bench/e3_cold_cache.py --device cuda")
    with measuring(given.device):
        raw = Raw(given.out, NAME, ("size_mib", "preparation", "round", "latency_ns", "labels"))
        latencies, large_bytes_per_s = _measure(given.device.flush_bytes, given.seconds, raw)
    rows = [_row(size, latencies, given.device.bandwidth_bytes_per_s) for size in SIZES_MIB]
    undecided = [f"{row['MiB']} MiB" for row in rows if row["cold"] != "yes"]
    headline = (
        f"cold after our flush: {'at every size' if not undecided else 'not shown for ' + ', '.join(undecided)}; "
        f"a write sweep alone adds {max(row['dirty %'] for row in rows):.1f} % at most; a read of 2 GiB reaches "
        f"{large_bytes_per_s / 1e12:.2f} TB/s"
    )
    report(NAME, given.device, headline, rows, large_read_bytes_per_s=large_bytes_per_s)


def _measure(flush_bytes: int, seconds: float, raw: Raw) -> tuple[dict[tuple[int, str], list[float]], float]:
    """Latencies by size and preparation, and what a large read reaches, in bytes a second."""
    ours, sweep, nothing = Flusher(flush_bytes, "cuda"), WriteSweep(flush_bytes), NoFlush()
    flushers = {"warm": nothing, "write": sweep, "write, read": ours, "rotated": nothing, "ours, rotated": ours}
    clocks = {}
    for preparation, flusher in flushers.items():
        clocks[preparation] = GpuTimer(4)
        clocks[preparation]._flusher = flusher
    read = _reader()

    large = torch.ones(LARGE_BYTES // 4, dtype=torch.float32, device="cuda")
    large_ns = [clocks["write, read"].sample(lambda: read(large)).latency_ns for _ in range(20)]
    large_bytes_per_s = LARGE_BYTES / interquartile_mean(large_ns) * 1e9

    pool = large[: ROTATED_BYTES // 4]
    latencies: dict[tuple[int, str], list[float]] = {}
    end = time.monotonic() + seconds
    for round_ in itertools.count():
        for size in random.sample(SIZES_MIB, len(SIZES_MIB)):
            elements = (size << 20) // 4
            buffers = pool[: len(pool) // elements * elements].view(-1, elements)
            for preparation in random.sample(list(clocks), len(clocks)):
                if time.monotonic() > end:
                    return latencies, large_bytes_per_s
                rows = []
                turns = itertools.cycle(buffers if "rotated" in preparation else buffers[:1])
                # A block each: what is warm must be the same buffer several times in a row, and a rotation must have
                # gone once round before it counts, or its first buffers would be as warm as the last block left them.
                skip = len(buffers) if "rotated" in preparation else 3
                for number in range(skip + 10):
                    buffer = next(turns)
                    if number < skip:
                        clocks[preparation]._flusher.flush()
                        read(buffer)
                        continue
                    sample = clocks[preparation].sample(lambda: read(buffer))  # noqa: B023
                    rows.append((size, preparation, round_, sample.latency_ns, "+".join(sample.labels)))
                latencies.setdefault((size, preparation), []).extend(row[3] for row in rows)
                raw.add(*rows)
    raise AssertionError


@triton.jit
def read_blocks(values_ptr, sums_ptr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    block = tl.program_id(0).to(tl.int64)
    values = tl.load(values_ptr + block * BLOCK + tl.arange(0, BLOCK))
    tl.store(sums_ptr + block, tl.sum(values, 0))


def _reader() -> Callable[[torch.Tensor], None]:
    """What reads all of a tensor of float32 whose length is a multiple of BLOCK, and writes a word for each BLOCK."""
    sums = torch.empty(LARGE_BYTES // 4 // BLOCK, dtype=torch.float32, device="cuda")

    def read(values: torch.Tensor) -> None:
        read_blocks[(values.numel() // BLOCK,)](values, sums, BLOCK=BLOCK, num_warps=8)

    return read


def _row(size: int, latencies: dict[tuple[int, str], list[float]], bandwidth: float | None) -> dict[str, Any]:
    us = {name: interquartile_mean(latencies[size, name]) / 1e3 for name in
          ("warm", "write", "write, read", "rotated", "ours, rotated")}  # fmt: skip
    cached = still_cached(us["warm"], us["write, read"], us["ours, rotated"])
    decided = "cannot tell" if cached is None else "yes" if abs(cached) <= COLD_WITHIN else "NO"
    return {
        "MiB": size,
        "samples": len(latencies[size, "warm"]),
        "floor us": (size << 20) / bandwidth * 1e6 if bandwidth else None,
        **{f"{name} us": value for name, value in us.items()},
        "still cached %": None if cached is None else 100 * cached,
        "dirty %": 100 * (us["write"] / us["ours, rotated"] - 1),
        "cold": decided,
    }


def still_cached(warm_us: float, ours_us: float, cold_us: float) -> float | None:
    """The share of the difference between cold and warm that is left; None where they differ by less than 5 %."""
    return (cold_us - ours_us) / (cold_us - warm_us) if cold_us > 1.05 * warm_us else None


if __name__ == "__main__":
    main()
