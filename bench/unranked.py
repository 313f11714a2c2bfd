"""The bundled kernels beside their earlier forms, on shapes that are not ranked: are they tuned for the ranked ones?

    python bench/unranked.py --before FOLDER [--out FILE] [--budget 240] [mla prefill ..]

FOLDER has the earlier files as PROBLEM/NAME.py (`git show COMMIT:submissions/PROBLEM/NAME.py`). A file that did not
exist may be stood for by one that did, under its name. For each file and each of SHAPES both forms are timed in turns,
with cold caches, by a pair of events, and both outputs are held against the reference. Times are less that of a null
kernel. A line of FILE is a file and a shape. Only for CUDA GPUs.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
if not __package__:
    sys.path[:0] = [str(ROOT), str(ROOT / "bench")]

import torch  # noqa: E402
import tune  # noqa: E402
from forms import both, timer_and_null, times_of  # noqa: E402
from tabulate import tabulate  # noqa: E402

from harness.worker.timers import GpuTimer  # noqa: E402

ROUNDS = 13
WITHIN = 1.05
"""A form may take so much longer than the earlier one."""


def decoded(batch: int, heads: int, kv_heads: int, length: int) -> dict[str, Any]:
    cache = {"cache_max_len": length + 256, "seq_lens": length, "q_seq_len": 1, "head_dim": 128}
    kind = {"dtype": "bfloat16", "is_causal": True, "update_cache": True}
    return {"batch_size": batch, "num_q_heads": heads, "num_kv_heads": kv_heads, **cache, **kind}


def replicated(batch: int, length: int, kv_heads: int, heads: int, dim: int, dtype: str) -> dict[str, Any]:
    sizes = {"batch_size": batch, "seq_len": length, "num_kv_heads": kv_heads, "num_q_heads": heads, "head_dim": dim}
    return {**sizes, "dtype": dtype}


def prefilled(batch: int, length: int, heads: int, kv_heads: int, dim: int = 128) -> dict[str, Any]:
    sizes = {"batch_size": batch, "seq_len": length, "num_q_heads": heads, "num_kv_heads": kv_heads, "head_dim": dim}
    return {**sizes, "causal": True}


SHAPES: dict[str, list[dict[str, Any]]] = {
    "mla": [
        {"batch_size": batch, "q_seq_len": 1, "kv_seq_len": length}
        for batch, length in [(7, 700), (12, 3000), (24, 6144), (48, 2048), (90, 7000), (128, 4096), (200, 1500)]
    ],
    "kv_decode": [
        decoded(*sizes)
        for sizes in [(12, 32, 8, 3000), (24, 32, 8, 5000), (40, 64, 8, 1500), (5, 16, 2, 10000), (64, 32, 4, 777)]
    ],
    "kv_replicate": [
        replicated(2, 3000, 4, 32, 128, "float32"),
        replicated(6, 6000, 8, 48, 128, "bfloat16"),
        replicated(12, 3000, 4, 32, 96, "bfloat16"),
        replicated(3, 5000, 2, 34, 127, "bfloat16"),
    ],
    "prefill": [
        prefilled(12, 1500, 32, 8),
        prefilled(6, 3000, 64, 8),
        prefilled(2, 12000, 48, 8),
        prefilled(1, 20001, 24, 4),
        prefilled(8, 5000, 16, 16, 64),
    ],
}
"""Between the ranked cases, and none of them a power of two throughout."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("problems", nargs="*", help="all if none is named: " + ", ".join(SHAPES))
    parser.add_argument("--before", type=Path, required=True, help="the folder with the earlier files")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "unranked.jsonl")
    parser.add_argument("--budget", type=float, default=240.0, help="seconds; what is beyond it is left out, and named")
    options = parser.parse_args()
    for problem in options.problems:
        if problem not in SHAPES:
            parser.error(f"{problem}: not one of {', '.join(SHAPES)}")
    timer, null_us = timer_and_null()
    end = time.monotonic() + options.budget
    options.out.parent.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = []
    with options.out.open("a") as log:
        log.write(json.dumps({"device": torch.cuda.get_device_name(), "null_us": null_us, **tune.versions()}) + "\n")
        for problem in options.problems or SHAPES:
            names = sorted(path.stem for path in (options.before / problem).glob("*.py"))
            forms = {name: both(problem, name, options.before) for name in names}
            reference, _ = tune.load_problem(problem)
            for shape in SHAPES[problem]:
                if time.monotonic() > end:
                    print(f"{problem} {shape}: no time left")
                    continue
                data = reference.generate_input(**shape, seed=1, device="cuda")
                expected = tune.expectation(problem, reference, data)
                reset = tune.resetter(problem, data)
                for name in names:
                    found = beside(forms[name], data, reset, expected, timer, null_us)
                    rows.append({"kernel": f"{problem}/{name}", "shape": words(shape), **found})
                    log.write(json.dumps(rows[-1]) + "\n")
                    log.flush()
                    print(rows[-1], flush=True)
                del data, expected
                torch.cuda.empty_cache()
    print(tabulate(rows, headers="keys", tablefmt="simple_outline", floatfmt=".4g"))
    ratios = [row["now/before"] for row in rows if "now/before" in row]
    print(
        f"{sum(ratio > WITHIN for ratio in ratios)} of {len(ratios)} take more than {WITHIN - 1:.0%} longer than before"
    )


def words(shape: dict[str, Any]) -> str:
    return " ".join(str(value) for value in shape.values() if not isinstance(value, bool))


def beside(
    forms: dict[str, Any], data: Any, reset: Any, expected: Any, timer: GpuTimer, null_us: float
) -> dict[str, Any]:
    """The earlier form's median in microseconds, the present one's ratio to it, and both relative L2 errors."""
    errors: dict[str, Any] = {}
    try:
        for form, kernel in forms.items():
            reset()
            errors[f"error {form}"] = tune.wrongness(kernel(data), expected)
        return {**times_of(forms, data, reset, timer, null_us, ROUNDS), **errors}
    except Exception as error:  # an earlier form may not take today's inputs
        return {"failed": tune.describe(error)}


if __name__ == "__main__":
    main()
