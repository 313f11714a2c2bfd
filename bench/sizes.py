"""Does the time that the judge's clock adds to a call on a GPU depend on the size of the data?

    python bench/sizes.py [--device cuda] [--seconds 75]      a minute and a half

The call is one elementwise pass, as in E2. In each process calls of every size are timed, in random order of the sizes:
by the judge's clock, with the worker's own events within the same calls, and with null calls of that size. The
difference of the two clocks should be the same for all sizes; so should the null calls.
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from pathlib import Path

if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import numpy as np

from bench.experiment import judging, measuring, not_measured, one_pass, options, report
from harness.model import Case
from harness.ranking.stats import interquartile_mean

NAME = "sizes"
CALLS, NULL_CALLS = 24, 24
MIB = 1 << 20
SIZES = (
    *(62_000_000, 62_620_000, 63 * MIB, 66_437_776, 64 * MIB - 16_384, 64 * MIB, 64 * MIB + 16_384),
    *(67_310_188, 67_779_952, 66 * MIB, 32 * MIB, 33_722_204),
)
"""Bytes read, and as many written. Some are multiples of 16 KiB, some of 4 bytes only."""


def main() -> None:
    given = options(__doc__, 75)
    if given.device.kind == "cpu":
        return not_measured(NAME, given.device, "on a CPU the constant is measured beside each call")
    found: dict[int, list[tuple[float, float, float]]] = {size: [] for size in SIZES}
    end = time.monotonic() + given.seconds
    cases = [{"variant": str(size), "elements": size // 4} for size in SIZES]
    with (
        measuring(given.device),
        tempfile.TemporaryDirectory() as folder,
        judging(given.device, *one_pass(Path(folder), cases)) as judge,
    ):
        while time.monotonic() < end:
            with judge.entrant.session(another_follows=True) as session:
                for size in random.sample(SIZES, len(SIZES)):
                    with judge.series(Case(parameters={"variant": str(size), "elements": size // 4})) as series:
                        taken = [answer for answer, _ in judge.take(session, series, CALLS, events=True)]
                        null = [judge.null(series) for _ in range(NULL_CALLS)]
                    ways = (
                        [answer.elapsed_ns - judge.constant_ns for answer in taken],
                        [answer.inside_ns for answer in taken if answer.inside_ns is not None],
                        [answer.elapsed_ns - judge.constant_ns for answer in null if answer.void is None],
                    )
                    if all(ways):
                        found[size].append(tuple(interquartile_mean(way) / 1e3 for way in ways))  # type: ignore[arg-type]
                session.finish()
    rows = [_row(size, np.array(processes)) for size, processes in found.items() if len(processes) > 1]
    by_kind = [np.mean([row["events - judge us"] for row in rows if (row["of 16 KiB"] == "yes") is kind])
               for kind in (True, False)]  # fmt: skip
    headline = f"events - judge: {by_kind[0]:.2f} us for multiples of 16 KiB, {by_kind[1]:.2f} us for others"
    report(NAME, given.device, headline, rows)


def _row(size: int, processes: np.ndarray) -> dict[str, object]:
    """`processes`: of each the judge's figure, the events' and that of null calls, in us."""
    judge, events, null = processes.T
    error = processes.std(axis=0, ddof=1) / len(processes) ** 0.5
    return {
        "bytes": size,
        "of 16 KiB": "yes" if size % 16_384 == 0 else "no",
        "processes": len(processes),
        "judge us": judge.mean(),
        "± us": error[0],
        "events us": events.mean(),
        "events - judge us": (events - judge).mean(),
        "null us": null.mean(),
        "null ± us": error[2],
    }


if __name__ == "__main__":
    main()
