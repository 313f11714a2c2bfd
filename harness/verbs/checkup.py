"""What `check` finds: the judgement of the test cases, and what compilers made of the kernels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from harness.compile.compilation import Compilation
from harness.model import CaseCheck, Submission, Text, Total, Value, Verdict


class Judgement(Value):
    """What became of the test cases on this machine's processor. `report`: mismatch report or traceback. `cases`: those
    that are stated; `checks` has those that were tried, the secret ones among them, of which `secret_untried` were not;
    `totals` what all of them come to together. `remarks`: the emulator's, which decide nothing."""

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
    remarks: tuple[Text, ...] = ()
    cached: bool = False


@dataclass(frozen=True)
class Checkup:
    """All that was found. `compilations`: one a target, in the order asked for; none for a file without kernels.
    `emulated`: of Triton's kernels as machine code, beside the interpreter's `judgement`. `chip`: the target whose code
    was to be run here. `runnable`: targets whose code would be run if they were named, where none were."""

    problem: str
    submission: Submission
    judgement: Judgement
    compilations: tuple[Compilation, ...]
    emulated: Judgement | None = None
    chip: str | None = None
    runnable: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        """The verdict's where it is against the submission; else 11 if anything does not compile for a target; else 30
        if it was compiled for no target, for want of a compiler or because it is for others, or if it was neither
        judged nor compiled."""
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

    def as_json(self) -> dict[str, Any]:
        return {
            "problem": self.problem,
            "submission": self.submission.name,
            "submission_sha256": self.submission.sha256,
            "judgement": self.judgement.model_dump(mode="json"),
            "emulated": self.emulated.model_dump(mode="json") if self.emulated else None,
            "targets": [found.model_dump(mode="json") for found in self.compilations],
            "exit_code": self.exit_code,
        }
