"""The server's boards follow the run files: each is parsed once, and what changes shows."""

import pytest

pytest.importorskip("fastapi")

from boards import failed, store
from hypothesis import given
from hypothesis import strategies as st

from harness import catalog
from harness.model import ClockOwner, Unranked, Verdict
from harness.ranking.board import rank
from harness.records import tables
from harness.records.entry import Entry
from harness.records.index import Index
from harness.records.store import Store
from harness.render import plots
from harness.server.board import file_names
from harness.server.board.results import Results
from harness.verbs import report

KEY = ("double", "test-1000")


@pytest.fixture
def results(toy_root):
    return Results(toy_root)


def names(results):
    return [standing.entry.submission for standing in results.boards[KEY].board.standings]


def test_a_run_that_is_stored_stands_on_the_board_after_the_next_look(toy_root, results):
    store(toy_root, "slow", 2000.0)
    assert results.refresh() and names(results) == ["slow"]
    store(toy_root, "fast", 1000.0)
    assert results.refresh() and names(results) == ["fast", "slow"]


def test_a_look_at_what_has_not_changed_changes_nothing(toy_root, results):
    store(toy_root, "mine")
    results.refresh()
    before = results.boards[KEY]
    assert not results.refresh() and results.boards[KEY] is before


def test_each_run_file_is_parsed_once_also_by_the_next_server(toy_root, results, monkeypatch):
    parsed = []
    parse = tables.run_file.parse
    monkeypatch.setattr(tables.run_file, "parse", lambda path, text: parsed.append(path.name) or parse(path, text))
    for number in range(5):
        store(toy_root, f"s{number}", 1000.0 + number)
    results.refresh()
    store(toy_root, "more")
    results.refresh()
    again = Results(toy_root)
    again.refresh()
    assert len(parsed) == len(set(parsed)) == 6
    assert again.boards[KEY] == results.boards[KEY]


def test_a_run_that_is_removed_leaves_the_board_and_an_empty_board_is_none(toy_root, results):
    store(toy_root, "mine")
    results.refresh()
    next((toy_root / "results").glob("local/double/test-1000/*.json")).unlink()
    assert results.refresh() and KEY not in results.boards


def test_a_boards_revision_changes_with_its_own_runs_alone(toy_root, results):
    store(toy_root, "mine")
    results.refresh()
    first = results.boards[KEY].revision
    other = {"device": _gpu("other-1")}
    store(toy_root, "mine", **other)
    assert results.refresh() and results.boards[KEY].revision == first
    store(toy_root, "mine", 900.0)
    assert results.refresh() and results.boards[KEY].revision != first


def test_a_run_that_replaces_another_in_its_file_shows(toy_root, results):
    run = store(toy_root, "mine", 1000.0)
    results.refresh()
    store(toy_root, "mine", 700.0, id=run.id)
    results.refresh()
    assert [s.entry.score_ns for s in results.boards[KEY].board.standings] == [700.0]


def test_a_problem_that_is_changed_makes_its_runs_older_and_a_spoilt_one_leaves_the_board_as_it_was(toy_root, results):
    store(toy_root, "mine")
    results.refresh()
    file = toy_root / "problems/double/problem.yml"
    text = file.read_text()
    file.write_text("revision: [")
    results.refresh()
    assert names(results) == ["mine"]
    file.write_text(text.replace("revision: 1", "revision: 2"))
    assert results.refresh() and names(results) == []
    assert [entry.older for entry in results.boards[KEY].board.unranked] == [True]


def test_what_no_run_is_does_no_harm(toy_root, results):
    store(toy_root, "mine")
    (toy_root / "results/local/double/test-1000/odd.json").write_text("{")
    results.refresh()
    assert names(results) == ["mine"]


def test_the_heat_maps_figures_are_those_of_the_run_files(toy_root, results):
    run = store(toy_root, "mine", 1000.0)
    results.refresh()
    live = results.boards[KEY]
    found = live.figures(run.id)
    assert [(f.case, f.latency_ns, f.low_ns, f.high_ns, f.floor_ns, f.format, f.labels) for f in found] == [
        (m.case, m.latency.latency_ns, m.latency.low_ns, m.latency.high_ns, m.floor.latency_ns, m.floor.format, ())
        for m in run.measurements
    ]


def test_the_records_are_those_of_the_report(toy_root, results):
    store(toy_root, "first", 2000.0)
    store(toy_root, "slower", 3000.0)
    store(toy_root, "wrong later", 10.0, source="cheat")
    store(toy_root, "wrong later", source="cheat", **failed())
    store(toy_root, "noisy", 20.0, unranked_because=Unranked.CROWDED)
    store(toy_root, "own clock", 30.0, clock=ClockOwner.WORKER)
    store(toy_root, "older", 40.0, problem_sha256="0" * 64)
    store(toy_root, "best", 1000.0)
    results.refresh()
    with Store(toy_root).index() as index:
        (part,) = report.parts(toy_root, index, [catalog.load_problem(toy_root, "double")])
    expected = [line.run.submission for line in plots.records(part.shelves[0].lines)]
    assert [entry.submission for entry in results.boards[KEY].records] == expected == ["first", "best"]


def test_a_run_is_found_by_its_id_and_nothing_else_is(toy_root, results):
    run = store(toy_root, "mine")
    results.refresh()
    assert results.run(run.id)[1] == run
    for odd in ("", "..", "../" + run.id, "a" * 5000, "\0", "no-such-run", f"{run.id}.json", "*"):
        assert results.run(odd) is None


def test_an_index_without_the_new_tables_is_made_anew(toy_root, results):
    store(toy_root, "mine")
    results.refresh()
    import sqlite3

    with sqlite3.connect(toy_root / "results" / "index.sqlite") as database:
        database.executescript("DROP TABLE cases; PRAGMA user_version = 9;")
    with Index(toy_root / "results") as index:
        assert index.revisions() and index.cases(entry.path for entry in index.runs())


ends = st.one_of(st.none(), st.sampled_from([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]))


@given(st.lists(st.tuples(st.sampled_from([2.0, 3.0, 4.0, 5.0]), ends, ends), max_size=12))
def test_ranks_found_in_order_are_those_that_the_definition_gives(intervals):
    """One more than the number certainly faster, up to the number not certainly slower."""
    entries = [_entry(str(number), *values) for number, values in enumerate(intervals)]

    def faster(one, other):
        return one.high_ns is not None and other.low_ns is not None and one.high_ns < other.low_ns

    board = rank(entries, [])
    assert len(board.standings) == len(entries)
    for standing in board.standings:
        assert standing.first == 1 + sum(faster(other, standing.entry) for other in entries)
        assert standing.last == len(entries) - sum(faster(standing.entry, other) for other in entries)


def _entry(name, score_ns, low_ns, high_ns):
    return Entry(
        id=name, path=name, problem="double", revision=1, problem_sha256="", device="d", device_name="D",
        submission=name, sha256=name, started_at="2026", verdict=Verdict.ACCEPTED, message="", clock=ClockOwner.JUDGE,
        unranked=None, tolerance=None, error=None, score_ns=score_ns, low_ns=low_ns, high_ns=high_ns, floor_ns=None,
    )  # fmt: skip


def _gpu(slug):
    from boards import GPU

    return GPU.model_copy(update={"slug": slug, "name": slug})


class TestManyRuns:
    """A look at all files takes so long that the next one is not due: the folders' lists of names have to do."""

    @pytest.fixture
    def many(self, toy_root, results, monkeypatch):
        store(toy_root, "mine", 1000.0)
        store(toy_root, "other", 2000.0)
        monkeypatch.setattr(file_names, "SHORT_S", 0.0)
        monkeypatch.setattr(file_names, "SHARE", 1e-9)
        results.refresh()
        looks = []
        monkeypatch.setattr(tables.scan, "folders", lambda folder: looks.append(folder) or {})
        yield results
        assert not looks, "no look at all files"

    def test_one_more_is_on_the_board_without_a_look_at_the_others(self, toy_root, many):
        store(toy_root, "fast", 500.0)
        assert many.refresh() and names(many) == ["fast", "mine", "other"]
        assert not many.refresh()

    def test_one_that_goes_and_one_that_is_replaced_show(self, toy_root, many):
        run = store(toy_root, "fast", 500.0)
        many.refresh()
        store(toy_root, "fast", 1500.0, id=run.id)
        assert many.refresh() and names(many) == ["mine", "fast", "other"]
        next((toy_root / "results").glob(f"local/double/test-1000/{run.id}.json")).unlink()
        assert many.refresh() and names(many) == ["mine", "other"]

    def test_what_is_no_run_is_reported_until_it_is_one(self, toy_root, many):
        odd = toy_root / "results/local/double/test-1000/odd.json"
        odd.write_text("{")
        many.refresh()
        with Store(toy_root).index(()) as index:
            assert [path for path, _ in index.faults()] == ["local/double/test-1000/odd.json"]
        odd.unlink()
        many.refresh()
        with Store(toy_root).index(()) as index:
            assert not index.faults()


def test_what_the_names_do_not_show_is_found_by_the_next_look_at_all_files(toy_root, results, monkeypatch):
    run = store(toy_root, "mine", 1000.0)
    monkeypatch.setattr(file_names, "SHORT_S", 0.0)
    monkeypatch.setattr(file_names, "SHARE", 1e-9)
    results.refresh()
    path = toy_root / f"results/local/double/test-1000/{run.id}.json"
    path.write_text(path.read_text().replace('"latency_ns": 1000.0', '"latency_ns": 800.0'))
    assert not results.refresh(), "its name and its number are the same"
    results._files._whole_due_s = 0.0
    assert results.refresh() and [s.entry.score_ns for s in results.boards[KEY].board.standings] == [800.0]


def test_an_index_that_is_gone_is_made_anew_from_all_files(toy_root, results, monkeypatch):
    store(toy_root, "mine", 1000.0)
    monkeypatch.setattr(file_names, "SHORT_S", 0.0)
    monkeypatch.setattr(file_names, "SHARE", 1e-9)
    results.refresh()
    (toy_root / "results/index.sqlite").unlink()
    store(toy_root, "fast", 500.0)
    assert results.refresh() and names(results) == ["fast", "mine"]


@pytest.mark.slow(ci=True)
def test_the_benchmark_of_the_boards_page_finds_its_board():
    from bench import board_page

    row = board_page.measured("kv_replicate", 40, 20)
    assert row[0] == "40" and row[6].endswith(" ms")
