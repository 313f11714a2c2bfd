"""Bundled kernels beside their earlier forms: do they take as long, and give the same bits?

    python bench/forms.py --before FOLDER [--out FILE] [--budget 240] [--rounds 40] [--tests] PROBLEM/NAME ...

FOLDER has the earlier files as PROBLEM/NAME.py (`git show COMMIT:submissions/PROBLEM/NAME.py`). On each ranked case of
a GPU the file, its earlier form, and that form once more under another name are timed in turns, with cold caches, by a
pair of events. Times are less that of a null kernel. The earlier form beside itself shows what the method cannot tell
apart. With --tests the outputs of both forms are also compared on the test cases, untimed. A line of FILE is a file and
a case. Other shapes than the ranked ones: `bench/unranked.py`. Only for CUDA GPUs.
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

import torch  # noqa: E402
import tune  # noqa: E402
from tabulate import tabulate  # noqa: E402

from harness import catalog  # noqa: E402
from harness.machine.device import detect  # noqa: E402
from harness.worker.timers import GpuTimer  # noqa: E402

WARM_UP = 2
"""Calls of each form before the rounds that count."""

MOST_BYTES = 4 << 30
"""Outputs larger than this are not compared: both would have to be kept."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", metavar="PROBLEM/NAME")
    parser.add_argument("--before", type=Path, required=True, help="the folder with the earlier files")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "forms.jsonl")
    parser.add_argument("--budget", type=float, default=240.0, help="seconds; what is beyond it is left out, and named")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--tests", action="store_true", help="also compare the outputs of the test cases")
    options = parser.parse_args()
    for file in options.files:
        for path in (options.before / f"{file}.py", ROOT / "submissions" / f"{file}.py"):
            if not path.is_file():
                parser.error(f"{path}: no such file")
    timer, null_us = timer_and_null()
    end = time.monotonic() + options.budget
    options.out.parent.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = []
    with options.out.open("a") as log:
        log.write(json.dumps({"device": torch.cuda.get_device_name(), "null_us": null_us, **tune.versions()}) + "\n")
        for file in options.files:
            problem, name = file.split("/")
            forms = both(problem, name, options.before)
            reference = tune.load(ROOT / "problems" / problem / "reference.py")
            cases = catalog.load_problem(ROOT, problem).cases_for("cuda")
            ranked = [(case, True) for case in cases.benchmark]
            for case, timed in ranked + [(case, False) for case in (cases.test if options.tests else ())]:
                if time.monotonic() > end:
                    print(f"{file} {case.label}: no time left")
                    continue
                row = {"kernel": file, "case": case.label, "ranked": timed}
                try:
                    data = reference.generate_input(**case.parameters, seed=1, device="cuda")
                    reset = tune.resetter(problem, data)
                    row |= {"same bits": same_bits(forms, data, reset)}
                    if timed:
                        again = {**forms, "again": forms["before"]}
                        row |= times_of(again, data, reset, timer, null_us, options.rounds)
                except Exception as error:
                    row["failed"] = tune.describe(error)
                data = None
                torch.cuda.empty_cache()
                rows.append(row)
                log.write(json.dumps(row) + "\n")
                log.flush()
    print(tabulate([row for row in rows if row["ranked"]], headers="keys", tablefmt="simple_outline", floatfmt=".4f"))
    for file in options.files:
        print(f"{file}: {summary([row for row in rows if row['kernel'] == file])}")


def timer_and_null() -> tuple[GpuTimer, float]:
    """A timer, and what it says of a null kernel, in microseconds. Without a GPU of NVIDIA's this ends the program."""
    if not torch.cuda.is_available() or torch.version.hip:
        raise SystemExit("not measured: there is no GPU of NVIDIA's here")
    timer = GpuTimer(detect(ROOT).flush_bytes)
    null = torch.zeros(1, device="cuda")
    return timer, statistics.median(timer.sample(null.zero_).latency_ns / 1e3 for _ in range(51))


def both(problem: str, name: str, before: Path) -> dict[str, Any]:
    """The earlier form's custom_kernel and the present one's."""
    paths = {"before": before / problem / f"{name}.py", "now": ROOT / "submissions" / problem / f"{name}.py"}
    return {form: tune.load(path).custom_kernel for form, path in paths.items()}


def times_of(
    forms: dict[str, Any], data: Any, reset: Any, timer: GpuTimer, null_us: float, rounds: int
) -> dict[str, float]:
    """The forms' medians in microseconds, and each one's ratio to that of "before"."""
    found: dict[str, list[float]] = {form: [] for form in forms}
    for turn in range(rounds + WARM_UP):
        for form, kernel in forms.items():
            sample = timer.sample(partial(kernel, data), page_in=reset)
            if turn >= WARM_UP:
                found[form].append(sample.latency_ns / 1e3 - null_us)
    us = {form: statistics.median(samples) for form, samples in found.items()}
    ratios = {f"{form}/before": us[form] / us["before"] for form in forms if form != "before"}
    return {"before us": us["before"], **ratios}


def same_bits(forms: dict[str, Any], data: Any, reset: Any) -> bool | None:
    """Whether both forms give the same bits, NaNs too. None if the outputs are too large to keep."""
    reset()
    first = [tensor.clone() for tensor in tensors(forms["before"](data))]
    if sum(tensor.nbytes for tensor in first) > MOST_BYTES:
        return None
    reset()
    second = tensors(forms["now"](data))
    return len(first) == len(second) and all(map(torch.equal, map(as_bytes, first), map(as_bytes, second)))


def tensors(output: Any) -> list[torch.Tensor]:
    return [each for each in (output if isinstance(output, (tuple, list)) else [output]) if torch.is_tensor(each)]


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(-1).view(torch.uint8)


def summary(rows: list[dict[str, Any]]) -> str:
    """Of one file: geometric mean and range of the ratios, and in how many cases the bits are the same."""
    said = []
    for ratio in ("now/before", "again/before"):
        if found := [row[ratio] for row in rows if ratio in row]:
            mean = math.exp(statistics.fmean(map(math.log, found)))
            said.append(f"{ratio} {mean:.4f} ({min(found):.4f} to {max(found):.4f}, {len(found)} cases)")
    compared = [row["same bits"] for row in rows if row.get("same bits") is not None]
    said.append(f"the same bits in {sum(compared)} of {len(compared)} cases that were compared, of {len(rows)}")
    if failed := sum("failed" in row for row in rows):
        said.append(f"{failed} failed")
    return "; ".join(said)


if __name__ == "__main__":
    main()
