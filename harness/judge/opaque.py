"""Judge calls of a problem in another project's form. Its own checker decides, or the tolerances of podium.yml.

Dealer    generate_input's data, with its strides ─► a call without an expectation
Checker   snapshot ─► the output as custom_kernel returned it, in the judge's memory ─► Opinion ─► CaseCheck

If there is a reference, Podium's mismatch report stands beside the checker's message.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from harness.errors import ProblemError
from harness.judge import mismatch
from harness.judge.canaries import all_finite
from harness.judge.checked_call import CheckedCall
from harness.judge.checker import Checker
from harness.judge.difference import Difference, bits, read, rel_l2
from harness.judge.inputs import GAPS, LEAST_GAP, STARTS, Call, Dealer, Expectation, scattered
from harness.judge.reply import CallReply
from harness.judge.seeds import Seeds
from harness.judge.selection import Selection
from harness.judge.stage import Snapshot, Span, claimed
from harness.judge.tally import Tally
from harness.model import CHECKER, Case, CaseCheck, Excess, Problem, Verdict
from harness.wire.arena import ALIGNMENT, countable, extent, is_apart, room
from harness.wire.protocol import MAX_FRAME_BYTES
from harness.wire.tree import flatten

if TYPE_CHECKING:
    from harness.judge.gpumode import FolderReference

_WRONG = {CHECKER: Excess(limit=CHECKER, ratio=math.inf)}
_RIGHT = {CHECKER: Excess(limit=CHECKER, ratio=0.0)}


class OpaqueDealer(Dealer):
    """Inputs keep their strides and may all be written to. Outputs may have any strides. `watched`: inputs are checked
    for changes after each call."""

    def __init__(self, reference: FolderReference, case: Case, seeds: Seeds, watched: bool) -> None:
        super().__init__(reference, case, seeds)
        self._watched, self._owners = watched, reference.owners

    def _steps_of(self, case: Case) -> int:
        return 1  # here a parameter named `steps` belongs to the problem and means something else

    def _call(self, case: Case, data: Any, seed: int, selection: Selection | None, everything: bool) -> Call:
        try:
            tree, leaves = flatten(data, None, self._owners)
            tensors = [_apart(tensor.detach()) for _, tensor in leaves]
            specs = scattered(tensors)
        except TypeError as error:
            raise ProblemError(f"{self._reference.problem.name}: generate_input: {error}") from None
        fresh = self._reference.output_bytes(case, data)
        steps = STARTS + (GAPS + 1) * (len(tensors) + 1) + STARTS
        arena = self._room_for(room([steps * ALIGNMENT, *(spec.nbytes for spec in specs), *fresh]))
        request = {
            "tree": tree,
            "inputs": [spec.to_json() for spec in specs],
            "state": list(range(len(specs))),
            "poison": fresh,
            "tail": extent(specs) + LEAST_GAP * ALIGNMENT,
            "strided": True,
        }
        size, most = len(json.dumps(request)), MAX_FRAME_BYTES // 2
        if size > most:
            said = f"its data without the tensors take {size:,} characters; a worker can be sent {most:,}"
            raise ProblemError(f"{self._reference.problem.name}: generate_input: {said}")
        self._let_the_device_finish()
        names = tuple(name for name, _ in leaves)
        return Call(
            case,
            request,
            Expectation({}, {}, None, None),
            dict(zip(names, specs, strict=True)) if self._watched else {},
            names,
            list(zip(tensors, specs, strict=True)),
            arena,
            tuple(fresh),
            seed,
            data,
            tuple(specs),
        )


class OpaqueChecker(Checker):
    """Judge by the problem's own checker, or by the tolerances of podium.yml if there are any."""

    def __init__(self, reference: FolderReference) -> None:
        super().__init__(reference.problem)
        self._reference = reference

    def check(
        self,
        call: Call,
        reply: CallReply,
        snapshot: Snapshot,
        trespasses: list[Difference],
        everything: bool,
        reproduce: str,
        previous: Mapping[str, torch.Tensor],
    ) -> tuple[CaseCheck, Tally]:
        return _check(self._reference, call, reply, snapshot, trespasses, everything, reproduce), Tally()


def _check(
    reference: FolderReference,
    call: Call,
    reply: CallReply,
    snapshot: Snapshot,
    trespasses: list[Difference],
    everything: bool,
    reproduce: str,
) -> CaseCheck:
    case = call.case
    fault, output = _output(reply, snapshot, reference.torch_device)
    if fault is None:
        fault = _short_of(reference.outputs_due(case), reply, output)
    if trespasses and fault is None:
        fault = f"{trespasses[0].name}: {trespasses[0].structural}"
    if fault is None:
        fault = _changed_input(reference, call, snapshot)
    expected = reference.expected(call.data) if fault is None and (everything or not _decides(reference)) else None
    if fault is None and _decides(reference):
        opinion = reference.opinion(call.data, output)
        if opinion.right and reference.blind and (unseen := _not_finite(reference, call.data, output)):
            return _refused(reference, case, [unseen], reproduce)
        if opinion.right:
            error = _error(expected, output)
            return CaseCheck(case=case, verdict=Verdict.ACCEPTED, tolerance=CHECKER, excess=_RIGHT, error=error)
        expected = expected if expected is not None else reference.expected(call.data)
        said = f"the problem's checker: {opinion.why.strip() or 'wrong, without a reason'}"
        return _refused(reference, case, [said, *_ours(reference, case, expected, output)], reproduce)
    if fault is not None:
        return _refused(reference, case, [fault], reproduce)
    return _held_against(reference, case, expected, output, reproduce)


def _short_of(due: list[int] | None, reply: CallReply, output: Any) -> str | None:
    """Say in words what is missing in an answer. A checker that uses `zip` does not notice a missing output, and one
    that compares elements finds no error among zero elements. `due`: the number of elements of each output, if known.
    """
    if due is not None and len(due) > 1 and reply.returned != len(due):
        got = _kind(reply) if reply.several else "one tensor"
        return f"custom_kernel returned {got}; {len(due)} tensors are due"
    counts = [tensor.numel() for tensor in _several(output)]
    if due is None or len(due) != len(counts):
        return None if any(counts) else "custom_kernel returned no element at all"
    for number, (got_count, wanted) in enumerate(zip(counts, due, strict=True)):
        if wanted and not got_count:
            which = f"output {number}" if len(due) > 1 else "the output"
            return f"{which} has no elements; {wanted:,} are due"
    return None


def _not_finite(reference: FolderReference, data: Any, output: Any) -> str | None:
    """Say in words that `output` holds NaN or Inf although the output of ref_kernel holds none."""
    if all_finite(_several(output)):
        return None
    expected = reference.expected(data)
    if expected is not None and not all_finite(expected):
        return None
    return "the output has NaN or Inf, which the problem's checker does not see"


def _several(output: Any) -> Sequence[torch.Tensor]:
    return output if isinstance(output, tuple | list) else [output]


def _changed_input(reference: FolderReference, call: Call, snapshot: Snapshot) -> str | None:
    """Say in words which of the watched inputs was changed against the rules."""
    kept = call.state_specs.keys() - reference.changeable(call.case, call.data) if call.state_specs else set()
    for name, (tensor, spec) in zip(call.input_names, call.places, strict=True):
        if name in kept and not torch.equal(bits(snapshot.view(Span("arena", spec))), bits(tensor)):
            return f"{name} was changed, and podium.yml says strict: inputs"
    return None


def _decides(reference: FolderReference) -> bool:
    foreign = reference.problem.foreign
    return foreign is not None and foreign.checker_decides


def _refused(reference: FolderReference, case: Case, lines: list[str], reproduce: str) -> CaseCheck:
    excess = {name: Excess(limit=CHECKER, ratio=math.inf) for name in reference.problem.tolerances}
    report = "\n".join([f"case {case.label}", *lines, f"reproduce: {reproduce}"])
    return CaseCheck(
        case=case, verdict=Verdict.WRONG_ANSWER, tolerance=None, excess=excess or _WRONG, error=None, report=report
    )


def _output(reply: CallReply, snapshot: Snapshot, torch_device: str) -> tuple[str | None, Any]:
    """Return a copy of the output, or say in words what is wrong with it. Raises nothing, whatever the worker
    claims."""
    tensors = []
    if reply.returned != len(reply.outputs) or not reply.outputs:
        return f"custom_kernel returned {_kind(reply)}", None
    for described in reply.outputs:
        if described.type != "Tensor":
            article = "an" if described.type[:1].upper() in "AEIOU" else "a"
            return f"custom_kernel returned {article} {described.type} where a plain torch.Tensor is due", None
        if described.device != torch.device(torch_device).type:
            return f"custom_kernel returned a tensor on {described.device}", None
        span = claimed(described)
        if span is None:
            return f"custom_kernel returned {described.dtype} {described.shape}, which cannot be passed on", None
        try:
            tensors.append(snapshot.view(span).clone().to(torch_device))
        except (LookupError, ValueError):
            room = "more than there is room for, or outside the shared memory"
            return f"custom_kernel returned {described.dtype} {described.shape}: {room}", None
    if not reply.several:
        return None, tensors[0]
    return None, tensors if reply.listed else tuple(tensors)


def _kind(reply: CallReply) -> str:
    kind = "list" if reply.listed else "tuple"
    return f"a {kind} of {reply.returned}" if reply.returned else f"an empty {kind}"


def _error(expected: list[torch.Tensor] | None, output: Any) -> float | None:
    """The largest relative L2 distance of an output, if all outputs have the expected shapes."""
    outputs = _several(output)
    if expected is None or [t.shape for t in expected] != [t.shape for t in outputs]:
        return None
    pairs = ((countable(o), countable(e)) for o, e in zip(outputs, expected))
    floats = [(o, e) for o, e in pairs if e.is_floating_point() and o.is_floating_point()]
    return max((rel_l2(o.contiguous(), e.contiguous()) for o, e in floats), default=None)


def _differences(expected: list[torch.Tensor], output: Any) -> list[Difference] | str:
    """Return the Difference of each output, or say why they cannot be compared one by one."""
    outputs = _several(output)
    if len(outputs) != len(expected):
        return f"custom_kernel returned {len(outputs)} outputs; ref_kernel gives {len(expected)}"
    found = []
    pairs = ((countable(want), countable(got)) for want, got in zip(expected, outputs, strict=True))
    for number, (want, got) in enumerate(pairs):
        name = f"output {number}" if len(outputs) > 1 else "output"
        if want.shape != got.shape:
            found.append(Difference(name, want, structural=f"its shape is {tuple(got.shape)}, not {tuple(want.shape)}"))
            continue
        as_due = got.to(want.dtype).contiguous()
        found.append(Difference(name, want.contiguous(), actual=as_due, elements=want.numel()))
    return found


def _compared(problem: Problem, case: Case, expected: list[torch.Tensor], output: Any) -> CheckedCall | str:
    differences = _differences(expected, output)
    if isinstance(differences, str):
        return differences
    tolerances = problem.tolerances_for(case)
    for difference in differences:
        difference.mismatches = dict.fromkeys(tolerances, 0)
    read(differences, tolerances, keep=False)
    excess = {
        name: max((difference.excess(name, tolerance) for difference in differences), key=lambda e: e.ratio)
        for name, tolerance in tolerances.items()
    }
    return CheckedCall(differences, excess, _error(expected, output), None)


def _ours(reference: FolderReference, case: Case, expected: list[torch.Tensor] | None, output: Any) -> list[str]:
    """The lines of Podium's mismatch report, without the case and the command that reproduces it."""
    if expected is None:
        return []
    problem = reference.reported(expected)
    compared = _compared(problem, case, expected, output)
    if isinstance(compared, str):
        return [compared]
    lines = mismatch.report(problem, case, compared, "").splitlines()[1:-1]
    foreign = reference.problem.foreign
    if not lines and foreign is not None and "reference" in foreign.modules:
        return ["compared with ref_kernel's own output it is within the tolerance that reference.py states"]
    return lines


def _held_against(
    reference: FolderReference, case: Case, expected: list[torch.Tensor] | None, output: Any, reproduce: str
) -> CaseCheck:
    """Judge by the tolerances of podium.yml."""
    assert expected is not None
    compared = _compared(reference.problem, case, expected, output)
    if isinstance(compared, str):
        return _refused(reference, case, [compared], reproduce)
    met = compared.tolerance
    return CaseCheck(
        case=case,
        verdict=Verdict.ACCEPTED if met is not None else Verdict.WRONG_ANSWER,
        tolerance=met,
        excess=compared.excess,
        error=compared.error,
        report=None if met is not None else mismatch.report(reference.problem, case, compared, reproduce),
    )


def _apart(tensor: torch.Tensor) -> torch.Tensor:
    """Return `tensor`, or a contiguous copy if some of its elements share memory."""
    return tensor if is_apart(tensor.shape, tensor.stride()) else tensor.contiguous()
