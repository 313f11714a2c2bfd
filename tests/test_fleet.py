"""What a card adds to an interval: estimated, tested by simulation, and part of a board that several cards judged."""

import math
import threading
from datetime import UTC, datetime

import numpy as np
import pytest

from bench.fleet_interval import simulate
from harness import catalog
from harness.cluster.spread import measure
from harness.errors import InfrastructureError
from harness.model import Estimate, Submission
from harness.ranking import fleet
from harness.ranking.board import closeness, rank
from harness.ranking.comparison import compare_runs
from harness.ranking.speed import Speed
from harness.records.run_file import load_run
from harness.records.store import Store
from harness.render import boards, document, html
from harness.verbs import compare, leaderboard, repro, spread
from harness.verbs.compare import Versions
from harness.verbs.spread import FleetCalibration, Judged
from tests.test_comparison import DEVICE, NOISE, run


@pytest.mark.parametrize("of_card, of_pair", [(0.0, 0.01), (0.005, 0.008), (0.002, 0.002)])
def test_an_interval_with_the_component_holds_the_mean_over_the_fleet_as_often_as_it_says(of_card, of_pair):
    held, without, _, _ = simulate(1500, kernels=4, cards=4, of_card=of_card, of_pair=of_pair, of_process=0.002)
    assert 0.93 <= held <= 0.975
    assert without < 0.7


def test_where_cards_do_not_differ_the_interval_stays_nearly_as_narrow():
    held, _, wide, narrow = simulate(1500, kernels=4, cards=4, of_card=0, of_pair=0, of_process=0.002)
    assert held >= 0.94
    assert wide < 1.2 * narrow


def test_the_component_is_the_variance_of_cards_and_of_pairs_together():
    random = np.random.default_rng(1)
    found = []
    for _ in range(400):
        logs = random.normal(0, 0.006, (1, 4)) + random.normal(0, 0.008, (5, 4)) + random.normal(0, 0.002, (5, 4))
        found.append(fleet.component(logs, np.full((5, 4), 0.002**2)).variance)
    assert np.mean(found) == pytest.approx(0.006**2 + 0.008**2, rel=0.1)


def test_one_factor_for_all_kernels_of_a_card_is_no_interaction():
    """Only cards differ: the degrees of freedom are theirs alone, however many kernels there are."""
    logs = np.tile([0.0, 0.01, 0.02, 0.03], (6, 1))
    assert fleet.component(logs, np.zeros((6, 4))).freedom == pytest.approx(3)


def test_a_kernel_that_makes_itself_noisy_takes_nothing_from_what_the_others_show():
    cards = (0.0, 0.01, -0.01, 0.02)
    scores = [[kernel + card for card in cards] for kernel in range(4)]
    quiet = fleet.component(scores, [[0.0] * 4] * 4)
    noisy = fleet.component(scores, [[0.0] * 4] * 3 + [[1.0] * 4])
    assert noisy.variance == pytest.approx(0.75 * quiet.variance)


@pytest.mark.parametrize("shape", [(1, 4), (4, 2)])
def test_one_kernel_or_two_cards_are_too_few(shape):
    with pytest.raises(ValueError, match="it takes 2 kernels"):
        fleet.component(np.zeros(shape), np.zeros(shape))


def test_an_interval_becomes_no_narrower_and_one_that_is_not_there_stays_away():
    score = Estimate(latency_ns=100, low_ns=50, high_ns=200)
    wide = fleet.widened(score, 1, fleet.Component(1e-6, 50, 3, 4), 0.95)
    assert wide.low_ns <= 50 and wide.high_ns >= 200
    single = Estimate(latency_ns=100)
    assert fleet.widened(single, 1, fleet.Component(1e-2, 3, 3, 4), 0.95) == single


SLUG = DEVICE.slug


@pytest.fixture
def board(toy_root):
    """The board of two ranked runs 1 % apart with intervals of 0.1 %, which these cards judged; what a card adds is
    measured if there are `steps` of it, a factor of the log-ratios in the calibration."""
    problem = catalog.load_problem(toy_root, "double")

    def make(cards, steps=None):
        for name, score, card in zip(("one", "two"), (100.0, 101.0), cards):
            ran = run(
                name,
                latencies=(score,),
                problem_sha256=problem.sha256,
                environment={"gpu": {"uuid": card}} if card else {},
                score=Estimate(latency_ns=score, low_ns=score / 1.001, high_ns=score * 1.001),
                config={"cpu": {"processes": 5}, "confidence": 0.95},
                started_at=f"2026-01-01T00:00:0{1 if name == 'two' else 0}+00:00",
            )
            submission = Submission(
                name=name, problem="double", sha256=ran.submission_sha256, source=b"", path=f"{name}.py"
            )
            Store(toy_root).write(ran, submission)
        if steps is not None:
            spread.write(toy_root, calibration(steps))
        ((_, found),) = leaderboard.boards(toy_root, problem, SLUG).boards
        return found

    return make


def calibration(scale):
    steps = [[-1, 0, 1, 0.5], [0.5, -1, 0, 1], [0, 1, -0.5, -1]]
    judged = tuple(
        Judged(submission=f"k{k}", card=f"c{c}", run="r", score_ns=1000 * math.exp(scale * step), squared_error=0)
        for k, row in enumerate(steps)
        for c, step in enumerate(row)
    )
    return FleetCalibration(
        device_slug=SLUG, measured_at="2026-11-23T00:00:00+00:00", problem="double", problem_sha256="0", judged=judged
    )


def test_runs_of_one_card_are_ranked_by_their_own_intervals(board):
    found = board(("c0", "c0"), 0.02)
    assert [standing.rank for standing in found.standings] == ["1", "2"]
    assert found.between_cards is None


def test_runs_of_two_cards_that_a_card_may_have_made_different_share_a_range(board):
    found = board(("c0", "c1"), 0.02)
    assert [standing.rank for standing in found.standings] == ["1\N{EN DASH}2", "1\N{EN DASH}2"]
    assert found.between_cards.cards == 4


def test_runs_of_two_cards_that_hardly_differ_are_still_told_apart(board):
    assert [standing.rank for standing in board(("c0", "c1"), 0.0005).standings] == ["1", "2"]


def test_where_nobody_has_measured_it_a_card_adds_what_it_did_on_four_h100s(board):
    found = board(("c0", "c1"))
    assert [standing.rank for standing in found.standings] == ["1\N{EN DASH}2", "1\N{EN DASH}2"]
    assert found.between_cards is fleet.USUAL and fleet.USUAL.percent == pytest.approx(0.86)


def test_a_board_that_is_ranked_anew_is_not_widened_twice(board):
    found = board(("c0", "c1"))
    entries = [standing.entry for standing in found.standings]
    assert rank(entries, ()).standings == found.standings


def test_a_run_s_bearings_contain_what_a_card_adds_as_its_board_does(board, toy_root):
    found = board(("c0", "c1"))
    problem = catalog.load_problem(toy_root, "double")
    first, second = (load_run(toy_root / "results" / each.entry.path) for each in found.standings)
    (first_at, second_at) = leaderboard.bearings(toy_root, problem, [first, second])
    assert second_at.best == "one" and second_at.level and not first_at.level


def test_a_board_of_several_cards_says_what_a_card_adds_and_names_the_duel(board, toy_root):
    board(("c0", "c1"), 0.02)
    text = document.text(boards.parts(toy_root, catalog.load_problem(toy_root, "double"), SLUG))
    assert "2 cards judged these runs: the intervals contain what a card adds" in text
    assert "(3 kernels on 4 cards)" in text
    assert "compare two one --duel" in text


NOTE = "2 cards judged these runs: the intervals contain what a card adds, a standard deviation of 0.86 % (as on four"


def pages_of(toy_root):
    """The board for the terminal, as Markdown, and in the report."""
    problem = catalog.load_problem(toy_root, "double")
    parts = boards.parts(toy_root, problem, SLUG)
    report = html.report(toy_root, [problem], datetime(2026, 11, 24, tzinfo=UTC))
    return document.text(parts), document.markdown(parts), report


def test_a_board_of_several_cards_says_that_what_they_add_was_measured_elsewhere(board, toy_root):
    board(("c0", "c1"))
    assert all(NOTE in page for page in pages_of(toy_root))
    (shown,) = leaderboard.as_json(toy_root, catalog.load_problem(toy_root, "double"), SLUG)["boards"]
    assert shown["cards"] == 2


@pytest.mark.parametrize("cards", [("c0", "c0"), ("c0", None), (None, None)])
def test_a_board_that_one_card_judged_as_far_as_is_known_says_nothing_of_cards(board, toy_root, cards):
    board(cards)
    assert not any("cards judged these runs" in page for page in pages_of(toy_root))


def test_a_board_of_a_calibrated_fleet_does_not_say_that_it_was_measured_elsewhere(board, toy_root):
    board(("c0", "c1"), 0.02)
    pages = pages_of(toy_root)
    assert all("cards judged these runs" in page and "four H100s" not in page for page in pages)


def two_runs(cards, latencies=(100.0, 102.5)):
    return [
        run(name, (latency,), environment={"gpu": {"uuid": card}})
        for name, latency, card in zip("ab", latencies, cards)
    ]


def test_runs_of_two_cards_are_compared_by_an_interval_that_contains_what_cards_add(toy_root):
    one, two = two_runs(("c0", "c1"))
    narrow = compare_runs(one, two, NOISE, 0.95)
    wide = compare_runs(one, two, NOISE, 0.95, between_cards=spread.between(toy_root, one, two))
    assert (narrow.finding.speed, wide.finding.speed) == (Speed.SLOWER, Speed.AMBIGUOUS)
    own = math.log(narrow.finding.ratio.high / narrow.finding.ratio.value)
    held = math.log(wide.finding.ratio.high / wide.finding.ratio.value)
    assert held == pytest.approx(math.hypot(own, fleet.USUAL.reach(0.95)))
    assert wide.cases[0].finding.ratio.high > narrow.cases[0].finding.ratio.high
    assert any("two cards of one model" in note and "compare a b --duel" in note for note in wide.notes)
    said = compare.compare(toy_root, Versions(one, two, b"", b"")).notes
    assert any("two cards of one model" in note for note in said), "the verb says so"


def test_a_run_that_is_reproduced_on_another_card_may_differ_by_what_cards_add(toy_root):
    one, two = two_runs(("c0", "c1"))
    two = two.model_copy(update={"submission_sha256": one.submission_sha256})
    between = spread.between(toy_root, one, two)
    assert repro.hold(one, two, NOISE, 0.95).compared.finding.speed is Speed.SLOWER
    assert repro.hold(one, two, NOISE, 0.95, between_cards=between).compared.finding.speed is Speed.AMBIGUOUS


@pytest.mark.parametrize("cards", [("c0", "c0"), ("c0", None), (None, None)])
def test_runs_of_one_card_as_far_as_is_known_are_compared_by_their_own_intervals(cards, toy_root):
    assert spread.between(toy_root, *two_runs(cards)) is None


def test_what_was_measured_on_the_model_is_taken_for_a_comparison(toy_root):
    spread.write(toy_root, calibration(0.02))
    assert spread.between(toy_root, *two_runs(("c0", "c1"))) == calibration(0.02).component()


def test_neighbours_nearer_than_cards_differ_are_told_to_duel(board):
    narrow, wide = board(("c0", "c1"), 0.0005), board(("c0", "c1"), 0.05)
    assert closeness(narrow) == pytest.approx(0.02)
    assert closeness(wide) > 0.1


def test_a_calibration_with_a_gap_is_refused_by_name(toy_root):
    path = spread.write(toy_root, calibration(0.01))
    path.write_text(path.read_text().replace('"card": "c3"', '"card": "c9"', 1))
    with pytest.raises(InfrastructureError, match="not every submission was judged once on every card"):
        spread.read(toy_root, SLUG)


class Cards:
    """A cluster of three cards that judges each submission on all of them at once, or breaks."""

    def __init__(self, unranked=()):
        self.unranked = unranked
        self.together = threading.Barrier(3)

    def cards(self, slug):
        return ["c0", "c1", "c2"]

    def judge(self, request, tell, started):
        self.together.wait(20)
        name = request.submission.name
        score = Estimate(latency_ns=100, low_ns=99, high_ns=101)
        if (name, request.device) in self.unranked:
            score = None
        return run(name, latencies=(100.0,), score=score, config={"cpu": {"processes": 5}, "confidence": 0.95})


def with_submissions(root, *names):
    for name in names:
        (root / "submissions" / "double" / f"{name}.py").write_text(
            f"def custom_kernel(data):  # {name}\n    return data[0]\n"
        )


def test_a_fleet_is_calibrated_with_files_that_are_ranked_on_every_card_judged_on_all_at_once(toy_root):
    with_submissions(toy_root, "one", "two", "three")
    found = measure(toy_root, Cards({("one", "c1")}), DEVICE, lambda line: None)
    names = {each.submission for each in found.judged}
    assert {"two", "three"} <= names and "one" not in names
    assert {(each.submission, each.card) for each in found.judged} == {(n, f"c{c}") for n in names for c in range(3)}
    assert spread.read(toy_root, SLUG) == found


def test_a_fleet_on_which_too_few_files_are_ranked_on_every_card_is_not_calibrated(toy_root):
    with_submissions(toy_root, "one", "two")
    names = [each.name for each in catalog.submissions(toy_root, catalog.load_problem(toy_root, "double"))]
    with pytest.raises(InfrastructureError, match="ranked on every card"):
        measure(toy_root, Cards({(name, "c2") for name in names}), DEVICE, lambda line: None)
    assert spread.read(toy_root, SLUG) is None
