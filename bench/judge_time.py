"""Where the time of one judged call goes, per benchmark case: making inputs, the expectation, the worker, the check.

    python bench/judge_time.py PROBLEM [FILE] [--device auto] [--calls 5]

Milliseconds, the median over calls after a first one, in one worker process. `turnaround` is what the judge's clock
takes from the inputs to the reply, a part of `worker`; `latency` is what the worker claims for the timed part of that.
Prints a table and one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

import torch
from tabulate import tabulate

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from harness import catalog, device  # noqa: E402
from harness.judge.check import compare, differences  # noqa: E402
from harness.judge.inputs import Dealer  # noqa: E402
from harness.judge.pace import PATIENCE_S  # noqa: E402
from harness.judge.reference import Reference  # noqa: E402
from harness.judge.reply import CallReply  # noqa: E402
from harness.judge.seeds import Seeds, new_master_seed  # noqa: E402
from harness.judge.session import Session  # noqa: E402
from harness.model import Case  # noqa: E402
from harness.sandbox import tiers  # noqa: E402
from harness.sandbox.scratch import scratch  # noqa: E402

PARTS = ("generate", "expect", "deal", "worker", "turnaround", "latency", "check")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("problem")
    parser.add_argument("file", nargs="?", type=Path)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--calls", type=int, default=5)
    options = parser.parse_args()
    here = device.detect(ROOT, options.device)
    problem = catalog.load_problem(ROOT, options.problem)
    file = options.file or ROOT / "submissions" / problem.name / f"{problem.baselines[0]}.py"
    reference = _Timed(problem, here)
    rows = []
    with scratch(file.read_bytes(), tiers.strongest(here).new_uid()) as folder:
        started = time.monotonic()
        session = Session(problem, here, folder, 1)
        try:
            session.load(folder / "submission.py")
            start_s = time.monotonic() - started
            for case in problem.cases_for(here.kind).benchmark:
                rows.append({"case": case.label, **_case(session, reference, case, options.calls)})
                print(rows[-1], file=sys.stderr, flush=True)
        finally:
            session.kill()
    print(f"{problem.name} on {here.name}: a worker is there, the submission loaded, after {start_s:.2f} s")
    print(tabulate([[row["case"], *(f"{row[part]:.2f}" for part in PARTS)] for row in rows], ["case", *PARTS]))
    print(json.dumps({"problem": problem.name, "device": here.name, "start_s": start_s, "cases": rows}))


def _case(session: Session, reference: _Timed, case: Case, calls: int) -> dict[str, float]:
    dealer = Dealer(reference, case, Seeds(new_master_seed(), "bench", case))
    tolerances = reference.problem.tolerances_for(case)
    samples: list[dict[str, float]] = []
    try:
        for _ in range(1 + calls):
            reference.spent_s = dict.fromkeys(("generate", "expect"), 0.0)
            dealing = time.monotonic()
            call = dealer.deal(everything=False)
            assert dealer.arena is not None
            asking = time.monotonic()
            request = {**call.request, "page_in": True, "flush": True}
            checked = []

            def read(reply: CallReply, call=call, checked=checked) -> None:  # type: ignore[no-untyped-def]
                checked.append(time.monotonic())
                compare(call, differences(call, reply, dealer.arena, tolerances), tolerances)  # type: ignore[arg-type]
                reference.wait()
                checked.append(time.monotonic())

            answer = session.call(request, dealer.arena, case.label, dealer.pour, PATIENCE_S, read)
            checking, done = checked
            spent = reference.spent_s
            samples.append(
                {
                    **spent,
                    "deal": asking - dealing - sum(spent.values()),
                    "worker": checking - asking,
                    "turnaround": answer.turnaround_ns / 1e9,
                    "latency": answer.reply.latency_ns / 1e9,
                    "check": done - checking,
                }
            )
            del call, answer
    finally:
        dealer.close()
    return {part: 1e3 * statistics.median(sample[part] for sample in samples[1:]) for part in PARTS}


class _Timed(Reference):
    """A reference that notes how long its generator and its kernel take."""

    spent_s: dict[str, float]

    def wait(self) -> None:
        if self.torch_device != "cpu":
            torch.cuda.synchronize()

    def generate(self, *arguments):  # type: ignore[no-untyped-def]
        return self._timed("generate", super().generate, arguments)

    def expect(self, *arguments):  # type: ignore[no-untyped-def]
        return self._timed("expect", super().expect, arguments)

    def _timed(self, part, function, arguments):  # type: ignore[no-untyped-def]
        self.wait()
        started = time.monotonic()
        result = function(*arguments)
        self.wait()
        self.spent_s[part] += time.monotonic() - started
        return result


if __name__ == "__main__":
    main()
