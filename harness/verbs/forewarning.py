"""What is said before a case is interpreted that is much larger than those made for it, and how long it may take."""

from __future__ import annotations

import math
from pathlib import Path

from harness.judge.reference import Reference, open_reference
from harness.machine.device import detect
from harness.model import LONGEST_CALL_S, Case, Limits, Problem, Submission
from harness.verbs.check import engines

MUCH_LARGER = 8.0
"""Times the work of the largest test case. Those for CPUs are made to take an interpreted kernel seconds."""


def of_interpreting(root: Path, whole: Problem, chosen: Problem, submission: Submission) -> tuple[Problem, str | None]:
    """`chosen` with the time that `submission` may take on a CPU, where it uses Triton and a case is larger than every
    test case of `whole`, the problem with all of its cases: those are made to be interpreted within its limits, and a
    right kernel is in time on a larger case if it may take as much longer. With a line for whoever waits, if the case
    is much larger. Raises ProblemError."""
    if "cross_compile" not in engines(submission.text):
        return chosen, None
    reference = open_reference(whole, detect(root, "cpu"))
    asked = max((*chosen.cpu.test, *chosen.cpu.benchmark), key=lambda case: _work(reference, case))
    largest = max(whole.cpu.test, key=lambda case: _work(reference, case))
    most = _work(reference, largest)
    times = _work(reference, asked) / most if most else 0.0
    if times <= 1:
        return chosen, None
    limits = _longer(whole.limits, times)
    chosen = chosen.model_copy(update={"limits": limits})
    if times < MUCH_LARGER:
        return chosen, None
    return chosen, (
        f"Triton kernels are interpreted here, one program after another: {asked.label} is {times:.0f} times the work "
        f"of the largest test case and takes as much longer; a call may take {limits.call_s:g} s, Ctrl-C ends it; "
        f"a smaller case: --case '{largest.label}'"
    )


def _longer(limits: Limits, times: float) -> Limits:
    """All of them but on loading, so many times as long, and whole seconds."""
    known = {
        name: math.ceil(limit_s * times)
        for name, limit_s in limits.model_dump(exclude={"load_s", "call_s"}).items()
        if limit_s is not None
    }
    return limits.model_copy(update=known | {"call_s": min(math.ceil(limits.call_s * times), LONGEST_CALL_S)})


def _work(reference: Reference, case: Case) -> float:
    """Operations, or bytes where those are more."""
    costs = reference.cost(case).values()
    return max((max(float(cost["bytes"]), float(sum(cost["flops"].values()))) for cost in costs), default=0.0)
