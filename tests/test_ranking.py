"""Order, ties as ranges, ratios to the baseline; and what is not ranked is kept apart with its reason."""

import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness import catalog
from harness.model import (
    DISTURBED,
    ClockOwner,
    Estimate,
    Label,
    Unranked,
    Verdict,
)
from harness.ranking.board import Bearings, bearings, close, rank
from harness.records.entry import Entry
from harness.render import boards, document, figures, left_out, notes, verdicts
from harness.render.boards import _duels
from tests.test_store import make_run


def entry(name, score=None, low=None, high=None, verdict=Verdict.ACCEPTED, unranked=None, floor=None, **changes):
    of_judge = Entry(
        id=f"run-{name}",
        path=f"local/p/d/run-{name}.json",
        problem="p",
        revision=1,
        problem_sha256="cc",
        device="d",
        device_name="D",
        submission=name,
        sha256=name,
        started_at="2026-01-01T00:00:00.000+00:00",
        verdict=verdict,
        message="message",
        clock=ClockOwner.JUDGE,
        unranked=unranked,
        tolerance="close",
        error=0.0,
        score_ns=score,
        low_ns=low,
        high_ns=high,
        floor_ns=floor,
        floor_format="bf16" if floor else None,
    )
    return replace(of_judge, **changes)


def ranks(board):
    return {standing.entry.submission: standing.rank for standing in board.standings}


def test_separate_intervals_are_ordered_by_latency():
    board = rank([entry("slow", 300, 290, 310), entry("fast", 100, 99, 101), entry("middle", 200, 190, 210)], [])
    assert list(ranks(board).items()) == [("fast", "1"), ("middle", "2"), ("slow", "3")]


def test_overlapping_intervals_share_a_range():
    board = rank(
        [entry("a", 100, 95, 105), entry("b", 104, 100, 108), entry("c", 110, 107, 113), entry("d", 200, 199, 201)], []
    )
    # b cannot be told from a, nor from c; a is certainly faster than c.
    assert ranks(board) == {"a": "1–2", "b": "1–3", "c": "2–3", "d": "4"}


def test_intervals_that_touch_are_a_tie():
    assert ranks(rank([entry("a", 1, 0.5, 2), entry("b", 3, 2, 4)], [])) == {"a": "1–2", "b": "1–2"}


def test_without_an_interval_nothing_is_certain():
    board = rank([entry("a", 100), entry("b", 900, 899, 901), entry("c", 1000, 999, 1001)], [])
    assert ranks(board) == {"a": "1–3", "b": "1–2", "c": "2–3"}


scores = st.floats(1.0, 100.0)
intervals = st.tuples(scores, st.floats(0, 0.2)).map(
    lambda pair: (pair[0], pair[0] * (1 - pair[1]), pair[0] * (1 + pair[1]))
)
boards_drawn = st.lists(intervals, max_size=8).map(lambda drawn: [entry(f"s{i}", *drawn[i]) for i in range(len(drawn))])


@given(boards_drawn, st.randoms(use_true_random=False))
def test_ranges_are_consistent_whatever_the_intervals(entries, random):
    board = rank(entries, [])
    places = {s.entry.submission: (s.first, s.last) for s in board.standings}
    assert all(1 <= first <= last <= len(entries) for first, last in places.values())
    ordered = [s.entry.score_ns for s in board.standings]
    assert ordered == sorted(ordered)
    for one in entries:
        for other in entries:
            (first, last), (first_other, last_other) = places[one.submission], places[other.submission]
            if (one.low_ns, one.high_ns) == (other.low_ns, other.high_ns):
                assert (first, last) == (first_other, last_other), "the same interval, the same range"
            if one.high_ns < other.low_ns:
                assert first < first_other and last < last_other, "certainly faster is better at both ends"
            elif one is not other and one.low_ns <= other.high_ns:
                assert max(first, first_other) <= min(last, last_other), "a tie shares a rank"
    shuffled = random.sample(entries, len(entries))
    assert {s.entry.submission: (s.first, s.last) for s in rank(shuffled, []).standings} == places


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=8, unique=True))
def test_disjoint_intervals_are_totally_ordered(latencies):
    board = rank([entry(f"s{n}", n, n - 0.4, n + 0.4) for n in latencies], [])
    assert [(s.entry.score_ns, s.rank) for s in board.standings] == [
        (n, str(place)) for place, n in enumerate(sorted(latencies), 1)
    ]


def test_the_ratio_is_to_the_fastest_of_the_baselines_that_are_ranked():
    entries = [entry("mine", 50, 49, 51), entry("torch", 100, 99, 101), entry("aiter", 80, 79, 81)]
    entries += [entry("broken", 1, verdict=Verdict.WRONG_ANSWER), entry("hasty", 2, unranked="quick")]
    board = rank(entries, ["torch", "aiter", "broken", "hasty", "absent"])
    ratios = {s.entry.submission: s.times_baseline for s in board.standings}
    assert ratios == {"mine": pytest.approx(1.6), "aiter": pytest.approx(1.0), "torch": pytest.approx(0.8)}


def test_without_a_baseline_on_the_board_there_is_no_ratio():
    assert rank([entry("mine", 50, 49, 51)], ["torch"]).standings[0].times_baseline is None


def test_what_a_score_is_of_the_limit_is_floor_over_score():
    known, unknown = rank([entry("a", 50, floor=20), entry("b", 60)], []).standings
    assert known.of_limit == pytest.approx(0.4) and unknown.of_limit is None


@pytest.mark.parametrize("verdict", [verdict for verdict in Verdict if verdict is not Verdict.ACCEPTED])
def test_a_run_that_is_not_accepted_never_ranks_whatever_its_score(verdict):
    board = rank([entry("a", 1, 1, 1, verdict=verdict), entry("b", 9, 9, 9)], [])
    assert ranks(board) == {"b": "1"} and [e.submission for e in board.unranked] == ["a"]


def test_a_run_is_held_against_the_best_baseline_but_itself_and_the_best_before_it():
    mine, torch = entry("mine", 50, floor=20), entry("torch", 100)
    board = rank([mine, torch, entry("aiter", 80)], ["torch", "aiter"])
    found = bearings(mine, board, ["torch", "aiter"], torch)
    assert found == Bearings(0.4, "bf16", 1.6, 2.0, "torch", level=True)  # without intervals nothing is certain
    assert bearings(torch, board, ["torch"], None) == Bearings(None, None, None, None, None)
    assert bearings(entry("failed", verdict=Verdict.TIMEOUT), board, ["torch"], torch) is None


@pytest.mark.parametrize(
    ("low", "high", "level"), [(90, 98.9, False), (90, 99, True), (101, 110, True), (101.1, 110, False)]
)
def test_a_run_is_faster_or_slower_than_the_best_so_far_only_if_their_intervals_are_apart(low, high, level):
    best, mine = entry("best", 100, 99, 101), entry("mine", (low + high) / 2, low, high)
    where = bearings(mine, rank([best, mine], []), [], best)
    assert where is not None and where.level is level
    said = verdicts.verdict_line(make_run(score=mine.score_ns), where)
    assert ("not told apart from the best so far (best)" in said) is level
    assert ("as fast as the best so far (best)" in said) is not level


@pytest.mark.parametrize(
    ("unranked", "held"),
    [(reason, False) for reason in (*DISTURBED, Unranked.IMPRECISE, Unranked.BELOW_FLOOR)] + [(Unranked.QUICK, True)],
)
def test_a_score_that_may_be_far_off_is_held_against_no_other(unranked, held):
    torch, mine = entry("torch", 100, 99, 101), entry("mine", 10, 9, 11, unranked=unranked)
    where = bearings(mine, rank([torch, mine], ["torch"]), ["torch"], torch)
    assert where is not None and (where.times_baseline, where.times_best) == ((10.0, 10.0) if held else (None, None))
    run = make_run(score=10.0, unranked_because=unranked)
    assert ("as fast as" in verdicts.verdict_line(run, where)) is held
    in_turns = bearings(replace(mine, speed_up=3.0), rank([torch], ["torch"]), ["torch"], torch)
    assert in_turns is not None and in_turns.times_baseline == 3.0


def test_a_first_look_that_was_crowded_is_held_against_no_other_in_its_line():
    where = Bearings(of_limit=None, floor_format=None, times_baseline=1.5, times_best=2.0, best="torch")
    calm = make_run(score=10.0, unranked_because=Unranked.QUICK)
    (timed,) = calm.measurements
    crowded = calm.model_copy(update={"measurements": (timed.model_copy(update={"labels": (Label.CROWDED,)}),)})
    assert verdicts.verdict_line(calm, where).count("as fast as") == 2
    line = verdicts.verdict_line(crowded, where)
    assert "as fast as" not in line and line.endswith("not ranked: quick, crowded (show run-1)")


def test_the_last_line_says_all_that_is_known_of_a_score():
    accepted, wrong = make_run(score=100.0), make_run(score=None, verdict=Verdict.WRONG_ANSWER)
    where = Bearings(of_limit=0.312, floor_format="mxfp4", times_baseline=1.5, times_best=0.966, best="triton_fp8")
    assert verdicts.verdict_line(accepted, where) == (
        "accepted: mine on double: as the test says; 0.1000 µs ±1.0\xa0%, 31\xa0% of the limit (mxfp4), "
        "1.50 × as fast as the best baseline, 0.97 × as fast as the best so far (triton_fp8) (show run-1)"
    )
    assert verdicts.verdict_line(accepted).endswith("says; 0.1000 µs ±1.0\xa0% (show run-1)")
    quick = make_run(score=100.0, unranked_because="quick")
    assert verdicts.verdict_line(quick).endswith("±1.0\xa0%, not ranked: quick (show run-1)")
    crowded = [measured.model_copy(update={"labels": (Label.CROWDED,)}) for measured in quick.measurements]
    for reason, said in (("quick", "quick, crowded"), ("crowded", "crowded")):
        shown = quick.model_copy(update={"measurements": crowded, "unranked_because": reason})
        assert verdicts.verdict_line(shown).endswith(f"of the processors, not ranked: {said} (show run-1)")
    own = make_run(score=100.0, clock=ClockOwner.WORKER)
    assert verdicts.verdict_line(own).endswith("±1.0\xa0%, worker-timed (show run-1)")
    assert verdicts.verdict_line(wrong) == "wrong answer: mine on double: as the test says (show run-1)"


def test_neighbours_within_two_per_cent_are_told_to_duel():
    board = rank([entry("a", 1000), entry("b", 1019), entry("c", 1041), entry("d", 1061, unranked="quick")], [])
    assert [(one.submission, other.submission) for one, other in close(board)] == [("a", "b")]
    assert _duels(board) == [
        "a and b are within 2%: python3 -m harness compare b a --duel tells whether one is faster."
    ]


def test_accepted_without_a_score_or_with_a_reason_is_not_ranked():
    board = rank([entry("quick", 5, unranked="quick"), entry("interpreted", unranked="interpreted"), entry("none")], [])
    assert not board.standings and {e.submission for e in board.unranked} == {"quick", "interpreted", "none"}


WORKER = {"clock": ClockOwner.WORKER}


def test_what_a_worker_timed_is_not_ranked_and_says_so():
    board = rank(
        [entry("judged", 200), entry("own", 1, **WORKER), entry("untimed", unranked="interpreted", **WORKER)], []
    )
    assert ranks(board) == {"judged": "1"} and board.clock is ClockOwner.JUDGE
    assert {e.submission: e.unranked for e in board.unranked} == {
        "own": Unranked.WORKER_TIMED,
        "untimed": "interpreted",
    }


def test_what_workers_timed_is_ranked_only_if_the_setting_says_so_and_the_judge_timed_nothing():
    own = [entry("own", 1, 0.9, 1.1, **WORKER), entry("other", 2, 1.9, 2.1, **WORKER)]
    assert not rank(own, []).standings
    board = rank(own, [], rank_worker_timed=True)
    assert ranks(board) == {"own": "1", "other": "2"} and board.clock is ClockOwner.WORKER and not board.unranked
    board = rank([*own, entry("judged", 300)], ["own"], rank_worker_timed=True)
    assert ranks(board) == {"judged": "1"} and board.clock is ClockOwner.JUDGE
    assert board.standings[0].times_baseline is None, "the baseline's time is another clock's"
    assert {e.unranked for e in board.unranked} == {Unranked.WORKER_TIMED}
    board = rank([*own, entry("hasty", 3, unranked="quick"), entry("old", 3, older=True)], [], rank_worker_timed=True)
    assert board.clock is ClockOwner.WORKER and ranks(board).keys() == {"own", "other"}, (
        "the judged ones cannot be ranked"
    )


def test_what_other_files_of_the_problem_judged_is_below_and_not_ranked():
    entries = [
        entry("new", 9),
        entry("old", 1, older=True),
        entry("quick", 8, unranked="quick"),
        entry("x", older=True),
    ]
    board = rank([*entries, entry("both", 1, older=True, **WORKER)], ["old"], rank_worker_timed=True)
    assert ranks(board) == {"new": "1"} and board.standings[0].times_baseline is None
    assert [(e.submission, e.unranked) for e in board.unranked] == [
        ("quick", "quick"), ("both", f"{Unranked.OLDER}, {Unranked.WORKER_TIMED}"),
        ("old", Unranked.OLDER), ("x", Unranked.OLDER),
    ]  # fmt: skip


def test_a_run_is_not_held_against_baselines_of_another_clock():
    board = rank([entry("torch", 100)], ["torch"])
    assert bearings(entry("mine", 50), board, ["torch"], None).times_baseline == 2.0
    assert bearings(entry("mine", 50, **WORKER), board, ["torch"], None).times_baseline is None


def test_what_is_left_out_comes_by_verdict_then_name():
    left_out = [
        entry("z", unranked="quick"),
        entry("b", verdict=Verdict.TIMEOUT),
        entry("a", verdict=Verdict.TIMEOUT),
        entry("c", verdict=Verdict.WRONG_ANSWER),
    ]
    assert [e.submission for e in rank(left_out, []).unranked] == ["z", "c", "a", "b"]


@pytest.fixture
def problem(toy_root):
    return catalog.load_problem(toy_root, "double")


@pytest.mark.parametrize(
    ("baselines", "said"),
    [
        (("torch", "aiter"), "no baseline is ranked here. Judge torch or aiter for one."),
        ((), "the problem names no baseline."),
    ],
)
def test_a_board_without_a_baseline_says_so_and_one_with_it_has_the_ratio(problem, baselines, said):
    mine, torch = entry("mine", 50_000, 49_000, 51_000), entry("torch", 100_000, 99_000, 101_000)
    named = problem.model_copy(update={"baselines": baselines})

    def shown(*entries):
        return document.text(boards.board(named, "A Device", rank(entries, baselines), []))

    assert f"no × best baseline: {said}" in shown(mine)
    if baselines:
        assert "no × best baseline" not in shown(mine, torch) and "×\xa0best baseline" in shown(mine, torch)
    assert "best baseline" not in shown(entry("hasty", 40_000, unranked="quick"))  # where nothing is ranked


CASE = "batch_size=1 seq_len=9 num_kv_heads=3 num_q_heads=21 head_dim=80 dtype=float16"


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        (
            f"6 of 10 test cases are wrong; the first is {CASE}: k_out: 10,080 of 15,120 elements differ",
            "k_out: 10,080 of 15,120 elements differ (6 of 10 test cases are wrong)",
        ),
        (
            f"6 of 10 test cases are wrong; the one shown is {CASE}: k_out: 10,080 of 15,120 elements differ",
            "k_out: 10,080 of 15,120 elements differ (6 of 10 test cases are wrong)",
        ),
        (
            f"1 of 1 test case is wrong; it is {CASE}: k_out: it is a view",
            "k_out: it is a view (1 of 1 test case is wrong)",
        ),
        (
            f"1 of 10 test cases is wrong, 9 not tried; it is {CASE}: k_out: it is a view",
            "k_out: it is a view (1 of 10 test cases is wrong, 9 not tried)",
        ),
        (
            f"a call with {CASE} took longer than the limit of 60 s; in f (line 5)",
            "a call took longer than the limit of 60 s; in f (line 5)",
        ),
        (
            f"the process was killed by SIGABRT during a call with {CASE}",
            "the process was killed by SIGABRT during a call",
        ),
        (
            f"the process was killed by SIGSEGV during a call with {CASE}: a load or store out of bounds does this",
            "the process was killed by SIGSEGV during a call: a load or store out of bounds does this",
        ),
        ("IndexError: list index out of range (line 5)", "IndexError: list index out of range (line 5)"),
        ("the worker's reply is malformed: a=b", "the worker's reply is malformed: a=b"),
    ],
)
def test_what_is_left_out_is_shown_with_its_cause_first(problem, monkeypatch, message, shown):
    monkeypatch.setenv("COLUMNS", "80")
    failed = entry("failed", verdict=Verdict.WRONG_ANSWER, message=message)
    assert left_out.cause(message) == shown
    lines = document.text(boards.board(problem, "A Device", rank([failed], []), [])).splitlines()
    seen = " ".join(line.split("│")[3].strip() for line in lines if line.count("│") == 4).partition("what was seen ")[2]
    assert seen == shown and max(map(len, lines)) <= 80


def test_quick_tries_that_failed_fill_no_board_and_are_named(problem):
    tries = [entry(f"try_{n}", verdict=Verdict.RUNTIME_ERROR, unranked=Unranked.QUICK) for n in range(17)]
    others = [entry("liar", verdict=Verdict.INTEGRITY_VIOLATION), entry("hasty", 40_000, unranked=Unranked.QUICK)]
    parts = boards.board(problem, "A Device", rank([*tries, *others], []), [])
    shown = [part for part in parts if isinstance(part, document.Table)]
    assert [[row[0] for row in table.rows] for table in shown] == [["hasty"], ["liar"]]
    (line,) = [part.content for part in parts if isinstance(part, document.Prose) and "try_0" in part.content]
    assert all(f"try_{n}" in line for n in range(17)) and "show NAME" in line and "forget NAME" in line
    assert "left out (1)" in document.text(parts)


def test_the_table_shows_ranks_ratios_and_reasons(problem):
    entries = [
        entry("mine", 50_000, 49_000, 51_000, floor=20_000),
        entry("torch", 100_000, 99_000, 101_000),
        entry("hasty", 40_000, unranked="quick"),
        entry("seen", unranked="interpreted"),
        entry("liar", verdict=Verdict.INTEGRITY_VIOLATION),
    ]
    text = document.text(boards.board(problem, "A Device", rank(entries, ["torch"]), ["a note"]))
    row = next(line for line in text.splitlines() if "mine" in line)
    rank_shown, name, score, ratio, share = [cell.strip() for cell in row.strip("│ ").split("│")][:5]
    assert (rank_shown, name, ratio, share) == ("1", "mine", "2.00", "40\xa0%") and score.startswith("50.00 ±")
    assert f"{notes.OF_THE_LIMIT}, here for bf16 data." in text
    for words in ("a quick look with one process", "interpreted time is no measurement", "left out (1)", "a note"):
        assert words in text
    assert "integrity violation" in next(line for line in text.splitlines() if "liar" in line)


@pytest.mark.parametrize(
    "reason",
    [
        Unranked.VOIDED,
        Unranked.CROWDED,
        Unranked.BELOW_FLOOR,
        Unranked.WORKER_TIMED,
        Unranked.OLDER,
        Unranked.NOISY,
        Unranked.UNSTABLE,
    ],
)
def test_each_reason_has_a_sentence_that_is_more_than_its_name(problem, reason):
    changes = {Unranked.WORKER_TIMED: WORKER, Unranked.OLDER: {"older": True}}.get(reason, {"unranked": reason})
    shown = document.text(boards.board(problem, "A Device", rank([entry("odd", 5, **changes)], []), []))
    (sentence,) = re.findall(rf"^{reason}: (.+)\.$", shown, re.MULTILINE)
    assert len(sentence) > 30 and sentence == notes.why_unranked(reason)


def test_a_board_of_workers_times_says_so_below_it(problem):
    entries = [entry("own", 100_000, **WORKER)]
    shown = document.text(boards.board(problem, "A Device", rank(entries, [], rank_worker_timed=True), []))
    assert shown.endswith(
        "worker-timed: the submissions' own processes timed these; a submission can change such a time."
    )
    judged = document.text(boards.board(problem, "A Device", rank([entry("judged", 100_000)], []), []))
    assert "worker-timed" not in judged


def test_what_failed_on_an_older_revision_says_so(problem):
    entries = [entry("now", verdict=Verdict.TIMEOUT), entry("then", verdict=Verdict.TIMEOUT, older=True)]
    lines = document.text(boards.board(problem, "A Device", rank(entries, []), [])).splitlines()
    assert [Unranked.OLDER in next(line for line in lines if f" {name} " in line) for name in ("now", "then")] == [
        False,
        True,
    ]


@pytest.mark.parametrize("reason", [None, "odd, odder"])
def test_a_board_survives_a_reason_that_it_does_not_know(problem, reason):
    board = boards.board(problem, "A Device", rank([entry("odd", unranked=reason)], []), [])
    assert "odd" in document.text(board)


@settings(deadline=None)
@given(st.floats(1.0, 1e12))
def test_a_latency_is_shown_to_four_figures(latency):
    shown = figures.microseconds(Estimate(latency_ns=latency))
    assert float(shown.replace(",", "")) == pytest.approx(latency / 1e3, rel=1e-3)
