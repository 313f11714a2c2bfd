"""Duels of a file with itself, and with a copy of itself that is slowed by a few per cent.

    python bench/duel.py [--device auto] [--out DIR] [--problem kv_decode] [--duels 20] [--slower 3]

One run of 16 pairs calibrates the noise floors (`calibration.PAIRS`), from a file against itself. Then come duels of 8
pairs. The two kinds alternate block by block, so that both meet the same conditions:

    equal      the file under two names                                       should be SAME in 18 of 20
    slowed     the file, and a copy whose calls each last --slower % longer   should be SLOWER in 18 of 20

The copy measures its own computation and then waits in a loop until its call has lasted that much longer. Timing,
inputs and checks are the judge's; only the test cases and the pilot are run once per kind of duel instead of once per
duel. Every sample goes to OUT/duel.csv at once. The table also shows the load average before and after, as a measure of
the noise from other processes. The same pairs are also combined to fewer duels of more pairs
(`compare --duel --pairs`).
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
import math
import os
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from tabulate import tabulate

from harness import catalog
from harness.catalog.config import DUEL_PAIRS, load_config
from harness.judge.duel import Duel, duel
from harness.machine import device as devices
from harness.machine.lock import hold
from harness.model import Submission
from harness.ranking import stats
from harness.ranking.comparison import Comparison, PairedMeasurement, compare_pairs, paired_scores
from harness.ranking.speed import Noise, Speed
from harness.verbs import calibration

ROOT = Path(__file__).resolve().parents[1]
SIZES = (DUEL_PAIRS, 2 * DUEL_PAIRS, 4 * DUEL_PAIRS)
"""Pairs of a duel."""

BATCHES = 4
"""Equal and slowed duels take turns this many times."""

SLOWED = """

_computing = custom_kernel


def custom_kernel(data):
    import time

    start = time.perf_counter_ns()
    output = _computing(data)
    end = start + (time.perf_counter_ns() - start) * {factor!r}
    while time.perf_counter_ns() < end:
        pass
    return output
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto", help="cpu, or cuda on which a CPU's wait shows only if it is bound")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "bench", help="where the raw CSV goes")
    parser.add_argument("--problem", default="kv_decode", help="one whose cases a CPU makes and checks quickly")
    parser.add_argument("--duels", type=int, default=20, help="of each kind")
    parser.add_argument("--slower", type=float, default=3.0, metavar="PCT")
    given = parser.parse_args()
    here, config = devices.detect(ROOT, given.device), load_config(ROOT)
    if here.kind != "cpu":
        parser.error("a copy that waits on the host is slower only where the host computes: --device cpu")
    given.out.mkdir(parents=True, exist_ok=True)
    problem = catalog.load_problem(ROOT, given.problem)
    plain = catalog.load_submission(problem, ROOT / "submissions" / problem.name / f"{problem.baselines[0]}.py")
    slowed = _slowed(plain, 1 + given.slower / 100)

    def narrate(line: str) -> None:
        if line.startswith("timing"):
            print(line, file=sys.stderr)

    started, load_before = time.time(), os.getloadavg()
    with hold(here, narrate), (given.out / "duel.csv").open("w", newline="") as file:
        raw = csv.writer(file)
        raw.writerow(["kind", "batch", "case", "pair", "side", "sample", "latency_ns"])

        def fight(kind: str, batch: int, other: Submission, pairs: int) -> Duel:
            found = duel(problem, plain, other, here, config, pairs=pairs, narrate=narrate)
            _write(raw, kind, batch, found)
            file.flush()
            return found

        first, second = paired_scores(fight("calibration", 0, plain, calibration.PAIRS).measurements)
        log_ratios = [math.log(b / a) for a, b in zip(first, second, strict=True)]
        noises = {
            pairs: Noise(stats.noise_floor(log_ratios, pairs, config.confidence), True, "calibrated by this bench")
            for pairs in SIZES
        }
        played: dict[str, list[Duel]] = {"equal": [], "slowed": []}
        for batch in range(BATCHES):
            count = given.duels // BATCHES + (batch < given.duels % BATCHES)
            for kind, other in (("equal", plain), ("slowed", slowed)):
                if count:
                    played[kind].append(fight(kind, batch, other, count * DUEL_PAIRS))
    rows = []
    for pairs, noise in noises.items():
        for kind, due in (("equal", Speed.SAME), ("slowed", Speed.SLOWER)):
            compared = [
                compare_pairs(problem.name, here.name, ("a", "b"), part, noise, config.confidence)
                for part in _duels(played[kind], pairs)
            ]
            if compared:
                rows.append(_row(kind, due, pairs, noise, compared))
    print(f"{problem.name}, {plain.name}, on {here.name}")
    print(tabulate(rows, headers="keys", tablefmt="simple_outline", disable_numparse=True))
    found = {"bench": "duel", "seconds": time.time() - started, "rows": rows}
    print(json.dumps({**found, "load_before": load_before, "load_after": os.getloadavg()}))


def _slowed(plain: Submission, factor: float) -> Submission:
    source = plain.source + SLOWED.format(factor=factor).encode()
    sha256 = hashlib.sha256(source).hexdigest()
    return plain.model_copy(update={"name": f"{plain.name}_slowed", "source": source, "sha256": sha256})


def _duels(played: list[Duel], pairs: int) -> list[list[PairedMeasurement]]:
    """All that was played, one pair after another, as duels of `pairs` pairs; a rest is left out."""
    everything = [
        PairedMeasurement(
            same[0].case,
            tuple(samples for m in same for samples in m.a_samples_ns),
            tuple(samples for m in same for samples in m.b_samples_ns),
            tuple(sorted({label for m in same for label in m.labels})),
        )
        for same in zip(*(found.measurements for found in played), strict=True)
    ]
    starts = range(0, len(everything[0].a_samples_ns) - pairs + 1, pairs) if everything else ()
    return [
        [
            PairedMeasurement(
                m.case, *(part[start : start + pairs] for part in (m.a_samples_ns, m.b_samples_ns)), m.labels
            )
            for m in everything
        ]
        for start in starts
    ]


def _write(raw: Any, kind: str, batch: int, found: Duel) -> None:
    for measurement in found.measurements:
        for side, samples_ns in (("a", measurement.a_samples_ns), ("b", measurement.b_samples_ns)):
            for pair, samples in enumerate(samples_ns):
                for number, latency_ns in enumerate(samples):
                    raw.writerow([kind, batch, measurement.case.label, pair, side, number, latency_ns])


def _row(kind: str, due: Speed, pairs: int, noise: Noise, compared: list[Comparison]) -> dict[str, str]:
    ratios = [finding.ratio for finding in (one.finding for one in compared) if finding.ratio is not None]
    counts = Counter(one.finding.speed.value for one in compared)
    logs = [math.log(ratio.value) for ratio in ratios]
    half_widths = sorted(math.log(ratio.high / ratio.low) / 2 for ratio in ratios if ratio.low and ratio.high)
    return {
        "duels of": kind,
        "pairs": str(pairs),
        "noise floor": f"±{noise.percent:.2f} %",
        "due": due.upper(),
        "got it": f"{counts[due.value]} of {len(compared)}",
        "others": ", ".join(f"{count} {name}" for name, count in counts.items() if name != due.value),
        "B / A": f"{math.exp(sum(logs) / len(logs)):.4f}",
        "spread of B / A": f"{100 * math.expm1(max(logs) - min(logs)):.2f} %",
        "median half-width": f"{100 * math.expm1(half_widths[len(half_widths) // 2]):.2f} %",
    }


if __name__ == "__main__":
    main()
