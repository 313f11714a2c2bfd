"""Which times a run may hold: those that a call can have taken; what older runs hold is read all the same."""

import json

import pytest
from pydantic import TypeAdapter, ValidationError
from test_store import make_run

from harness.model import Estimate, Measurement, Run, SampleNanoseconds
from harness.model.value import LONGEST_NS, SHORTEST_NS
from harness.records.run_file import load_run

NONE_THAT_A_CALL_TAKES = [5e-324, SHORTEST_NS / 2, LONGEST_NS * 1.01, 9.9e14]


def timed(ns: float, where: str, version: int) -> dict:
    """A run, as stored, with `ns` in one place."""
    run = make_run("20260101-run", score=100.0)
    document = json.loads(run.model_dump_json()) | {"schema_version": version}
    measured = document["measurements"][0]
    if where == "sample":
        measured["samples_ns"][0][0] = ns
    else:
        (measured["latency"] if where == "latency" else document["score"])["latency_ns"] = ns
    return document


@pytest.mark.parametrize("where", ["sample", "latency", "score"])
@pytest.mark.parametrize("ns", NONE_THAT_A_CALL_TAKES)
def test_a_time_that_no_call_takes_is_in_no_new_run(where, ns):
    with pytest.raises(ValidationError, match="cannot be the time of a call"):
        Run.model_validate(timed(ns, where, version=2))


@pytest.mark.parametrize("where", ["sample", "latency", "score"])
@pytest.mark.parametrize("ns", NONE_THAT_A_CALL_TAKES)
def test_a_run_of_version_1_is_read_whatever_it_holds(tmp_path, where, ns):
    path = tmp_path / "double" / "test-1000" / "20260101-run.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(timed(ns, where, version=1)))
    assert load_run(path).schema_version == 1


@pytest.mark.parametrize("ns", [SHORTEST_NS, 0.25, 1.0, 2.8e7, 6e10, LONGEST_NS])
def test_what_a_call_can_take_is_in_any_run(ns):
    for where in ("sample", "latency", "score"):
        assert Run.model_validate(timed(ns, where, version=2))


@pytest.mark.parametrize("ns", [*NONE_THAT_A_CALL_TAKES, 0.0, -1.0, float("inf"), float("nan")])
def test_no_worker_may_claim_it(ns):
    with pytest.raises(ValidationError):
        TypeAdapter(SampleNanoseconds).validate_python(ns)


def test_an_interval_may_be_as_wide_as_it_comes_out():
    run = make_run("20260101-run", score=100.0)
    wide = run.model_copy(update={"score": Estimate(latency_ns=100.0, low_ns=1e-90, high_ns=1e90)})
    assert Run.model_validate_json(wide.model_dump_json()) == wide
    assert isinstance(wide.measurements[0], Measurement)
