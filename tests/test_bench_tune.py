"""A sweep of kernels that ran out of its time goes on where it stopped."""

import importlib
import json
from pathlib import Path

import pytest

ON = {
    "device": "H",
    "torch": "2",
    "triton": "3",
    "null_us": 4.8,
    "date": "2026-01-02",
    "sources": {"mla/a": "a1", "mla/b": "b1"},
}
DONE = [
    {"problem": "mla", "variant": "mla/a BLOCK=64", "case": "n=1", "us": 1.0},
    {"problem": "mla", "variant": "mla/b spaced", "case": "n=1", "us": 2.0},
    {"problem": "mla", "variant": "mla/a", "case": "n=2", "error": "it crashed"},
    {"problem": "mla", "variant": "mla/rival SDPA, flash", "case": "n=1", "us": 3.0},
]
TIMES = {("mla/a BLOCK=64", "n=1"): 1.0, ("mla/b spaced", "n=1"): 2.0, ("mla/rival SDPA, flash", "n=1"): 3.0}


@pytest.fixture
def left(tmp_path, monkeypatch):
    """What is done of a sweep on ON, after one on other conditions."""
    monkeypatch.syspath_prepend(Path(__file__).resolve().parents[1] / "bench")
    tune = importlib.import_module("tune")

    def found(**changes):
        path = tmp_path / "tune.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in ({**ON, **changes}, *DONE)))
        return tune.done_before(path, ON)

    assert tune.done_before(tmp_path / "none", ON) == {}
    return found


def test_what_was_timed_is_not_timed_again_and_what_failed_is(left):
    assert left() == TIMES
    assert left(date="2026-01-01", null_us=4.9) == TIMES, "a day later"


@pytest.mark.parametrize("other", [{"device": "I"}, {"torch": "2.1"}, {"triton": "3.1"}])
def test_what_another_device_or_version_did_is_timed_again(left, other):
    assert left(**other) == {}


def test_of_a_source_that_has_changed_all_is_timed_again_and_of_the_others_nothing(left):
    assert left(sources={"mla/a": "a0", "mla/b": "b1"}) == {
        key: us for key, us in TIMES.items() if "mla/a" not in key[0]
    }
    assert set(left(sources={})) == {("mla/rival SDPA, flash", "n=1")}, "files before sources were written down"
