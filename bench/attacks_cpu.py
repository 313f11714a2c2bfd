"""Measures the gain of attacks on the judge's clock on a CPU. Each attack does work of known length and tries to hide
part of it.

    python bench/attacks_cpu.py [--rounds 4] [--calls 10] [--work-ms 0.5] [NAME...]

The attacks are those of tests/adversarial that are accepted and state the length of their work (`at least ms`). Here
the work takes `--work-ms`. Each attack is judged in turns with an honest twin that does the same work, `--rounds` times
each and with `--calls` calls, on the suite's problem `double`. In turns because the machine's speed drifts: the same
call took 579 us, and 624 a minute later (AMD EPYC, 2026-11-29).

Prints a table with a row per attack: the honest latency and the attack's latency in us, and the gain. The gain is their
difference, with a 95 % interval from resampling the calls. A gain whose interval lies above 5 % + 50 us breaks the
rule. The last columns are without the judge: a loop in the submission's own process that takes perf_counter_ns before
and after each call, as most harnesses do. A right answer is asked for there too, after the second stamp. An attack on
the judge's own parts has nothing to attack there, and says `failed` or gains nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
from tabulate import tabulate

ROOT = Path(__file__).resolve().parents[1]
SUITE = ROOT / "tests" / "adversarial"
sys.path[:0] = [str(ROOT), str(SUITE)]

from exploits import Subject, subjects  # noqa: E402

from harness import catalog  # noqa: E402
from harness.catalog.config import load_config  # noqa: E402
from harness.judge import bounds  # noqa: E402
from harness.judge.evaluate import evaluate  # noqa: E402
from harness.machine.device import detect  # noqa: E402
from harness.model import Run  # noqa: E402
from harness.ranking import stats  # noqa: E402

RESAMPLINGS = 2000
SHARE, BOUND_US = bounds.CPU_SHARE, bounds.CPU_NS / 1e3
HONEST = """
import time
def custom_kernel(data):
    {wait}
    return data[0] * 2
"""
MARK, LOOP_S = "latencies ", 60.0
LOOP = f"""
import json, sys, time, torch
sys.path.insert(0, ".")
import attack
found = []
for call in range(int(sys.argv[1]) + 3):
    x = torch.randn(64, 64)
    data = x, {{"factor": 2.0}}
    began = time.perf_counter_ns()
    y = attack.custom_kernel(data)
    took = time.perf_counter_ns() - began
    if not torch.allclose(y, x * 2):
        raise SystemExit("wrong")
    found.append(took / 1e3)
print({MARK!r} + json.dumps(found[3:]))
"""
"""The loop of a harness that times a submission in its own process. The clock is asked for by name in each call."""

WAITS = {
    "sleep": "time.sleep({s})",
    "spin": "until = time.monotonic() + {s}\n    while time.monotonic() < until: pass",
    "native": None,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--calls", type=int, default=10)
    parser.add_argument("--work-ms", type=float, default=0.5)
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    rows = []
    with checkout("cpu", options.calls) as root:
        loops: dict[str, np.ndarray] = {}
        for attack in subjects():
            if not is_measured(attack, "cpu") or (options.names and attack.name not in options.names):
                continue
            source = shortened(attack, options.work_ms)
            kind = kind_of(source)
            turns = [
                (judged(root, "cpu", honest(kind, options.work_ms)), judged(root, "cpu", source))
                for _ in range(options.rounds)
            ]
            twin, runs = zip(*turns, strict=True)
            calls = options.rounds * options.calls
            if kind not in loops:
                loops[kind] = alone(honest(kind, options.work_ms), calls)
            without = row_alone(loops[kind], alone(source, calls))
            rows.append([attack.name, *row(latencies_us(*twin), runs, SHARE, BOUND_US), *without])
            print(rows[-1][0], *rows[-1][1:], flush=True, file=sys.stderr)
    heads = ["attack", "honest us", "attack us", "gain us", "95 % interval", "breaks the rule"]
    print(tabulate(rows, [*heads, "without the judge: honest us", "attack us", "gain us"]))


def is_measured(subject: Subject, kind: str) -> bool:
    """An attack on another problem would not be right on `double`, and has no honest twin."""
    attacks = not subject.honest and subject.at_least_ms is not None and subject.problem == "double"
    return attacks and subject.on_gpu == (kind != "cpu")


def shortened(subject: Subject, work_ms: float) -> str:
    """The submission's source, with work of `work_ms` instead of its own."""
    text = subject.path.read_text()
    assert subject.at_least_ms is not None
    text = re.sub(r"sleep\(0\.0[12]\)", f"sleep({work_ms / 1e3})", text)
    text = re.sub(r"\+ 0\.02$", f"+ {work_ms / 1e3}", text, flags=re.M)
    text = text.replace("usleep(20000)", f"usleep({work_ms * 1e3:.0f})").replace("WORK_MS = 5", f"WORK_MS = {work_ms}")
    return text


def kind_of(source: str) -> str:
    if "WORK_MS" in source:
        return "native"
    return "spin" if "monotonic() < until" in source and "0.05" not in source else "sleep"


def honest(kind: str, work_ms: float) -> str:
    if kind == "native":
        source = (SUITE / "43_leaves_out_the_worker" / "honest.py").read_text()
        return source.replace("WORK_MS = 5", f"WORK_MS = {work_ms}")
    return HONEST.format(wait=str(WAITS[kind]).format(s=work_ms / 1e3))


@contextmanager
def checkout(kind: str, calls: int) -> Iterator[Path]:
    """A root with the suite's problems, configured for `calls` calls per case in one process."""
    root = Path(tempfile.mkdtemp(prefix="podium_attacks_"))
    root.chmod(0o755)
    try:
        for folder in ("configs/devices", "submissions", "results/local"):
            (root / folder).mkdir(parents=True)
        shutil.copytree(SUITE / "problems", root / "problems")
        text = (SUITE / "eval.yml").read_text()
        (root / "configs" / "eval.yml").write_text(re.sub(r"(m(?:in|ax)_samples): \d+", rf"\1: {calls}", text))
        yield root
    finally:
        shutil.rmtree(root)


def judged(root: Path, kind: str, source: str) -> Run:
    problem, path = catalog.load_problem(root, "double"), root / "submissions" / "attack.py"
    path.write_text(source)
    device, submission = detect(root, kind), catalog.load_submission(problem, path)
    return evaluate(problem, submission, device, load_config(root), threads=1)


def alone(source: str, calls: int) -> np.ndarray:
    """The latencies in us of a submission's calls, as a loop in its own process takes them. None if it ends early or an
    answer is wrong."""
    with tempfile.TemporaryDirectory() as home:
        (Path(home) / "attack.py").write_text(source)
        command = [sys.executable, "-c", LOOP, str(calls)]
        surroundings = {**os.environ, "HOME": home, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        with subprocess.Popen(
            command,
            cwd=home,
            env=surroundings,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        ) as process:
            try:
                said, _ = process.communicate(timeout=LOOP_S)
            except subprocess.TimeoutExpired:
                said = b""
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # what it has started, too
    found = [line for line in said.decode(errors="replace").splitlines() if line.startswith(MARK)]
    return np.array(json.loads(found[-1].removeprefix(MARK)) if found else [], dtype=float)


def row_alone(honest_us: np.ndarray, attack_us: np.ndarray) -> list[str]:
    if not attack_us.size:
        return [f"{centre(honest_us):.1f}", "failed", ""]
    return [f"{centre(each):.1f}" for each in (honest_us, attack_us)] + [f"{centre(honest_us) - centre(attack_us):.1f}"]


def latencies_us(*runs: Run) -> np.ndarray:
    measured = [run.measurements[0].samples_ns for run in runs if run.measurements]
    return np.array([ns / 1e3 for processes in measured for samples in processes for ns in samples])


def row(honest_us: np.ndarray, runs: Sequence[Run], share: float, bound_us: float) -> list[object]:
    """A row of the table: both latencies, the gain, its interval, and whether it breaks the rule."""
    attack_us, unranked = latencies_us(*runs), {run.unranked_because for run in runs} - {None}
    if not attack_us.size or not honest_us.size:
        return ["", "", "", runs[0].ending.verdict.words, "no"]
    honest_mean, attack_mean = centre(honest_us), centre(attack_us)
    generator = np.random.default_rng(0)
    gains = [
        centre(generator.choice(honest_us, honest_us.size)) - centre(generator.choice(attack_us, attack_us.size))
        for _ in range(RESAMPLINGS)
    ]
    low, high = np.quantile(gains, (0.025, 0.975)).tolist()
    allowed_us = share * honest_mean + bound_us
    breaks = "YES" if low > allowed_us else "no" if high <= allowed_us else "perhaps"
    if breaks != "no" and unranked:
        breaks += f", unranked: {', '.join(sorted(unranked))}"
    return [f"{honest_mean:.1f}", f"{attack_mean:.1f}", f"{honest_mean - attack_mean:.1f}",
            f"{low:.1f} to {high:.1f}", breaks]  # fmt: skip


def centre(us: np.ndarray) -> float:
    return float(stats.interquartile_mean(us.tolist()))


if __name__ == "__main__":
    main()
