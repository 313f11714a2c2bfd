"""What the checker accepts and what it never does; and that its report says what a person needs to mend a kernel.

Every output goes the way of a real one: a kernel returns it to the worker's own code, which says where it lies, and the
judge takes its snapshot of the stage.
"""

import contextlib
import ctypes
import math
import re
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from harness import catalog
from harness.judge import difference as chunked
from harness.judge import mismatch
from harness.judge.caches import HostCaches
from harness.judge.checked_call import compare, differences, overruns
from harness.judge.inputs import GAPS, LEAST_GAP, STARTS, Call, Expectation, scattered
from harness.judge.reply import CallReply
from harness.judge.selection import Selection
from harness.judge.stage import Stage
from harness.model import Case, Device, Tolerance
from harness.wire.arena import ALIGNMENT, Arena, extent, room
from harness.wire.tree import flatten
from harness.worker import calls
from harness.worker.calls import Calls
from harness.worker.transports import CpuTransport

CPU = Device(kind="cpu", name="x", slug="x", arch="x", torch_device="cpu", memory_bytes=1 << 30, flush_bytes=1 << 10)
CLOSE = {"close": Tolerance(rel_l2=1e-3)}
EXACT = {"exact": Tolerance(bitwise=True)}
FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
FLOAT8S = [torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2, torch.float8_e5m2fnuz]


def judged(expected, returned, tolerances, *, inputs=(), exact=None, selection=None, amend=None, spare=1 << 16,
           overwrite=False):  # fmt: skip
    """The comparison of what a kernel returned with what was expected.

    `returned` is a value, or a function of the inputs. `inputs` are (before, after) pairs, watched as state.
    `amend` edits the worker's honest reply, as a dishonest worker might; with `overwrite` it writes to all of the
    memory after it was read.
    """
    expected = expected if isinstance(expected, dict) else {"y": expected}
    before = tuple(pair[0].clone() for pair in inputs)
    names = [f"in{i}" for i in range(len(before))]
    tree, leaves = flatten(before, names)
    tensors = [tensor for _, tensor in leaves]
    specs = scattered(tensors)
    gaps = STARTS + (GAPS + 1) * (len(before) + 1)
    arena = Arena.create(
        room([gaps * ALIGNMENT, *(t.numel() * t.itemsize for t in (*tensors, *expected.values()))]) + spare
    )
    stage = Stage(CPU, HostCaches())
    stage.set_up(arena, list(zip(tensors, specs)))
    stage.pour()
    worker = Calls("cpu", CpuTransport())
    worker.regions["arena"] = arena
    request = {
        "tree": tree,
        "inputs": [spec.to_json() for spec in specs],
        "poison": [],
        "state": list(range(len(before))),
        "tail": extent(specs) + LEAST_GAP * ALIGNMENT,
    }
    state = dict(zip(names, (pair[1] for pair in inputs)))
    places = list(zip(tensors, specs))
    fresh = tuple(tensor.numel() * tensor.itemsize + spare for tensor in expected.values())
    expectation = Expectation(expected, state, exact, selection)
    state_specs = dict(zip(names, specs))
    case = Case(parameters={"rows": 4})
    call = Call(case, request, expectation, state_specs, tuple(names), places, arena, fresh, seed=7)
    kernel = returned if callable(returned) else lambda data: returned
    snapshots = []
    # It would be this process that stops: first before the call, then for the judge to take its snapshot.
    with mock.patch.object(calls, "stopper", lambda: lambda: snapshots.append(stage.freeze(call))):
        reply = {
            **worker.between_stops(kernel, request, contextlib.nullcontext, lambda waits: None),
            "interpreted": False,
        }
    _, snapshot = snapshots
    if amend is not None:
        amend(reply)
    found = differences(call, CallReply.model_validate(reply), snapshot, tolerances)
    overrun = stage.overrun()
    arena.close()
    if overwrite:
        ctypes.memset(arena.address, 0xFF, arena.size)
    return compare(call, found + overruns(call, overrun), tolerances)


def accepted(*arguments, **options):
    return judged(*arguments, **options).tolerance is not None


def fault(*arguments, **options):
    """The sentence about what is wrong with the first tensor as such."""
    comparison = judged(*arguments, **options)
    assert comparison.tolerance is None
    (sentence,) = [d.structural for d in comparison.differences if d.structural is not None]
    return sentence


def normal(*shape, dtype=torch.float32, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


class TestValues:
    @pytest.mark.parametrize("dtype", FLOATS + FLOAT8S, ids=str)
    @pytest.mark.parametrize("tolerances", [CLOSE, EXACT], ids=["close", "exact"])
    def test_the_exact_output_is_accepted(self, dtype, tolerances):
        want = normal(5, 16).to(dtype)
        comparison = judged(want, want.clone(), tolerances)
        assert comparison.tolerance in tolerances and comparison.error == 0.0

    @pytest.mark.parametrize("dtype", FLOATS + FLOAT8S, ids=str)
    @pytest.mark.parametrize(
        "tolerance",
        [
            Tolerance(rel_l2=0.5),
            Tolerance(row_rel_l2=0.5),
            Tolerance(rtol=0.1, atol=0.01, max_mismatch=0.3),
            Tolerance(bitwise=True),
        ],
        ids=["rel_l2", "row_rel_l2", "max_mismatch", "bitwise"],
    )
    def test_a_zero_output_is_rejected(self, dtype, tolerance):
        want = normal(5, 16).to(dtype)
        assert not accepted(want, torch.zeros(5, 16).to(dtype), {"t": tolerance})

    def test_an_output_of_zeros_is_right_where_zeros_are_due(self):
        assert accepted(torch.zeros(3, 4), torch.zeros(3, 4), CLOSE)
        assert not accepted(torch.zeros(3, 4), torch.full((3, 4), 1e-30), CLOSE)

    @settings(deadline=None, max_examples=30)
    @given(st.integers(0, 4), st.integers(0, 15), st.sampled_from([math.nan, math.inf, -math.inf]))
    def test_one_nan_or_inf_anywhere_is_rejected_by_the_loosest_limits(self, row, column, special):
        want = normal(5, 16)
        got = want.clone()
        got[row, column] = special
        loosest = {"loose": Tolerance(rtol=1e9, atol=1e9, max_mismatch=1.0, rel_l2=1e9, row_rel_l2=1e9)}
        comparison = judged(want, got, loosest)
        assert comparison.tolerance is None and comparison.excess["loose"].limit == "nan_or_inf"

    def test_nan_and_inf_are_right_exactly_where_the_reference_has_them(self):
        want = torch.tensor([[1.0, math.nan], [math.inf, -math.inf]])
        almost = want.clone()
        almost[0, 0] += 1e-5
        assert accepted(want, almost, CLOSE)
        for row, column, wrong in [(0, 1, 0.0), (1, 0, -math.inf), (1, 1, 3e38), (1, 0, math.nan), (0, 0, math.nan)]:
            other = want.clone()
            other[row, column] = wrong
            assert not accepted(want, other, CLOSE), (row, column, wrong)

    def test_a_nan_of_another_payload_is_a_nan(self):
        want = torch.tensor([[0x7FC00000, 0x3F800000]], dtype=torch.int32).view(torch.float32)
        got = torch.tensor([[0x7FC00001, 0x3F800000]], dtype=torch.int32).view(torch.float32)
        assert accepted(want, got, CLOSE) and not accepted(want, got, EXACT)

    def test_bitwise_tells_the_zeros_apart_and_the_others_do_not(self):
        want, got = torch.zeros(4), -torch.zeros(4)
        assert accepted(want, got, CLOSE) and not accepted(want, got, EXACT)

    def test_one_bad_row_is_caught_by_its_row_and_missed_by_the_whole(self):
        want = normal(1000, 32)
        got = want.clone()
        got[500] *= -1
        assert accepted(want, got, {"whole": Tolerance(rel_l2=0.1)})
        comparison = judged(want, got, {"rows": Tolerance(rel_l2=0.1, row_rel_l2=0.5)})
        assert comparison.excess["rows"].limit == "row_rel_l2"
        assert comparison.excess["rows"].ratio == pytest.approx(2 / 0.5, rel=1e-6)

    @pytest.mark.parametrize("elements, limit, most", [(20, 0.35, 7), (1000, 0.001, 1), (300, 0.01, 3), (7, 0.0, 0)])
    def test_the_fraction_that_may_miss_is_exact(self, elements, limit, most):
        want, tolerances = normal(elements), {"t": Tolerance(atol=1e-3, max_mismatch=limit)}
        got = want.clone()
        got[:most] += 1.0
        assert accepted(want, got, tolerances)
        got[most] += 1.0
        assert not accepted(want, got, tolerances)

    def test_an_error_of_exactly_atol_plus_rtol_does_not_miss(self):
        tolerances = {"t": Tolerance(atol=0.25, rtol=0.5, max_mismatch=0)}
        assert accepted(torch.tensor([2.0, -2.0]), torch.tensor([3.25, -3.25]), tolerances)
        assert not accepted(torch.tensor([2.0, -2.0]), torch.tensor([3.25, -3.2500005]), tolerances)

    @pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8], ids=str)
    def test_integers_must_be_equal_whatever_the_tolerance(self, dtype):
        want = torch.arange(12).reshape(3, 4).to(dtype)
        got = want.clone()
        got[1, 1] += 1
        loose = {"loose": Tolerance(rtol=9, atol=9, max_mismatch=1, rel_l2=9)}
        assert accepted(want, want.clone(), loose) and not accepted(want, got, loose)

    def test_truth_values_must_be_equal(self):
        want = torch.tensor([True, False])
        assert accepted(want, want.clone(), CLOSE) and not accepted(want, ~want, CLOSE)

    @pytest.mark.parametrize("dtype", FLOAT8S, ids=str)
    def test_float8_is_compared_by_value_or_by_bits_as_the_tolerance_says(self, dtype):
        want = torch.linspace(0.5, 4, 64).to(dtype)
        got = (want.float() * 1.13).to(dtype)
        assert accepted(want, got, {"t": Tolerance(rel_l2=0.3)})
        assert not accepted(want, got, {"t": Tolerance(rel_l2=0.03)})
        assert not accepted(want, got, EXACT)

    @pytest.mark.parametrize("shape", [(0,), (0, 4), (4, 0), (2, 0, 3)])
    def test_an_empty_output_is_right_when_one_is_due(self, shape):
        assert accepted(torch.zeros(shape), torch.zeros(shape), CLOSE)
        assert accepted(torch.zeros(shape), torch.zeros(shape), EXACT)
        assert not accepted(torch.zeros(shape), torch.zeros(*shape, 1), CLOSE)

    @pytest.mark.parametrize("shape", [(), (5,), (1, 1)])
    def test_scalars_and_vectors_are_compared_like_the_rest(self, shape):
        want = normal(*shape) if shape else torch.tensor(3.0)
        assert accepted(want, want * (1 + 1e-5), CLOSE) and not accepted(want, want * 1.1, CLOSE)

    def test_the_strictest_tolerance_that_is_met_is_the_one(self):
        tolerances = {name: Tolerance(rel_l2=bound) for name, bound in [("a", 1e-6), ("b", 1e-3), ("c", 1.0)]}
        want = normal(8, 8)
        met = [judged(want, want * (1 + error), tolerances).tolerance for error in (0, 1e-4, 0.1, 5)]
        assert met == ["a", "b", "c", None]

    def test_the_excess_is_the_worst_value_over_its_limit(self):
        want = torch.full((4, 4), 2.0)
        tolerance = Tolerance(rel_l2=0.2, row_rel_l2=0.4, atol=0.05, max_mismatch=0.5)
        excess = judged(want, want * 1.1, {"t": tolerance}).excess["t"]
        assert (excess.limit, excess.ratio) == ("max_mismatch", pytest.approx(2.0))

    def test_every_output_must_be_right(self):
        want = {"out": normal(4, 4), "lse": normal(4, seed=1)}
        assert accepted(want, (want["out"].clone(), want["lse"].clone()), CLOSE)
        assert not accepted(want, (want["out"].clone(), want["lse"] * 2), CLOSE)
        assert not accepted(want, (want["out"] * 2, want["lse"].clone()), CLOSE)

    def test_the_error_is_taken_against_exact_arithmetic_where_it_is_known(self):
        truth = normal(6, 6, dtype=torch.float64)
        reference, got = (truth * 1.01).float(), (truth * 1.03).float()
        comparison = judged(reference, got, {"t": Tolerance(rel_l2=1)}, exact=(truth,))
        assert comparison.error == pytest.approx(0.03, rel=1e-3)
        assert comparison.reference_error == pytest.approx(0.01, rel=1e-3)

    def test_the_error_is_that_of_what_was_judged_whatever_is_written_there_later(self):
        truth = normal(6, 6, dtype=torch.float64)
        reference, got = (truth * 1.01).float(), (truth * 1.03).float()
        comparison = judged(reference, got, {"t": Tolerance(rel_l2=1)}, exact=(truth,), overwrite=True)
        assert comparison.error == pytest.approx(0.03, rel=1e-3)

    def test_an_infinity_that_is_exact_is_no_error(self):
        truth = torch.tensor([1.0, -math.inf], dtype=torch.float64)
        assert judged(truth.float(), truth.float(), CLOSE, exact=(truth,)).error == 0.0

    def test_the_error_of_a_wrong_output_is_not_nothing(self):
        assert judged(torch.ones(4), torch.zeros(4), EXACT).error == 1.0


def naive(want, got, tolerance):
    """Every limit by its definition, in float64 numpy: the worst value over its limit."""
    want, got = want.double().numpy(), got.double().numpy()
    error = np.abs(got - want)

    def ratio(value, bound):
        return 0.0 if value == 0 else (value / bound if bound else math.inf)

    def relative(error, want):
        return ratio(np.sqrt((error**2).sum()), np.sqrt((want**2).sum()))

    ratios = []
    if tolerance.max_mismatch is not None:
        missed = (error > tolerance.atol + tolerance.rtol * np.abs(want)).mean() if error.size else 0.0
        ratios.append(ratio(missed, tolerance.max_mismatch))
    if tolerance.rel_l2 is not None:
        ratios.append(ratio(relative(error, want), tolerance.rel_l2))
    if tolerance.row_rel_l2 is not None:
        rows = zip(error.reshape(-1, error.shape[-1]), want.reshape(-1, want.shape[-1]))
        ratios.append(ratio(max((relative(*row) for row in rows), default=0.0), tolerance.row_rel_l2))
    return max(ratios)


class TestChunks:
    limits = st.sampled_from([0.0, 1e-3, 0.1, 1.0])
    tolerances = st.builds(
        lambda rtol, atol, **limits: Tolerance(rtol=rtol, atol=atol, **limits),
        limits,
        limits,
        max_mismatch=limits,
        rel_l2=st.none() | limits,
        row_rel_l2=st.none() | limits,
    )

    @settings(deadline=None, max_examples=60)
    @given(
        st.lists(st.integers(1, 6), min_size=1, max_size=3),
        st.integers(0, 2**32),
        st.sampled_from([1, 2, 7, 12, 1 << 20]),
        tolerances,
        st.sampled_from([0.0, 1e-4, 1e-2, 1.0]),
        st.sampled_from(FLOATS),
    )
    def test_in_chunks_of_any_size_every_limit_is_what_its_definition_says(
        self, shape, seed, chunk, tolerance, noise, dtype
    ):
        want = normal(*shape, dtype=dtype, seed=seed)
        mask = torch.rand(shape, generator=torch.Generator().manual_seed(seed)) < 0.3
        got = torch.where(mask, want + noise * normal(*shape, dtype=dtype, seed=seed + 1), want)
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(chunked.CHUNK_ELEMENTS, "cpu", chunk)
            ratio = judged(want, got, {"t": tolerance}).excess["t"].ratio
        assert ratio == pytest.approx(naive(want, got, tolerance), rel=1e-9)

    @pytest.mark.parametrize("chunk", [1, 3, 8, 20, 1 << 20])
    def test_a_fault_in_any_chunk_counts(self, monkeypatch, chunk):
        monkeypatch.setitem(chunked.CHUNK_ELEMENTS, "cpu", chunk)
        want = normal(6, 8)
        for row in range(6):
            got = want.clone()
            got[row, 3] = math.nan
            assert not accepted(want, got, CLOSE)
            got[row, 3] = want[row, 3] + 1
            assert not accepted(want, got, EXACT) and not accepted(want, got, CLOSE)

    def test_chunks_of_all_outputs_and_of_state_are_read_in_one_secret_order(self, monkeypatch):
        """Or what is read last could be computed while the rest is read, the clock stopped."""
        monkeypatch.setitem(chunked.CHUNK_ELEMENTS, "cpu", 8)
        read = []
        whole = chunked.bits
        monkeypatch.setattr(chunked, "bits", lambda tensor: read.append(tensor.data_ptr()) or whole(tensor))
        expected = {name: normal(16, 8, seed=seed) for seed, name in enumerate("ab")}
        cache = normal(16, 8, seed=2)
        owners = {want.data_ptr() + 32 * n: name for name, want in {**expected, "c": cache}.items() for n in range(16)}
        orders = set()
        for _ in range(3):
            read.clear()
            returned = tuple(want.clone() for want in expected.values())
            assert judged(expected, returned, CLOSE, inputs=[(cache, cache)]).tolerance == "close"
            orders.add("".join(owners[address] for address in read if address in owners))
        assert len(orders) == 3 and all(sorted(order) == sorted("abc" * 16) for order in orders)
        assert all("ab" in order and "ba" in order and "c" in order[:40] for order in orders)

    @pytest.mark.parametrize("bad_row", range(4))
    def test_the_worst_row_is_the_worst_of_all_chunks(self, monkeypatch, bad_row):
        monkeypatch.setitem(chunked.CHUNK_ELEMENTS, "cpu", 8)
        want = torch.ones(4, 8)
        got = want * 1.01
        got[bad_row] = 1.5
        excess = judged(want, got, {"t": Tolerance(row_rel_l2=0.25)}).excess["t"]
        assert excess.ratio == pytest.approx(2.0)

    def test_an_infinity_in_one_chunk_does_not_excuse_errors_in_another(self, monkeypatch):
        want = torch.ones(4, 8)
        want[0, 0] = -math.inf
        got = want.clone()
        got[2:] = 0.0
        assert not accepted(want, got, CLOSE), "in one piece"
        monkeypatch.setitem(chunked.CHUNK_ELEMENTS, "cpu", 8)
        assert not accepted(want, got, CLOSE), "row by row"


class TestStructure:
    want = normal(4, 6)

    @pytest.mark.parametrize(
        "returned, said",
        [
            (torch.zeros(4, 5), "its shape is (4, 5), not (4, 6)"),
            (torch.zeros(24), "its shape is (24,), not (4, 6)"),
            (torch.zeros(1, 6), "its shape is (1, 6)"),
            (torch.zeros([1] * 64), "... (64 axes), not (4, 6)"),
            (want.double(), "its dtype is float64, not float32"),
            (want.bfloat16(), "its dtype is bfloat16"),
            (want.to(torch.complex64), "its dtype is complex64"),
            (want.to("meta"), "it is on meta, not on cpu"),
            (want.t().contiguous().t(), "it is not contiguous: its strides are (1, 4)"),
            (torch.ones(1, 1).expand(4, 6), "it is not contiguous: its strides are (0, 0)"),
            (torch.zeros(4, 12)[:, ::2], "it is not contiguous"),
            (None, "custom_kernel returned nothing (None) where a plain torch.Tensor is due"),
            (3.0, "a float where"),
            ([], "returned a list of 0; it must return one tensor"),
            ((want, want), "returned a tuple of 2; it must return one tensor"),
            (torch.nn.Parameter(want), "a Parameter where a plain"),
            (want.to_sparse(), "a Tensor of the layout torch.sparse_coo where a plain torch.Tensor is due"),
        ],
        ids=lambda value: value if isinstance(value, str) else "",
    )
    def test_what_is_wrong_with_a_tensor_as_such_is_said(self, returned, said):
        assert said in fault(self.want, returned, {"loose": Tolerance(rel_l2=1e9)})

    def test_a_tuple_of_one_is_as_good_as_its_member(self):
        assert accepted(self.want, (self.want.clone(),), CLOSE) and accepted(self.want, [self.want.clone()], CLOSE)

    def test_too_few_outputs_are_counted(self):
        want = {"out": self.want, "lse": normal(4)}
        said = fault(want, self.want.clone(), CLOSE)
        assert said == "custom_kernel returned a Tensor; it must return a tuple of 2: out, lse"

    def test_a_view_into_a_larger_tensor_is_welcome_where_it_is_dense(self):
        large = torch.zeros(10, 6)
        large[3:7] = self.want
        assert accepted(self.want, large[3:7], CLOSE)

    @pytest.mark.parametrize("offset", [-256, 1 << 40, 2**70, 1])
    def test_a_snapshot_said_to_lie_outside_the_arena_is_refused(self, offset):
        def amend(reply):
            reply["outputs"][0]["offset"] = offset

        assert "outside the shared memory" in fault(self.want, self.want.clone(), CLOSE, amend=amend)

    def test_an_output_said_to_lie_where_there_is_no_memory_is_refused(self):
        def amend(reply):
            reply["outputs"][0]["region"] = "pool"

        assert "outside the shared memory" in fault(self.want, self.want.clone(), CLOSE, amend=amend)

    @pytest.mark.parametrize("shape", [[0, 2**70], [2**62, 4, 6], [-4, -6]])
    def test_a_shape_that_cannot_be_is_a_wrong_one(self, shape):
        said = fault(self.want, self.want.clone(), CLOSE, amend=lambda r: r["outputs"][0].update(shape=shape))
        assert "its shape is" in said

    def test_a_lie_about_the_shape_does_not_move_what_is_compared(self):
        comparison = judged(self.want, torch.zeros(4, 6), CLOSE, amend=lambda r: r["outputs"][0].update(stride=[0, 0]))
        assert comparison.tolerance is None

    @pytest.mark.parametrize("several", [True, False])
    def test_a_claim_to_have_returned_nothing_is_rejected(self, several):
        amend = {"several": several, "outputs": []}
        assert "must return one tensor" in fault(self.want, self.want.clone(), CLOSE, amend=lambda r: r.update(amend))

    def test_a_fresh_tensor_where_the_supplied_one_is_due_is_told_from_a_strided_one(self):
        large = torch.zeros(64, 64)
        said = fault(large, torch.zeros(64, 64), CLOSE, amend=lambda r: r["outputs"][0].update(offset=None))
        assert "it is not the tensor that was supplied for it" in said


class TestState:
    def pair(self, changed=False):
        before = torch.tensor([0x7FC00000, 0x3F800000, 0], dtype=torch.int32).view(torch.float32)
        return before, before

    def test_an_input_left_alone_is_right(self):
        assert accepted(torch.ones(1), lambda data: torch.ones(1), CLOSE, inputs=[self.pair()])

    @pytest.mark.parametrize("place, bits", [(0, 0x7FC00001), (1, 0x3F800001), (2, -0x80000000)])
    def test_one_bit_changed_in_an_input_is_seen_whatever_the_tolerance(self, place, bits):
        def kernel(data):
            data[0].view(torch.int32)[place] = bits
            return torch.ones(1)

        loose = {"loose": Tolerance(rtol=1e9, atol=1e9, max_mismatch=1, rel_l2=1e9)}
        comparison = judged(torch.ones(1), kernel, loose, inputs=[self.pair()])
        assert comparison.tolerance is None and comparison.excess["loose"].limit == "bitwise"
        assert [d.name for d in comparison.differences if d.different_bits] == ["in0"]

    def test_what_is_to_be_written_must_be(self):
        before, after = torch.zeros(8), torch.arange(8.0)
        assert not accepted(torch.ones(1), lambda data: torch.ones(1), CLOSE, inputs=[(before, after)])
        assert accepted(
            torch.ones(1), lambda data: (data[0].copy_(after), torch.ones(1))[1:], CLOSE, inputs=[(before, after)]
        )

    def test_memory_that_was_supplied_is_to_be_returned_and_no_copy_of_it(self):
        before, after = torch.zeros(8), torch.arange(8.0)
        assert accepted(after, lambda data: data[0].copy_(after), CLOSE, inputs=[(before, after)])
        said = fault(after, lambda data: data[0].copy_(after).clone(), CLOSE, inputs=[(before, after)])
        assert "it is not the tensor that was supplied for it" in said

    def test_the_second_of_two_inputs_is_watched_as_the_first(self):
        same, other = torch.ones(300), torch.arange(300)

        def kernel(data):
            data[1][299] = 0
            return torch.ones(1)

        assert not accepted(torch.ones(1), kernel, CLOSE, inputs=[(same, same), (other, other)])


class TestSampledRows:
    selection = Selection(1, torch.tensor([0, 3, 9]), 10)
    whole = normal(2, 10, 4)

    def test_the_whole_output_is_due_and_its_selected_rows_are_compared(self):
        want = self.whole[:, self.selection.rows]
        assert accepted(want, self.whole.clone(), CLOSE, selection=self.selection)
        elsewhere, here = self.whole.clone(), self.whole.clone()
        elsewhere[:, 4], here[:, 3] = 0, 0
        assert accepted(want, elsewhere, CLOSE, selection=self.selection)
        assert not accepted(want, here, CLOSE, selection=self.selection)

    def test_the_selected_rows_alone_are_no_answer(self):
        want = self.whole[:, self.selection.rows].contiguous()
        assert "its shape is (2, 3, 4), not (2, 10, 4)" in fault(want, want.clone(), CLOSE, selection=self.selection)

    @pytest.mark.parametrize("dtype", FLOAT8S, ids=str)
    def test_rows_of_float8_can_be_selected(self, dtype):
        whole = self.whole.to(dtype)
        want = self.whole[:, self.selection.rows].to(dtype)
        assert accepted(want, whole, EXACT, selection=self.selection)


@settings(deadline=None, max_examples=60)
@given(st.binary(min_size=16, max_size=16), st.integers(0, 127), st.sampled_from([*FLOATS, *FLOAT8S, torch.int32]))
@example(bytes(16), 7, torch.float16)
def test_a_single_flipped_bit_is_always_seen_where_bits_count(content, bit, dtype):
    want = torch.frombuffer(bytearray(content), dtype=torch.uint8)
    got = want.clone()
    got[bit // 8] ^= 1 << bit % 8
    assert accepted(want.view(dtype), want.clone().view(dtype), EXACT)
    assert not accepted(want.view(dtype), got.view(dtype), EXACT)


class TestReport:
    @pytest.fixture
    def problem(self, toy_root):
        return catalog.load_problem(toy_root, "double")

    def report(self, problem, want, got, tolerance=None, **options):
        tolerance = tolerance or Tolerance(atol=0.01, rtol=0.1, max_mismatch=0)
        problem = problem.model_copy(update={"tolerances": {"tight": (tolerance,)}})
        comparison = judged(want, got, {"tight": tolerance}, **options)
        assert comparison.tolerance is None
        return mismatch.report(problem, Case(parameters={"rows": 4}), comparison, "the command")

    def test_where_every_bit_counts_all_that_differs_is_placed_and_nan_is_not_the_worst(self, problem):
        want = torch.arange(1.0, 61.0).reshape(10, 6)
        want[4, :2] = torch.nan
        got = want.clone()
        got[4] = want[3]
        lines = self.report(problem, want, got, Tolerance(bitwise=True)).splitlines()
        assert lines[1].startswith("y: 6 of 60 elements (10 %) differ")
        assert any("row" in line and "at 4 (of 0-9; up to 100 % of each)" in line for line in lines)
        assert any("col" in line and "spread over all 6 (10 % of each)" in line for line in lines)
        assert "expected nan" not in next(line for line in lines if "worst" in line)

    def test_it_names_the_case_the_share_the_axes_the_worst_and_the_way_to_reproduce_it(self, problem):
        want = torch.ones(10, 6)
        got = want.clone()
        got[2, 3], got[7, 1], got[8, 1] = 5.0, 1.5, 1.25
        lines = self.report(problem, want, got).splitlines()
        assert lines[0] == "case rows=4" and lines[-1] == "reproduce: the command"
        assert lines[1].startswith("y: 3 of 60 elements (")
        assert ") are outside atol 0.01 + rtol 0.1 x |expected|, none may be" in lines[1]
        worst = [line.split("worst   ")[1] for line in lines if "worst" in line]
        assert worst[0].startswith("[row 2, col 3]  got 5  expected 1  (36.4 x")
        assert worst[1].startswith("[row 7, col 1]  got 1.5") and worst[2].startswith("[row 8, col 1]  got 1.25")
        assert len(worst) == 3
        assert any(line.split()[:3] == ["row", "at", "2,"] and "7-8" in line for line in lines)
        assert any(line.split()[:3] == ["col", "at", "1,"] and " 3 (of 0-5" in line for line in lines)

    def test_only_the_worst_few_are_shown(self, problem):
        want = torch.arange(2500.0).reshape(50, 50)
        assert self.report(problem, want, torch.zeros(50, 50)).count("worst") == 5

    @pytest.mark.parametrize("tolerance", [None, Tolerance(bitwise=True)])
    def test_the_worst_are_different_elements_and_no_copies_of_one(self, problem, tolerance):
        want = torch.arange(1.0, 7.0)[:, None].expand(6, 8).contiguous()
        text = self.report(problem, want, 3 * want, tolerance)
        worst = [line for line in text.splitlines() if "worst" in line]
        assert len({re.search(r"expected (\S+)", line)[1] for line in worst}) == len(worst) == 5
        assert all(line.endswith("and 7 more alike") for line in worst)
        assert "hint    it is 3 x the expected" in text

    def test_errors_everywhere_are_called_spread(self, problem):
        assert "row     spread over all 50" in self.report(problem, torch.ones(50, 50), torch.zeros(50, 50))

    def test_long_lists_of_ranges_are_cut(self, problem):
        got = torch.ones(40, 2)
        got[::2, 0] = 9
        assert "and 14 more ranges" in self.report(problem, torch.ones(40, 2), got)

    def test_it_counts_nan_and_inf_that_are_not_due(self, problem):
        want, got = torch.ones(3, 4), torch.ones(3, 4)
        want[0, 0], got[0, 0] = math.inf, math.inf
        got[1, 1], got[2, 2], got[2, 3] = math.nan, -math.inf, -math.inf
        text = self.report(problem, want, got)
        assert "has     1 NaN (expected 0), 2 -Inf (expected 0)" in text and "+Inf" not in text
        assert "[row 1, col 1]  got nan  expected 1" in text and "[row 0, col 0]" not in text

    def test_an_output_of_nothing_but_nan_is_called_that_once_and_no_limit_is_said_to_hold(self, problem):
        tolerance = Tolerance(rel_l2=0.5, row_rel_l2=0.1)
        lines = self.report(problem, torch.ones(8, 4), torch.full((8, 4), math.nan), tolerance).splitlines()
        assert lines[1] == "y: all 32 elements are NaN or Inf that differ from the expected values; tolerance tight"
        assert [line for line in lines if "worst" in line] == [
            "  worst   [row 0, col 0]  got nan  expected 1  and 31 more"
        ]

    def test_nothing_but_nan_where_every_bit_counts_is_called_that_once_and_no_element_is_shown(self, problem):
        want = torch.arange(48.0).reshape(12, 4)
        want[2, 1] = torch.nan
        lines = self.report(problem, want, torch.full((12, 4), math.nan), Tolerance(bitwise=True)).splitlines()
        assert lines[1:-1] == [
            "y: all 48 elements are NaN, and every bit counts here",
            "  has     48 NaN (expected 1)",
            "  hint    all elements are NaN or Inf: computed so (0 / 0, inf - inf, inf / inf), or never written",
        ]

    def test_of_nan_and_inf_one_each_is_shown_and_then_the_worst_of_the_others(self, problem):
        got = torch.ones(8, 4)
        got[2], got[3, 1:], got[5, 0] = math.nan, -math.inf, 7
        text = self.report(problem, torch.ones(8, 4), got, Tolerance(rel_l2=0.5))
        assert "rel_l2 of the others 1.06 (limit 0.5, over)" in text
        worst = [line.split("worst   ")[1] for line in text.splitlines() if "worst" in line]
        assert worst[:2] == [
            "[row 2, col 0]  got nan  expected 1  and 3 more",
            "[row 3, col 1]  got -inf  expected 1  and 2 more",
        ]
        assert worst[2] == "[row 5, col 0]  got 7  expected 1"

    def test_beside_nan_nothing_right_is_called_worst_and_where_no_element_is_limited_none_is_said_to_be(self, problem):
        want = torch.arange(1.0, 129.0).reshape(8, 16)
        strict, loose = Tolerance(atol=0.01, max_mismatch=0.5, rel_l2=0.001), Tolerance(rel_l2=0.5, row_rel_l2=0.9)
        problem = problem.model_copy(update={"tolerances": {"strict": (strict,), "loose": (loose,)}})

        def worst(got):
            comparison = judged(want, got, {"strict": strict, "loose": loose})
            text = mismatch.report(problem, Case(parameters={"rows": 4}), comparison, "the command")
            return [line.split("worst   ")[1] for line in text.splitlines() if "worst" in line]

        got = 1.01 * want
        got[:, 15] = math.nan
        assert worst(got) == ["[row 0, col 15]  got nan  expected 16  and 7 more"]
        got[0, 3] = 900
        assert worst(got)[1:2] == ["[row 0, col 3]  got 900  expected 4"]
        assert not any("allowed" in line for line in worst(3 * want)) and len(worst(3 * want)) == 5

    @pytest.mark.parametrize("each", [{}, {"atol": 0.06, "max_mismatch": 0.001}], ids=["rows", "elements"])
    def test_along_the_last_axis_those_elements_are_placed_that_put_their_row_over_its_limit(self, problem, each):
        generator = torch.Generator().manual_seed(3)
        want = torch.randn(64, 32, generator=generator)
        noise = torch.randn(64, 32, generator=generator)
        if each:  # some rows are just over their limit, and noise is much of their error
            got = want + 0.012 * noise
            got[:, 29] = torch.linspace(0, 1, 64) * want[:, 29]
        else:
            got = want + 0.002 * noise
            got[2:, 29] = 0
        lines = self.report(problem, want, got, Tolerance(rel_l2=0.05, row_rel_l2=0.02, **each)).splitlines()
        (col,) = (line for line in lines if line.startswith("  col"))
        assert "at 29 (of 0-31; up to" in col, col

    @pytest.mark.parametrize("rows", [1, 2, 30])
    @pytest.mark.parametrize(("dims", "said"), [(slice(None), "spread over all 64 "), (slice(32, 64), "at 3")])
    def test_along_the_last_axis_an_error_in_all_or_half_of_a_row_is_told_apart(self, problem, rows, dims, said):
        want = torch.randn(32, 64, generator=torch.Generator().manual_seed(5))
        got = want.clone()
        got[:rows, dims] = 0.0
        lines = self.report(problem, want, got, Tolerance(rel_l2=0.05, row_rel_l2=0.5)).splitlines()
        (col,) = (line.split(maxsplit=1)[1] for line in lines if line.startswith("  col"))
        assert col.startswith(said), col

    def test_zeros_are_not_said_to_be_all_that_is_wrong_where_another_row_is_over_its_limit(self, problem):
        want = torch.randn(40, 16, generator=torch.Generator().manual_seed(4))
        got = want.clone()
        got[3:28] = 0
        tolerance = Tolerance(rel_l2=0.29, row_rel_l2=0.9)
        said = "400 of 640 elements are zero, and the others right: perhaps never written"
        assert said in self.report(problem, want, got, tolerance)
        got[30] = -0.1 * want[30]
        text = self.report(problem, want, got, tolerance)
        assert "in 26 of 40 rows" in text and "others right" not in text

    def test_it_says_which_limit_was_passed(self, problem):
        tolerance = Tolerance(rel_l2=0.5, row_rel_l2=0.1)
        got = torch.ones(4, 4)
        got[0] = 1.4
        text = self.report(problem, torch.ones(4, 4), got, tolerance)
        assert "rel_l2 0.2 (limit 0.5)" in text and "row_rel_l2 0.4 (limit 0.1, over)" in text

    def test_it_gives_the_reference_s_own_noise_for_scale(self, problem):
        truth = torch.ones(4, 4, dtype=torch.float64)
        text = self.report(problem, torch.full((4, 4), 1.01), torch.full((4, 4), 1.5), exact=(truth,))
        assert "the reference itself is 0.01 (rel L2) from exact arithmetic, this output 0.5" in text
        for value, said in ((math.nan, "NaN"), (math.inf, "inf")):
            text = self.report(problem, torch.full((4, 4), 1.01), torch.full((4, 4), value), exact=(truth,))
            assert f"from exact arithmetic, this output {said}\n" in text

    @pytest.mark.parametrize("shape, where", [((), "[]"), ((5,), "[row 0]"), ((2, 3), "[row 0, col 0]")])
    def test_any_number_of_axes_is_described(self, problem, shape, where):
        assert f"worst   {where}  got 9  expected 1" in self.report(problem, torch.ones(shape), torch.full(shape, 9.0))

    def test_integers_and_truth_values_are_described(self, problem):
        text = self.report(problem, torch.arange(6).reshape(2, 3), torch.arange(1, 7).reshape(2, 3))
        assert "6 of 6 elements (" in text and "differ, and every bit counts here" in text
        assert "got 1  expected 0" in text
        assert "1 of 2 elements" in self.report(problem, torch.tensor([True, False]), torch.tensor([True, True]))

    def test_bits_that_differ_are_located(self, problem):
        want = torch.zeros(3, 4)
        got = want.clone()
        got[2, 1] = -0.0
        text = self.report(problem, want, got, Tolerance(bitwise=True))
        assert "1 of 12 elements" in text and "[row 2, col 1]  got -0 (0x80000000)  expected 0 (0x00000000)" in text

    def test_what_is_wrong_as_such_is_one_sentence(self, problem):
        assert "y: its shape is (2,), not (3,)" in self.report(problem, torch.ones(3), torch.ones(2))

    def test_an_input_that_was_changed_is_named_as_one_that_may_not_be(self, problem):
        def kernel(data):
            data[0][1] = 5
            return torch.ones(3)

        pair = (torch.ones(3), torch.ones(3))
        text = self.report(problem, torch.ones(3), kernel, inputs=[pair])
        assert "in0: 1 of 3 elements" in text and "a submission may not write to it" in text and "y:" not in text
        assert "  worst   [1]  got 5 (0x40a00000)  before the call 1 (0x3f800000)" in text and "expected" not in text
        assert "  axis 0  at 1 (of 0-2; up to 100 % of each)" in text
        named = problem.model_copy(update={"axes": {**problem.axes, "in0": ("lane",)}})
        text = self.report(named, torch.ones(3), kernel, inputs=[pair])
        assert "[lane 1]  got 5" in text and "  lane    at 1 " in text and "axis 0" not in text

    def test_memory_that_is_to_be_written_to_is_held_against_what_is_expected(self, problem):
        writes = problem.model_copy(update={"in_place": ("in0",), "axes": {**problem.axes, "in0": ("lane",)}})
        pair = (torch.zeros(3), torch.ones(3))
        text = self.report(writes, torch.ones(3), lambda data: torch.ones(3), inputs=[pair])
        assert "[lane 0]  got 0 (0x00000000)  expected 1 (0x3f800000)" in text and "before the call" not in text

    def test_nan_in_an_input_that_was_changed_is_counted_against_what_was_there(self, problem):
        def kernel(data):
            data[0][1] = math.nan
            return torch.ones(3)

        pair = (torch.ones(3), torch.ones(3))
        assert "1 NaN (before the call 0)" in self.report(problem, torch.ones(3), kernel, inputs=[pair])

    def test_a_sampled_row_is_called_by_its_number_in_the_output(self, problem):
        selection = Selection(0, torch.tensor([0, 30, 99]), 100)
        whole = torch.ones(100, 4)
        whole[30, 2] = 7
        assert "[row 30, col 2]" in self.report(problem, torch.ones(3, 4), whole, selection=selection)

    @pytest.mark.parametrize(
        "want, got",
        [(123_456_789, 123_456_790), (0.1, 0.10000001)],
        ids=["integers", "neighbouring floats"],
    )
    def test_numbers_that_differ_are_shown_different(self, problem, want, got):
        text = self.report(problem, torch.tensor([want]), torch.tensor([got]), Tolerance(bitwise=True))
        line = next(line for line in text.splitlines() if "worst" in line)
        shown_got, shown_want = line.partition("got ")[2].split("  expected ")
        assert shown_got != shown_want

    @pytest.mark.parametrize(
        "want, got, tolerance",
        [
            pytest.param(
                torch.ones(2, 2, dtype=torch.float64),
                torch.ones(2, 2, dtype=torch.float64) + 1e-12,
                Tolerance(atol=1e-13, max_mismatch=0),
                id="float64",
            ),
            pytest.param(
                torch.tensor([0x7D], dtype=torch.uint8).view(torch.float8_e5m2),
                torch.tensor([0x7F], dtype=torch.uint8).view(torch.float8_e5m2),
                Tolerance(bitwise=True),
                id="float8 NaNs",
            ),
        ],
    )
    def test_the_report_sees_what_the_checker_saw(self, problem, want, got, tolerance):
        text = self.report(problem, want, got, tolerance)
        assert "worst" in text and " 0 of " not in text
