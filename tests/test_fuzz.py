"""Whatever bytes arrive from a worker or lie in results/: a refusal or a value that holds. A million: bench/fuzz.py."""

import random

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from untrusted import ProtocolSurface, ResultsSurface

from harness.judge import reply

seeds = st.integers(0, 2**64 - 1).map(random.Random)
quick = settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module")
def protocol():
    return ProtocolSurface()


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    return ResultsSurface(tmp_path_factory.mktemp("fuzz"), batch=20)


@quick
@given(seeds)
def test_whatever_a_worker_answers_ends_in_a_verdict_that_can_be_stored(protocol, rng):
    protocol.take(protocol.make(rng))


@quick
@given(st.lists(st.binary(max_size=60), min_size=1, max_size=4))
def test_bytes_that_mean_nothing_are_never_an_answer(protocol, pieces):
    assert protocol.take(pieces) in ("integrity violation", "timeout", "runtime error")


@quick
@given(seeds)
@example(random.Random(445))  # samples whose sum is infinite
def test_whatever_a_file_in_results_holds_boards_and_show_work(results, rng):
    results.take(results.make(rng))


def test_the_inputs_reach_every_outcome(protocol, results):
    rng = random.Random(1)
    answers = {protocol.take(protocol.make(rng)) for _ in range(1500)}
    assert {"accepted", "wrong answer", "integrity violation", "timeout", "runtime error", "compile error"} <= answers
    assert {results.take(results.make(rng)) for _ in range(100)} == {"loaded", "refused"}


def test_a_judge_that_trusted_the_worker_would_be_found_out(protocol, monkeypatch):
    """The same inputs, with the validation of replies taken away."""
    monkeypatch.setattr(reply.CallReply, "model_validate", reply.CallReply.model_construct)
    rng = random.Random(1)
    with pytest.raises(Exception):  # noqa: B017  (which one does not matter)
        for _ in range(300):
            protocol.take(protocol.make(rng))
