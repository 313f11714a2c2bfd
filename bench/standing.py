"""How answers meet a problem's tolerances, by the judge's own comparison.

Standing.add   outputs in memory of their own
Standing.hold  a call's whole outcome: the worker's reply and the memory that the call left
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from harness.judge.checked_call import compare, differences
from harness.judge.inputs import Call
from harness.judge.reply import CallReply, OutputDescription
from harness.judge.stage import Snapshot, Span
from harness.judge.tally import Tally
from harness.model import Excess, Tolerance
from harness.wire.arena import TensorSpec, dtype_name

Outcome = tuple[CallReply, Snapshot]
"""A worker's reply, and the memory that it left."""


@dataclass
class Standing:
    """How answers meet the tolerances: for each tolerance the worst call's value over its limit, and each group's
    tally."""

    worst: dict[str, Excess] = field(default_factory=dict)
    worst_case: dict[str, str] = field(default_factory=dict)
    """By tolerance: the case of that call."""

    groups: dict[str, tuple[Tally, dict[str, Tolerance]]] = field(default_factory=dict)

    def add(self, what: Sequence[str], call: Call, tolerances: dict[str, Tolerance], *outputs: Tensor) -> None:
        """Add one call's outputs, compared as the judge does, to the groups named in `what`. A probe belongs to no
        group."""
        self.hold(what, call, tolerances, in_memory(*outputs))

    def hold(self, what: Sequence[str], call: Call, tolerances: dict[str, Tolerance], outcome: Outcome) -> None:
        found = differences(call, *outcome, tolerances)
        for name, excess in compare(call, found, tolerances).excess.items():
            if name not in self.worst or excess.ratio > self.worst[name].ratio:
                self.worst[name], self.worst_case[name] = excess, call.case.label
        tally = sum((each.tally for each in found if each.tally is not None), Tally())
        for group in what:
            before, _ = self.groups.get(group, (Tally(), {}))
            self.groups[group] = before + tally, tolerances

    @property
    def single(self) -> dict[str, float]:
        return {name: excess.ratio for name, excess in self.worst.items()}

    def over_all(self, name: str) -> float:
        """The worst group's value over its limit."""
        found = [tally.excess(tolerances[name]) for tally, tolerances in self.groups.values()]
        return max((excess.ratio for excess in found if excess is not None), default=0.0)

    def limits(self, name: str) -> dict[str, float]:
        """For each limit over all calls: the worst group's value over it."""
        found: dict[str, float] = {}
        for tally, tolerances in self.groups.values():
            for each in tally.figures(tolerances[name]):
                found[each.limit] = max(found.get(each.limit, 0.0), each.ratio)
        return found

    def nearest(self, name: str) -> Excess:
        """The limit that is closest or furthest exceeded, among the limits on one call and over all calls."""
        over_all = [Excess(limit=limit, ratio=ratio) for limit, ratio in self.limits(name).items()]
        return max([self.worst[name], *over_all], key=lambda excess: excess.ratio)

    def rejected(self, name: str, single_only: bool = False) -> bool:
        return self.single[name] > 1 or (not single_only and self.over_all(name) > 1)


def in_memory(*outputs: Tensor) -> Outcome:
    """A worker's reply with `outputs`, and the memory that holds them."""
    specs = [TensorSpec(dtype_name(output.dtype), tuple(output.shape), number) for number, output in enumerate(outputs)]
    described = [
        OutputDescription(
            type="Tensor",
            dtype=spec.dtype,
            shape=list(spec.shape),
            stride=list(output.stride()),
            device="cpu",
            region="pool",
            offset=spec.offset,
        )
        for spec, output in zip(specs, outputs, strict=True)
    ]
    reply = CallReply(several=len(outputs) > 1, returned=len(outputs), outputs=described, interpreted=False)
    return reply, Snapshot({}, {Span("pool", spec): output for spec, output in zip(specs, outputs, strict=True)})
