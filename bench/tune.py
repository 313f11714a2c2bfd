"""Finds the fastest configuration of the bundled Triton kernels on this machine's GPU.

    python bench/tune.py [--out build/tune] [--budget 480] [--spaced 0.2] [--only gluon ...] [mla prefill ...]

    for each problem, within its share of --budget seconds, in processes of its own
        compile   several processes at once run every variant on every benchmark case, untimed: this fills Triton's
                  cache, and shows which variants do not compile or crash
        measure   the others, one case after another, with cold caches, by a pair of events (harness/worker/timers.py)

A variant is a dict of arguments of a submission's `launch(data, **variant)`; the empty one is its
`custom_kernel(data)`. VARIANTS lists them. Events include a launch, about 3 us that the judge's clock subtracts. They
tell variants apart, but differ from a run's latency. Back to back, a device at its power limit lowers its clocks. In a
judged run it rests between calls; --spaced does the same here.

The alternatives of a PyTorch user are measured beside the variants (rivals.py). --only selects the submissions whose
names contain one of its words, and rivals only with the word `rivals`. Every output is compared by its relative L2
error with the reference, or for prefill with torch's scaled_dot_product_attention. Prints a table per submission, the
best variant first. Writes a line per variant and case to OUT/tune.jsonl, which kernel_table.py reads. What that file
has already, of this device, these versions and these sources, is not measured again: call it again after its budget.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import faulthandler
import functools
import hashlib
import importlib.util
import itertools
import json
import math
import os
import subprocess
import sys
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

Variant = dict[str, Any]

SHARES = {"kv_replicate": 0.15, "fmha": 0.2, "kv_decode": 0.15, "mla": 0.25, "prefill": 0.25}
"""The share of --budget that a problem may use if all are run."""

WORKERS = {"kv_replicate": 14, "fmha": 5, "kv_decode": 10, "mla": 8, "prefill": 12}
"""Compiling processes at once. Each holds the inputs of a case, which take up to 17 GB in fmha."""

MIN_SAMPLES, MAX_SAMPLES, SAMPLING_S = 6, 24, 0.25
"""A variant and case is sampled for SAMPLING_S seconds, within these bounds."""

HANG_S = 45
"""A variant that compiles and runs longer than this hangs. Its process is ended, and the variant counts as the
cause."""

REL_L2 = {
    "kv_replicate": 0.0,
    "fmha": 3e-3,
    "kv_decode": 6e-3,
    "mla": 0.05,
    "mla/gluon_mxfp4": 0.2,
    "mla/triton_mxfp4": 0.2,
    "mla/triton_mxfp4_dot_scaled": 0.2,
    "prefill": 6e-3,
}


def grid(**choices: list[Any]) -> list[Variant]:
    return [dict(zip(choices, values, strict=True)) for values in itertools.product(*choices.values())]


VARIANTS: dict[str, list[Variant]] = {
    "kv_replicate/triton_fused": [
        {},
        *grid(burst_bytes=[0, 2 << 20, 4 << 20]),
        {"cache": ""},
        *grid(tile_bytes=[512], num_warps=[1, 2, 4]),
        *grid(tile_bytes=[2048], num_warps=[4, 8]),
    ],
    "kv_replicate/hip_vectorised": [{}],
    "fmha/triton_rows": [{}, *grid(copy_elements=[512, 2048], copy_warps=[1, 2]), {"tile_elements": 1024}],
    "fmha/hip_one_head": [{}],
    "kv_decode/triton_split_kv": [
        {},
        *grid(block_n=[32], num_stages=[3], per_multiprocessor=[2, 4]),
        *grid(block_n=[32], num_stages=[4], per_multiprocessor=[2, 3]),
        *grid(block_n=[64], num_stages=[2], per_multiprocessor=[2]),
    ],
    "kv_decode/cuda_cluster": [{}, *grid(cluster=[1, 2, 4, 8]), *grid(stages=[2, 3]), *grid(scattered=[16, 33, 64])],
    "mla/gluon_fp8": [{}, {"short": False}, *grid(short=[False], per_multiprocessor=[1, 2], least_tiles=[2, 8])],
    "mla/gluon_mxfp4": [
        {},
        {"short": False},
        *grid(short=[False], decoders=[1, 2, 3], splits=[1, 2, 4]),
    ],
    "mla/gluon_bf16": [
        {},
        {"short": False},
        *grid(per_multiprocessor=[1, 2]),
        *grid(slots=[5], warpgroups=[2], per_multiprocessor=[1]),
        *grid(slots=[8], warpgroups=[1, 2], per_multiprocessor=[1]),
    ],
    "mla/triton_bf16": [{}, *grid(per_multiprocessor=[1, 4]), *grid(block_n=[64], num_stages=[2])],
    "mla/triton_fp8": [{}, *grid(per_multiprocessor=[1, 4]), *grid(num_stages=[2, 4])],
    "mla/triton_mxfp4": [{}, *grid(per_multiprocessor=[1, 4]), *grid(num_stages=[3])],
    "mla/triton_mxfp4_dot_scaled": [{}],
    "mla/aiter_fp8": [{}],
    "prefill/cuda_hopper": [{}, *grid(section_bytes=[8 << 20, 16 << 20, 32 << 20, 1 << 40])],
    "prefill/gluon_hopper": [{}, *grid(v_stages=[2, 3], section_bytes=[8 << 20, 16 << 20, 32 << 20, 1 << 40])],
    "prefill/torch_sdpa": [{}],
    "prefill/triton_flash": [
        {},
        *grid(BLOCK_M=[128], BLOCK_N=[64], num_warps=[4], num_stages=[2], TMA=[True], GROUPED=[False, True]),
        *grid(BLOCK_M=[128], BLOCK_N=[64], num_warps=[8], num_stages=[2], TMA=[True], maxnreg=[128]),
    ],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("problems", nargs="*", help="all five if none is named: " + ", ".join(SHARES))
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "tune")
    parser.add_argument("--budget", type=float, default=480.0, help="seconds, for all problems together")
    parser.add_argument("--spaced", type=float, default=0.0, help="seconds of rest before each sample")
    parser.add_argument("--only", action="append", default=[], metavar="WORD", help="see above; may be repeated")
    parser.add_argument("--compile", nargs=2, type=int, help=argparse.SUPPRESS)  # this process and of how many
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    for problem in options.problems:
        if problem not in SHARES:
            parser.error(f"no kernels to tune for {problem!r}: there are {', '.join(SHARES)}")
    options.out.mkdir(parents=True, exist_ok=True)
    if options.compile:
        compile_variants(options.problems[0], options.only, *options.compile)
    elif options.measure:
        measure(options.problems[0], options.only, options.out, options.budget, options.spaced)
    else:
        problems = options.problems or list(SHARES)
        whole = sum(SHARES[problem] for problem in problems)
        began, spent_share = time.monotonic(), 0.0
        for problem in problems:
            spent_share += SHARES[problem]
            left = options.budget * spent_share / whole - (time.monotonic() - began)
            tune(problem, options.only, options.out, max(left, 20.0), options.spaced)


def tune(problem: str, only: list[str], out: Path, budget_s: float, spaced_s: float = 0.0) -> None:
    """Compile and measure one problem, within `budget_s` seconds."""
    began = time.monotonic()
    workers = max(min((os.cpu_count() or 1) - 2, WORKERS[problem]), 1) if all_variants(problem, only) else 0
    command = [sys.executable, __file__, problem, "--out", str(out), *(f"--only={word}" for word in only)]
    print(f"== {problem}: compiling in {workers} processes, budget {budget_s:.0f} s", flush=True)
    processes = [
        subprocess.Popen([*command, "--compile", str(n), str(workers)], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for n in range(workers)
    ]
    broken: set[str] = set()
    for process in processes:
        try:
            output, errors = process.communicate(timeout=max(0.6 * budget_s - (time.monotonic() - began), 1.0))
        except subprocess.TimeoutExpired:
            process.kill()
            output, errors = process.communicate()
            print("   a compiling process ran out of time", flush=True)
        running = None
        for line in output.decode(errors="replace").splitlines():
            if line.startswith("RUN "):
                running = line[4:]
            elif line.startswith("OK "):
                running = None
            elif line.startswith("BROKEN "):
                key, _, reason = line[7:].partition(" | ")
                broken.add(key)
                running = None
                print(f"   broken: {key}: {reason}", flush=True)
        if running is not None:
            broken.add(running)
            print(f"   killed its process: {running}: {errors.decode(errors='replace')[-300:]}", flush=True)
    (out / f"broken-{problem}.json").write_text(json.dumps(sorted(broken)))
    print(f"   compiled after {time.monotonic() - began:.0f} s", flush=True)
    left = max(budget_s - (time.monotonic() - began), 10.0)
    try:
        subprocess.run([*command, "--measure", f"--budget={left}", f"--spaced={spaced_s}"], timeout=left + 30)
    except subprocess.TimeoutExpired:
        print(f"   measuring {problem} ran out of time", flush=True)
    print(f"   {problem} took {time.monotonic() - began:.0f} s", flush=True)


def compile_variants(problem: str, only: list[str], worker: int, workers: int) -> None:
    """Run this worker's share of the variants on every benchmark case. Prints RUN, OK and BROKEN lines on stdout."""
    import torch

    reference, cases = load_problem(problem)
    mine = all_variants(problem, only)[worker::workers]
    modules = {name: load(ROOT / "submissions" / f"{name}.py") for name in {name for name, _ in mine}}
    alive = {key(*each) for each in mine}
    for case in cases:
        data = reference.generate_input(**case.parameters, seed=1, device="cuda")
        reset = resetter(problem, data)
        for name, variant in mine:
            if key(name, variant) not in alive:
                continue
            print(f"RUN {key(name, variant)}", flush=True)
            faulthandler.dump_traceback_later(HANG_S, exit=True)
            try:
                reset()
                prepared(modules[name], data, variant)()
                torch.cuda.synchronize()
            except torch.OutOfMemoryError:
                torch.cuda.empty_cache()
            except Exception as error:
                alive.discard(key(name, variant))
                print(f"BROKEN {key(name, variant)} | {describe(error)}", flush=True)
                if "CUDA" in str(error):
                    return
                continue
            finally:
                faulthandler.cancel_dump_traceback_later()
            print(f"OK {key(name, variant)}", flush=True)
        del data
        torch.cuda.empty_cache()


def measure(problem: str, only: list[str], out: Path, budget_s: float, spaced_s: float) -> None:
    """Time the variants that are not broken, case by case, and print the tables."""
    import torch
    from rivals import prepare

    from harness.machine.device import detect
    from harness.worker.timers import GpuTimer

    began = time.monotonic()
    device = detect(ROOT)
    timer = GpuTimer(device.flush_bytes)
    reference, cases = load_problem(problem)
    broken = set(json.loads((out / f"broken-{problem}.json").read_text()))
    variants = [each for each in all_variants(problem, only) if key(*each) not in broken]
    modules = {name: load(ROOT / "submissions" / f"{name}.py") for name in {name for name, _ in variants}}
    null = torch.zeros(1, device="cuda")
    small = sorted(timer.sample(null.zero_).latency_ns / 1e3 for _ in range(21))[10]
    print(f"   {device.name}; one small kernel takes {small:.1f} us", flush=True)
    sources = {name: hashlib.sha256((ROOT / "submissions" / f"{name}.py").read_bytes()).hexdigest() for name in modules}
    measured_on = {"device": device.name, "null_us": small, **versions(), "sources": sources}
    before = done_before(out / "tune.jsonl", measured_on)
    with (out / "tune.jsonl").open("a") as log:
        log.write(json.dumps(measured_on) + "\n")
        sweep = Sweep(problem, before, log, broken)
        for done, case in enumerate(cases):
            deadline = time.monotonic() + (budget_s - (time.monotonic() - began)) / (len(cases) - done)
            data = reference.generate_input(**case.parameters, seed=1, device="cuda")
            reset = resetter(problem, data)
            expected = expectation(problem, reference, data)
            sampled = functools.partial(timed, timer=timer, reset=reset, expected=expected, spaced_s=spaced_s)
            for name, variant in variants:
                limit, this = REL_L2.get(name, REL_L2[problem]), key(name, variant)
                sweep.floors[name, case.label] = floor = floor_us(reference, case, device, name)
                take = functools.partial(sampled, prepared(modules[name], data, variant), limit=limit)
                sweep.add(this, this + (" spaced" if spaced_s else ""), case.label, floor, take, deadline)
            reset()
            shared = f"{problem}/rival"
            sweep.floors[shared, case.label] = floor_us(reference, case, device, shared + read_by_rival(problem))
            rivals = prepare(problem, data) if not only or "rivals" in only else {}
            for rival, call in rivals.items():
                this, take = f"{problem}/rival {rival}", functools.partial(sampled, call, limit=REL_L2[problem])
                own = shared + read_by_rival(problem, rival)
                sweep.floors[this, case.label] = floor = floor_us(reference, case, device, own)
                sweep.add(this, this + (", spaced" if spaced_s else ""), case.label, floor, take)
            del data, expected, reset, sampled
            rivals = call = take = None
            torch.cuda.empty_cache()
            print(f"   {case.label}: done after {time.monotonic() - began:.0f} s", flush=True)
    table(problem, cases, sweep.times, sweep.floors)


@dataclasses.dataclass
class Sweep:
    """The times of one problem's variants and rivals: those that an earlier call kept, and those that this one takes.

    `before`: as `done_before` returns them. `log`: gets a line for each time that is taken. `broken`: no longer timed.
    """

    problem: str
    before: dict[tuple[str, str], float]
    log: TextIO
    broken: set[str]
    times: dict[str, dict[str, float]] = dataclasses.field(default_factory=dict)
    floors: dict[tuple[str, str], float] = dataclasses.field(default_factory=dict)
    usable: bool = True

    def add(
        self,
        this: str,
        written: str,
        case: str,
        floor_us: float,
        take: Callable[[], dict[str, Any]],
        deadline: float = math.inf,
    ) -> None:
        """Add the time of `this` on a case: a kept one, whatever the time is, or before `deadline` a new one by `take`.
        `written`: its name in the log."""
        row: dict[str, Any] = {"problem": self.problem, "variant": written, "case": case, "floor_us": floor_us}
        if (us := self.before.get((written, case))) is not None:
            self.times.setdefault(this, {})[case] = us
            return
        if this in self.broken or time.monotonic() > deadline or not self.usable:
            return
        try:
            row |= take()
            self.times.setdefault(this, {})[case] = row["us"]
        except Exception as error:
            self.broken.add(this)
            row["error"] = describe(error)
            self.usable = "CUDA error" not in str(error)
            print(f"   broken: {this} on {case}: {row['error']}", flush=True)
        self.log.write(json.dumps(row) + "\n")
        self.log.flush()


def done_before(path: Path, measured_on: dict[str, Any]) -> dict[tuple[str, str], float]:
    """The times that the file has by variant and case, in us: of the same device and versions, and for a submission of
    the same source. Removes the rest of a last line that was cut off."""
    found: dict[tuple[str, str], float] = {}
    alike, sources = False, {}
    for line in whole_lines(path) if path.exists() else ():
        row = json.loads(line)
        if "device" in row:
            alike = all(row[name] == measured_on[name] for name in ("device", "torch", "triton"))
            sources = row.get("sources", {})
        elif alike and "us" in row:
            name = row["variant"].split(" ")[0]
            if name.endswith("/rival") or sources.get(name) == measured_on["sources"].get(name, ""):
                found[row["variant"], row["case"]] = row["us"]
    return found


def whole_lines(path: Path) -> list[str]:
    """The lines of a file whose writer may have been killed. A last line without its end is removed from the file, so
    that the next line is not written behind it, and other readers find whole lines only."""
    whole, end, rest = path.read_text().rpartition("\n")
    if rest:
        print(f"   {path}: a kill cut off its last line, which is removed: {rest[:60]}", flush=True)
        path.write_text(whole + end)
    return whole.splitlines()


def prepared(module: Any, data: Any, variant: Variant) -> Any:
    return functools.partial(module.launch if variant else module.custom_kernel, data, **variant)


def versions() -> dict[str, str]:
    import torch
    import triton

    today = datetime.date.today().isoformat()
    return {"date": today, "torch": torch.__version__, "triton": triton.__version__}


def timed(call: Any, timer: Any, reset: Any, expected: Any, limit: float, spaced_s: float) -> dict[str, Any]:
    """Interquartile mean and minimum of the samples in microseconds. Raises ValueError for a wrong output."""
    import torch

    from harness.ranking.stats import interquartile_mean

    for _ in range(2):  # the second call finds its code loaded
        reset()
        got = call()
    torch.cuda.synchronize()
    error = wrongness(got, expected)
    if not error <= limit:
        raise ValueError(f"relative L2 error {error:.2g}, at most {limit:.2g} is right")
    samples: list[float] = []
    labels: set[str] = set()
    until = time.monotonic() + SAMPLING_S
    while len(samples) < MIN_SAMPLES or (len(samples) < MAX_SAMPLES and time.monotonic() < until):
        time.sleep(spaced_s)
        sample = timer.sample(call, page_in=reset)
        samples.append(sample.latency_ns / 1e3)
        labels |= set(sample.labels)
    mean = interquartile_mean(samples)
    return {"rel_l2": error, "us": mean, "min_us": min(samples), "n": len(samples), "labels": sorted(labels)}


def table(problem: str, cases: list[Any], times: dict[str, dict[str, float]], floors: dict[Any, float]) -> None:
    labels = [case.label for case in cases]
    for name in [*(name for name in VARIANTS if name.startswith(problem + "/")), f"{problem}/rival"]:
        mine = {variant: found for variant, found in times.items() if variant.split(" ", 1)[0] == name}
        if not mine:
            continue
        # A rival may read another format than the others.
        percent = lambda each, label, us: 100 * floors.get((each, label), floors[name, label]) / us  # noqa: B023, E731
        mean = {
            variant: math.exp(sum(math.log(percent(variant, label, us)) for label, us in found.items()) / len(found))
            for variant, found in mine.items()
        }
        print(f"-- {name}: microseconds (percent of the floor of its own format)")
        for number, label in enumerate(labels):
            print(f"   case {number}: {label}, floor {floors.get((name, label), math.nan):.1f} us")
        best = {
            label: min((found[label], variant) for variant, found in mine.items() if label in found)
            for label in labels
            if any(label in found for found in mine.values())
        }
        print("   " + " ".join(f"{number:>13}" for number in range(len(labels))) + "    geomean")
        least = (f"{us:7.1f} ({percent(each, label, us):3.0f}%)" for label, (us, each) in best.items())
        print("   " + " ".join(least) + "  best")
        for variant in sorted(mine, key=lambda variant: (-len(mine[variant]), -mean[variant])):
            cells = [
                f"{mine[variant][label]:7.1f} ({percent(variant, label, mine[variant][label]):3.0f}%)"
                if label in mine[variant]
                else " " * 14
                for label in labels
            ]
            print("   " + " ".join(cells) + f" {mean[variant]:6.1f} %  {variant[len(name) + 1 :]}", flush=True)


def all_variants(problem: str, only: list[str]) -> list[tuple[str, Variant]]:
    named = [(name, variant) for name, variants in VARIANTS.items() for variant in variants]
    mine = [
        each for each in named if each[0].startswith(problem + "/") and any(word in each[0] for word in only or [""])
    ]
    return list({key(*each): each for each in mine}.values())


def key(name: str, variant: Variant) -> str:
    return " ".join([name, ", ".join(f"{option}={value}" for option, value in variant.items())]).strip()


def load_problem(problem: str) -> tuple[Any, list[Any]]:
    from harness.catalog import load_problem

    return load(ROOT / "problems" / problem / "reference.py"), list(
        load_problem(ROOT, problem).cases_for("cuda").benchmark
    )


def load(path: Path) -> Any:
    sys.modules.setdefault("task", types.ModuleType("task"))
    sys.modules["task"].input_t = sys.modules["task"].output_t = object  # type: ignore[attr-defined]
    name = "_".join(path.with_suffix("").parts[-2:])
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def resetter(problem: str, data: Any) -> Any:
    """A function that restores inputs that a call changes: kv_decode's lengths. (The slots that it fills are free
    ones.)"""
    if problem != "kv_decode":
        return lambda: None
    seq_lens, before = data[5], data[5].clone()
    return lambda: seq_lens.copy_(before)


def expectation(problem: str, reference: Any, data: Any) -> Any:
    import torch

    if problem == "prefill":
        return load(ROOT / "submissions" / "prefill" / "torch_sdpa.py").custom_kernel(data)
    if problem == "kv_decode":
        copy = tuple(x.clone() if torch.is_tensor(x) else x for x in data)
        return reference.ref_kernel(copy)
    return reference.ref_kernel(data)


def wrongness(got: Any, expected: Any) -> float:
    """The relative L2 error. For a pair of replicated tensors 0 or infinite."""
    import torch

    if isinstance(got, tuple):
        bits = {4: torch.int32, 2: torch.int16}[got[0].itemsize]
        same = all(torch.equal(g.view(bits), e.view(bits)) for g, e in zip(got, expected, strict=True))
        return 0.0 if same else math.inf
    squares = torch.zeros(2, dtype=torch.float64, device=got.device)
    for g, e in zip(got.flatten(0, 1).split(4096), expected.flatten(0, 1).split(4096), strict=True):
        squares += torch.stack([(g.float() - e.float()).square().sum(), e.float().square().sum()])
    return math.sqrt(float(squares[0] / squares[1]))


def floor_us(reference: Any, case: Any, device: Any, name: str) -> float:
    """The floor of the format that the submission reads, or of the cheapest format."""
    from harness.ranking.roofline import floor

    cost = reference.cost(**case.parameters)
    own = {entry: cost[entry] for entry in cost if f"_{entry}" in name}
    found = floor(own or cost, device)
    return math.nan if found is None else found.latency_ns / 1e3


def read_by_rival(problem: str, rival: str = "") -> str:
    """The ending of a name for `floor_us`: rivals of mla read its bf16 cache, or its fp8 one if their name ends so."""
    if problem != "mla":
        return ""
    return "_fp8" if rival.endswith(", fp8") else "_bf16"


def describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:300]


if __name__ == "__main__":
    main()
