"""The warning before a CPU interprets a case much larger than its own: the expected duration, with longer limits."""

from __future__ import annotations

import math
from pathlib import Path

from harness.judge.reference import Reference, open_reference
from harness.machine.device import detect
from harness.model import LONGEST_CALL_S, Case, Limits, Problem, Submission
from harness.verbs.check import engines

MUCH_LARGER = 8.0
"""The ratio of the work to that of the largest test case. CPU test cases are sized so that an interpreted kernel takes
seconds."""


def of_interpreting(root: Path, whole: Problem, chosen: Problem, submission: Submission) -> tuple[Problem, str | None]:
    """Return `chosen` with longer time limits if `submission` uses Triton and a case is larger than every test case of
    `whole`, the problem with all its cases. If the case is much larger, also return a warning for the user.

    The test cases of a CPU are sized to be interpreted within the limits. So the limits grow in proportion to the work.
    Raises ProblemError.
    """
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
    """Multiply all limits except the one for loading by `times`, rounded up to whole seconds."""
    known = {
        name: math.ceil(limit_s * times)
        for name, limit_s in limits.model_dump(exclude={"load_s", "call_s"}).items()
        if limit_s is not None
    }
    return limits.model_copy(update=known | {"call_s": min(math.ceil(limits.call_s * times), LONGEST_CALL_S)})


def _work(reference: Reference, case: Case) -> float:
    """Return the number of operations of a case, or its bytes if those are more."""
    costs = reference.cost(case).values()
    return max((max(float(cost["bytes"]), float(sum(cost["flops"].values()))) for cost in costs), default=0.0)
