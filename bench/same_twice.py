"""Runs `compare --duel` of a file with itself. All but 5 in 100 should be SAME or AMBIGUOUS.

    python bench/same_twice.py [--device cpu] [--duels 50] [--budget 3600] [--pairs 8] [--load 2] [--out FILE]

The file is a toy that makes one pass over its input. `said` is the finding of `compare` on a device that was never
calibrated. It is AMBIGUOUS whenever others crowded the processors. So the summary also counts the intervals that
exclude 1, whatever the labels and the noise floor: by chance 5 in 100 do. `--load` starts as many processes that
compute without end, and stops them at the end. After `--budget` seconds no further duel begins. To keep 50 duels on a
CPU to minutes, workers are forked from one process there, only a mebibyte is swept to empty caches, and other users are
not kept from the processors. On a GPU all is as in a duel.

The output has one JSON document per line: the machine, then each duel, then the counts. It goes to FILE as it comes.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from bench.experiment import ROOT, one_pass
from harness.catalog.config import DUEL_PAIRS, load_config
from harness.errors import UsageError
from harness.judge.duel import duel
from harness.machine import device as devices
from harness.model import Label
from harness.ranking.comparison import compare_pairs
from harness.ranking.speed import Noise, Speed
from harness.sandbox import tiers
from harness.verbs.calibration import DEFAULT_NOISE

ELEMENTS = {"cpu": (1 << 16, 1 << 17), "cuda": (1 << 20, 1 << 24)}
"""The float32 elements of the toy's two cases: 256 and 512 KiB on a CPU, 4 and 64 MiB on a GPU."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--duels", type=int, default=50)
    parser.add_argument("--budget", type=float, default=3600.0, help="seconds")
    parser.add_argument("--pairs", type=int, default=DUEL_PAIRS)
    parser.add_argument("--load", type=int, default=0, help="processes that compute meanwhile")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "bench" / "same_twice.jsonl")
    given = parser.parse_args()
    given.out.parent.mkdir(parents=True, exist_ok=True)
    with given.out.open("w") as file, busy(given.load):
        for document in played(given.device, given.duels, given.budget, given.pairs, given.load):
            file.write(f"{json.dumps(document)}\n")
            file.flush()
            print(json.dumps(document), flush=True)


def played(device: str, duels: int, budget_s: float, pairs: int, load: int) -> Iterator[dict[str, Any]]:
    """The documents of the output."""
    here, config, end = devices.detect(ROOT, device), load_config(ROOT), time.monotonic() + budget_s
    if here.kind == "cpu":
        here = here.model_copy(update={"flush_bytes": 1 << 20})
        config = config.model_copy(update={"cpu": config.cpu.model_copy(update={"fresh": False})})
    isolation = tiers.strongest(here).tier
    yield {"bench": "same_twice", "device": here.name, "isolation": isolation, "pairs": pairs, "load": load}
    noise = Noise(DEFAULT_NOISE[here.kind], False, "a default")
    seen = []
    with tempfile.TemporaryDirectory() as folder:
        cases = [{"variant": "once", "elements": elements} for elements in ELEMENTS[here.kind]]
        problem, submission = one_pass(Path(folder), cases)
        for number in range(duels):
            if time.monotonic() > end:
                break
            began, document = time.monotonic(), {"duel": number}
            try:
                measured = duel(problem, submission, submission, here, config, pairs=pairs).measurements
            except UsageError as error:  # too many calls were void, so there is no finding
                document |= {"said": "untimed", "why": str(error)}
            else:
                found = compare_pairs("bench", here.name, ("a", "b"), measured, noise, config.confidence).finding
                ratio = found.ratio and [found.ratio.low, found.ratio.value, found.ratio.high]
                labels = sorted({label.value for each in measured for label in each.labels})
                document |= {"said": found.speed.value, "ratio": ratio, "labels": labels}
            document |= {"load_average": os.getloadavg()[0], "seconds": round(time.monotonic() - began, 1)}
            seen.append(document)
            yield document
    yield summary(seen)


def summary(seen: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """How many duels told a source apart from itself."""
    said, intervals = Counter(each["said"] for each in seen), [each["ratio"] for each in seen if each.get("ratio")]
    return {
        "duels": len(seen),
        "said": said,
        "told_apart": said[Speed.FASTER.value] + said[Speed.SLOWER.value],
        "crowded": sum(Label.CROWDED.value in each.get("labels", ()) for each in seen),
        "intervals_without_1": sum(not low <= 1 <= high for low, _, high in intervals),
    }


@contextlib.contextmanager
def busy(count: int) -> Iterator[None]:
    """Run `count` processes that compute during the block."""
    processes = [multiprocessing.get_context("fork").Process(target=_compute, daemon=True) for _ in range(count)]
    for process in processes:
        process.start()
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.join()


def _compute() -> None:
    while True:
        pass


if __name__ == "__main__":
    main()
