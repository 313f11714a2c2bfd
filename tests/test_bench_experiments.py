"""What the experiments compute from their samples; taking them needs the device itself."""

import csv
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import bdtr

from bench import constant, experiment, judge_time, kernel_table, voids
from bench import e1_known_durations as e1
from bench import e3_cold_cache as e3
from bench import e4_heater as e4
from bench import e5_profiler as e5
from harness import catalog
from harness.catalog.config import load_config
from harness.judge.evaluate import evaluate
from harness.judge.reply import Fault
from harness.machine import device as devices
from harness.model import Case, Device, Estimate, Manner, Measurement
from harness.ranking import stats

ROOT = Path(__file__).parents[1]


@given(st.floats(0, 1e4), st.floats(0.9, 1.1))
def test_a_line_s_offset_and_slope_are_found_again(offset, slope):
    known = [3e3, 3.03e3, 1e4, 1e5, 1e6]
    assert e1.line(known, [offset + slope * x for x in known]) == pytest.approx((offset, slope), rel=1e-6, abs=1e-4)


def test_a_line_is_as_true_to_short_durations_as_to_long_ones():
    known = [1e3, 1e6]
    offset, slope = e1.line([*known, 5e5], [1500.0, 1e6 + 500, 5e5 * 1.01])
    assert offset + slope * 1e3 == pytest.approx(1500, rel=0.002)


def test_order_is_by_blocks():
    shorter, longer = [1.0, 5.0, 1.0, 1.0] * 2, [2.0] * 8
    assert e1.order(shorter, longer, 1) == 0.75
    assert e1.order(shorter, longer, 4) == 1.0
    assert e1.order(longer, longer, 4) == 0.0, "equal is not ordered"


def test_the_tick_is_the_least_distance_of_distinct_values():
    assert e1.tick([64.0, 96.0, 64.0, 160.0]) == 32
    assert e1.tick([5.0, 5.0]) is None


def test_the_middle_keeps_a_sample_and_what_it_took_together():
    known, latencies = [1.0, 2.0, 3.0, 100.0], [11.0, 12.0, 13.0, 900.0]
    assert e1.middle(known, latencies) == (2.5, 12.5)


@pytest.mark.parametrize("ours, share", [(10.0, 0.0), (8.0, 0.4), (5.0, 1.0)])
def test_what_is_still_cached_is_the_share_of_the_way_to_warm(ours, share):
    assert e3.still_cached(5.0, ours, 10.0) == pytest.approx(share)


def test_where_warm_is_as_slow_as_cold_nothing_is_said_of_the_cache():
    assert e3.still_cached(9.8, 10.0, 10.0) is None


def trace(*names):
    """A trace of activities one after another, a microsecond each with a tenth between, in no order."""
    on_host = {"ph": "X", "cat": "cpu_op", "name": "host", "ts": 0, "dur": 9}
    events = [{"ph": "X", "cat": cat, "name": name, "ts": 1.1 * i, "dur": 1.0} for i, (cat, name) in enumerate(names)]
    return {"traceEvents": [on_host, *reversed(events), {"ph": "i", "name": "mark"}]}


SLEEP = ("kernel", "at::cuda::(anonymous namespace)::spin_kernel(long)")
FLUSH = [("gpu_memset", "Memset (Device)"), ("kernel", "reduce_kernel")]


def test_a_call_s_kernels_are_what_follows_the_flush():
    timeline = e5.activities(trace(SLEEP, *FLUSH, SLEEP, *FLUSH, ("kernel", "split"), ("kernel", "merge")))
    ((split, merge),) = e5.of_the_call(timeline, 1, 1)
    assert (split[0], merge[0]) == ("split", "merge")
    assert merge[2] - split[1] == pytest.approx(2.1)


def test_a_kernel_of_the_call_that_the_flush_uses_too_is_the_call_s():
    timeline = e5.activities(trace(SLEEP, *FLUSH, SLEEP, *FLUSH, FLUSH[1]))
    assert [len(group) for group in e5.of_the_call(timeline, 1, 1)] == [1]


@pytest.mark.parametrize(
    "names, why",
    [
        ([SLEEP, *FLUSH], "saw 1 sleeps of 2"),
        ([SLEEP, *FLUSH, SLEEP, *FLUSH], "has no kernel of the call"),
        ([SLEEP, *FLUSH, SLEEP, ("kernel", "mine"), *FLUSH], "does not begin with the flush"),
    ],
)
def test_a_timeline_of_another_shape_is_refused(names, why):
    with pytest.raises(ValueError, match=why):
        e5.of_the_call(e5.activities(trace(*names)), 1, 1)


def test_raw_samples_are_on_disk_as_soon_as_they_are_added(tmp_path):
    raw = experiment.Raw(tmp_path, "some", ("number", "latency_ns"))
    raw.add((0, 1.5), (1, 2.5))
    assert list(csv.reader((tmp_path / "some.csv").open())) == [["number", "latency_ns"], ["0", "1.5"], ["1", "2.5"]]


def test_a_report_ends_with_one_line_of_json(capsys):
    device = Device(kind="cpu", name="here", slug="here", arch="x", torch_device="cpu", memory_bytes=1, flush_bytes=1)
    experiment.report("some", device, "what it shows", [{"a": 1.0}], fact=2)
    *table, last = capsys.readouterr().out.splitlines()
    assert "what it shows" in table
    document = json.loads(last)
    assert (document["bench"], document["rows"], document["fact"]) == ("some", [{"a": 1.0}], 2)


@pytest.mark.parametrize("experiment_", [e3, e4, e5])
def test_an_experiment_that_needs_a_gpu_says_so_on_a_cpu(experiment_, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["it", "--device", "cpu", "--out", str(tmp_path)])
    experiment_.main()
    assert "it needs a GPU" in json.loads(capsys.readouterr().out.splitlines()[-1])["not_measured"]
    assert not list(tmp_path.iterdir()), "no file of samples that nobody took"


@pytest.mark.slow(ci=True)
def test_an_experiment_runs_as_a_script_from_anywhere(tmp_path):
    script = ROOT / "bench" / "e4_heater.py"
    words = [sys.executable, script, "--device", "cpu", "--out", tmp_path]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


def test_the_heater_s_shift_is_of_pairs():
    row = e4._row("mm", {("mm", "hot"): [101.0, 204.0], ("mm", "idle"): [100.0, 200.0]})
    assert row["pairs"] == 2 and 1 < row["shift %"] < 2 and row["low %"] < row["shift %"] < row["high %"]


def one_pass(tmp_path, elements=64):
    return experiment.one_pass(tmp_path, [{"variant": "A", "elements": elements}])


@pytest.fixture
def cpu():
    return devices.detect(ROOT, "cpu").model_copy(update={"flush_bytes": 1 << 20})


@pytest.mark.slow(ci=True)
def test_the_judge_s_stamps_enclose_a_spin_of_known_duration(tmp_path, cpu):
    (way,), source, _ = e1._on_cpu()
    target = 1000.0
    task = experiment.toy(tmp_path, e1.REFERENCE, [way.case(target).parameters], source)
    with experiment.judging(cpu, *task) as judge, judge.entrant.session() as session:
        with judge.series(way.case(target), experiment.Untouched()) as series:
            taken = judge.take(session, series, 5, read=e1.took_of)
        session.finish()
    assert [took[1] >= target * 1e3 for _, took in taken] == [True] * 5
    assert all(answer.elapsed_ns >= took[1] for answer, took in taken)
    assert judge.null_ns and judge.constant_ns == stats.interquartile_mean(judge.null_ns)


@pytest.mark.slow(ci=True)
def test_every_call_of_an_experiment_has_inputs_of_its_own(tmp_path, cpu):
    problem, submission = one_pass(tmp_path)
    with experiment.judging(cpu, problem, submission) as judge, judge.entrant.session() as session:
        with judge.series(problem.cpu.benchmark[0]) as series:
            taken = judge.take(session, series, 3, read=lambda answer: tuple(experiment.outputs(answer)[0].tolist()))
        session.finish()
    assert len({output for _, output in taken}) == 3


@pytest.mark.slow(ci=True)
def test_what_fails_in_a_call_ends_the_experiment_with_its_verdict(tmp_path, cpu):
    task = experiment.toy(tmp_path, experiment.ONE_PASS, [{"variant": "A", "elements": 8}], "def custom_kernel(d): 1/0")
    with (
        experiment.judging(cpu, *task) as judge,
        judge.entrant.session() as session,
        judge.series(task[0].cpu.benchmark[0]) as series,
        pytest.raises(Fault, match="ZeroDivisionError"),
    ):
        judge.take(session, series, 1)


def test_a_fresh_process_says_what_it_has_found_or_why_not():
    good = [sys.executable, "-c", "input(); print('a table'); print('[1, 2]')"]
    with experiment.Children(good, 2) as children:
        assert [children.next(30)[0], children.next(30, another_follows=False)[0]] == [[1, 2], [1, 2]]
    bad = [sys.executable, "-c", "import sys; sys.exit('no such thing')"]
    with experiment.Children(bad, 1) as children, pytest.raises(RuntimeError, match="no such thing"):
        children.next(30)


def test_constants_are_summed_up_over_the_judges():
    found = [{"constant_ns": ns, "time slice_ns": None} for ns in (280e3, 282e3, 281e3)]
    (row,) = constant.summary(found)
    assert (row["what"], row["judges"], row["median"], row["least"], row["most"]) == ("constant", 3, 281, 280, 282)


def test_of_none_in_n_about_three_in_n_are_possible():
    assert voids.at_most(0, 60) == pytest.approx(3 / 60, rel=0.05)
    assert voids.at_most(0, 0) == voids.at_most(5, 5) == 1.0
    assert bdtr(2, 40, voids.at_most(2, 40)) == pytest.approx(0.05)


def measurement(manner, samples, **void):
    estimate = Estimate(latency_ns=1.0, low_ns=1.0, high_ns=1.0)
    case = Case(parameters={"n": 1})
    return Measurement(case=case, samples_ns=samples, latency=estimate, manner=manner, voids=void)


def test_void_calls_are_counted_by_the_manner_of_timing():
    measurements = (
        measurement(Manner.SANDWICH, ((1.0,) * 9, (1.0,) * 10), late=1),
        measurement(Manner.SANDWICH, ((1.0,) * 20,)),
        measurement(Manner.LONG, ((1.0,) * 5,), cut=2, late=3),
    )
    sandwich, long = voids.by_manner([SimpleNamespace(measurements=measurements)])
    assert (sandwich["sittings"], sandwich["calls"], sandwich["void"], sandwich["reasons"]) == (3, 40, 1, "1 x late")
    assert (long["calls"], long["reasons"]) == (10, "3 x late, 2 x cut")


def test_busy_neighbours_are_gone_afterwards():
    children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children")
    before = children.read_text()
    with voids.busy_processes(2):
        assert len(children.read_text().split()) == len(before.split()) + 2
    assert children.read_text() == before


def test_no_time_of_an_evaluation_counts_twice():
    began = time.perf_counter()
    ledger = judge_time.Ledger(on_gpu=False)
    with ledger.in_phase("timing", "n=1"), ledger.part("deal"):
        with ledger.part("generate"):
            time.sleep(0.001)
        with ledger.part("null call"), ledger.part("flush"):
            time.sleep(0.001)
    passed = time.perf_counter() - began
    assert {part for _, _, part in ledger.seconds} == {"rest", "deal", "generate", "null call"}
    assert 0.002 <= sum(ledger.seconds.values()) <= passed


def test_the_time_of_each_case_s_calls_is_found_in_an_evaluation(toy_root):
    device, problem = devices.detect(toy_root, "cpu"), catalog.load_problem(toy_root, "double")
    source = "def custom_kernel(data):\n    return data[0] * 2\n"
    file = toy_root / "submissions" / "double" / "mine.py"
    file.write_text(source)
    ledger = judge_time.Ledger(on_gpu=False)
    with ledger.kept():
        evaluate(problem, catalog.load_submission(problem, file), device, load_config(toy_root), quick=True)
    phases = judge_time.by_phase(ledger)
    assert all(phases[name] > 0 for name in ("start, load", "tests", "calibration", "pilot", "timing"))
    (row,) = judge_time.by_case(ledger)
    assert row["calls"] > 0 and row["generate"] > 0 and row["check"] > 0


def test_a_kernel_s_cell_has_the_judged_figure_first_and_the_events_beside():
    judged = kernel_table.Judged(20.0, 23.0)
    assert kernel_table.cell((24.0, 10.0), judged) == "20.0 (50 %) · 23.0"
    assert kernel_table.cell((24.0, 10.0), judged._replace(events_us=None)) == "20.0 (50 %) · 24.0"
    assert kernel_table.cell((25.0, 10.0)) == "25.0 (40 %)" and kernel_table.cell(None, judged) == ""


def test_cases_that_were_measured_on_another_day_than_the_rest_of_their_kernel_s_have_a_row_of_their_own():
    dates = {"mla/mine": {"a": "09-01", "b": "09-01"}, "mla/rival theirs": {"a": "09-02", "b": "09-01", "c": "09-02"}}
    _, _, *rows = kernel_table.days(dates).splitlines()
    told = [[cell.strip() for cell in row.split("|")[1:3]] for row in rows]
    assert told == [["09-02", "mla (theirs)"], ["09-01", "mla (theirs), 1 of 3 cases"], ["09-01", "all others"]]


def test_e5_s_calls_are_timed_as_an_evaluation_times_them(tmp_path, cpu):
    made = one_pass(tmp_path)
    task, raw = e5.Task(*made, tmp_path / "submissions" / "bench" / "mine.py"), []
    row = e5._judge(task, cpu, SimpleNamespace(add=lambda *rows: raw.extend(rows)), "a pass")
    assert row["call"] == "a pass" and row["judge us"] > 0 and row["manner"] == Manner.STOPPED.value
    assert [number for _, number, *_ in raw] == list(range(e5.COUNT)) and all(each > 0 for _, _, each, *_ in raw)
