"""Measures the memory of judging a case, as a multiple of the case's inputs and outputs.

    python bench/judge_memory.py [PROBLEM ...]

For the largest CPU benchmark case of each problem: the resident memory of the judge, and of the worker with the
problem's first baseline, each minus the same process's memory before its first case, over the bytes of the case's
inputs and outputs. Each process's own peak is counted by the kernel. The peak of their sum, in which shared memory
counts once, is sampled some thousand times a second. The workspaces of the reference and the submission are included.
Budget for the sum: 8, because the judge of a CPU's cases keeps freed blocks (judge/assembly.py). Prints a table and one
line of JSON.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import threading
import time
from pathlib import Path

from tabulate import tabulate

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))


def main() -> None:
    from harness import catalog

    names = sys.argv[1:] or catalog.problem_names(ROOT)
    rows = []
    for name in names:
        done = subprocess.run([sys.executable, __file__, "--child", name], check=True, capture_output=True, text=True)
        rows.append(json.loads(done.stdout.splitlines()[-1]))
    print(f"{time.strftime('%Y-%m-%d')}")
    print(tabulate(rows, headers="keys", tablefmt="simple_outline", floatfmt=".2f"))
    print(json.dumps({"bench": "judge_memory", "rows": rows}))


def measure(name: str) -> dict[str, object]:
    """Judge the case a few times in this process and read the peaks from /proc."""
    from harness import catalog
    from harness.judge.assembly import be_a_quiet_neighbour
    from harness.judge.caches import HostCaches
    from harness.judge.calls import Caller, Series
    from harness.judge.clocks import Clocks
    from harness.judge.reference import Reference
    from harness.judge.seeds import OneSeed
    from harness.judge.session import Session
    from harness.machine.device import detect
    from harness.model import Case, Verdict
    from harness.sandbox import tiers
    from harness.sandbox.scratch import scratch
    from harness.wire.tree import flatten

    problem, here = catalog.load_problem(ROOT, name), detect(ROOT, "cpu")
    be_a_quiet_neighbour("cpu")
    reference = Reference(problem, here)

    def payload(case: Case) -> int:
        data = reference.generate(case, 1)
        sizes = {t.data_ptr(): t.numel() * t.itemsize for _, t in flatten(data, problem.inputs)[1]}
        for output in reference.expect(data, None):
            sizes[output.data_ptr()] = output.numel() * output.itemsize
        return sum(sizes.values())

    small, large = problem.cpu.test[0], max(problem.cpu.benchmark, key=payload)
    case_bytes = payload(large)
    clock = Clocks(here).for_checks
    caller = Caller(reference, "", here, HostCaches())
    submission = ROOT / "submissions" / name / f"{problem.baselines[0]}.py"
    with scratch(submission.read_bytes(), tiers.strongest(here).new_uid()) as folder:
        session = Session(problem, here, folder, 2)
        try:
            session.prepare()
            session.load(folder / "submission.py")
            worker = _largest(session._enclosure.pid)

            def judge(case: Case, repeats: int) -> None:
                with caller.series(OneSeed(1), case) as series:
                    for _ in range(repeats):
                        one(series)
                    arena_bytes.append(series.dealer.arena.size if series.dealer.arena else 0)

            def one(series: Series) -> None:
                check, _ = caller.put(session, series, clock, everything=False)
                assert check is not None and check.verdict is Verdict.ACCEPTED

            arena_bytes: list[int] = []

            # Code pages of torch touched for the first time must not count, so a first round on both sides touches
            # them. The memory that the worker's allocator keeps from that round still counts as the worker's.
            judge(small, 2)
            worker_kb = _status_kb(worker, "RssAnon")
            judge(large, 2)
            processes = {"judge": "self", "worker": worker}
            _release_unused()
            before = {who: _status_kb(pid, "VmRSS") for who, pid in processes.items()}
            before["worker"] -= _status_kb(processes["worker"], "RssAnon") - worker_kb
            for pid in processes.values():
                Path(f"/proc/{pid}/clear_refs").write_text("5")  # reset the peaks, proc(5)
            with _Watch(list(processes.values())) as watch:
                judge(large, 5)
            peak = {who: (_status_kb(pid, "VmHWM") - before[who]) * 1024 for who, pid in processes.items()}
        finally:
            session.kill()
    return {
        "problem": name,
        "case": large.label,
        "inputs and outputs MB": case_bytes / 1e6,
        "judge MB": peak["judge"] / 1e6,
        "worker MB": peak["worker"] / 1e6,
        "judge x": peak["judge"] / case_bytes,
        "worker x": peak["worker"] / case_bytes,
        "at once x": (watch.peak_bytes - 1024 * sum(before.values()) - arena_bytes[-1]) / case_bytes,
    }


class _Watch:
    """The greatest sum of the resident sizes of some processes, sampled in a thread."""

    def __init__(self, pids: list[str]) -> None:
        self._pids, self._stop = pids, threading.Event()
        self.peak_bytes = 0

    def __enter__(self) -> _Watch:
        self._thread = threading.Thread(target=self._sample)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _sample(self) -> None:
        page = resource.getpagesize()
        while not self._stop.wait(0.0005):
            pages = sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in self._pids)
            self.peak_bytes = max(self.peak_bytes, pages * page)


def _release_unused() -> None:
    import ctypes
    import gc

    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)


def _largest(keeper_pid: int) -> str:
    """The worker: the keeper's descendant that uses the most memory."""
    from harness.sandbox.footprint import descendants, process_table

    return max(map(str, descendants(keeper_pid, process_table())), key=lambda pid: _status_kb(pid, "VmRSS"))


def _status_kb(pid: str, field: str) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1])
    raise KeyError(field)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        print(json.dumps(measure(sys.argv[2])))
    else:
        main()
