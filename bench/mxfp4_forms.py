"""Times the forms of mla/gluon_mxfp4 for many shapes and numbers of splits, and fits the model that chooses among them.

    python bench/mxfp4_forms.py [--out FILE] [--budget 240]       only for Hopper GPUs
    python bench/mxfp4_forms.py --fit FILE                        fits to rows that are stored

A form has one to three decoders (FORMS in the file). For each shape and form it takes the most splits that fit into one
to five rounds of programs, and few ones. A line of FILE is one choice: by events, with cold caches, less a null kernel,
the median of 11 calls, and the relative difference of its output from that of two decoders. Data are random codes. In
the end it prints COSTS, MERGE and LAST_MERGES as they stand in the file, and how much longer than the best choice each
shape's own takes. What is near the best decides the fit: COSTS are times of an H200.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
if not __package__:
    sys.path[:0] = [str(ROOT), str(ROOT / "bench")]

import numpy as np  # noqa: E402
import torch  # noqa: E402
import tune  # noqa: E402
from scipy.optimize import least_squares  # noqa: E402

from harness.machine.device import detect  # noqa: E402
from harness.worker.timers import GpuTimer  # noqa: E402

FILE = ROOT / "submissions" / "mla" / "gluon_mxfp4.py"
RANKED = [(4, 8192), (32, 1024), (32, 8192), (64, 1024), (64, 8192), (256, 1024), (256, 8192)]
BETWEEN = [(12, 3000), (24, 6144), (48, 2048), (90, 7000), (128, 4096), (200, 1500)]
MORE = [
    (16, 4096), (10, 16000), (40, 3000), (100, 3000), (150, 4000), (44, 5000), (80, 1000), (20, 1024), (3, 30000),
    (132, 2048), (70, 512), (500, 700), (8, 2000), (17, 9000),
]  # fmt: skip
MULTIPROCESSORS = 132
NEAR, FAR_WEIGHT, RANKED_WEIGHT = 1.3, 0.15, 1.5
"""A choice that takes more than NEAR times the best counts FAR_WEIGHT in the fit; ranked shapes, and those of
bench/unranked, count RANKED_WEIGHT."""

Row = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "mxfp4-forms.jsonl")
    parser.add_argument("--fit", type=Path, help="a stored file: nothing is measured")
    parser.add_argument("--budget", type=float, default=240.0, help="seconds of measurement; first calls compile")
    options = parser.parse_args()
    kernel = tune.load(FILE)
    rows = stored(options.fit) if options.fit else measured(kernel, options.out, options.budget)
    fitted(kernel, rows)
    print(f"COSTS = {kernel.COSTS}\nMERGE, LAST_MERGES = {kernel.MERGE}, {kernel.LAST_MERGES}")
    for shape in sorted({(row["batch"], row["length"]) for row in rows}):
        here = {(row["decoders"], row["splits"]): row["us"] for row in rows if (row["batch"], row["length"]) == shape}
        chosen = kernel.choose(shape[0], tiles(shape[1]), MULTIPROCESSORS)
        took = here.get(chosen)  # None: that choice was not timed
        best = min(here, key=lambda choice: here[choice])
        ratio = f"{took / here[best]:.3f}" if took else "not timed"
        print(f"{shape[0]} x {shape[1]}: chosen {chosen}, best {best} {here[best]:.1f} us, chosen / best {ratio}")


def tiles(length: int) -> int:
    return -(-length // 64)


def stored(path: Path) -> list[Row]:
    return [row for row in map(json.loads, path.read_text().splitlines()) if "us" in row]


def candidates(kernel: Any, batch: int, length: int) -> list[tuple[int, int]]:
    """The decoders and splits to time."""
    found = []
    for decoders, (together, *_) in kernel.FORMS.items():
        places = MULTIPROCESSORS * together
        splits = {1, 2, 3, 4, *(rounds * places // batch for rounds in range(1, 6))}
        found += [(decoders, each) for each in sorted(splits) if 1 <= each <= min(tiles(length), kernel.MAX_SPLITS)]
    return found


def random_data(batch: int, length: int) -> Any:
    """Inputs of random codes: `generate_input` makes three formats, and takes longer than the calls."""
    generator = torch.Generator("cuda").manual_seed(1)
    byte = {"dtype": torch.uint8, "device": "cuda", "generator": generator}
    packed = torch.randint(0, 256, (batch * length, 1, 288), **byte)
    e8m0 = torch.randint(120, 128, (batch * length, 1, 18), **byte)
    q = torch.randn(batch, 16, 576, dtype=torch.bfloat16, device="cuda", generator=generator)
    indptr = torch.arange(batch + 1, dtype=torch.int32, device="cuda") * length
    return q, {"mxfp4": (packed, e8m0)}, None, indptr, {"kv_seq_len": length, "sm_scale": 576**-0.5}


def measured(kernel: Any, out: Path, budget_s: float) -> list[Row]:
    if not torch.cuda.is_available() or torch.cuda.get_device_capability()[0] != 9:
        raise SystemExit("not measured: there is no Hopper GPU here")
    end, device = time.monotonic() + budget_s, detect(ROOT)
    timer = GpuTimer(device.flush_bytes)
    null = torch.zeros(1, device="cuda")
    null_us = statistics.median(timer.sample(null.zero_).latency_ns / 1e3 for _ in range(51))
    out.parent.mkdir(parents=True, exist_ok=True)
    rows: list[Row] = []
    with out.open("w") as log:
        log.write(json.dumps({"device": device.name, **tune.versions()}) + "\n")
        for batch, length in RANKED + BETWEEN + MORE:
            if time.monotonic() > end:
                print(f"{batch} x {length}: no time left")
                continue
            data = random_data(batch, length)
            expected = kernel.launch(data, decoders=2, splits=1, short=False).float()
            for decoders, splits in candidates(kernel, batch, length):
                call = partial(kernel.launch, data, decoders=decoders, splits=splits, short=False)
                got = call().float()
                us = statistics.median(timer.sample(call).latency_ns / 1e3 for _ in range(11)) - null_us
                difference = ((got - expected).norm() / expected.norm()).item()
                words = {"batch": batch, "length": length, "decoders": decoders, "splits": splits}
                rows.append({**words, "us": us, "difference": difference})
                log.write(json.dumps(rows[-1]) + "\n")
                log.flush()
            torch.cuda.empty_cache()
    return rows


def fitted(kernel: Any, rows: list[Row]) -> None:
    """Put the fitted costs into `kernel`."""
    best: dict[tuple[int, int], float] = {}
    for row in rows:
        shape = row["batch"], row["length"]
        best[shape] = min(best.get(shape, math.inf), row["us"])

    def weight(row: Row) -> float:
        shape = row["batch"], row["length"]
        near = 1.0 if row["us"] < NEAR * best[shape] else FAR_WEIGHT
        return near * (RANKED_WEIGHT if shape in RANKED + BETWEEN else 1.0)

    def errors(x: np.ndarray) -> list[float]:
        use(kernel, x)
        return [
            weight(row) * math.log(max(x[0] + kernel.time_of(*choice(row), MULTIPROCESSORS), 0.1) / row["us"])
            for row in rows
        ]

    first = [1, 1, 2, 2, 1.1, 0.7, 2, 0.6, 3, 0.5]
    low, high = [0, 0, 0, *[0.05] * 7], [8, 8, 15, *[15.0] * 7]
    use(kernel, np.round(least_squares(errors, first, bounds=(low, high), loss="soft_l1", f_scale=0.05).x, 2))


def choice(row: Row) -> tuple[int, int, int, int]:
    return row["batch"], tiles(row["length"]), row["decoders"], row["splits"]


def use(kernel: Any, x: np.ndarray) -> None:
    """Set the costs to `x`: what every call takes, two merges, then start, tile and tile alone of each form. Two and
    three decoders have a multiprocessor alone."""
    numbers = [float(value) for value in x]
    kernel.MERGE, kernel.LAST_MERGES = numbers[1:3]
    kernel.COSTS = {1: tuple(numbers[3:6]), 2: (*numbers[6:8], numbers[7]), 3: (*numbers[8:10], numbers[9])}
    kernel.choose.cache_clear()


if __name__ == "__main__":
    main()
