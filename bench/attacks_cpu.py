"""Measures the gain of attacks on the judge's clock on a CPU. Each attack does work of known length and tries to hide
part of it.

    python bench/attacks_cpu.py [--calls 40] [--work-ms 0.5] [NAME...]

The attacks are those of tests/adversarial that are accepted and state the length of their work (`at least ms`). Here
the work takes `--work-ms`. Each attack is judged right after an honest twin that does the same work, on the suite's
problem `double`.

Prints a table with a row per attack: the honest latency and the attack's latency in us, and the gain. The gain is their
difference, with a 95 % interval from resampling the calls. A gain whose interval lies above 5 % + 150 us breaks the
rule.
"""

from __future__ import annotations

import argparse
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from tabulate import tabulate

ROOT = Path(__file__).resolve().parents[1]
SUITE = ROOT / "tests" / "adversarial"
sys.path[:0] = [str(ROOT), str(SUITE)]

from exploits import Subject, subjects  # noqa: E402

from harness import catalog  # noqa: E402
from harness.catalog.config import load_config  # noqa: E402
from harness.judge.evaluate import evaluate  # noqa: E402
from harness.machine.device import detect  # noqa: E402
from harness.model import Run  # noqa: E402
from harness.ranking import stats  # noqa: E402

FLUSH_BYTES = 4 << 20
RESAMPLINGS = 2000
SHARE, BOUND_US = 0.05, 50.0
HONEST = """
import time
def custom_kernel(data):
    {wait}
    return data[0] * 2
"""
WAITS = {
    "sleep": "time.sleep({s})",
    "spin": "until = time.monotonic() + {s}\n    while time.monotonic() < until: pass",
    "native": None,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=40)
    parser.add_argument("--work-ms", type=float, default=0.5)
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    rows = []
    with checkout("cpu", options.calls) as root:
        twins: dict[str, np.ndarray] = {}
        for attack in subjects():
            if not is_measured(attack, "cpu") or (options.names and attack.name not in options.names):
                continue
            source = shortened(attack, options.work_ms)
            kind = kind_of(source)
            if kind not in twins:
                twins[kind] = latencies_us(judged(root, "cpu", honest(kind, options.work_ms)))
            run = judged(root, "cpu", source)
            rows.append([attack.name, *row(twins[kind], run, SHARE, BOUND_US)])
            print(rows[-1][0], *rows[-1][1:], flush=True, file=sys.stderr)
    print(tabulate(rows, ["attack", "honest us", "attack us", "gain us", "95 % interval", "breaks the rule"]))


def is_measured(subject: Subject, kind: str) -> bool:
    return not subject.honest and subject.at_least_ms is not None and subject.on_gpu == (kind != "cpu")


def shortened(subject: Subject, work_ms: float) -> str:
    """The submission with work of `work_ms` wherever it has its own."""
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
    """The suite's problems in a root of their own, and `calls` calls a case in one process."""
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
    device = detect(root, kind)
    if kind == "cpu":
        device = device.model_copy(update={"flush_bytes": FLUSH_BYTES})
    return evaluate(problem, catalog.load_submission(problem, path), device, load_config(root), threads=1)


def latencies_us(run: Run) -> np.ndarray:
    if not run.measurements:
        return np.empty(0)
    return np.array([ns / 1e3 for samples in run.measurements[0].samples_ns for ns in samples])


def row(honest_us: np.ndarray, run: Run, share: float, bound_us: float) -> list[object]:
    """Both latencies, the gain, its interval, and whether it breaks the rule."""
    attack_us = latencies_us(run)
    if not attack_us.size or not honest_us.size:
        return ["", "", "", run.ending.verdict.words, "no"]
    honest_mean, attack_mean = centre(honest_us), centre(attack_us)
    generator = np.random.default_rng(0)
    gains = [
        centre(generator.choice(honest_us, honest_us.size)) - centre(generator.choice(attack_us, attack_us.size))
        for _ in range(RESAMPLINGS)
    ]
    low, high = np.quantile(gains, (0.025, 0.975)).tolist()
    allowed_us = share * honest_mean + bound_us
    breaks = "YES" if low > allowed_us else "no" if high <= allowed_us else "perhaps"
    if breaks != "no" and run.unranked_because is not None:
        breaks += f", unranked: {run.unranked_because}"
    return [f"{honest_mean:.1f}", f"{attack_mean:.1f}", f"{honest_mean - attack_mean:.1f}",
            f"{low:.1f} to {high:.1f}", breaks]  # fmt: skip


def centre(us: np.ndarray) -> float:
    return float(stats.interquartile_mean(us.tolist()))


if __name__ == "__main__":
    main()
