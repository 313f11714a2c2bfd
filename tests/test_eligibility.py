"""What is asked again of a stored run: one that its own data do not let rank is not ranked, whatever its file says."""

import json
import math

import pytest
from test_store import SUBMISSION, make_run, problem

from harness.model import (
    Case,
    ClockOwner,
    Estimate,
    Floor,
    Label,
    Manner,
    Measurement,
    Round,
    Run,
    Skipped,
    Unranked,
)
from harness.model.eligibility import is_imprecise, read_again
from harness.records.run_file import load_run
from harness.records.store import Store
from harness.render import document
from harness.render import run as rendered

CASE = Case(parameters={"rows": 4})
SAMPLED = {"gpu": {"processes": 2, "most_half_width": 0.1}}


def measured(**changes):
    fields = {
        "case": CASE,
        "samples_ns": ((100.0,) * 8, (100.0,) * 8),
        "latency": Estimate(latency_ns=100.0, low_ns=99.0, high_ns=101.0),
        "floor": Floor(latency_ns=40.0, binds="bandwidth", format="bf16"),
        "manner": Manner.SANDWICH,
        "bound_ns": 2.0,
    }
    return Measurement(**{**fields, **changes})


def stored(**changes):
    said = {"config": SAMPLED, "measurements": (measured(), measured()), **changes}
    return make_run(**{key: value for key, value in said.items() if key != "score"}).model_copy(
        update={key: value for key, value in changes.items() if key == "score"}
    )


def of_cases(**changes):
    return {"measurements": (measured(), measured(**changes))}


DISTURBED, CALM = (Round(copy_ns=1, product_ns=1, disturbed=why) for why in ("it was slow", None))
WIDE = Estimate(latency_ns=100.0, low_ns=2.0, high_ns=5000.0)

CANNOT = {
    Unranked.CROWDED: of_cases(labels=(Label.CROWDED,)),
    Unranked.VOIDED: of_cases(voids={"disturbed": 6}),
    Unranked.BELOW_FLOOR: of_cases(floor=Floor(latency_ns=103.0, binds="bandwidth", format="bf16")),
    Unranked.UNSTABLE: {"rounds": (DISTURBED, CALM)},
    Unranked.QUICK: {"measurements": (measured(samples_ns=((100.0,),)),)},
    Unranked.SKIPPED: {"skipped": (Skipped(case=CASE, reason="too large"),)},
    Unranked.REPRODUCED: {"reproduces": "another"},
}


@pytest.mark.parametrize("reason", CANNOT)
def test_a_run_that_cannot_be_ranked_is_not_whatever_its_file_says(tmp_path, reason):
    (tmp_path / "results").mkdir()
    path = Store(tmp_path).write(stored(**CANNOT[reason]), SUBMISSION)
    assert json.loads(path.read_text())["unranked_because"] is None
    with Store(tmp_path).index() as index:
        (entry,) = index.standings(problem(), "test-1000")
    assert not entry.ranked and entry.unranked == reason == load_run(path).unranked_because
    assert not Store(tmp_path).read("run-1").ranked


def test_a_run_tells_how_many_of_its_calls_were_taken_again_beside_the_limits():
    other = measured(case=Case(parameters={"rows": 8}), voids={"disturbed": 1, "late": 1})
    shown = document.text(rendered.parts(stored(measurements=(measured(), other)))).replace("\xa0", " ")
    told = "2 of 34 calls (5.9 %, limit 10 %); most in one case: 11 % (limit 25 %)"
    assert f"taken again in all: {told}" in shown
    assert "taken again in all" not in document.text(rendered.parts(stored()))


@pytest.mark.parametrize("half_width, reason", [(0.05, None), (0.2, Unranked.IMPRECISE)])
def test_a_score_with_a_wide_interval_is_not_ranked(half_width, reason):
    score = Estimate(latency_ns=100.0, low_ns=90.0, high_ns=100.0 * (1 + half_width))
    assert read_again(stored(score=score)).unranked_because == reason


def test_cases_that_differ_by_fifty_give_no_precise_score_by_chance():
    run = stored(measurements=(measured(latency=WIDE), measured(latency=WIDE)))
    assert run.score.high_ns / run.score.latency_ns < 1.1
    assert read_again(run).unranked_because == Unranked.IMPRECISE


def test_many_cases_that_are_each_a_little_wide_give_a_precise_score():
    of_one = Estimate(latency_ns=100.0, low_ns=80.0, high_ns=125.0)
    score = Estimate(latency_ns=100.0, low_ns=95.0, high_ns=105.0)
    assert is_imprecise(score, [of_one] * 4, "geom", 0.1) and not is_imprecise(score, [of_one] * 12, "geom", 0.1)


def test_of_an_arithmetic_mean_a_short_case_that_is_wide_matters_little():
    score = Estimate(latency_ns=100.0, low_ns=95.0, high_ns=105.0)
    short, long = (Estimate(latency_ns=ns, low_ns=ns / 2, high_ns=ns * 2) for ns in (1.0, 1e3))
    steady = Estimate(latency_ns=1e3, low_ns=990.0, high_ns=1010.0)
    assert not is_imprecise(score, [short, steady], "mean", 0.1) and is_imprecise(score, [long, steady], "mean", 0.1)
    assert is_imprecise(score, [short, steady], "geom", 0.1)


def test_a_case_without_an_interval_and_a_rule_without_a_limit_say_nothing():
    score = Estimate(latency_ns=100.0, low_ns=1.0, high_ns=105.0)
    assert not is_imprecise(score, [Estimate(latency_ns=100.0), WIDE], "geom", 0.1)
    assert not is_imprecise(WIDE, [WIDE], "geom", None)


def test_an_interval_as_wide_as_floats_go_is_imprecise_and_no_traceback():
    endless = Estimate(latency_ns=1e-300, low_ns=1e-300, high_ns=1.7e308)
    for ranking in ("geom", "mean"):
        assert is_imprecise(Estimate(latency_ns=1.0), [endless], ranking, 0.1)
    assert math.isinf(1.7e308 / 1e-300)


@pytest.mark.parametrize("own", [{"manner": Manner.WORKER}, {"labels": (Label.WORKER_TIMED,)}])
def test_a_run_with_a_case_that_the_worker_timed_is_by_its_clock(own):
    run = read_again(stored(clock=ClockOwner.JUDGE, **of_cases(**own)))
    assert run.clock is ClockOwner.WORKER


def test_one_of_schema_version_1_is_by_the_worker_s_clock():
    assert read_again(stored(schema_version=1, clock=ClockOwner.JUDGE)).clock is ClockOwner.WORKER


def test_a_run_that_the_worker_timed_and_others_disturbed_is_not_ranked_for_whoever_ranks_those():
    run = stored(clock=ClockOwner.WORKER, unranked_because=Unranked.WORKER_TIMED, **CANNOT[Unranked.CROWDED])
    assert read_again(run).unranked_because == Unranked.CROWDED


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"unranked_because": Unranked.UNSANDBOXED, **CANNOT[Unranked.CROWDED]},
        {"score": None, **CANNOT[Unranked.QUICK]},
        {"config": {}},
        {"config": {"gpu": None}},
        {"config": {"gpu": {"processes": "2", "most_half_width": True}}},
        {"config": {"gpu": {"processes": 10**400, "most_half_width": math.nan}}},
    ],
)
def test_of_any_other_run_nothing_changes(changes):
    run = stored(**changes)
    assert read_again(run) == run


def test_no_published_run_is_read_as_another_than_it_says(pytestconfig):
    files = sorted((pytestconfig.rootpath / "results" / "published").glob("*/*/*.json"))
    said = [Run.model_validate_json(file.read_bytes()) for file in files]
    assert [load_run(file) for file in files] == said and {run.schema_version for run in said} == {1, 2}
