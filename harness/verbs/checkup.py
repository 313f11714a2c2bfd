"""The result of `check`: the judgement of the test cases and the compilations of the kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from harness.compile.compilation import Compilation, Flaw
from harness.compile.reach import Reach
from harness.model import CaseCheck, Submission, Text, Total, Value, Verdict

MOST_NAMED = 3
"""The most kernels that a line names."""


class Judgement(Value):
    """The result of the test cases on this machine's CPU.

    `report`: the mismatch report or traceback. `cases`: the stated cases. `checks`: the cases that were tried, secret
      ones included. `secret_untried`: the number of secret cases that were not tried. `totals`: results over all cases
      together.
    `interpreted_cases`: in how many of the checks a kernel was interpreted. `interpreted_kernels`: the names of these.
    `interpreted_switches`: the values of their constexprs that are True or False, such as `attend with CAUSAL=True`.
    `not_emulated`: what a GPU computes less exactly.
    `remarks`: remarks of the emulator, which do not affect the verdict.
    """

    verdict: Verdict
    message: Text
    report: Text | None
    printed: Text
    cases: tuple[str, ...]
    checks: tuple[CaseCheck, ...] = ()
    secret_untried: int = 0
    totals: tuple[Total, ...] = ()
    tolerances_met: Text | None = None
    emulated: Text | None = None
    interpreted_cases: int = 0
    interpreted_kernels: tuple[Text, ...] = ()
    interpreted_switches: tuple[Text, ...] = ()
    not_emulated: tuple[Text, ...] = ()
    remarks: tuple[Text, ...] = ()
    cached: bool = False


def and_what_ran_uncompiled(
    compilations: Sequence[Compilation], judgement: Judgement, targets: Sequence[str]
) -> tuple[Compilation, ...]:
    """Add a flaw for each target for which the host code launched no kernel at all, although kernels were interpreted.

    Then what was judged is not what a GPU runs, or its launches could not be followed.
    """
    found = list(compilations)
    for target in targets if judgement.interpreted_kernels else ():
        of_it = [one for one in compilations if one.target == target]
        if not any(one.kernels or one.flaws or one.skipped for one in of_it):
            ran = ", ".join(judgement.interpreted_kernels[:MOST_NAMED])
            message = f"{ran} ran in Triton's interpreter, but no launch was found to compile for this chip"
            flawed = Compilation(target=target, fault=Flaw(message=message))
            found = [*(one for one in found if one.target != target), flawed]
    return tuple(found)


@dataclass(frozen=True)
class Checkup:
    """All results of one check.

    `compilations`: one for each target, in the order asked for; empty for a file without kernels. `judgement`: the test
      cases, with Triton interpreted. `emulated`: the test cases again, with Triton's kernels run as machine code.
      `chip`: the target whose code was to be run here. `runnable`: if no target was named, the targets whose code could
      be run. `setup`: the command that installs what running it needs, if this machine lacks that. `reach`: the
      largest tensor that no CPU test case is like.
    """

    problem: str
    submission: Submission
    judgement: Judgement
    compilations: tuple[Compilation, ...]
    emulated: Judgement | None = None
    chip: str | None = None
    runnable: tuple[str, ...] = ()
    setup: str | None = None
    reach: Reach | None = None

    @property
    def exit_code(self) -> int:
        """The verdict's exit code if the verdict is against the submission. Else 11 if a kernel does not compile for
        some target. Else 30 if no target was compiled for, because the compiler is missing or the code is for other
        chips, or if the file was neither judged nor compiled."""
        if self.judgement.verdict not in (Verdict.ACCEPTED, Verdict.INFRASTRUCTURE_ERROR):
            return self.judgement.verdict.exit_code
        if self.emulated and self.emulated.verdict not in (Verdict.ACCEPTED, Verdict.INFRASTRUCTURE_ERROR):
            return self.emulated.verdict.exit_code
        if any(found.flaws for found in self.compilations):
            return Verdict.COMPILE_ERROR.exit_code
        unjudged = self.judgement.verdict is Verdict.INFRASTRUCTURE_ERROR
        nothing_compiled = self.compilations and all(found.skipped for found in self.compilations)
        if nothing_compiled or (unjudged and not any(found.kernels for found in self.compilations)):
            return Verdict.INFRASTRUCTURE_ERROR.exit_code
        return 0

    @property
    def untried_offsets(self) -> Reach | None:
        """A GPU's case with a tensor in which an offset of 32 bits wraps, if no CPU test case has one."""
        return self.reach if self.reach and self.reach.elements else None

    @property
    def never_run(self) -> tuple[str, ...]:
        """The names of Triton's kernels that were compiled and that no test case launched, if all were judged."""
        if self.judgement.verdict is not Verdict.ACCEPTED:
            return ()
        compiled = dict.fromkeys(kernel.kernel for one in self.compilations if not one.hip for kernel in one.kernels)
        return tuple(name for name in compiled if name not in self.judgement.interpreted_kernels)

    @property
    def never_compiled(self) -> tuple[str, ...]:
        """The names of kernels that a test case launched and that no launch on a simulated card was of, if something
        was compiled: host code that takes a way of its own on a CPU, or for the sizes of a CPU's cases."""
        compiled = {kernel.kernel for one in self.compilations if not one.hip for kernel in one.kernels}
        return tuple(name for name in self.judgement.interpreted_kernels if compiled and name not in compiled)

    @property
    def untried_switches(self) -> tuple[str, ...]:
        """The constexprs that are True in a compiled kernel and were always False where it was interpreted, or vice
        versa, each with its kernel: `attend with CAUSAL=True`. What they choose was not judged."""
        if self.judgement.verdict is not Verdict.ACCEPTED:
            return ()
        seen = set(self.judgement.interpreted_switches)
        compiled = [
            kernel for one in self.compilations if not one.hip for kernel in one.kernels if not kernel.autotuned
        ]
        switches = dict.fromkeys(
            (f"{kernel.kernel} with {name}={value}", f"{kernel.kernel} with {name}={not value}")
            for kernel in compiled
            for name, value in kernel.configuration.items()
            if isinstance(value, bool)
        )
        return tuple(words for words, other in switches if words not in seen and other in seen)

    @property
    def judged_in_part(self) -> tuple[str, ...]:
        """The names of the kernels of which an autotuner's first configuration alone was judged."""
        chosen = dict.fromkeys(kernel.kernel for one in self.compilations for kernel in one.kernels if kernel.autotuned)
        return tuple(name for name in chosen if name in self.judgement.interpreted_kernels)

    def as_json(self) -> dict[str, Any]:
        beyond = self.untried_offsets
        return {
            "problem": self.problem,
            "submission": self.submission.name,
            "submission_sha256": self.submission.sha256,
            "judgement": self.judgement.model_dump(mode="json"),
            "emulated": self.emulated.model_dump(mode="json") if self.emulated else None,
            "beyond_int32": {"elements": beyond.elements, "case": beyond.case} if beyond else None,
            "targets": [found.model_dump(mode="json") for found in self.compilations],
            "exit_code": self.exit_code,
        }
