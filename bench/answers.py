"""What a kernel of a given arithmetic, with a given fault, would answer: in plain torch, from the judge's own inputs.

    dealt(problem, ...)         ─► calls as the judge deals them, in groups whose outputs are tallied together
    pieces(case, call, ...)     ─► a call as softmax(scale q k^T) v, whatever the problem's layout
    answer(call, pieces, fault) ─► its output, in the dtype that is due
    Standing                    ─► where such answers stand against the problem's tolerances, by the judge's comparison

All arithmetic is float32; what is rounded to less says so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import pairwise

import torch
from torch import Tensor

from harness.judge.check import compare, differences
from harness.judge.inputs import Call, Dealer
from harness.judge.reference import Reference
from harness.judge.reply import CallReply, OutputDescription
from harness.judge.seeds import Seeds
from harness.judge.stage import Snapshot, Span
from harness.judge.tally import Tally
from harness.judge.trial import ALL_TESTS
from harness.model import Case, Device, Problem, Tolerance
from harness.wire.arena import TensorSpec, dtype_name
from reference.quantization import dequantize_fp8, dequantize_mxfp4, quantize_fp8, quantize_mxfp4

TEST_CALLS = 2
"""Of each test case (judge/entrant)."""

Change = Callable[[Tensor], Tensor]


def unchanged(x: Tensor) -> Tensor:
    return x


def largest(scores: Tensor) -> Tensor:
    return scores.amax(dim=-1, keepdim=True)


@dataclass(frozen=True)
class Fault:
    """What is done to the steps of an attention, `[n, m, s]` or `[n, m, D]` each, in this order.

    `maximum` tells of a row's scores, those of hidden keys being minus infinity, what is subtracted. `weights` are
    exp(score - maximum). With `all_denominators` they are summed before the change. Query i with i below `spared` keeps
    its queries and keys as they are (prefill).
    """

    queries: Change = unchanged
    keys: Change = unchanged
    values: Change = unchanged
    scores: Change = unchanged
    maximum: Change = largest
    weights: Change = unchanged
    all_denominators: bool = False
    out: Change = unchanged
    spared: int = 0


@dataclass(frozen=True)
class Arithmetic:
    """How mla's operands are rounded: the cache that is read, the queries, the softmax weights (summed before that)."""

    cache: str = "fp8"
    queries: Change = unchanged
    weights: Change = unchanged


@dataclass(frozen=True)
class Piece:
    """float32 queries `[n, m, D]` over keys `[n, s, D]` and values `[n, s, Dv]`; `hidden` `[1, m, s]` are keys that a
    query must not see. `place`: the view of an output to which the result belongs, its elements in that order."""

    queries: Tensor
    keys: Tensor
    values: Tensor
    scale: float
    place: Callable[[Tensor], Tensor]
    hidden: Tensor | None = None


@dataclass(frozen=True)
class Group:
    """Calls whose outputs are tallied together, as a run's totals name them; those of probes (None) are not."""

    what: str | None
    calls: list[tuple[Case, Call]]


def dealt(problem: Problem, device: Device, seed: int, benchmarks: Sequence[Case], timed_calls: int) -> Iterator[Group]:
    """The CPU's test cases, each as often as the judge puts it, then `timed_calls` of each of `benchmarks` and one of
    each of its probes.

    Of a decode loop the first steps. Memory other than outputs is not compared: it is left as it should be.
    """
    reference, master_seed = Reference(problem, device), f"{seed:032x}"

    def deal(phase: str, case: Case, count: int) -> list[tuple[Case, Call]]:
        with closing(Dealer(reference, case, Seeds(master_seed, phase, case))) as dealer:
            calls = [dealer.deal(everything=phase == "test") for _ in range(count)]
        return [(case, replace(call, expectation=replace(call.expectation, state={}, exact=None))) for call in calls]

    tests = [call for case in problem.cpu.test for call in deal("test", case, TEST_CALLS)]
    yield Group(ALL_TESTS, tests)
    for case in benchmarks:
        yield Group(case.label, deal("timed", case, timed_calls))
        yield Group(None, [call for probe in problem.cpu.probes(case) for call in deal("timed", probe, 1)])


def pieces(problem: str, case: Case, call: Call, arithmetic: Arithmetic | None = None) -> list[Piece]:
    """The call as attention. `arithmetic` is mla's; its reference's if there is none."""
    tensors = [tensor for tensor, _ in call.places]
    if problem == "mla":
        return _mla(dict(zip(call.input_names, tensors, strict=True)), arithmetic or REFERENCE)
    if problem == "kv_decode":
        return _kv_decode(tensors, causal=bool(case.parameters["is_causal"]))
    return _prefill(tensors, bool(case.parameters["causal"])) if problem == "prefill" else _fmha(tensors)


def answer(call: Call, parts: Sequence[Piece], fault: Fault, arithmetic: Arithmetic | None = None) -> Tensor:
    """The output of the call, whole."""
    ((name, want),) = call.expectation.outputs.items()
    out = torch.zeros(call.expectation.shape(name), dtype=torch.float32)
    for piece in parts:
        place = piece.place(out)
        place.copy_(_attend(piece, fault, (arithmetic or REFERENCE).weights).view(place.shape))
    return out.to(want.dtype)


def _attend(piece: Piece, fault: Fault, rounded: Change) -> Tensor:
    scores = fault.queries(piece.queries) @ fault.keys(piece.keys).mT * piece.scale
    if fault.spared:  # rows are heads of as many queries as there are keys
        first = torch.arange(scores.shape[-2]) % scores.shape[-1] < fault.spared
        scores = torch.where(first[:, None], piece.queries @ piece.keys.mT * piece.scale, scores)
    scores = fault.scores(scores)
    if piece.hidden is not None:
        scores = scores.masked_fill(piece.hidden, -math.inf)
    before = torch.exp(scores - fault.maximum(scores))
    weights = fault.weights(before)
    total = (before if fault.all_denominators else weights).sum(dim=-1, keepdim=True)
    return fault.out(rounded(weights) @ fault.values(piece.values) / torch.where(total > 0, total, 1.0))


def _mla(inputs: dict[str, Tensor], arithmetic: Arithmetic) -> list[Piece]:
    keys = cache(inputs, arithmetic.cache)
    queries, starts = arithmetic.queries(inputs["q"].float()), inputs["kv_indptr"].tolist()
    return [
        Piece(queries[b : b + 1], keys[None, low:high], keys[None, low:high, :512], 576**-0.5, lambda out, b=b: out[b])
        for b, (low, high) in enumerate(pairwise(starts))
        if high > low
    ]


def cache(inputs: dict[str, Tensor], form: str) -> Tensor:
    """mla's cache as it reads in one of its forms: float32 `(total_kv, 576)`."""
    if form == "bf16":
        return inputs["kv_data.bf16"][:, 0].float()
    first, second = inputs[f"kv_data.{form}.0"], inputs[f"kv_data.{form}.1"]
    return (dequantize_fp8 if form == "fp8" else dequantize_mxfp4)(first, second)[:, 0]


def _kv_decode(tensors: Sequence[Tensor], causal: bool) -> list[Piece]:
    q, k_new, v_new, k_cache, v_cache, seq_lens = tensors
    heads, steps = k_cache.shape[1], q.shape[2]
    found = []
    for b, length in enumerate(seq_lens.tolist()):
        keys, values = (
            torch.cat([old[b, :, :length], new[b]], dim=1).float() for old, new in ((k_cache, k_new), (v_cache, v_new))
        )
        hidden = _later(steps, length + steps, length).repeat(q.shape[1] // heads, 1)[None] if causal else None
        queries = q[b].float().reshape(heads, -1, q.shape[-1])
        found.append(Piece(queries, keys, values, q.shape[-1] ** -0.5, lambda out, b=b: out[b], hidden))
    return found


def _prefill(tensors: Sequence[Tensor], causal: bool) -> list[Piece]:
    q, k, v = tensors
    length, heads = k.shape[1:3]

    def by_head(x: Tensor) -> Tensor:
        return x.unflatten(2, (heads, -1)).permute(0, 2, 3, 1, 4)

    queries = by_head(q).flatten(2, 3).flatten(0, 1).float()
    keys, values = (x.transpose(1, 2).flatten(0, 1).float() for x in (k, v))
    hidden = _later(length, length, 0).repeat(q.shape[2] // heads, 1)[None] if causal else None
    return [Piece(queries, keys, values, q.shape[-1] ** -0.5, by_head, hidden)]


def _fmha(tensors: Sequence[Tensor]) -> list[Piece]:
    q, k, v = tensors
    keys, values = (x.flatten(0, 1).float() for x in (k, v))
    return [Piece(q.float().reshape(len(keys), -1, q.shape[-1]), keys, values, q.shape[-1] ** -0.5, unchanged)]


def _later(queries: int, keys: int, offset: int) -> Tensor:
    """Which keys come after query i's own, number offset + i: `[queries, keys]`."""
    return torch.arange(keys) > torch.arange(queries)[:, None] + offset


@dataclass
class Standing:
    """Where answers stand: per tolerance the worst call's value over its limit, and what each group comes to."""

    single: dict[str, float] = field(default_factory=dict)
    groups: dict[str, tuple[Tally, dict[str, Tolerance]]] = field(default_factory=dict)

    def add(self, what: Sequence[str], call: Call, tolerances: dict[str, Tolerance], *outputs: Tensor) -> None:
        """One call's outputs, as the judge compares them, into the groups called `what`: none of a probe."""
        found = differences(call, *_left(outputs), tolerances)
        for name, excess in compare(call, found, tolerances).excess.items():
            self.single[name] = max(self.single.get(name, 0.0), excess.ratio)
        tally = sum((each.tally for each in found if each.tally is not None), Tally())
        for group in what:
            before, _ = self.groups.get(group, (Tally(), {}))
            self.groups[group] = before + tally, tolerances

    def over_all(self, name: str) -> float:
        """The worst group's value over its limit."""
        found = [tally.excess(tolerances[name]) for tally, tolerances in self.groups.values()]
        return max((excess.ratio for excess in found if excess is not None), default=0.0)

    def limits(self, name: str) -> dict[str, float]:
        """Each limit over all calls: the worst group's value over it."""
        found: dict[str, float] = {}
        for tally, tolerances in self.groups.values():
            for each in tally.figures(tolerances[name]):
                found[each.limit] = max(found.get(each.limit, 0.0), each.ratio)
        return found

    def rejected(self, name: str, single_only: bool = False) -> bool:
        return self.single[name] > 1 or (not single_only and self.over_all(name) > 1)


def _left(outputs: Sequence[Tensor]) -> tuple[CallReply, Snapshot]:
    """A worker's reply that it left `outputs`, and the memory where they are."""
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


def to_fp8(x: Tensor) -> Tensor:
    """Per tensor, as mla's reference rounds queries."""
    return dequantize_fp8(*quantize_fp8(x))


def to_mxfp4(x: Tensor) -> Tensor:
    """In blocks of 32 along the last axis, filled up with zeros."""
    width = x.shape[-1]
    padded = torch.nn.functional.pad(x, (0, -width % 32))
    return dequantize_mxfp4(*quantize_mxfp4(padded))[..., :width]


def to_bits(x: Tensor, bits: int) -> Tensor:
    """To a mantissa of so many bits after the leading one, of unbounded exponent."""
    fraction, exponent = torch.frexp(x)
    return torch.ldexp(torch.round(fraction * 2.0 ** (bits + 1)) / 2.0 ** (bits + 1), exponent)


REFERENCE = Arithmetic("fp8", to_fp8)
