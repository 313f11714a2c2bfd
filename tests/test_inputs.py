"""Seeds that tell nothing of each other, inputs poured for the worker, and what the judge expects of the call."""

import sys
import types

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from harness import catalog
from harness.errors import ProblemError
from harness.judge.inputs import GAPS, LEAST_GAP, STARTS, Dealer
from harness.judge.reference import Reference
from harness.judge.seeds import OneSeed, Seeds, derive_seed, new_master_seed
from harness.model import Case, Device
from harness.wire.arena import ALIGNMENT, TensorSpec, extent
from harness.wire.tree import unflatten

CPU = Device(kind="cpu", name="x", slug="x", arch="x", torch_device="cpu", memory_bytes=1 << 30, flush_bytes=1 << 10)
MASTER = "00112233445566778899aabbccddeeff"


@pytest.fixture
def make(toy_root, monkeypatch):
    """Writes a problem of one case and returns a dealer of its calls."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    dealers = []

    def make(reference=None, outputs="[y]", seeds=None, case="{rows: 4, cols: 8}", **keys):
        folder = toy_root / "problems" / "double"
        if reference is not None:
            (folder / "reference.py").write_text("import torch\n" + reference + "\ndef cost(**case): return {}\n")
            both = f"{{test: [{case}], benchmark: [{case.replace('steps: 3', 'steps: 1')}]}}"
            lines = {"name": "double", "title": "x", "description": "x", "outputs": outputs, "cases": both, "cpu": both}
            lines |= {"inputs": "[x, config]", "axes": "{y: [row]}", "tolerances": "{close: {rel_l2: 0.1}}"} | keys
            (folder / "problem.yml").write_text("".join(f"{key}: {value}\n" for key, value in lines.items()))
        problem = catalog.load_problem(toy_root, "double")
        case = problem.cpu.test[0]
        dealers.append(Dealer(Reference(problem, CPU), case, seeds or Seeds(MASTER, "test", case)))
        return dealers[-1]

    yield make
    for dealer in dealers:
        dealer.close()


def poured(dealer, call):
    """The data as the worker will find them."""
    for tensor, spec in call.places:
        call.arena.view(spec).copy_(tensor)
    specs = [TensorSpec.from_json(fields) for fields in call.request["inputs"]]
    return unflatten(call.request["tree"], lambda index: dealer.arena.view(specs[index]).clone())


class TestSeeds:
    cases = (Case(parameters={"n": 1}), Case(parameters={"n": 2}), Case(parameters={"n": 1, "m": 1}))

    def test_they_differ_by_phase_case_and_call_and_rows_from_inputs(self):
        seen = [
            seed
            for phase in ("test", "pilot", "process 0", "process 1", "process 10")
            for case in self.cases
            for call in range(20)
            for seeds in [Seeds(MASTER, phase, case)]
            for seed in (seeds.of_inputs(call), seeds.of_rows(call))
        ]
        assert len(set(seen)) == len(seen) and all(0 <= seed < 2**63 for seed in seen)

    def test_the_same_master_gives_the_same_and_another_another(self):
        draw = [
            [Seeds(master, "test", self.cases[0]).of_inputs(k) for k in range(9)] for master in (MASTER, MASTER, "ff")
        ]
        assert draw[0] == draw[1] and not set(draw[0]) & set(draw[2])

    def test_the_order_of_a_case_s_parameters_does_not_matter(self):
        swapped = Case(parameters={"m": 1, "n": 1})
        assert Seeds(MASTER, "test", swapped).of_inputs(0) == Seeds(MASTER, "test", self.cases[2]).of_inputs(0)

    @given(st.text(max_size=50), st.text(max_size=50))
    def test_labels_that_differ_give_seeds_that_differ(self, one, other):
        assert (derive_seed(MASTER, one) == derive_seed(MASTER, other)) == (one == other)

    def test_every_bit_of_a_seed_is_used(self):
        seeds = [derive_seed(MASTER, str(k)) for k in range(2000)]
        assert all(850 < sum(seed >> bit & 1 for seed in seeds) < 1150 for bit in range(63))

    def test_a_master_is_128_fresh_bits(self):
        masters = {new_master_seed() for _ in range(50)}
        assert len(masters) == 50 and all(len(bytes.fromhex(master)) == 16 for master in masters)

    def test_one_seed_is_the_first_call_s_and_later_ones_follow_from_it(self):
        found = [[OneSeed(seed).of_inputs(k) for k in range(4)] for seed in (5, 5, 6)]
        assert found[0] == found[1] and (found[0][0], found[2][0]) == (5, 6)
        assert len({*found[0], *found[2]}) == 8 and all(0 <= seed < 2**63 for seed in found[0])


class TestCalls:
    def test_the_worker_gets_the_inputs_and_the_judge_keeps_the_expectation(self, make):
        dealer = make()
        call = dealer.deal(everything=True)
        x, config = poured(dealer, call)
        assert x.shape == (4, 8) and config == {"factor": 2.0}
        assert torch.equal(call.expectation.outputs["y"], 2 * x)
        assert torch.equal(call.expectation.state["x"], x)
        assert call.request["state"] == [0] and call.request["poison"] == [4 * 8 * 4]
        assert call.seed == Seeds(MASTER, "test", dealer._case).of_inputs(0)

    def test_what_is_dealt_is_not_in_the_arena_before_it_is_poured(self, make):
        dealer = make()
        call = dealer.deal(everything=True)
        assert not dealer.arena.bytes.any() and poured(dealer, call)[0].any()

    def test_the_request_tells_nothing_of_seed_or_expectation(self, make):
        call = make().deal(everything=True)
        assert set(call.request) == {"tree", "inputs", "state", "poison", "tail"}
        assert str(call.seed) not in str(call.request)

    def test_each_call_has_fresh_inputs_and_the_same_master_the_same(self, make):
        dealer, twin = make(), make()
        first, second = (poured(dealer, dealer.deal(True))[0] for _ in range(2))
        again = poured(twin, twin.deal(True))[0]
        assert not torch.equal(first, second) and torch.equal(first, again)

    def test_timed_calls_watch_only_what_may_be_written(self, make):
        call = make().deal(everything=False)
        assert call.request["state"] == [] and call.expectation.state == {} and call.expectation.exact is None

    def test_the_oracle_is_asked_in_tests_and_not_in_timed_calls(self, make):
        reference = (
            "def generate_input(*, rows, cols, seed, device): return torch.full((rows,), float(seed % 97)), 1\n"
            "def ref_kernel(data): return data[0] + 1\n"
            "def oracle(data): return data[0].double() + 1.5\n"
        )
        dealer = make(reference)
        call = dealer.deal(everything=True)
        (exact,) = call.expectation.exact
        assert exact.dtype == torch.float64 and torch.equal(exact, call.expectation.outputs["y"].double() + 0.5)
        assert dealer.deal(everything=False).expectation.exact is None

    def test_a_reference_that_returns_another_number_of_outputs_is_a_problem_error(self, make):
        reference = (
            "def generate_input(*, rows, cols, seed, device): return torch.zeros(rows), 1\n"
            "def ref_kernel(data): return data[0], data[0]\n"
        )
        with pytest.raises(ProblemError, match="returns 2 outputs"):
            make(reference).deal(True)

    def test_a_reference_that_cannot_be_imported_is_a_problem_error(self, make):
        reference = (
            "import no_such_module\ndef generate_input(*, rows, cols, seed, device): ...\ndef ref_kernel(data): ..."
        )
        with pytest.raises(ProblemError, match=r"reference\.py cannot be imported: ModuleNotFoundError"):
            make(reference)

    @pytest.mark.parametrize("function", ["generate_input", "ref_kernel"])
    def test_a_failure_of_the_problem_s_own_code_is_a_problem_error(self, make, function):
        bodies = {"generate_input": "return torch.zeros(rows), 1", "ref_kernel": "return data[0]"}
        bodies[function] = "raise ValueError('no such shape')"
        reference = (
            f"def generate_input(*, rows, cols, seed, device): {bodies['generate_input']}\n"
            f"def ref_kernel(data): {bodies['ref_kernel']}\n"
        )
        with pytest.raises(ProblemError, match="no such shape"):
            make(reference).deal(True)

    def test_a_reference_may_define_a_dataclass(self, make, toy_root):
        make()
        path = toy_root / "problems" / "double" / "reference.py"
        added = "from __future__ import annotations\nimport dataclasses\n"
        added += "@dataclasses.dataclass\nclass Shape:\n    rows: int\n"
        path.write_text(added + path.read_text().partition('"""\n')[2])
        make().deal(True)


class TestRows:
    REFERENCE = (
        "def generate_input(*, rows, cols, seed, device): return torch.arange(2.0 * rows).reshape(2, rows, 1), cols\n"
        "def ref_kernel(data, rows=None): return data[0] if rows is None else data[0][:, rows]\n"
    )
    SAMPLED = "{output_axis: 1, parameter: rows, longer_than: 50, rows: 8, timed_rows: 8}"

    def dealer(self, make, rows, **options):
        return make(self.REFERENCE, case=f"{{rows: {rows}, cols: 1}}", sampled_rows=self.SAMPLED, **options)

    def test_rows_are_sorted_unique_and_hold_the_first_and_the_last(self, make):
        dealer = self.dealer(make, 100)
        for _ in range(20):
            selection = dealer.deal(True).expectation.selection
            rows = selection.rows.tolist()
            assert rows == sorted(set(rows)) and len(rows) == 8
            assert rows[0] == 0 and rows[-1] == 99 and selection.axis == 1 and selection.length == 100
            assert selection.rows.dtype == torch.int64

    def test_every_row_is_drawn_sooner_or_later_and_none_is_favoured(self, make):
        dealer = self.dealer(make, 51)
        counts = torch.zeros(51)
        for _ in range(400):
            counts[dealer.deal(False).expectation.selection.rows] += 1
        assert counts[0] == counts[50] == 400
        assert counts[1:50].min() > 20 and counts[1:50].max() < 90  # 400 x 6 / 49 = 49 on average

    def test_only_the_selected_rows_are_expected_of_an_output_of_the_whole_shape(self, make):
        dealer = self.dealer(make, 100)
        expectation = dealer.deal(True).expectation
        assert expectation.outputs["y"].shape == (2, 8, 1) and expectation.shape("y") == (2, 100, 1)
        assert expectation.outputs["y"][0, :, 0].tolist() == expectation.selection.rows.tolist()

    def test_the_worker_makes_room_for_the_whole_output(self, make):
        dealer = self.dealer(make, 3000)
        call = dealer.deal(False)
        assert call.request["poison"] == [2 * 3000 * 4] and dealer.arena.size >= 2 * 3000 * 4

    @pytest.mark.parametrize("rows, sampled", [(50, False), (51, True)])
    def test_an_output_no_longer_than_the_bound_is_checked_whole(self, make, rows, sampled):
        expectation = self.dealer(make, rows).deal(True).expectation
        assert (expectation.selection is not None) == sampled
        assert expectation.outputs["y"].shape[1] == (8 if sampled else rows)

    @pytest.mark.parametrize("rows, timed", [(5, None), (6, 5), (100, 5)])
    def test_of_a_timed_call_other_rows_are_checked_than_of_a_test(self, make, rows, timed):
        sampled = "{output_axis: 1, parameter: rows, timed_rows: 5}"
        dealer = make(self.REFERENCE, case=f"{{rows: {rows}, cols: 1}}", sampled_rows=sampled)
        assert dealer.deal(True).expectation.selection is None
        selection = dealer.deal(False).expectation.selection
        assert (None if selection is None else len(selection.rows)) == timed

    def test_more_rows_than_there_are_means_all(self, make):
        sampled = "{output_axis: 1, parameter: rows, longer_than: 1, rows: 500, timed_rows: 500}"
        for rows in (2, 3, 7):
            dealer = make(self.REFERENCE, case=f"{{rows: {rows}, cols: 1}}", sampled_rows=sampled)
            assert dealer.deal(True).expectation.selection.rows.tolist() == list(range(rows))

    def test_the_rows_follow_from_the_secret_and_not_from_the_input_s_seed(self, make):
        class SameInputs(Seeds):
            def of_inputs(self, call):
                return 7

        case = Case(parameters={"rows": 1000, "cols": 1})
        dealer = self.dealer(make, 1000, seeds=SameInputs(MASTER, "test", case))
        draws = {tuple(dealer.deal(False).expectation.selection.rows.tolist()) for _ in range(10)}
        twin = self.dealer(make, 1000, seeds=Seeds(MASTER, "test", case))
        again = {tuple(twin.deal(False).expectation.selection.rows.tolist()) for _ in range(10)}
        assert len(draws) == 10 and draws == again


class TestInPlace:
    REFERENCE = (
        "def generate_input(*, rows, cols, steps=1, seed, device):\n"
        "    return torch.randn(rows, generator=torch.Generator().manual_seed(seed)), {'step': 0}\n"
        "def next_input(data, *, seed): return data[0], {'step': data[1]['step'] + 1}\n"
        "def ref_kernel(data):\n"
        "    data[0].add_(1)\n"
        "    return data[0] * 2\n"
    )
    KEYS = types.MappingProxyType({"in_place": "[x]", "axes": "{y: [row], x: [row]}"})

    def test_what_the_reference_leaves_is_what_the_submission_must_leave(self, make):
        dealer = make(self.REFERENCE, **self.KEYS)
        for everything in (True, False):
            call = dealer.deal(everything)
            before = poured(dealer, call)[0]
            assert torch.equal(call.expectation.state["x"], before + 1), "the worker still gets what was before"
            assert torch.equal(call.expectation.outputs["y"], (before + 1) * 2)
            assert call.request["state"] == [0]

    def test_each_step_starts_from_what_the_last_one_left(self, make):
        dealer = make(self.REFERENCE, case="{rows: 4, cols: 8, steps: 3}", **self.KEYS)
        assert dealer.steps == 3
        starts, left = [], None
        for number in range(6):
            call = dealer.deal(True)
            before, config = poured(dealer, call)
            assert config == {"step": number % 3}
            if number % 3:
                assert torch.equal(before, left)
            else:
                starts.append(before)
            left = call.expectation.state["x"].clone()
        assert not torch.equal(*starts), "the next round starts afresh"

    def test_a_member_of_an_in_place_input_is_watched_by_its_own_name(self, make):
        reference = (
            "def generate_input(*, rows, cols, seed, device): return {'k': torch.zeros(rows), 'n': 1}, torch.ones(2)\n"
            "def ref_kernel(data): return data[0]['k'].add_(1)\n"
        )
        call = make(reference, **self.KEYS).deal(False)
        assert list(call.expectation.state) == ["x.k"] and call.expectation.state["x.k"].tolist() == [1, 1, 1, 1]

    def test_an_output_that_is_the_state_itself_needs_no_room_of_its_own(self, make):
        reference = (
            "def generate_input(*, rows, cols, seed, device): return torch.zeros(rows), 1\n"
            "def ref_kernel(data): return data[0].add_(1)\n"
        )
        dealer = make(reference, case="{rows: 4096, cols: 1}", **self.KEYS)
        dealer.deal(False)
        assert dealer.arena.size == 4096 * 4 + (2 * STARTS + 2 * (GAPS + 1)) * ALIGNMENT

    def test_an_output_that_is_a_part_of_the_state_has_room_for_its_snapshot(self, make):
        reference = (
            "def generate_input(*, rows, cols, seed, device): return torch.zeros(rows), 1\n"
            "def ref_kernel(data): return data[0].add_(1)[: len(data[0]) // 2]\n"
        )
        dealer = make(reference, case="{rows: 4096, cols: 1}", **self.KEYS)
        assert dealer.deal(False).fresh_bytes == (2048 * 4,)
        assert dealer.arena.size >= 4096 * 4 + 2048 * 4

    def test_an_oracle_that_works_in_place_does_not_change_what_the_worker_gets(self, make):
        reference = self.REFERENCE + "def oracle(data): return data[0].add_(1).double() * 2\n"
        seed = Seeds(MASTER, "test", Case(parameters={"rows": 4, "cols": 8})).of_inputs(0)
        drawn = torch.randn(4, generator=torch.Generator().manual_seed(seed))
        dealer = make(reference, **self.KEYS)
        assert torch.equal(poured(dealer, dealer.deal(True))[0], drawn)


class TestRoom:
    def test_the_arena_grows_for_outputs_larger_than_inputs_and_keeps_what_was_poured(self, make):
        reference = (
            "def generate_input(*, rows, cols, seed, device): return torch.arange(float(rows)), 1\n"
            "def ref_kernel(data): return data[0].repeat(100)\n"
        )
        dealer = make(reference, case="{rows: 1000, cols: 1}")
        call = dealer.deal(everything=True)
        assert dealer.arena.size >= 1000 * 4 + 100_000 * 4, "state and output"
        assert torch.equal(poured(dealer, call)[0], torch.arange(1000.0))
        first = dealer.arena
        dealer.deal(everything=True)
        assert dealer.arena is first, "large enough by now"

    def test_inputs_may_grow_from_call_to_call(self, make):
        reference = (
            "calls = []\n"
            "def generate_input(*, rows, cols, seed, device):\n"
            "    calls.append(seed)\n"
            "    return torch.zeros(rows * len(calls)), 1\n"
            "def ref_kernel(data): return data[0][:1] + 1\n"
        )
        dealer = make(reference, case="{rows: 2000, cols: 1}")
        for _ in range(3):
            dealer.deal(True)

    def test_one_tensor_given_twice_has_room_for_two_snapshots(self, make):
        reference = (
            "def generate_input(*, rows, cols, seed, device): return (lambda x: (x, x))(torch.zeros(rows))\n"
            "def ref_kernel(data): return data[0] + 1\n"
        )
        dealer = make(reference, case="{rows: 4096, cols: 1}")
        dealer.deal(everything=True)
        assert dealer.arena.size >= 3 * 4096 * 4


THREE = (
    "def generate_input(*, rows, cols, seed, device): return [torch.ones(rows) for _ in range(3)], 1\n"
    "def ref_kernel(data): return data[0][0] + 1\n"
)


def test_nobody_knows_where_in_the_arena_inputs_will_lie_nor_how_far_from_each_other(make):
    dealer = make(THREE)
    found = [[TensorSpec.from_json(fields) for fields in dealer.deal(False).request["inputs"]] for _ in range(40)]
    assert len({specs[0].offset for specs in found}) > 20
    for one, other in ((0, 1), (1, 2)):
        gaps = {specs[other].offset - specs[one].offset - specs[one].nbytes for specs in found}
        assert len(gaps) > 15 and min(gaps) >= LEAST_GAP * ALIGNMENT
    assert all(spec.offset % ALIGNMENT == 0 for specs in found for spec in specs)


def test_behind_the_inputs_there_is_room_for_outputs_that_are_new_and_some_more(make):
    dealer = make(THREE)
    for _ in range(20):
        call = dealer.deal(everything=False)
        specs = [TensorSpec.from_json(fields) for fields in call.request["inputs"]]
        assert call.request["tail"] >= extent(specs) + LEAST_GAP * ALIGNMENT
        assert dealer.arena.size >= call.request["tail"] + sum(call.request["poison"]) + (STARTS // 2) * ALIGNMENT
