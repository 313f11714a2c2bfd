"""The bundled kernels beside kernels that only move as many bytes: how near the card's memory lets a kernel come.

    python bench/moved.py [--out FILE] [--budget 240] [fmha kv_decode mla ..]

    for each ranked case whose floor is above 20 us, in turns, with cold caches, by a pair of events
        the bundled kernel
        a copy     torch's copy of half of the bytes: as many are read as written
        reads      a Triton kernel that reads all bytes and stores one number a program, in several shapes

Times are less that of a null kernel. Of the shapes of reads the fastest counts. A kernel reads and writes in its own
mix, so the bytes of fmha and kv_replicate are best held against the copy, those of mla and kv_decode against the reads.
A line of FILE is a case: what each took in microseconds, and the device. Only for CUDA GPUs.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
if not __package__:
    sys.path[:0] = [str(ROOT), str(ROOT / "bench")]

import torch  # noqa: E402
import triton  # noqa: E402
import triton.language as tl  # noqa: E402
import tune  # noqa: E402

from harness.machine.device import detect  # noqa: E402
from harness.worker.timers import GpuTimer  # noqa: E402

KERNELS = {
    "kv_replicate": ["triton_fused"],
    "fmha": ["triton_rows"],
    "kv_decode": ["cuda_cluster"],
    "mla": ["gluon_bf16", "gluon_fp8", "gluon_mxfp4"],
}
WAYS = ("kernel", "copy", "reads")
SHORT_US = 20.0
ROUNDS = 15
SHAPES = [(2048, 4, 1), (4096, 8, 1), (2048, 4, 4), (4096, 8, 4), (4096, 4, 8), (8192, 8, 8)]
"""Of reads: int32 elements a load, warps, and loads a program."""


@triton.jit
def read(source, sums, elements, BLOCK: tl.constexpr, LOADS: tl.constexpr):
    """sums[p] = the sum of program p's elements of `source` [elements] int32."""
    start = tl.program_id(0).to(tl.int64) * BLOCK * LOADS
    found = tl.zeros([BLOCK], tl.int32)
    for load in tl.static_range(LOADS):
        places = start + load * BLOCK + tl.arange(0, BLOCK)
        found += tl.load(source + places, mask=places < elements, other=0, eviction_policy="evict_first")
    tl.store(sums + tl.program_id(0), tl.sum(found))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("problems", nargs="*", help="all if none is named: " + ", ".join(KERNELS))
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "moved.jsonl")
    parser.add_argument("--budget", type=float, default=240.0, help="seconds; cases beyond it are left out, and named")
    options = parser.parse_args()
    for problem in options.problems:
        if problem not in KERNELS:
            parser.error(f"{problem}: not one of {', '.join(KERNELS)}")
    if not torch.cuda.is_available() or torch.version.hip:
        raise SystemExit("not measured: there is no GPU of NVIDIA's here")
    began = time.monotonic()
    device = detect(ROOT)
    timer = GpuTimer(device.flush_bytes)
    null = torch.zeros(1, device="cuda")
    null_us = statistics.median(timer.sample(null.zero_).latency_ns / 1e3 for _ in range(51))
    options.out.parent.mkdir(parents=True, exist_ok=True)
    print(f"{device.name}: a null kernel takes {null_us:.2f} us by events; the figures are less that", flush=True)
    with options.out.open("a") as log:
        log.write(json.dumps({"device": device.name, "null_us": null_us, **tune.versions()}) + "\n")
        for problem in options.problems or KERNELS:
            reference, cases = tune.load_problem(problem)
            for case in cases:
                for name in KERNELS[problem]:
                    floor_us = tune.floor_us(reference, case, device, name)
                    if floor_us <= SHORT_US:
                        continue
                    if time.monotonic() - began > options.budget:
                        print(f"{problem}/{name} {case.label}: no time left")
                        continue
                    cost = reference.cost(**case.parameters)
                    size = next((entry["bytes"] for key, entry in cost.items() if key in name), None)
                    size = min(entry["bytes"] for entry in cost.values()) if size is None else size
                    data = reference.generate_input(**case.parameters, seed=1, device="cuda")
                    took = beside(problem, name, data, int(size), timer)
                    row = {"kernel": f"{problem}/{name}", "case": case.label, "bytes": size, "floor_us": floor_us}
                    row |= {f"{way}_us": took[way] - null_us for way in WAYS}
                    log.write(json.dumps(row) + "\n")
                    log.flush()
                    print(line(row), flush=True)
                    del data
                    torch.cuda.empty_cache()


def beside(problem: str, name: str, data: Any, size: int, timer: GpuTimer) -> dict[str, float]:
    """Medians in microseconds by events, the ways in turns: the kernel, a copy, and reads in the best of their
    shapes."""
    module = tune.load(ROOT / "submissions" / problem / f"{name}.py")
    source = torch.ones(size // 4, dtype=torch.int32, device="cuda")
    half = source[: size // 8], torch.empty(size // 8, dtype=torch.int32, device="cuda")
    reset = tune.resetter(problem, data)
    ways: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
        "kernel": (lambda: module.custom_kernel(data), reset),
        "copy": (lambda: half[1].copy_(half[0]), lambda: None),
    }
    for block, warps, loads in SHAPES:
        programs = triton.cdiv(source.numel(), block * loads)
        sums = torch.empty(programs, dtype=torch.int32, device="cuda")
        launch = lambda s=sums, b=block, w=warps, n=loads: read[(s.numel(),)](  # noqa: E731
            source, s, source.numel(), BLOCK=b, LOADS=n, num_warps=w
        )
        launch()
        assert int(sums.sum()) == source.numel(), "the reads have missed something"
        ways[f"reads {block} x {loads}, {warps} warps"] = (launch, lambda: None)
    found: dict[str, list[float]] = {way: [] for way in ways}
    for turn in range(ROUNDS + 2):
        for way, (call, before) in ways.items():
            sample = timer.sample(call, page_in=before)
            if turn >= 2:  # the first calls compile and warm up
                found[way].append(sample.latency_ns / 1e3)
    took = {way: statistics.median(samples) for way, samples in found.items()}
    reads = min((way for way in took if way.startswith("reads")), key=lambda way: took[way])
    return {"kernel": took["kernel"], "copy": took["copy"], "reads": took[reads]}


def line(row: dict[str, Any]) -> str:
    took = ", ".join(f"{way} {row[way + '_us']:.1f} us ({row['floor_us'] / row[way + '_us']:.1%})" for way in WAYS)
    return f"{row['kernel']} {row['case']}: {took}"


if __name__ == "__main__":
    main()
