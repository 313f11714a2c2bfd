"""What is said before a case is interpreted that is much larger than those made for it."""

from __future__ import annotations

from pathlib import Path

from harness.judge.reference import Reference, open_reference
from harness.machine.device import detect
from harness.model import Case, Problem, Submission
from harness.verbs.check import engines

MUCH_LARGER = 8.0
"""Times the work of the largest test case. Those for CPUs are made to take an interpreted kernel seconds."""


def of_interpreting(root: Path, whole: Problem, chosen: Problem, submission: Submission) -> str | None:
    """A line for `submission` on a CPU if it uses Triton, and a case of `chosen` is much larger than every test case of
    `whole`, the problem with all of its cases. Raises ProblemError."""
    if "cross_compile" not in engines(submission.text):
        return None
    reference = open_reference(whole, detect(root, "cpu"))
    asked = max((*chosen.cpu.test, *chosen.cpu.benchmark), key=lambda case: _work(reference, case))
    largest = max(whole.cpu.test, key=lambda case: _work(reference, case))
    most = _work(reference, largest)
    times = _work(reference, asked) / most if most else 0.0
    if times < MUCH_LARGER:
        return None
    return (
        f"Triton kernels are interpreted here, one program after another: {asked.label} is {times:.0f} times the work "
        f"of the largest test case, takes as much longer, and is ended after {whole.limits.call_s:g} s a call; "
        f"a smaller case: --case '{largest.label}'"
    )


def _work(reference: Reference, case: Case) -> float:
    """Operations, or bytes where those are more."""
    costs = reference.cost(case).values()
    return max((max(float(cost["bytes"]), float(sum(cost["flops"].values()))) for cost in costs), default=0.0)
