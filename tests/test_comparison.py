"""What is said of two runs, and of sources timed in turns, follows from the interval, the noise and what was run."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import UsageError
from harness.model import Case, ClockOwner, Device, Ending, Estimate, Label, Measurement, Run, Unranked, Verdict
from harness.ranking.comparison import ComparedCase, Comparison, PairedMeasurement, compare_pairs, compare_runs
from harness.ranking.speed import Noise, Speed, judge
from harness.ranking.stats import Ratio
from harness.verbs.compare import more_pairs

NOISE = Noise(math.log1p(0.01), True, "made up for a test")
DEVICE = Device(
    kind="cpu", name="Box", slug="box", arch="x86_64", torch_device="cpu", memory_bytes=1 << 30, flush_bytes=1
)
STEADY = (1.0, 1.001, 0.999, 1.0005, 0.9995)


def run(name="a", latencies=(100.0, 400.0), spread=STEADY, labels=(), **changes) -> Run:
    """A run with one measurement a latency, whose processes differ by `spread`."""
    measurements = tuple(
        Measurement(
            case=Case(parameters={"n": number}),
            samples_ns=tuple((latency * factor,) * 4 for factor in spread),
            latency=Estimate(latency_ns=latency),
            labels=labels,
        )
        for number, latency in enumerate(latencies)
    )
    score = Estimate(latency_ns=math.prod(latencies) ** (1 / len(latencies))) if latencies else None
    fields = {
        "id": f"id-{name}",
        "problem": "double",
        "problem_revision": 1,
        "problem_sha256": "0" * 64,
        "submission": name,
        "submission_sha256": name.ljust(64, "0"),
        "submission_path": f"{name}.py",
        "device": DEVICE,
        "environment": {"python": "3.11", "packages": {"torch": "2.13"}},
        "started_at": "2026-01-01T00:00:00+00:00",
        "duration_s": 1.0,
        "ending": Ending(verdict=Verdict.ACCEPTED, message="all right"),
        "measurements": measurements,
        "clock": ClockOwner.JUDGE,
        "score": score,
        "master_seed": "00",
        "config": {},
    }
    return Run(**(fields | changes))


def found(a: Run, b: Run, noise=NOISE):
    return compare_runs(a, b, noise, 0.95).finding


@pytest.mark.parametrize(
    ("factor", "speed"),
    [(0.97, Speed.FASTER), (1.03, Speed.SLOWER), (1.0, Speed.SAME), (1.002, Speed.SAME), (0.998, Speed.SAME)],
)
def test_a_run_is_faster_or_slower_beyond_the_noise_and_the_same_within_it(factor, speed):
    assert found(run(), run("b", (100.0 * factor, 400.0 * factor))).speed is speed


def test_a_difference_that_is_certain_but_within_the_noise_is_not_called_faster():
    certain = judge(Ratio(0.995, 0.994, 0.996), NOISE)
    assert certain.speed is Speed.SAME
    assert judge(Ratio(0.992, 0.98, 0.998), NOISE).speed is Speed.AMBIGUOUS


def test_a_difference_beyond_the_noise_that_is_uncertain_is_ambiguous():
    finding = judge(Ratio(0.95, 0.88, 1.02), NOISE)
    assert finding.speed is Speed.AMBIGUOUS and "holds equality" in finding.reason


def test_beyond_twice_as_long_or_short_factors_are_said_and_not_thousands_of_per_cent():
    assert "the interval, ÷244 to ×729, holds equality" in judge(Ratio(1.7, 0.0041, 728.6), NOISE).reason


@pytest.mark.parametrize(
    ("ratio", "interval"),
    [
        (Ratio(0.6, 1 / 2.4, 0.79), "÷2.4 to ÷1.27, excludes equality"),
        (Ratio(1.9, 1.5, 2.4), "×1.5 to ×2.4, excludes equality"),
        (Ratio(1.2, 0.7, 3.0), "÷1.43 to ×3, holds equality"),
        (Ratio(1.05, 1.03, 1.07), "+3\N{NO-BREAK SPACE}% to +7\N{NO-BREAK SPACE}%, excludes equality"),
    ],
)
def test_both_ends_of_an_interval_are_factors_or_both_are_per_cent(ratio, interval):
    assert interval in judge(ratio, NOISE).reason


@given(st.floats(0.5, 2), st.floats(0, 0.3), st.floats(0, 0.3), st.floats(0, 0.2))
def test_b_is_faster_than_a_exactly_if_a_is_slower_than_b(value, below, above, noise):
    opposite = {Speed.FASTER: Speed.SLOWER, Speed.SLOWER: Speed.FASTER}
    low, high = value * math.exp(-below), value * math.exp(above)
    floor = Noise(noise, True, "")
    one = judge(Ratio(value, low, high), floor).speed
    other = judge(Ratio(1 / value, 1 / high, 1 / low), floor).speed
    edges = [abs(math.log(value)), *(abs(math.log(edge)) for edge in (low, high))]
    if min(abs(edge - noise) for edge in edges) > 1e-9 and min(edges) > 1e-9:
        assert other is opposite.get(one, one)


@given(st.floats(0.5, 2), st.floats(0, 0.3), st.floats(0, 0.2), st.floats(0, 0.2))
def test_more_noise_never_makes_a_difference_out_of_none(value, half_width, noise, more):
    ratio = Ratio(value, value * math.exp(-half_width), value * math.exp(half_width))
    if judge(ratio, Noise(noise, True, "")).speed not in (Speed.FASTER, Speed.SLOWER):
        assert judge(ratio, Noise(noise + more, True, "")).speed not in (Speed.FASTER, Speed.SLOWER)


def test_a_single_process_is_too_few():
    finding = found(run(), run("b", (50.0, 200.0), spread=(1.0,)))
    assert finding.speed is Speed.AMBIGUOUS and "too few processes" in finding.reason
    assert finding.ratio is not None and finding.ratio.value == pytest.approx(0.5)


def test_a_host_bound_case_is_never_called_the_same():
    finding = found(run(), run("b", labels=("host-bound",)))
    assert finding.speed is Speed.AMBIGUOUS and "host-bound" in finding.reason
    assert found(run(), run("b", (50.0, 200.0), labels=("host-bound",))).speed is Speed.FASTER


def test_a_run_that_was_not_accepted_has_nothing_to_compare():
    ending = Ending(verdict=Verdict.WRONG_ANSWER, message="1 of 2 test cases is wrong")
    finding = found(run(), run("b", (), ending=ending))
    assert finding.speed is Speed.AMBIGUOUS and "b has no score: wrong answer" in finding.reason
    assert finding.ratio is None


def test_an_interpreted_run_has_nothing_to_compare():
    finding = found(run("a", (), unranked_because="interpreted"), run("b"))
    assert finding.speed is Speed.AMBIGUOUS and "a has no score: interpreted" in finding.reason


def test_other_cases_make_no_score_comparable_but_the_common_ones_are_shown():
    compared = compare_runs(run(), run("b", (100.0, 400.0, 800.0)), NOISE, 0.95)
    assert compared.finding.speed is Speed.AMBIGUOUS and "timed different cases" in compared.finding.reason
    assert [case.case.label for case in compared.cases] == ["n=0", "n=1"]


@pytest.mark.parametrize(
    ("ratio", "calibrated", "said"),
    [
        (Ratio(1.03, 1.01, 1.05), True, "about 16 pairs would tell a difference of this size: --pairs 16"),
        (Ratio(1.02, 0.99, 1.05), True, "--pairs 32"),
        (Ratio(1.04, 0.98, 1.10), True, "--pairs 24"),  # whose interval is wider than the noise
        (Ratio(1.001, 0.97, 1.03), True, None),  # more than anybody would play
        (Ratio(1.03, 1.01, 1.05), False, "doctor --calibrate"),
        (Ratio(1.04, 0.98, 1.10), False, "--pairs 24"),  # calibrated or not
        (Ratio(1.00, 0.99, 1.01), True, None),  # the same
    ],
)
def test_a_duel_that_told_nothing_says_how_many_pairs_would(ratio, calibrated, said):
    noise = Noise(math.log(1.04), calibrated, "")
    compared = Comparison("p", "d", "a", "b", 1.0, ratio.value, judge(ratio, noise), (), noise, 0.95)
    notes = list(more_pairs(compared, 8))
    assert (said is None and not notes) or (said is not None and said in " ".join(notes))


def test_where_more_pairs_would_not_help_a_duel_does_not_ask_for_them():
    noise = Noise(math.log(1.04), True, "")
    finding = judge(Ratio(1.03, 1.01, 1.05), noise, ["crowded"])
    case = ComparedCase(Case(parameters={}), 1.0, 1.0, ("crowded",), finding)
    assert not list(more_pairs(Comparison("p", "d", "a", "b", 1.0, 1.03, finding, (case,), noise, 0.95), 8))


def test_a_problem_that_changed_without_a_new_revision_is_ambiguous_however_large_the_difference():
    finding = found(run(), run("b", (50.0, 200.0), problem_sha256="1" * 64))
    assert finding.speed is Speed.AMBIGUOUS and "problem's files changed" in finding.reason


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"problem": "triple"}, "a is a run of double, b of triple"),
        ({"problem_revision": 2}, "revision 1 of double, b one of revision 2"),
        ({"device": DEVICE.model_copy(update={"slug": "crate", "name": "Crate"})}, "a ran on Box, b on Crate"),
    ],
)
def test_runs_of_different_things_cannot_be_compared(changes, words):
    with pytest.raises(UsageError, match=words):
        compare_runs(run(), run("b", **changes), NOISE, 0.95)


def test_times_of_two_clocks_are_not_compared():
    own = run("b", clock=ClockOwner.WORKER)
    for a, b in ((run(), own), (own, run())):
        with pytest.raises(UsageError, match="the judge timed a, the submission's own process timed b") as caught:
            compare_runs(a, b, NOISE, 0.95)
        assert caught.value.hint == "judge b again"
    compared = compare_runs(own, own, NOISE, 0.95, rank_worker_timed=True)
    assert compared.finding.speed is Speed.SAME and "worker-timed" in " ".join(compared.notes)


@pytest.mark.parametrize("reason", [*sorted(set(Unranked) - {Unranked.SKIPPED, Unranked.OLDER}), "tick-limited"])
def test_a_run_that_is_not_ranked_since_its_times_are_doubtful_is_neither_faster_nor_slower(reason):
    clock = ClockOwner.WORKER if reason == Unranked.WORKER_TIMED else ClockOwner.JUDGE
    doubtful = {"unranked_because": reason, "clock": clock}
    for a, b in [
        (run("good", clock=clock), run("odd", (200.0, 800.0), **doubtful)),
        (run("odd", (200.0, 800.0), **doubtful), run("good", clock=clock)),
        (run("good", clock=clock), run("odd", **doubtful)),
    ]:
        compared = compare_runs(a, b, NOISE, 0.95)
        assert {found.speed for found in (compared.finding, *(c.finding for c in compared.cases))} == {Speed.AMBIGUOUS}
        assert f"odd is not ranked, {reason}" in compared.finding.reason and not compared.slower_by(0)
        assert compared.finding.ratio.value == pytest.approx(b.score.latency_ns / a.score.latency_ns)


def test_a_run_with_skipped_cases_or_of_trusted_workers_is_as_fast_as_it_was_timed():
    slow = run("b", (200.0, 800.0), unranked_because="skipped")
    assert found(run(), slow).speed is Speed.SLOWER
    own = {"clock": ClockOwner.WORKER, "unranked_because": "worker-timed"}
    slow = run("b", (200.0, 800.0), **own)
    assert compare_runs(run(**own), slow, NOISE, 0.95, rank_worker_timed=True).finding.speed is Speed.SLOWER


def test_what_followed_the_first_processes_does_not_widen_or_narrow_the_interval_but_by_their_number():
    config = {"cpu": {"processes": 5, "extra_processes": 3}}
    few, more = (run("b", spread=spread, config=config) for spread in (STEADY, (*STEADY, 1.0, 1.0, 1.0)))
    narrow = found(run(config=config), more).ratio
    assert narrow.high - 1 == pytest.approx((found(run(config=config), few).ratio.high - 1) * 0.9, rel=0.1)
    unknown = found(run(config=config), run("b", spread=(*STEADY, 1.0, 1.0, 1.0))).ratio
    assert unknown.high < narrow.high, "a configuration that does not tell has the spread of them all"
    cases = [
        compare_runs(run(config=of), more.model_copy(update={"config": of}), NOISE, 0.95).cases[0]
        for of in (config, {})
    ]
    assert cases[0].finding.ratio.high > cases[1].finding.ratio.high, "of each case as of all of them"


def test_what_failed_has_no_time_and_so_no_clock():
    ending = Ending(verdict=Verdict.TIMEOUT, message="too long")
    assert "b has no score" in found(run(), run("b", (), ending=ending, clock=ClockOwner.WORKER)).reason


def test_what_else_differs_between_the_runs_is_said():
    other = run("b", environment={"python": "3.12", "packages": {"torch": "2.11"}}, config={"confidence": 0.9})
    notes = compare_runs(run(), other, NOISE, 0.95).notes
    assert notes == ("python: 3.11 and 3.12", "torch: 2.13 and 2.11", "configs/eval.yml was not the same")
    assert compare_runs(run(), run(), NOISE, 0.95).notes == ("both runs are of the same source",)


def test_each_case_has_its_own_finding_with_a_wider_interval_than_alone():
    compared = compare_runs(run(), run("b", (90.0, 440.0)), NOISE, 0.95)
    assert [case.finding.speed for case in compared.cases] == [Speed.FASTER, Speed.SLOWER]
    alone = compare_runs(run("a", (100.0,)), run("b", (90.0,)), NOISE, 0.95).cases[0].finding.ratio
    of_two = compared.cases[0].finding.ratio
    assert alone.value == pytest.approx(of_two.value) and of_two.high > alone.high


@pytest.mark.parametrize(("percent", "fails"), [(0, True), (2, True), (3.5, False)])
def test_slower_by_asks_for_the_finding_and_for_the_size(percent, fails):
    assert compare_runs(run(), run("b", (103.0, 412.0)), NOISE, 0.95).slower_by(percent) is fails
    assert not compare_runs(run(), run("b", (100.5, 402.0)), NOISE, 0.95).slower_by(0)


def paired(factor: float, weather=(1.0, 1.3, 0.8, 1.1), wobble=(1.0, 1.001, 0.999, 1.0)) -> list[PairedMeasurement]:
    old = tuple((100.0 * w,) * 6 for w in weather)
    new = tuple((100.0 * w * factor * x,) * 6 for w, x in zip(weather, wobble, strict=True))
    return [PairedMeasurement(Case(parameters={"n": 1}), old, new)]


@pytest.mark.parametrize(("factor", "speed"), [(1.03, Speed.SLOWER), (0.97, Speed.FASTER), (1.0, Speed.SAME)])
def test_pairs_see_three_percent_through_weather_of_thirty(factor, speed):
    compared = compare_pairs("double", "Box", ("a", "b"), paired(factor), NOISE, 0.95)
    assert compared.finding.speed is speed
    assert compared.finding.ratio.value == pytest.approx(factor, rel=1e-3)
    assert compared.b_ns / compared.a_ns == pytest.approx(factor, rel=1e-3)


def test_each_case_of_a_duel_has_a_wider_interval_than_alone():
    (one,) = paired(1.03)
    other = replace(one, case=Case(parameters={"n": 2}))
    both, alone = (compare_pairs("double", "Box", ("a", "b"), cases, NOISE, 0.95) for cases in ([one, other], [one]))
    assert both.cases[0].finding.ratio.high > alone.cases[0].finding.ratio.high
    assert both.finding.ratio.high == pytest.approx(alone.finding.ratio.high), "and all of them together has not"


@pytest.mark.parametrize("label", [Label.CROWDED, Label.VOIDED])
def test_a_duel_that_others_disturbed_tells_nothing_however_far_apart_the_two_are(label):
    (measured,) = paired(5.0)
    disturbed = [replace(measured, labels=(label,))]
    compared = compare_pairs("double", "Box", ("a", "b"), disturbed, NOISE, 0.95)
    assert compared.finding.speed is Speed.AMBIGUOUS and label.why in compared.finding.reason
    assert [case.finding.speed for case in compared.cases] == [Speed.AMBIGUOUS]


def test_fewer_than_four_pairs_tell_nothing():
    few = compare_pairs("double", "Box", ("a", "b"), paired(5.0, (1.0, 1.1, 1.0), (1.0, 1.0, 1.0)), NOISE, 0.95)
    assert (
        few.finding.speed is Speed.AMBIGUOUS
        and "3 pairs are too few for a finding, which needs 4" in few.finding.reason
    )
    enough = compare_pairs("double", "Box", ("a", "b"), paired(5.0), NOISE, 0.95)
    assert enough.finding.speed is Speed.SLOWER


@pytest.mark.parametrize("pairs", [4, 8, pytest.param(32, marks=pytest.mark.slow)])
@pytest.mark.parametrize("spread", [0.001, 0.05, 0.5])
def test_duels_of_a_source_with_itself_find_a_difference_in_at_most_five_of_a_hundred(pairs, spread):
    """Simulated: whatever the spread between processes, without any noise floor to help."""
    random = np.random.default_rng(pairs)
    none = Noise(0.0, calibrated=True, source="")
    told = 0
    for _ in range(DUELS := 500):
        old, new = (tuple((math.exp(x),) for x in random.normal(0, spread, pairs)) for _ in range(2))
        measured = PairedMeasurement(Case(parameters={"n": 1}), old, new)
        finding = compare_pairs("double", "Box", ("a", "b"), [measured], none, 0.95).finding
        told += finding.speed in (Speed.FASTER, Speed.SLOWER)
    assert told / DUELS <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / DUELS)


class TestOfAnArithmeticMean:
    """The second case gets half as long, the first, a tenth of it, twice as long: the two means differ about it."""

    A, B = (10.0, 100.0), (20.0, 50.0)

    def test_two_runs_are_held_against_each_other_by_the_mean_that_their_scores_are(self):
        scored = {"ranking": "mean", "score": Estimate(latency_ns=55.0)}
        by_mean = found(run(latencies=self.A, **scored), run("b", self.B, **scored))
        assert by_mean.speed is Speed.FASTER and by_mean.ratio.value == pytest.approx(70 / 110)
        by_geometric_mean = found(run(latencies=self.A), run("b", self.B))
        assert by_geometric_mean.speed is Speed.SAME and by_geometric_mean.ratio.value == pytest.approx(1)

    def test_a_duel_is_told_by_the_mean_that_the_problem_asks_for(self):
        def samples(latency):
            return tuple((latency * factor,) * 4 for factor in STEADY)

        pairs = [
            PairedMeasurement(Case(parameters={"n": n}), samples(old), samples(new))
            for n, (old, new) in enumerate(zip(self.A, self.B))
        ]
        for ranking, a_ns, speed in (("mean", 55, Speed.FASTER), ("geom", 1000**0.5, Speed.SAME)):
            duel = compare_pairs("double", "Box", ("a", "b"), pairs, NOISE, 0.95, ranking)
            assert duel.a_ns == pytest.approx(a_ns, rel=1e-3) and duel.finding.speed is speed
