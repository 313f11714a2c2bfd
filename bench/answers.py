"""Answers that a kernel with a given arithmetic and fault would give: plain torch, from the judge's own inputs.

    dealt(problem, ...)         ─► calls as the judge makes them, in groups whose outputs are tallied together
    pieces(case, call, ...)     ─► a call as softmax(scale q k^T) v, whatever the problem's layout
    answer(call, pieces, fault) ─► its output, in the expected dtype

bench/standing compares such answers with the problem's tolerances. All arithmetic is float32; code that rounds to less
says so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor

from harness.judge.examination import ALL_TESTS
from harness.judge.inputs import Call, Dealer
from harness.judge.reference import Reference
from harness.judge.secret_cases import drawn
from harness.judge.seeds import Seeds
from harness.model import Case, Device, Problem
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


Product = Callable[[Tensor, Tensor, float], Tensor]


def multiplied(queries: Tensor, keys: Tensor, _key_step: float) -> Tensor:
    return queries @ keys.mT


@dataclass(frozen=True)
class Arithmetic:
    """How mla's operands are rounded: the cache that is read, the queries, the softmax weights (summed before that);
    and how queries and keys are multiplied (`Piece.key_step` comes along)."""

    cache: str = "fp8"
    queries: Change = unchanged
    weights: Change = unchanged
    product: Product = multiplied


@dataclass(frozen=True)
class Piece:
    """float32 queries `[n, m, D]` over keys `[n, s, D]` and values `[n, s, Dv]`; `hidden` `[1, m, s]` are keys that a
    query must not see. `place`: the view of an output to which the result belongs, its elements in that order.
    `key_step`: the scale of keys that were fp8, for a product that multiplies codes."""

    queries: Tensor
    keys: Tensor
    values: Tensor
    scale: float
    place: Callable[[Tensor], Tensor]
    hidden: Tensor | None = None
    key_step: float = 1.0


@dataclass(frozen=True)
class Group:
    """Calls whose outputs are tallied together, as a run's totals name them; those of probes (None) are not."""

    what: str | None
    calls: Iterable[tuple[Case, Call]]


def dealt(
    problem: Problem,
    device: Device,
    seed: int,
    benchmarks: Sequence[Case],
    timed_calls: int,
    whole: bool = False,
    most_bytes: float = math.inf,
) -> Iterator[Group]:
    """The device's test cases, each as often as the judge puts it, then `timed_calls` of each of `benchmarks` and one
    of each of its probes. Calls are dealt as they are asked for.

    Of a decode loop the first steps. `whole`: also what the run draws in secret, and memory other than outputs is
    compared as well; otherwise it is left as it should be. Test cases that move more than `most_bytes` are left
    out, and those whose judging takes more than four times as much memory: of a cache of which little is read.
    """
    reference, master_seed = Reference(problem, device), f"{seed:032x}"
    stated = problem.cases_for(device.kind)

    def kept(call: Call, steps: int) -> Call:
        state = call.expectation.state if whole else {}
        if steps > 1:  # the next step is made in the same memory
            state = {name: tensor.clone() for name, tensor in state.items()}
        return replace(call, expectation=replace(call.expectation, state=state, exact=None))

    def deal(phase: str, case: Case, count: int) -> Iterator[tuple[Case, Call]]:
        with closing(Dealer(reference, case, Seeds(master_seed, phase, case))) as dealer:
            for _ in range(count):
                yield case, kept(dealer.deal(everything=phase == "test"), dealer.steps)

    def fits(case: Case) -> bool:
        if reference.most_bytes(case) > most_bytes:
            return False
        return math.isinf(most_bytes) or reference.does_not_fit(case, int(4 * most_bytes)) is None

    cases = [*stated.test, *(drawn(stated, master_seed) if whole else ())]
    if device.kind != "cpu":  # seeds begin at different cases: together they compile each kernel once, not each its own
        cases = cases[seed % len(cases) :] + cases[: seed % len(cases)]
    tests = [case for case in cases if fits(case)]
    yield Group(ALL_TESTS, (call for case in tests for call in deal("test", case, TEST_CALLS)))
    for case in benchmarks:
        yield Group(case.label, deal("timed", case, timed_calls))
        yield Group(None, (call for probe in stated.probes(case) for call in deal("timed", probe, 1)))


def pieces(problem: str, case: Case, call: Call, arithmetic: Arithmetic | None = None) -> list[Piece]:
    """The call as attention. `arithmetic` is mla's; its reference's if there is none."""
    tensors = [tensor for tensor, _ in call.places]
    if problem == "mla":
        return _mla(dict(zip(call.input_names, tensors, strict=True)), arithmetic or REFERENCE)
    if problem == "kv_decode":
        return _kv_decode(tensors, causal=bool(case.parameters["is_causal"]))
    return _prefill(tensors, bool(case.parameters["causal"])) if problem == "prefill" else _fmha(tensors)


def answer(
    call: Call,
    parts: Sequence[Piece],
    fault: Fault | Callable[[Piece], Fault],
    arithmetic: Arithmetic | None = None,
) -> Tensor:
    """The output of the call, whole. A fault may look at what it is to be the fault of."""
    ((name, want),) = call.expectation.outputs.items()
    out = torch.zeros(call.expectation.shape(name), dtype=torch.float32)
    for piece in parts:
        place = piece.place(out)
        own = fault if isinstance(fault, Fault) else fault(piece)
        place.copy_(_attend(piece, own, arithmetic or REFERENCE).view(place.shape))
    return out.to(want.dtype)


def _attend(piece: Piece, fault: Fault, arithmetic: Arithmetic) -> Tensor:
    scores = arithmetic.product(fault.queries(piece.queries), fault.keys(piece.keys), piece.key_step) * piece.scale
    if fault.spared:  # rows are heads of as many queries as there are keys
        first = torch.arange(scores.shape[-2]) % scores.shape[-1] < fault.spared
        scores = torch.where(first[:, None], piece.queries @ piece.keys.mT * piece.scale, scores)
    scores = fault.scores(scores)
    if piece.hidden is not None:
        scores = scores.masked_fill(piece.hidden, -math.inf)
    before = torch.exp(scores - fault.maximum(scores))
    weights = fault.weights(before)
    total = (before if fault.all_denominators else weights).sum(dim=-1, keepdim=True)
    return fault.out(arithmetic.weights(weights) @ fault.values(piece.values) / torch.where(total > 0, total, 1.0))


def _mla(inputs: dict[str, Tensor], arithmetic: Arithmetic) -> list[Piece]:
    keys = cache(inputs, arithmetic.cache)
    queries, starts = arithmetic.queries(inputs["q"].float()), inputs["kv_indptr"].tolist()
    step = float(inputs["kv_data.fp8.1"]) if arithmetic.cache == "fp8" else 1.0
    own = [(b, queries[b : b + 1], keys[None, low:high]) for b, (low, high) in enumerate(pairwise(starts))]
    return [
        Piece(query, mine, mine[..., :512], 576**-0.5, lambda out, b=b: out[b], key_step=step)
        for b, query, mine in own
        if mine.shape[1]
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
