"""Measures the gain of attacks on the judge's clock on an NVIDIA GPU.

    python bench/attacks_gpu.py [--device cuda] [--out DIR] [--seconds 300] [--only NAME ...]     13 s an attack

Each attack is a submission to a toy problem. Its honest call holds the device for a known number of cycles (about 30
us) and doubles a matrix. It is judged as in `eval --quick`, with 100 samples. `gain` is the honest latency minus the
attack's latency, with a 95 % interval from resampling. `worker says` is the latency by the worker's own events, which
the attack could forge.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import numpy as np
from tabulate import tabulate

from harness import catalog
from harness.catalog.config import EvalConfig, load_config
from harness.judge.evaluate import evaluate
from harness.machine.device import detect
from harness.model import Device, Problem, Run
from harness.ranking.stats import interquartile_mean

ROOT = Path(__file__).resolve().parents[1]
SUITE = ROOT / "tests" / "adversarial" / "41_inside_the_sandwich"
TWINS = ("honest", "honest, long")
SUITE_CYCLES = 1_000_000
"""As in the submissions of the suite."""

CYCLES, LONG_CYCLES, SAMPLES, RESAMPLES = 60_000, 8 * SUITE_CYCLES, 100, 2000
ALLOWED_SHARE, ALLOWED_US = 0.02, 0.3
LIES_US = (1, 3, 10, 30, 100)

HEAD = (
    f"import ctypes, os, threading, time, torch\nspin = lambda cycles={CYCLES}: torch.cuda._sleep(cycles)\ncalls = 0\n"
)
CALL = "def custom_kernel(data):\n    global calls\n    calls += 1\n    x = data[0]\n"
WORK = "    spin()\n    return x * 2\n"
HONEST = HEAD + CALL + WORK
HONEST_LONG = HEAD + CALL + f"    spin({LONG_CYCLES})\n    return x * 2\n"


def _lies(us: float) -> str:
    return (
        HEAD
        + "true = torch.cuda.Event.elapsed_time\n"
        + f"torch.cuda.Event.elapsed_time = lambda a, b: max(true(a, b) - {us / 1e3}, 1e-6)\n"
        + CALL
        + WORK
    )


NATIVE = r"""
#include <string.h>
#include <sys/mman.h>
typedef int (*elapsed)(float *, void *, void *);
static elapsed driver;
static float less;
static int says(float *ms, void *first, void *last) {
    int status = driver(ms, first, last);
    *ms = *ms - less > 1e-6f ? *ms - less : 1e-6f;
    return status;
}
int overwrite(char *place, elapsed truth, float by_ms) {
    char jump[12] = "\x48\xb8........\xff\xe0";  /* mov rax, says; jmp rax */
    void *target = (void *)says;
    driver = truth, less = by_ms;
    memcpy(jump + 2, &target, 8);
    if (mprotect((void *)((long)place & ~4095L), 8192, PROT_READ | PROT_WRITE | PROT_EXEC)) return -1;
    memcpy(place, jump, 12);
    return 0;
}
"""


def _native_lies(us: float) -> str:
    return (
        HEAD
        + f"""
import pathlib, subprocess
folder = pathlib.Path.home()
(folder / "lie.c").write_text({NATIVE!r})
subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", folder / "lie.so", folder / "lie.c"], check=True)
path = next(line.split()[-1] for line in open("/proc/self/maps") if "libcudart" in line)
places = ctypes.CDLL(path).cudaEventElapsedTime, ctypes.CDLL("libcuda.so.1").cuEventElapsedTime
places = [ctypes.cast(place, ctypes.c_void_p) for place in places]
assert ctypes.CDLL(str(folder / "lie.so")).overwrite(*places, ctypes.c_float({us / 1e3})) == 0
"""
        + CALL
        + WORK
    )


ATTACKS = {
    "honest": HONEST,
    "honest again": HONEST,
    **{f"lies about its events: {us} us": _lies(us) for us in LIES_US},
    **{f"the same, in C: {us} us": _native_lies(us) for us in LIES_US},
    "arms in 0.5 ms": HEAD + CALL + "    time.sleep(0.0004)\n" + WORK,
    "arms in 0.9 ms": HEAD + CALL + "    time.sleep(0.0008)\n" + WORK,
    "arms in 1.1 ms": HEAD + CALL + "    time.sleep(0.001)\n" + WORK,
    "arms in 5 ms": HEAD + CALL + "    time.sleep(0.005)\n" + WORK,
    # In the pilot's process it makes seven calls of the benchmark case; in the process that counts, a hundred.
    "is long in the pilot alone": HEAD + CALL + "    spin(4_000_000 if calls < 8 else 60_000)\n    return x * 2\n",
    "launches from a thread after its answer": HEAD
    + CALL
    + """    out = torch.empty_like(x)
    def later():
        time.sleep(0.0002)
        spin()
        torch.mul(x, 2, out=out)
    threading.Thread(target=later).start()
    return out
""",
    "leaves work running after the tests": HEAD
    + "side = torch.cuda.Stream()\n"
    + CALL
    + """    if x.numel() < 1000:
        with torch.cuda.stream(side):
            for _ in range(100):
                spin(40_000_000)
"""
    + WORK,
    "80 GiB and a large stack": HEAD
    + "kept = [torch.empty(1 << 30, dtype=torch.uint8, device='cuda') for _ in range(80)]\n"
    + "cuda = ctypes.CDLL('libcuda.so.1')\ncuda.cuCtxSetLimit(0, ctypes.c_size_t(64 << 10))\n"
    + CALL
    + WORK,
    "a child that uses the card": HEAD
    + """import subprocess, sys
child = None
loop = "import torch\\nwhile True: torch.cuda._sleep(2_000_000); torch.cuda.synchronize()"
"""
    + CALL
    + """    global child
    if child is None:
        child = subprocess.Popen([sys.executable, "-c", loop])
"""
    + WORK,
    **{
        path.stem.replace("_", " "): path.read_text().replace(f"CYCLES = {SUITE_CYCLES:_}", f"CYCLES = {CYCLES}")
        for path in sorted(SUITE.glob("*.py"))
        if path.stem not in ("honest", "arms_slowly", "writes_its_word_early")
    },
    "honest, long": HONEST_LONG,
    "writes its word early": (SUITE / "writes_its_word_early.py")
    .read_text()
    .replace("shape[0] == 64", "shape[0] > 64"),
}
"""The attacks of tests/adversarial/41_inside_the_sandwich with less work. Those after `honest, long` are compared with
it."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "bench")
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument(
        "--only", nargs="*", default=[], help="parts of the names of attacks; the honest ones always run"
    )
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    device, end = detect(ROOT, given.device), time.monotonic() + given.seconds
    sampling = load_config(ROOT).gpu.model_copy(update={"min_samples": SAMPLES, "max_samples": SAMPLES})
    config = load_config(ROOT).model_copy(update={"gpu": sampling})
    rows: list[dict[str, Any]] = []
    honest: tuple[float, ...] = ()
    with tempfile.TemporaryDirectory(prefix="attacks_") as folder:
        problem = _toy(Path(folder))
        for name, source in ATTACKS.items():
            if given.only and name not in TWINS and not any(part in name for part in given.only):
                continue
            if time.monotonic() > end - 15:
                break
            run = _judge(Path(folder), problem, device, config, source)
            samples = run.measurements[0].samples_ns[0] if run.measurements else ()
            honest = samples if name in TWINS else honest
            rows.append(_row(name, run, samples, honest))
            print(json.dumps(rows[-1], default=str), flush=True)
    print(f"attacks on {device.name}, {time.strftime('%Y-%m-%d')}")
    print(tabulate(rows, headers="keys", tablefmt="simple_outline", floatfmt=".2f"))
    (given.out / "attacks_gpu.json").write_text(json.dumps(rows, default=str))


def _toy(root: Path) -> Problem:
    root.chmod(0o755)
    shutil.copytree(ROOT / "tests" / "adversarial" / "problems" / "double", root / "problems" / "double")
    shutil.copytree(ROOT / "configs", root / "configs")
    (root / "submissions").mkdir()
    path = root / "problems" / "double" / "problem.yml"
    path.write_text(path.read_text().replace("{rows: 64, cols: 64}", "{rows: 256, cols: 256}"))
    return catalog.load_problem(root, "double")


def _judge(root: Path, problem: Problem, device: Device, config: EvalConfig, source: str) -> Run:
    path = root / "submissions" / "attack.py"
    path.write_text(source)
    return evaluate(problem, catalog.load_submission(problem, path), device, config, quick=True)


def _row(name: str, run: Run, samples: tuple[float, ...], honest: tuple[float, ...]) -> dict[str, Any]:
    row: dict[str, Any] = {
        "attack": name,
        "us": None,
        "gain us": None,
        "low": None,
        "high": None,
        "more than allowed": "",
    }
    if samples and honest:
        us, (low, high) = interquartile_mean(samples) / 1e3, _interval(honest, samples)
        gain = interquartile_mean(honest) / 1e3 - us
        allowed = ALLOWED_SHARE * interquartile_mean(honest) / 1e3 + ALLOWED_US
        row |= {
            "us": us,
            "gain us": gain,
            "low": low,
            "high": high,
            "more than allowed": "YES" if low > allowed else "",
        }
    measured = run.measurements[0] if run.measurements else None
    voids = "; ".join(f"{count} {reason}" for reason, count in measured.voids.items()) if measured else ""
    return row | {
        "worker says us": measured.inside_ns / 1e3 if measured and measured.inside_ns else None,
        "manner": measured.manner.value if measured and measured.manner else "",
        "voids": voids,
        "verdict": f"{run.ending.verdict.words}, {run.unranked_because or 'ranked'}",
        "said": run.ending.message[:60],
        "constant us": [round(constant.latency_ns / 1e3, 2) for constant in run.constants][:1],
    }


def _interval(honest: tuple[float, ...], attack: tuple[float, ...]) -> tuple[float, float]:
    """The 95 % interval of the difference of the two interquartile means, in us."""
    random = np.random.default_rng(0)
    differences = [
        (
            interquartile_mean(random.choice(honest, len(honest)))
            - interquartile_mean(random.choice(attack, len(attack)))
        )
        / 1e3
        for _ in range(RESAMPLES)
    ]
    low, high = np.quantile(differences, (0.025, 0.975)).tolist()
    return low, high


if __name__ == "__main__":
    main()
