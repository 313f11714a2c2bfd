"""Compare the outputs and the memory of a call with the expectation.

worker's description ─► structure      wrong shape, dtype, device or place, whatever the values are
snapshot ─► difference ─► Excess for each tolerance: the highest measured value divided by its limit
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from harness.judge.difference import Difference, read, rel_l2
from harness.judge.inputs import Call
from harness.judge.reply import CallReply
from harness.judge.selection import Selection
from harness.judge.stage import Snapshot, Span
from harness.judge.structure import FRESH, structural_fault, wrong_count
from harness.model import Excess, Tolerance
from harness.wire.arena import TensorSpec, dtype_name


@dataclass(frozen=True)
class CheckedCall:
    """The result of one call: the differences of its outputs and of the memory that was checked afterwards."""

    differences: list[Difference]
    excess: dict[str, Excess]
    error: float | None
    reference_error: float | None

    @property
    def tolerance(self) -> str | None:
        """The strictest tolerance that the call meets, or None."""
        return next((name for name, excess in self.excess.items() if excess.ratio <= 1), None)


def differences(call: Call, reply: CallReply, snapshot: Snapshot, tolerances: dict[str, Tolerance]) -> list[Difference]:
    """Compare a call's snapshot with its expectation. Outputs come first, then state."""
    outputs = _output_differences(call, reply, snapshot, tolerances)
    for number, output in enumerate(outputs):
        output.parts = {name: part[number] for name, part in call.expectation.parts.items()}
        output.heads = call.expectation.heads.get(output.name)
    found = outputs + _state_differences(call, reply, snapshot, tolerances, outputs)
    read(found, tolerances, keep=call.expectation.exact is not None)
    return found


def overruns(call: Call, overrun: list[int]) -> list[Difference]:
    """One Difference for each input with a write in the memory right beside it. A store without a mask does this, and
    the outputs may still be right."""
    fault = "the memory right before or after it was written to: a store out of bounds"
    names = [name for number, name in enumerate(call.input_names) if number in overrun]
    return [Difference(name, torch.empty(0), is_state=True, structural=fault) for name in names]


def changes(call: Call, changed: list[int]) -> list[Difference]:
    """One Difference for each read-only input that was written to."""
    fault = "it was changed; a submission may not write to it"
    return [Difference(call.input_names[number], torch.empty(0), is_state=True, structural=fault) for number in changed]


def compare(call: Call, differences: list[Difference], tolerances: dict[str, Tolerance]) -> CheckedCall:
    """Combine all `differences` of a call into its result."""
    outputs = [difference for difference in differences if not difference.is_state]
    excess = {
        name: max((difference.excess(name, tolerance) for difference in differences), key=lambda e: e.ratio)
        for name, tolerance in tolerances.items()
    }
    comparable = all(difference.actual is not None for difference in outputs)
    exact = call.expectation.exact
    if not comparable or exact is None:
        error = max(difference.rel_l2 for difference in outputs) if comparable else None
        return CheckedCall(differences, excess, error, None)
    error = max(
        rel_l2(difference.actual, truth)
        for difference, truth in zip(outputs, exact, strict=True)
        if difference.actual is not None
    )
    noise = max(rel_l2(difference.expected, truth) for difference, truth in zip(outputs, exact, strict=True))
    return CheckedCall(differences, excess, error, noise)


def _output_differences(
    call: Call, reply: CallReply, snapshot: Snapshot, tolerances: dict[str, Tolerance]
) -> list[Difference]:
    expected = call.expectation.outputs
    if not reply.returned == len(reply.outputs) == len(expected):
        first = next(iter(expected))
        return [Difference(first, expected[first], structural=wrong_count(list(expected), reply))]
    differences = []
    places = {
        want.data_ptr(): call.state_specs[name].offset for name, want in call.expectation.state.items() if want.numel()
    }
    for (name, want), got in zip(expected.items(), reply.outputs, strict=True):
        shape = call.expectation.shape(name)
        fault = structural_fault(want, shape, got)
        place = (got.region, got.offset)
        if fault is None and ("arena", places.get(want.data_ptr(), got.offset)) != place and want.data_ptr() in places:
            fault = FRESH  # even if the values are right: a large output must go to the memory supplied for it
        span = Span(got.region, TensorSpec(dtype_name(want.dtype), shape, got.offset or 0))
        differences.append(
            Difference(name, want, structural=fault)
            if fault
            else _unread(name, want, span, snapshot, tolerances, call.expectation.selection)
        )
    return differences


def _state_differences(
    call: Call, reply: CallReply, snapshot: Snapshot, tolerances: dict[str, Tolerance], outputs: list[Difference]
) -> list[Difference]:
    # An output that lies in supplied memory was compared already, as an output.
    compared = {
        (difference.expected.data_ptr(), difference.elements, described.offset)
        for difference, described in zip(outputs, reply.outputs, strict=False)
        if difference.actual is not None and described.region == "arena"
    }
    return [
        replace(_unread(name, want, Span("arena", spec), snapshot, tolerances), is_state=True)
        for name, want in call.expectation.state.items()
        for spec in [call.state_specs[name]]
        if (want.data_ptr(), want.numel(), spec.offset) not in compared
    ]


def _unread(
    name: str,
    expected: torch.Tensor,
    span: Span,
    snapshot: Snapshot,
    tolerances: dict[str, Tolerance],
    selection: Selection | None = None,
) -> Difference:
    """Return a Difference for the tensor at `span`, without reading its values yet. Only the rows of a selection are
    read here."""
    try:
        actual = snapshot.view(span)
    except (LookupError, ValueError):
        return Difference(name, expected, structural="the worker says that it lies outside the shared memory")
    if selection is not None:
        actual = actual.index_select(selection.axis, selection.rows.to(actual.device))
    return Difference(
        name,
        expected,
        selection=selection,
        actual=actual,
        elements=expected.numel(),
        mismatches=dict.fromkeys(tolerances, 0),
    )
