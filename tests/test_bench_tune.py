"""A sweep of kernels that ran out of its time goes on where it stopped."""

import importlib
import io
import json
import types
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
def tune(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).resolve().parents[1] / "bench")
    return importlib.import_module("tune")


@pytest.fixture
def left(tmp_path, tune):
    """What is done of a sweep on ON, after one on other conditions."""

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


@pytest.mark.parametrize("cut", ['{"problem": "ml', '{"problem": "mla", "variant": "mla/b", "case": "n=2", "us": 4.0}'])
def test_a_last_line_that_a_kill_cut_off_is_removed_and_the_next_line_is_whole(tune, tmp_path, capsys, cut):
    path = tmp_path / "tune.jsonl"
    whole = "".join(json.dumps(row) + "\n" for row in (ON, *DONE))
    path.write_text(whole + cut)
    assert tune.done_before(path, ON) == TIMES
    assert path.read_text() == whole and "a kill cut off its last line" in capsys.readouterr().out
    assert tune.done_before(path, ON) == TIMES and not capsys.readouterr().out
    path.write_text(cut)
    assert tune.done_before(path, ON) == {} and path.read_text() == "", "killed at its first line"


def test_kept_times_are_in_the_table_past_the_deadline_and_after_a_crash_and_nothing_new_is_timed(
    tune, capsys, monkeypatch
):
    monkeypatch.setitem(tune.VARIANTS, "mla/a", [{}])
    log = io.StringIO()
    sweep = tune.Sweep("mla", TIMES, log, broken={"mla/b"})
    never = lambda: pytest.fail("it was timed")  # noqa: E731
    sweep.floors["mla/a", "n=1"] = sweep.floors["mla/rival", "n=1"] = 0.5
    sweep.add("mla/a BLOCK=64", "mla/a BLOCK=64", "n=1", 0.5, never, deadline=0)
    sweep.add("mla/a BLOCK=32", "mla/a BLOCK=32", "n=1", 0.5, never, deadline=0)
    sweep.usable = False
    sweep.add("mla/b", "mla/b spaced", "n=1", 0.5, never)
    sweep.add("mla/rival SDPA, flash", "mla/rival SDPA, flash", "n=1", 0.5, never)
    sweep.add("mla/rival flashinfer", "mla/rival flashinfer", "n=1", 0.5, never)
    assert sweep.times == {"mla/a BLOCK=64": {"n=1": 1.0}, "mla/b": {"n=1": 2.0}, "mla/rival SDPA, flash": {"n=1": 3.0}}
    assert log.getvalue() == "", "what is kept is written already"
    case = types.SimpleNamespace(label="n=1")
    capsys.readouterr()
    tune.table("mla", [case], {name: each for name, each in sweep.times.items() if "mla/b" not in name}, sweep.floors)
    out = capsys.readouterr().out
    assert "1.0 ( 50%)" in out and "BLOCK=64" in out and "SDPA, flash" in out


def test_a_new_time_is_written_down_and_what_crashes_is_timed_no_more(tune, capsys):
    log = io.StringIO()
    sweep = tune.Sweep("mla", {}, log, broken=set())
    sweep.add("mla/a", "mla/a spaced", "n=1", 0.5, lambda: {"us": 2.0, "n": 6})
    sweep.add("mla/b", "mla/b", "n=1", 0.5, lambda: 1 / 0)
    sweep.add("mla/b", "mla/b", "n=2", 0.5, lambda: pytest.fail("it was timed"))
    first, second = map(json.loads, log.getvalue().splitlines())
    assert first == {"problem": "mla", "variant": "mla/a spaced", "case": "n=1", "floor_us": 0.5, "us": 2.0, "n": 6}
    assert second["error"] == "ZeroDivisionError: division by zero" and "us" not in second
    assert sweep.times == {"mla/a": {"n=1": 2.0}} and "broken: mla/b on n=1" in capsys.readouterr().out


def test_a_rival_that_reads_the_fp8_cache_has_the_floor_of_fp8_and_mla_s_others_that_of_bf16(tune):
    assert tune.read_by_rival("mla", "FlashMLA, fp8") == "_fp8"
    assert tune.read_by_rival("mla", "FlashMLA") == tune.read_by_rival("mla") == "_bf16"
    assert tune.read_by_rival("prefill", "FlashAttention-3") == ""


def test_a_share_of_the_limit_is_that_of_the_rival_s_own_format(tune, capsys):
    case = types.SimpleNamespace(label="n=1")
    times = {"mla/rival FlashMLA": {"n=1": 4.0}, "mla/rival FlashMLA, fp8": {"n=1": 5.0}}
    tune.table("mla", [case], times, {("mla/rival", "n=1"): 2.0, ("mla/rival FlashMLA, fp8", "n=1"): 1.0})
    out = capsys.readouterr().out
    assert "4.0 ( 50%)" in out and "5.0 ( 20%)" in out
