"""Honest work is not refused, what is wrong is, and the model of Hopper's fp8 instruction loses what that loses."""

import functools

import pytest
import torch

from bench import honest, hopper, mla_ways
from bench.experiment import ROOT
from harness import catalog

MLA = catalog.load_problem(ROOT, "mla")


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@functools.cache
def standings_of(name, listed):
    problem = catalog.load_problem(ROOT, name)
    entries = listed(problem)
    standings = honest.stand(problem, seed=1, benchmarks=0, calls=0, entries=entries)
    return {entry.name: standings[entry.name].rejected(entry.tolerance) for entry in entries}


@pytest.mark.slow(ci=True)
def test_no_honest_arithmetic_of_mla_is_refused():
    standings = honest.stand(MLA, seed=1, benchmarks=0, calls=0, entries=mla_ways.HONEST)
    assert [way.name for way in mla_ways.HONEST if standings[way.name].rejected(way.tolerance)] == []


@pytest.mark.slow(ci=True)
@pytest.mark.parametrize("name", ["kv_decode", "prefill", "fmha", "kv_replicate"])
def test_no_accepted_control_and_no_rounding_is_refused(name):
    rejected = standings_of(name, honest.honest)
    assert sum(each.startswith("accepted/") for each in rejected) >= 3
    assert not any(rejected.values())


@pytest.mark.parametrize("name", [pytest.param("kv_decode", marks=pytest.mark.slow), "fmha", "kv_replicate"])
def test_every_wrong_control_is_refused_in_this_process_too(name):
    assert all(standings_of(name, honest.wrong).values())


@pytest.mark.parametrize("name", ["kv_decode", "prefill", "fmha"])
def test_what_a_readme_says_is_wrong_and_accepted_is_accepted(name):
    rejected = standings_of(name, honest.passing)
    assert len(rejected) == 2 and not any(rejected.values())


def in_order(queries, keys, order):
    return hopper.products(order)(queries, keys, 1.0)


def test_only_calls_of_the_cases_asked_for_count():
    problem = catalog.load_problem(ROOT, "fmha")
    (entry,) = [each for each in honest.honest(problem) if each.name == "accepted/float32_softmax"]
    (standing,) = honest.stand(problem, 1, 0, 0, [entry], of_cases=["scores=", "head_dim=256"]).values()
    assert standing.worst_case["float16"].endswith("head_dim=256 kv_seq_len=8 scores=opposed")
    assert honest.stand(problem, 1, 0, 0, [entry], of_cases=["no such case"]) == {}


def one(codes):
    """A row of 576 codes, the first of each 32 as given, for one head or key."""
    row = torch.zeros(18, 32)
    row[: len(codes), 0] = torch.tensor(codes)
    return row.view(1, 1, -1)


def test_products_that_lie_close_are_added_exactly():
    # The largest code of a query is 224, so its scale is 1.
    queries, keys = one([224.0, 1.0, 1.5]), one([1.0, 1.0, 0.5])
    assert in_order(queries, keys, hopper.ROPE_LAST).item() == 225.75


def test_a_product_is_cut_off_13_bits_below_a_large_accumulator():
    queries, keys = one([224.0, 1.0]), one([128.0, 5.0])  # 28672 is below 2^15: multiples of 2 are left
    assert in_order(queries, keys, hopper.ROPE_LAST).item() == 28672 + 4
    other = [slice(32, 576), slice(0, 32)]
    assert in_order(queries, keys, other).item() == 28672 + 4
    queries, keys = one([224.0, 1.0, 1.0]), one([128.0, 1.0, 1.0])
    assert in_order(queries, keys, hopper.ROPE_LAST).item() == 28672
    assert in_order(queries, keys, other).item() == 28672 + 2


@pytest.mark.slow(ci=True)
def test_rope_dims_first_lose_gain_where_scores_are_moved_and_are_refused():
    (first,) = [way for way in mla_ways.WRONG if "rope dims first" in way.name]
    (last,) = [way for way in mla_ways.HONEST if way.arithmetic is mla_ways.HOPPER_FP8]
    standings = honest.stand(MLA, seed=1, benchmarks=0, calls=0, entries=[first, last])
    assert standings[first.name].rejected("exact") and standings[first.name].nearest("exact").limit == "row_gain"
    lost, kept = (standings[way.name].groups["all test cases"][0].row_gain for way in (first, last))
    assert lost < 0.98 and 0.997 < kept < 1.003
