"""A problem folder of GPU MODE's competitions: its generator makes the inputs and its checker decides.

    generate_input(**case, seed=...)         data, in any tree of tensors
    check_implementation(data, output)       (right, why), or only why, empty if right
    ref_kernel(data)                         optional: compared with in reports and canaries

The folder's Python comes from the organiser and is trusted. It runs in the judge, in a scope of its own; its eval.py
never runs. When a folder is opened, its checker must tell right from wrong (canaries): other seeds must give other
inputs, and zeros and a copy of an input must fail.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Collection
from contextlib import AbstractContextManager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from harness import custody
from harness.catalog import formula
from harness.errors import Overtime, ProblemError
from harness.judge.canaries import all_finite, constant_answer, is_not_zero, not_finite, same, wrong_answers
from harness.judge.conditions import by_default, filled_memory, left_empty, seed_everything
from harness.judge.copies import are_tensors, copied, in_form, unchanged
from harness.judge.guest import limited
from harness.judge.opaque import OpaqueChecker, OpaqueDealer
from harness.judge.opinion import NoOpinion, Opinion, apart, heard
from harness.judge.reference import Reference, members
from harness.judge.reply import MOST_OUTPUTS, Fault
from harness.judge.scope import Scope
from harness.judge.seeds import Seeds
from harness.model import Case, Device, Problem, Verdict
from harness.wire.arena import is_apart
from harness.wire.tree import Leaves, flatten

SEED_CAPS = (2**31, 2**16)
"""Seeds are drawn below the first of these caps with which the canaries fail as they must. A seed added to values of
float32 hides them from 2^24 on."""

ITS_SHARE = 0.5
"""The share of its limit that a checker may take for ref_kernel's own answer, if it did not end for a submission's. A
checker that needs more says nothing about the submission."""

MOST_CANARY_CASES = 3
LEAST_OUTPUT_BYTES = 1 << 16
WIDEST = 8
"""Bytes of an element of float64 and int64. A checker may accept these instead of a narrower dtype."""


class FolderReference(Reference):
    """The reference of such a folder. Raises ProblemError if its files fail or do not tell right from wrong."""

    _generator = "generate_input"

    def __init__(self, problem: Problem, device: Device) -> None:
        assert problem.foreign is not None
        self._foreign, self._on_cpu = problem.foreign, device.kind == "cpu"
        self._scope = Scope(problem.foreign.modules, self._on_cpu)
        self._cases = problem.cases_for(device.kind)
        self._sizes: dict[str, list[int]] = {}
        self._due: dict[str, list[int]] = {}
        self.blind = True
        """Whether the checker may take NaN or Inf for right, as far as is known."""
        self._changeable: dict[str, set[str]] = {}
        self._form: type = tuple
        self._shared: dict[str, None] = {}
        self._seed_below = problem.foreign.seed_below or SEED_CAPS[0]
        self._limit_s = problem.limits.longest_stage_s
        super().__init__(problem, device)
        self.notes = tuple(problem.foreign.terms(device.name, datetime.now(UTC)))
        self._put_canaries()

    @property
    def has_reference(self) -> bool:
        return hasattr(self._module, "ref_kernel")

    @property
    def owners(self) -> Collection[str]:
        """The modules whose classes objects among the inputs may have."""
        return self._foreign.modules

    def leaves(self, data: Any) -> Leaves:
        """The tensors in `data` with their names. Raises ProblemError for data that cannot be sent to a worker."""
        try:
            return flatten(data, None, self.owners)[1]
        except TypeError as error:
            raise ProblemError(f"{self.problem.name}: {self._generator}: {error}") from None

    def dealer(self, case: Case, seeds: Seeds) -> OpaqueDealer:
        return OpaqueDealer(self, case, seeds, watched=self._foreign.strict_inputs)

    def checker(self) -> OpaqueChecker:
        return OpaqueChecker(self)

    def admitted(self, seed: int) -> int:
        return seed % self._seed_below

    def generate(self, case: Case, seed: int) -> Any:
        parameters: dict[str, Any] = dict(case.parameters)
        if self._foreign.as_text:
            parameters = {key: str(value) if isinstance(value, bool) else value for key, value in parameters.items()}
        with self._scope(), filled_memory():
            seed_everything(seed)
            return self._run("generate_input", **parameters, seed=seed)

    def expected(self, data: Any) -> list[torch.Tensor] | None:
        """The output of ref_kernel for a copy of `data`, on the judge's device. It is computed in float64 if the
        problem asks for that. None without a ref_kernel, or if it returns anything but tensors."""
        found = self._answer(data)
        return None if found is None else [tensor.detach() for tensor in members(found)]

    def opinion(self, data: Any, output: Any) -> Opinion:
        """Ask check_implementation about a submission's `output`, with a copy of `data` as it was before the call.

        If it gives no opinion on the output but does on ref_kernel's output for the same data, the output counts as
        refused. Without a ref_kernel, raises a Fault that blames nobody; else ProblemError or InfrastructureError.
        """
        try:
            return self._asked(data, output, self._limit_s, again=True)
        except NoOpinion as none:
            return self._instead(data, output, none)

    def _asked(self, data: Any, output: Any, limit_s: float, again: bool = False) -> Opinion:
        """Ask check_implementation. Raises NoOpinion. `again`: whether another process should judge if this process is
        ended."""
        what = f"check_implementation of {self._source}"

        def ask() -> Opinion:
            return heard(lambda: self._module.check_implementation(copied(data), in_form(self._form, output)), what)

        with self._scope():
            if self._on_cpu and custody.careful():
                return apart(ask, what, limit_s)
            try:
                with limited(what, limit_s, again=again and self._on_cpu):
                    return ask()
            except Overtime:
                raise NoOpinion.late(what, limit_s) from None

    def _instead(self, data: Any, output: Any, none: NoOpinion) -> Opinion:
        answer = self._answer(data)
        if answer is None:
            verdict = Verdict.TIMEOUT if isinstance(none.error, Overtime) else Verdict.RUNTIME_ERROR
            said = f"the problem's checker {none.how} on this output, and there is no ref_kernel to compare it with"
            raise Fault(verdict, said)
        began = time.monotonic()
        try:
            self._asked(data, answer, ITS_SHARE * self._limit_s)
        except NoOpinion:
            raise none.error from None
        took_s = time.monotonic() - began
        if none.passing:
            with suppress(NoOpinion):
                return self._asked(data, output, self._limit_s)
        self.stuck = True
        return Opinion(False, f"it {none.how} on this output; for ref_kernel's output it answers in {took_s:.2g} s")

    def _tried(self, data: Any, answer: Any) -> Opinion:
        """Ask the checker about one of the judge's own answers."""
        try:
            return self._asked(data, answer, self._limit_s)
        except NoOpinion as none:
            raise none.error from None

    def output_bytes(self, case: Case, data: Any) -> list[int]:
        """Bytes of each output of ref_kernel, with room for elements of the widest dtype, which a checker may accept.
        Without a ref_kernel: as many bytes as all inputs have."""
        if case.key not in self._sizes:
            expected = self.expected(data)
            if expected is None:
                total = sum(tensor.numel() * tensor.itemsize for _, tensor in self.leaves(data))
                self._sizes[case.key] = [max(total, LEAST_OUTPUT_BYTES)]
            else:
                self._sizes[case.key] = [max(t.numel() * WIDEST, 1) for t in expected]
                self._due[case.key] = [t.numel() for t in expected]
        return self._sizes[case.key]

    def outputs_due(self, case: Case) -> list[int] | None:
        """The number of elements of each output of ref_kernel, once a call of `case` was dealt. None without a
        ref_kernel."""
        return self._due.get(case.key)

    def changeable(self, case: Case, data: Any) -> set[str]:
        """The names of the inputs that a submission may change under `strict: inputs`: those that ref_kernel changes,
        and those that generate_input left empty."""
        if case.key not in self._changeable:
            after = copied(data)
            with self._scope():
                if self.has_reference:
                    self._run("ref_kernel", after)
            left = dict(self.leaves(after))
            self._changeable[case.key] = {
                name for name, was in self.leaves(data) if left_empty(was) or not unchanged(was, left.get(name))
            }
        return self._changeable[case.key]

    def does_not_fit(self, case: Case, memory_bytes: int) -> str | None:
        return None

    def cost(self, case: Case) -> dict[str, dict[str, Any]]:
        """The cost by the formulas of podium.yml; empty without any."""
        return {
            name: {
                "bytes": formula.value(cost.bytes, case.parameters),
                "flops": {dtype: formula.value(text, case.parameters) for dtype, text in cost.flops.items()},
            }
            for name, cost in self._foreign.cost.items()
        }

    def most_bytes(self, case: Case) -> float:
        return max((float(cost["bytes"]) for cost in self.cost(case).values()), default=0.0)

    def _imported(self) -> Any:
        path = self._foreign.modules["reference"]
        with self._scope(), self._called("the import"):
            try:
                module = self._scope.module("reference")
            except (Exception, SystemExit) as error:
                raise ProblemError(f"{path} cannot be imported: {type(error).__name__}: {error}") from error
        for name in ("generate_input", "check_implementation"):
            if not callable(getattr(module, name, None)):
                raise ProblemError(f"{path} has no {name}")
        return module

    def allow(self, limit_s: float | None) -> None:
        self._limit_s = self.problem.limits.longest_stage_s if limit_s is None else limit_s

    def reported(self, expected: list[torch.Tensor]) -> Problem:
        """The problem with the tolerance that a report uses to find the worst elements."""
        return self.problem

    @property
    def _source(self) -> Path:
        """The file whose functions are called."""
        return self._foreign.modules["reference"]

    def _called(self, function: str) -> AbstractContextManager[None]:
        """Run that function within this block, under its time limit."""
        return limited(f"{function} of {self._source}", self._limit_s)

    def _run(self, function: str, *arguments: Any, **named: Any) -> Any:
        with self._called(function):
            return super()._run(function, *arguments, **named)

    def _answer(self, data: Any) -> Any:
        if not self.has_reference:
            return None
        with self._scope():
            answer = self._run("ref_kernel", copied(data))
            if not are_tensors(answer):
                return None
            if any(tensor.is_complex() for tensor in members(answer)):
                raise ProblemError(f"{self.problem.name}: ref_kernel gives complex numbers, which are not judged")
            self._form = type(answer)
            if not self._foreign.exact:
                return answer
            with by_default(torch.float64):  # for tensors that ref_kernel makes of Python's numbers
                exact = members(self._run("ref_kernel", copied(data, torch.float64)))
            return tuple(truth.to(plain.dtype) for truth, plain in zip(exact, members(answer), strict=True))

    def _put_canaries(self) -> None:
        """Have wrong answers judged, with seeds near the upper end. Try one cap on seeds after another until all are
        refused."""
        own = self._foreign.seed_below
        caps = (own,) if own is not None else SEED_CAPS
        faults = []
        for cap in caps:
            self._seed_below = cap
            fault = self._fault_of_canaries()
            if fault is None:
                break
            faults.append(fault)
        else:
            raise ProblemError(
                f"{self.problem.name}: with seeds below {caps[0]:,} {faults[0]}",
                "seed_below in podium.yml beside task.yml sets another cap on seeds",
            )
        if custody.careful():
            self.notes += ("the checker runs in a child process: it ended the process that judged first",)
        if self._shared:
            names = ", ".join(self._shared)
            self.notes += (f"{names}: elements that share a place in memory are separate in a submission's inputs",)
        if faults:
            self.notes += (f"seeds are below {self._seed_below:,}: with seeds below {caps[0]:,} {faults[0]}",)

    def _fault_of_canaries(self) -> str | None:
        """Say in words what is wrong with the inputs that the folder draws or the answers that it accepts."""
        cap, faults = self._seed_below, []
        for case in self._cases.test[:MOST_CANARY_CASES]:
            seeds = (cap - 1, cap // 2 + secrets.randbelow(cap // 2 - (cap > 2)) if cap > 2 else 0)
            data, other = (self.generate(case, seed) for seed in seeds)
            self._shared |= {name: None for name, t in self.leaves(data) if not is_apart(t.shape, t.stride())}
            if same(self.leaves(data), self.leaves(other)):
                faults.append(f"generate_input draws the same inputs from two seeds, in {case.label}")
                continue
            fault = self._fault_of_checker(case, data)
            if fault is None:
                return None
            faults.append(fault)
        return faults[0]

    def _fault_of_checker(self, case: Case, data: Any) -> str | None:
        answer = self._answer(data)
        if answer is None:
            return None
        if len(members(answer)) > MOST_OUTPUTS:
            said = f"ref_kernel gives {len(members(answer))} outputs; at most {MOST_OUTPUTS} can be judged"
            raise ProblemError(f"{self.problem.name}: {said}")
        if self._foreign.checker_decides:
            opinion = self._tried(data, answer)
            if not opinion.right:
                raise ProblemError(
                    f"{self.problem.name}: check_implementation refuses ref_kernel's output, in {case.label}",
                    opinion.why or None,
                )
            self.blind = any(self._tried(data, wrong).right for wrong in not_finite(answer))
        if not any(is_not_zero(output) for output in members(answer)):
            return f"all elements of the answer are zero, in {case.label}"
        for what, wrong in wrong_answers(self.leaves(data), answer):
            if self.blind and not all_finite(members(wrong)) and all_finite(members(answer)):
                continue  # an unwritten buffer: the judge refuses NaN that the checker does not see
            if self._foreign.checker_decides and self._tried(data, wrong).right:
                return f"check_implementation accepts {what}, in {case.label}"
        return constant_answer(self.leaves(data), answer, case)
