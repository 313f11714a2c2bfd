"""A report is one file that needs no network, shows what the boards say, and obeys nobody whose text is in it."""

import base64
import contextlib
import hashlib
import itertools
import re
import resource
import shutil
import subprocess
import sys
import unicodedata
from datetime import UTC, datetime
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness import catalog
from harness.cli import main
from harness.model import (
    Case,
    CaseCheck,
    ClockOwner,
    Constant,
    Device,
    Ending,
    Estimate,
    Excess,
    Floor,
    Label,
    Manner,
    Measurement,
    Run,
    Skipped,
    Submission,
    Unranked,
    Verdict,
)
from harness.ranking.board import rank
from harness.records.entry import Entry
from harness.records.store import Store
from harness.render import boards, charts, document, html, legible, plots
from harness.render import run as rendered
from harness.render.axis import NARROW, WIDE, label_ends, log_axis
from harness.render.notes import OF_THE_LIMIT
from harness.verbs import report
from harness.verbs.report import Sheet
from tests.conftest import lay_out

CHECKOUT = Path(__file__).resolve().parents[1]
CASES = [Case(parameters={"rows": rows, "cols": 64}) for rows in (64, 4096)]
BREAKOUT = "</script></style></pre><script>pwned=1</script><img src=x onerror=pwned=1>"
HOSTILE = f"{BREAKOUT}&amp;\"'`{{{{7*7}}}}\x1b[31m\u202etxt.\x00"
ENVIRONMENT = {"python": "3.12", "packages": {"torch": "2.11"}, "isolation": "bubblewrap"}
GPU = Device(
    kind="cuda",
    name="Test 1000",
    slug="test-1000",
    arch="sm_90",
    torch_device="cuda:0",
    memory_bytes=80 << 30,
    flush_bytes=1,
    bandwidth_bytes_per_s=1e12,
)


def around(latency_ns, part=0.01):
    return Estimate(latency_ns=latency_ns, low_ns=latency_ns * (1 - part), high_ns=latency_ns * (1 + part))


def measurement(case, latency_ns, floor_ns, processes, samples):
    """Samples that spread by some per cent around `latency_ns`."""
    process = [latency_ns * (1 + 0.01 * (i % 7)) for i in range(samples)]
    floor = Floor(latency_ns=floor_ns, binds="bandwidth", format="float32")
    return Measurement(case=case, samples_ns=[process] * processes, latency=around(latency_ns, 0.02), floor=floor)


def store(root, name, latency_ns=1000.0, source=None, processes=3, samples=8, **changes):
    """One run of a submission called `name`, an hour after the one before it."""
    text = source or f"def custom_kernel(data):  # {name}\n    return data[0] * 2\n"
    content = text.encode("utf-8", "replace")
    sha256 = hashlib.sha256(content).hexdigest()
    count = len(list((root / "results").glob("local/*/*/*.json")))
    check = CaseCheck(
        case=CASES[0],
        verdict=Verdict.ACCEPTED,
        tolerance="close",
        excess={"close": Excess(limit="rel_l2", ratio=0.5)},
        error=0.01,
    )
    fields = {
        "id": f"run-{count:04d}",
        "problem": "double",
        "problem_revision": 1,
        "problem_sha256": catalog.load_problem(root, "double").sha256,
        "submission": name,
        "submission_sha256": sha256,
        "submission_path": "x",
        "device": GPU,
        "environment": ENVIRONMENT | {"load_average": [1.5, 1, 1]},
        "started_at": f"2026-01-{1 + count // 24:02d}T{count % 24:02d}:00:00.000+00:00",
        "duration_s": 1.5,
        "ending": Ending(verdict=Verdict.ACCEPTED, message="all right"),
        "checks": (check,),
        "measurements": [
            measurement(case, scale * latency_ns, scale * 100.0, processes, samples)
            for scale, case in zip((1, 50), CASES)
        ],
        "clock": ClockOwner.JUDGE,
        "score": around(latency_ns),
        "tolerance": "close",
        "error": 0.01,
        "master_seed": "00",
        "config": {"confidence": 0.95},
    }
    run = Run(**{**fields, **changes})
    Store(root).write(run, Submission(name=name, problem="double", sha256=sha256, source=content, path="x"))
    return run


def failed(verdict=Verdict.WRONG_ANSWER, message="rel_l2 0.3 (limit 0.2)"):
    return {"ending": Ending(verdict=verdict, message=message), "score": None, "measurements": ()}


def page_of(root):
    return html.report(root, [catalog.load_problem(root, "double")], datetime(2026, 2, 1, tzinfo=UTC))


def shelf_of(root):
    with Store(root).index() as index:
        (part,) = report.parts(root, index, [catalog.load_problem(root, "double")])
    return part.shelves[0]


class Elements(HTMLParser):
    """What a page consists of: its elements with their attributes, and its text without style and script."""

    def __init__(self, page):
        super().__init__()
        self.elements, self.text, self.raw, self._inside = [], "", {"style": "", "script": ""}, None
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        self._inside = tag if tag in self.raw else None
        self.text += " " if tag in ("td", "th") else ""

    def handle_endtag(self, tag):
        self._inside = None

    def handle_data(self, data):
        if self._inside:
            self.raw[self._inside] += data
        else:
            self.text += data

    @property
    def words(self):
        return " ".join(self.text.split())


class Cells(HTMLParser):
    """Every table of a page as its class, the classes of its headers, and rows of (attributes, text)."""

    def __init__(self, page):
        super().__init__()
        self.tables = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attributes):
        if tag == "table":
            self.tables.append((dict(attributes).get("class") or "", []))
        elif tag == "tr":
            self.tables[-1][1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][1][-1].append([dict(attributes), ""])

    def handle_data(self, data):
        if self.tables and self.tables[-1][1] and self.tables[-1][1][-1]:
            self.tables[-1][1][-1][-1][1] += data


def test_every_figure_in_a_table_that_sorts_has_its_number(toy_root):
    store(toy_root, "mine")
    store(toy_root, "odd", measurements=[measurement(CASES[0], 900.0, 9.0, 3, 8).model_copy(update={"floor": None})])
    store(toy_root, "bad", **failed())
    seen = set()
    for kind, (headers, *rows) in Cells(page_of(toy_root)).tables:
        if "sortable" not in kind.split():
            continue
        for row in rows:
            for (header, title), (attributes, text) in zip(headers, row, strict=True):
                if header.get("class") != "number" and not title.startswith("of "):
                    continue
                assert "data-v" in attributes, (title, text)
                assert (attributes["data-v"] == "") is (text.strip() == ""), (title, text)
                assert attributes["data-v"] == "" or float(attributes["data-v"]) >= 0
                seen.add(title.strip())
    assert seen >= {"interval", "floor µs", "of the limit", "latency µs", "score µs", "error", "of close", "took s"}


def test_an_interval_sorts_by_how_wide_it_is_for_its_centre():
    wide, narrow = around(100.0, 0.1), around(1e6, 0.01)
    assert float(html._half_width(wide)) > float(html._half_width(narrow)) == pytest.approx(0.01, rel=1e-3)
    assert html._half_width(Estimate(latency_ns=1.0)) == ""
    assert html._figure(float("inf")) == "Infinity" and html._figure(float("nan")) == ""


def test_without_runs_a_report_says_how_to_get_one(toy_root):
    text = Elements(page_of(toy_root)).text
    assert "No runs of double yet" in text and "python3 -m harness eval double" in text


def test_the_verb_writes_the_file_without_importing_torch(toy_root):
    store(toy_root, "mine")
    code = (
        "import sys; from harness.cli import main\n"
        f"assert main(['--root', {str(toy_root)!r}, 'report', 'double', '--out', {str(toy_root / 'b.html')!r}]) == 0\n"
        "assert not {'torch', 'triton', 'scipy'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], cwd=CHECKOUT, check=True, timeout=120)
    assert "mine" in (toy_root / "b.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("duoble",), "did you mean double?"),
        (("double", "--device", "test-100"), "these devices have runs: test-1000"),
        (("double", "--out", "no/such/folder.html"), "cannot be written"),
    ],
)
def test_a_wrong_word_is_answered_in_a_sentence_with_exit_code_2(toy_root, capsys, arguments, words):
    store(toy_root, "mine")
    assert main(["--root", str(toy_root), "report", *arguments]) == 2
    assert words in capsys.readouterr().err


def test_null_calls_that_all_took_the_same_and_an_interval_as_wide_as_floats_go_are_shown(toy_root):
    constant = Constant(manner=Manner.STOPPED, latency_ns=1e3, spread_ns=0.0, calls=8)
    measured = measurement(CASES[0], 100.0, 10.0, 3, 8)
    wide = Estimate(latency_ns=100.0, low_ns=1e-300, high_ns=1e300)
    store(toy_root, "mine", constants=(constant,), measurements=(measured.model_copy(update={"latency": wide}),))
    assert main(["--root", str(toy_root), "report", "double", "--out", str(toy_root / "b.html")]) == 0
    assert "interquartile range 0 µs" in (toy_root / "b.html").read_text()


@pytest.mark.parametrize("name", ["mine.py", "run.json", "page.html"])
def test_no_file_is_replaced_that_is_no_report(toy_root, capsys, name):
    run = store(toy_root, "mine")
    stored = next(toy_root.glob(f"results/*/*/*/{run.id}.json"))
    path = toy_root / name
    path.write_bytes(stored.read_bytes() if name == "run.json" else b"<!doctype html>\n<title>Somebody's</title>")
    before = path.read_bytes()
    assert main(["--root", str(toy_root), "report", "double", "--out", str(path)]) == 2
    said = capsys.readouterr()
    assert f"{path} exists and is not a report of Podium, so it is not overwritten" in said.err and not said.out
    assert path.read_bytes() == before


@pytest.mark.parametrize("before", [None, b""])
def test_a_report_replaces_an_empty_file_and_one_of_its_kind(toy_root, before):
    store(toy_root, "mine")
    path = toy_root / "board.html"
    if before is not None:
        path.write_bytes(before)
    for name in ("mine", "other"):
        store(toy_root, name)
        assert main(["--root", str(toy_root), "report", "double", "--out", str(path)]) == 0
        assert name in path.read_text()


@contextlib.contextmanager
def disk_with_room_for(size):
    """As on a full disk: no file grows beyond `size` bytes. Python ignores SIGXFSZ; writes fail with EFBIG."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


OLDER = b'<!doctype html>\n<meta property="og:site_name" content="Podium">\nthe good board'
"""A report as an older Podium wrote it, as far as it is known by."""


@pytest.mark.parametrize("before", [OLDER, None])
def test_a_full_disk_costs_no_report_that_was_there_and_leaves_no_half_of_one(toy_root, capsys, before):
    store(toy_root, "mine")
    folder = toy_root / "out"
    folder.mkdir()
    if before is not None:
        (folder / "board.html").write_bytes(before)
    main(["--root", str(toy_root), "show"])  # the index is made while there is room
    with disk_with_room_for(20_000):
        code = main(["--root", str(toy_root), "report", "double", "--out", str(folder / "board.html")])
    said = capsys.readouterr().err
    assert code == 30 and "board.html cannot be written: File too large" in said
    assert ("untouched" in said) is (before is not None)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == ({"board.html": before} if before else {})


def test_a_report_is_written_through_a_link_with_the_permissions_that_its_file_has(toy_root):
    store(toy_root, "mine")
    (toy_root / "real.html").write_bytes(OLDER)
    (toy_root / "real.html").chmod(0o600)
    (toy_root / "link.html").symlink_to("real.html")
    assert main(["--root", str(toy_root), "report", "double", "--out", str(toy_root / "link.html")]) == 0
    assert (toy_root / "link.html").is_symlink() and "mine" in (toy_root / "real.html").read_text()
    assert (toy_root / "real.html").stat().st_mode & 0o777 == 0o600


def test_a_report_can_be_written_into_a_pipe(toy_root):
    store(toy_root, "mine")
    command = [sys.executable, "-m", "harness", "--root", str(toy_root), "report", "double", "--out", "/dev/stdout"]
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.startswith("<!doctype html>") and "</html>" in done.stdout


def test_nothing_in_a_page_leads_out_of_it(toy_root):
    store(toy_root, "mine")
    store(toy_root, "yours", 2000.0)
    page = Elements(page_of(toy_root))
    for tag, attributes in page.elements:
        assert not attributes.keys() & {"src", "srcset", "style", "action", "data"}, tag
        assert tag not in ("link", "img", "iframe", "object", "embed", "form", "base")
        assert attributes.get("href", "#").startswith("#")
    assert "http" not in page.raw["style"] + page.raw["script"] and "url(" not in page.raw["style"]


def test_the_policy_allows_the_pages_own_style_and_script_and_nothing_else(toy_root):
    page = Elements(page_of(toy_root))
    policy = next(a["content"] for tag, a in page.elements if a.get("http-equiv") == "Content-Security-Policy")
    directives = dict(part.strip().split(" ", 1) for part in policy.split(";"))
    assert directives["default-src"] == "'none'"
    for kind in ("style", "script"):
        digest = base64.b64encode(hashlib.sha256(page.raw[kind].encode()).digest()).decode()
        assert directives[f"{kind}-src"] == f"'sha256-{digest}'"


def store_hostile(root):
    """HOSTILE wherever a submission, or whoever wrote a run's file, may put text."""
    case = Case(parameters={HOSTILE: HOSTILE, "rows": [1, 2]})
    excess = {HOSTILE: Excess(limit=HOSTILE, ratio=0)}
    check = CaseCheck(case=case, verdict="accepted", tolerance=None, excess=excess, error=0.1)
    store(
        root,
        HOSTILE,
        900.0,
        source=f"'''{HOSTILE}'''\n# {HOSTILE}\n{HOSTILE}",
        environment={HOSTILE: HOSTILE, "packages": {HOSTILE: HOSTILE}, "load_average": [HOSTILE]},
        measurements=(Measurement(case=case, samples_ns=((900.0,),), labels=(HOSTILE,), latency=around(900.0)),),
        checks=(check,),
        tolerance=HOSTILE,
        output=HOSTILE,
        skipped=(Skipped(case=case, reason=HOSTILE),),
        ending=Ending(verdict=Verdict.ACCEPTED, message=HOSTILE, detail=HOSTILE),
        device=GPU.model_copy(update={"name": HOSTILE, "arch": HOSTILE}),
        started_at=HOSTILE,
    )
    store(root, HOSTILE + "2", unranked_because=HOSTILE)
    store(root, HOSTILE + "3", **failed(message=HOSTILE))
    (root / "results" / "local" / "double" / "test-1000" / "<img src=x>.json").write_text("{}")


def test_nothing_that_a_submission_says_becomes_markup(toy_root):
    store(toy_root, "plain", error=0.02, output="printed", **failed())
    store(toy_root, "slower", 2000.0, error=0.02, skipped=(Skipped(case=CASES[0], reason="why"),), output="printed")
    store(toy_root, "slowest", 3000.0, error=0.001)
    store(toy_root, "quick", unranked_because="quick")
    before = Elements(page_of(toy_root))
    store_hostile(toy_root)
    after = Elements(page_of(toy_root))
    assert {tag for tag, _ in after.elements} <= {tag for tag, _ in before.elements} | {"ul"}  # of what is no run
    assert {name for _, a in after.elements for name in a} <= {name for _, a in before.elements for name in a}
    assert sum(tag == "script" for tag, _ in after.elements) == 1
    assert after.text.count(BREAKOUT) > 20 and "{{7*7}}" in after.text


def test_what_cannot_be_seen_is_shown_by_name(toy_root):
    store_hostile(toy_root)
    store(toy_root, "mine", source="# \u202e\u200b\x07", environment=ENVIRONMENT | {"system": "\u2066"})
    page = page_of(toy_root)
    unseen = {c for c in page if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp")}
    assert unseen == {"\n"}
    assert "‹U+202E›‹U+200B›‹U+0007›" in Elements(page).text and "‹U+001B›[31m" in Elements(page).text


@settings(deadline=None)
@given(st.text())
def test_source_is_shown_character_for_character(source):
    lines = legible.legible(source.replace("\r\n", "\n")).split("\n")
    if lines[-1] == "":
        lines.pop()
    assert Elements(str(legible.highlighted(source))).text == "\n".join(lines)


def test_what_is_not_ranked_is_apart_with_its_reason(toy_root):
    store(toy_root, "good")
    store(toy_root, "quick_one", 500.0, unranked_because="quick")
    store(toy_root, "bad", **failed())
    captioned = [table.partition("</table>")[0] for table in page_of(toy_root).split("<caption>")[1:]]
    board, verified, left_out = (Elements(table).words for table in captioned)
    assert board.startswith("Board") and "good" in board and "quick_one" not in board and "bad" not in board
    assert verified.startswith("Accepted, not ranked") and "quick_one" in verified and "a quick look" in verified
    assert left_out.startswith("Not accepted") and "bad wrong answer rel_l2 0.3 (limit 0.2)" in left_out


def test_a_command_in_a_note_is_code_and_not_in_backticks(toy_root):
    store(toy_root, "voided_one", unranked_because="voided")
    page = page_of(toy_root)
    assert "see why with <code>show</code>" in page and "`" not in Elements(page).text


def test_what_a_worker_timed_or_older_files_judged_is_apart_and_labelled(toy_root):
    store(toy_root, "judged", 3000.0)
    store(toy_root, "own", 10.0, clock=ClockOwner.WORKER)
    store(toy_root, "old", 20.0, problem_sha256="dd")
    store(toy_root, "old_and_bad", problem_sha256="dd", **failed())
    page = page_of(toy_root)
    board, verified, left_out = (Elements(t.partition("</table>")[0]).words for t in page.split("<caption>")[1:])
    assert "judged" in board and "own" not in board and "old" not in board and "worker-timed" not in board
    assert "own" in verified and "the submission's own process timed it" in verified
    assert "old" in verified and "files have changed since it was judged" in verified
    assert "old_and_bad wrong answer of an older revision" in left_out
    runs = Elements(page.partition("<summary>All runs")[2]).words
    assert runs.count(" worker-timed ") == 1 and runs.count(" of an older revision ") == 1
    assert [line.run.submission for line in plots.records(shelf_of(toy_root).lines)] == ["judged"]


def test_a_board_of_workers_times_is_there_if_the_setting_says_so_and_its_charts_say_so(toy_root):
    for number in range(3):
        store(toy_root, f"own_{number}", 1000.0 + number, error=0.01 * (1 + number), clock=ClockOwner.WORKER)
    assert not shelf_of(toy_root).ranked
    with (toy_root / "configs" / "eval.yml").open("a") as file:
        file.write("rank_worker_timed: true\n")
    page = page_of(toy_root)
    assert len(shelf_of(toy_root).ranked) == 3
    assert "worker-timed: the submissions&#39; own processes timed these" in page.partition("<caption>")[2][:300]
    captions = [Elements(part.partition("</figcaption>")[0]).words for part in page.split("<figcaption>")[1:4]]
    assert ["Worker-timed." in caption for caption in captions] == [True] * 3


def test_how_the_judge_timed_a_case_is_beside_its_latency(toy_root):
    timed = measurement(CASES[0], 1000.0, 100.0, 3, 8)
    told = {"manner": Manner.SANDWICH, "bound_ns": 330.0, "inside_ns": 1234.0, "voids": {"cut by the slice": 1}}
    constant = Constant(manner=Manner.SANDWICH, latency_ns=283_100, spread_ns=610, calls=417)
    store(toy_root, "mine", measurements=(timed.model_copy(update=told),), constants=(constant,))
    words = Elements(page_of(toy_root)).words
    assert "sandwich 0.3300 1.234 cut by the slice: 1 (4.0 %)" in words and "clockthe judge's" in words
    assert "constant (sandwich) 283.1 µs, interquartile range 0.6100 µs, 417 calls" in words
    assert "idle excess" not in words


def test_a_board_has_rank_score_interval_floor_and_error(toy_root):
    store(toy_root, "slow", 3000.0)
    store(toy_root, "fast", 1000.0)
    words = Elements(page_of(toy_root)).words
    assert "score with its 95 % interval, in µs" in words
    assert "1 fast 1.000 ±1.0 % 71 % 0.01 close 1 2026-01-01 01:00 2 slow 3.000 ±1.0 % 24 % 0.01" in words


def test_what_a_chart_says_of_the_limit_stands_in_the_tables_beside_it_with_the_floor_s_format(toy_root):
    """Of a case that a launch alone takes long for, too."""
    bound = measurement(CASES[0], 1000.0, 100.0, 3, 8).model_copy(update={"labels": (Label.LATENCY_BOUND,)})
    run = store(toy_root, "mine", measurements=(bound, measurement(CASES[1], 4000.0, 1000.0, 3, 8)))
    notes = [panel.rows[0].note for panel in charts.case_panels(shelf_of(toy_root).ranked, CASES)]
    assert notes == ["10\xa0%", "25\xa0%"]
    page = page_of(toy_root)
    found = []
    for _, (headers, *rows) in Cells(page).tables:
        titles = [title.strip() for _, title in headers]
        if "floor µs" in titles:
            found.append([(row[titles.index("of the limit")][1], row[titles.index("binds")][1][:19]) for row in rows])
    assert found == [[(note, "bandwidth (float32)") for note in notes]] * 2
    assert "Of the limit: floor ÷ latency; 100 % is best. The floor is" in Elements(page).words
    shown = document.text([rendered.case_table(run)])
    assert all(note in shown for note in notes) and OF_THE_LIMIT in shown and "float32 data" in shown


def test_the_marks_of_a_wide_interval_and_of_a_wide_bound_are_explained_where_they_stand_alone(toy_root):
    plain = measurement(CASES[0], 1000.0, 100.0, 3, 8).model_copy(update={"bound_ns": 10.0})
    shown = document.text([rendered.case_table(store(toy_root, "mine", measurements=(plain,)))])
    assert "bound:" not in shown and "×/÷" not in shown
    wide = {"bound_ns": 330.0, "latency": Estimate(latency_ns=1000.0, low_ns=500.0, high_ns=2000.0)}
    run = store(toy_root, "wide", measurements=(plain.model_copy(update=wide),), score=wide["latency"])
    shown = document.text([rendered.case_table(run)])
    assert "×/÷ 2: the interval goes from half of the figure to twice the figure" in shown
    assert (
        "bound: the most by which a latency can be less than the truth; shown if above 2 % + 0.3 µs"
        in shown.replace("\xa0", " ")
    )
    board = document.text(boards.parts(toy_root, catalog.load_problem(toy_root, "double"), None))
    assert "×/÷ 2: the interval goes" in board


def test_a_page_speaks_of_baselines_only_where_one_is_ranked_and_says_so_where_none_is(toy_root):
    path = toy_root / "problems" / "double" / "problem.yml"
    (toy_root / "submissions" / "double" / "torch_twice.py").touch()
    path.write_text(path.read_text() + "baselines: [torch_twice]\n")
    store(toy_root, "mine")
    store(toy_root, "hasty", unranked_because="quick")
    words = Elements(page_of(toy_root)).words
    assert "No × best baseline: no baseline is ranked here. Judge torch_twice for one." in words
    assert words.lower().count("baseline") == 2 and "key baseline" not in page_of(toy_root)
    store(toy_root, "torch_twice", 2000.0)
    words = Elements(page_of(toy_root)).words
    assert "No × best baseline" not in words and "how many times as fast as the fastest of them" in words
    assert "interval × best baseline" in words and "2.00" in words and "key baseline" in page_of(toy_root)


def test_a_source_that_is_not_what_was_judged_is_not_shown(toy_root):
    run = store(toy_root, "mine", source="SECRET = 1\n")
    path = toy_root / "results" / "local" / "double" / "sources" / f"{run.submission_sha256}.py"
    assert "SECRET" in Elements(page_of(toy_root)).text
    path.write_text("SECRET = 2\n")
    text = Elements(page_of(toy_root)).text
    assert "SECRET" not in text and "the sha256 differs" in text
    path.unlink()
    assert "not stored here" in Elements(page_of(toy_root)).text


def test_a_sha256_that_is_a_path_is_not_followed(toy_root):
    (toy_root / "results" / "secret.py").write_text("SECRET = 1\n")
    store(toy_root, "mine", submission_sha256="../../../secret")
    text = Elements(page_of(toy_root)).text
    assert "SECRET" not in text and "does not name its source's sha256" in text


def test_runs_with_the_same_environment_share_it(toy_root):
    store(toy_root, "a")
    store(toy_root, "b", environment=ENVIRONMENT | {"load_average": [9, 9, 9]})
    store(toy_root, "c", environment=ENVIRONMENT | {"python": "3.13"})
    words = Elements(page_of(toy_root)).words
    assert "Environments 2" in words and "what E1 E2 python 3.12 3.13" in words


def test_many_samples_are_drawn_as_quantiles_and_few_one_by_one(toy_root):
    few, many = (store(toy_root, name, samples=n) for name, n in (("few", 60), ("many", 400)))
    assert [len(row.dots) for row in charts.distributions(few.measurements)[0].rows] == [60, 60, 60]
    row = charts.distributions(many.measurements)[0].rows[0]
    assert row.count == 400 and not row.dots
    assert list(row.figures_ns) == sorted(row.figures_ns) and list(row.quantiles) == sorted(row.quantiles)
    assert (row.figures_ns[0], row.figures_ns[3], row.figures_ns[-1]) == pytest.approx((1000, 1030, 1060))


def test_a_page_grows_little_with_samples_and_runs(toy_root):
    store(toy_root, "one", samples=400, processes=5)
    first = len(page_of(toy_root))
    for _ in range(100):
        store(toy_root, "one", samples=400, processes=1)
    page = page_of(toy_root)
    assert first < 100_000 and len(page) - first < 100 * 1500
    assert "run-0000" in page and "run-0100" in page


def test_of_very_many_runs_the_latest_are_listed_and_the_page_says_so(toy_root, monkeypatch):
    monkeypatch.setattr(html, "RUNS_LISTED", 3)
    for number in range(5):
        store(toy_root, f"try_{number}")
    all_runs = page_of(toy_root).partition("<summary>All runs")[2]
    assert "The latest 3 of 5 runs" in all_runs and "run-0002" in all_runs and "run-0001" not in all_runs


def test_a_case_shows_intervals_as_bars_right_of_the_floor(toy_root):
    store(toy_root, "fast", 1000.0)
    store(toy_root, "slow", 3000.0)
    first, second = charts.case_panels(shelf_of(toy_root).ranked, CASES)
    assert (first.title, second.title) == ("rows=64", "rows=4096")
    for row in first.rows:
        assert first.floor < row.low < row.at < row.high < 100
    assert first.rows[0].at < first.rows[1].at and first.rows[0].note == "10\xa0%"


@given(st.lists(st.floats(1e-6, 1e9), min_size=1, max_size=20))
def test_an_axis_holds_its_values_in_their_order_with_few_ticks(values):
    axis = log_axis(values)
    places = [axis.at(value) for value in sorted(values)]
    assert places == sorted(places) and places[0] > 0 and places[-1] < 100
    assert 1 <= len(axis.ticks) <= 5 and all(0 <= tick.at <= 100 for tick in axis.ticks)


def sheet(name, score_ns, error):
    entry = Entry(
        id=name,
        path="",
        problem="p",
        revision=1,
        problem_sha256="cc",
        device="d",
        device_name="D",
        submission=name,
        sha256=name,
        started_at="",
        verdict=Verdict.ACCEPTED,
        message="",
        clock=ClockOwner.JUDGE,
        unranked=None,
        tolerance="close",
        error=error,
        score_ns=score_ns,
        low_ns=None,
        high_ns=None,
        floor_ns=None,
    )
    (standing,) = rank([entry], []).standings
    return Sheet(entry, standing, baseline=False, run=None, source=None, source_note="")


@given(st.lists(st.tuples(st.integers(1, 9), st.sampled_from([0.0, 0.001, 0.01, 0.1])), min_size=1, max_size=12))
def test_the_frontier_is_what_no_other_beats_in_both(figures):
    sheets = [sheet(f"s{i}", float(score), error) for i, (score, error) in enumerate(figures)]
    best = {(s.entry.score_ns, s.entry.error) for s in plots.frontier(sheets)}
    for score, error in figures:
        beaten = any((s <= score and e <= error) and (s, e) != (score, error) for s, e in figures)
        assert ((float(score), error) in best) == (not beaten)


def test_an_exact_result_stands_left_of_all_errors():
    plot = plots.error_plot([sheet("rough", 2000.0, 1e-1), sheet("close", 5000.0, 1e-4), sheet("exact", 9000.0, 0.0)])
    rough, close, exact = plot.points
    assert exact.x < close.x < rough.x and exact.y < close.y < rough.y
    assert plot.x_ticks[0].label == "0"


def test_of_names_that_have_no_room_beside_each_other_the_frontier_s_is_shown():
    sheets = [sheet("worse", 2000.0, 2e-1), sheet("best", 1999.0, 1e-1), sheet("apart", 9000.0, 1e-2)]
    assert [bool(point.label) for point in plots.error_plot(sheets).points] == [False, True, True]


def test_the_best_over_time_leaves_out_what_was_found_wrong(toy_root):
    store(toy_root, "first", 3000.0)
    store(toy_root, "cheat", 10.0, source="cheat")
    store(toy_root, "second", 2000.0)
    store(toy_root, "slower", 2500.0)
    store(toy_root, "cheat", source="cheat", **failed(Verdict.INTEGRITY_VIOLATION))
    lines = shelf_of(toy_root).lines
    assert [line.run.submission for line in plots.records(lines)] == ["first", "second"]
    plot = plots.history_plot(lines)
    first, second, slower = plot.points
    assert first.y < slower.y < second.y  # from the top: the least is lowest
    assert plot.steps == ((first.x, first.y), (second.x, first.y), (second.x, second.y), (100.0, second.y))
    assert first.label and second.label and not slower.label


def test_every_text_colour_has_contrast_enough_in_light_and_dark():
    css = (CHECKOUT / "harness" / "render" / "templates" / "report.css").read_text(encoding="utf-8")
    pair = r"light-dark\((#\w{6}), (#\w{6})\)"
    colours = {name: both for name, *both in re.findall(rf"--(\w+): {pair}", css)}
    syntax = {name: both for name, *both in re.findall(rf"\.source \.(\w) {{ color: {pair}", css)}
    assert len(colours) >= 9 and len(syntax) >= 6
    for scheme in (0, 1):
        for name in ("ink", "quiet", "accent", "rival", "bad"):
            for ground in ("paper", "raised"):
                assert contrast(colours[name][scheme], colours[ground][scheme]) >= 4.5, (name, ground, scheme)
        for name, both in syntax.items():
            assert contrast(both[scheme], colours["raised"][scheme]) >= 4.5, (name, scheme)


def contrast(one, other):
    """https://www.w3.org/TR/WCAG22/#dfn-contrast-ratio"""

    def luminance(colour):
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_a_page_is_called_after_its_problem_and_best_score_and_a_link_to_it_has_a_preview(toy_root):
    def head():
        page = page_of(toy_root)
        named = {a.get("property", a.get("name")): a.get("content") for _, a in Elements(page).elements}
        assert named["og:title"] == re.search("<title>([^<]*)</title>", page)[1]
        assert named["description"] == named["og:description"] and named["og:type"] == "website"
        return named["og:title"], named["og:description"]

    assert head()[0] == "Twice as much · Podium"
    store(toy_root, "slow", 3000.0)
    store(toy_root, "fast", 1000.0)
    title, told = head()
    assert title == "Twice as much: 1.000 µs by fast on Test 1000 · Podium"
    assert told == "double on Test 1000: 1.000 µs by fast, the best of 2 ranked."


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ('File "/home/ann/work/x/kernel.py", line 3', 'File "…/kernel.py", line 3'),
        ("/root/v/lib/python3.11/site-packages/torch/_ops.py:9", "site-packages/torch/_ops.py:9"),
        ("(/usr/lib/python3.11/ast.py)", "(python3.11/ast.py)"),
        ("in /srv/podium/submissions/mla/mine.py", "in submissions/mla/mine.py"),
        ("cache=/home/ann", "cache=~"),
        ("/tmp/podium-ab12/work/", "…/work"),
        ("reads /dev/shm/x and /proc/self/maps", "reads /dev/shm/x and /proc/self/maps"),
        ("12 µs/call, a/b, and/or, 1 / 2, //, </a></b>", "12 µs/call, a/b, and/or, 1 / 2, //, </a></b>"),
        ("see https://example.org/a/b/c.html", "see https://example.org/a/b/c.html"),
    ],
)
def test_no_path_of_somebody_s_machine_is_shown_and_what_names_a_file_stays(text, shown):
    assert legible.without_paths(text) == shown


def test_a_page_holds_no_path_of_the_machine_that_made_it(toy_root):
    where = "/home/ann/secret/kernel.py"
    ending = Ending(verdict=Verdict.RUNTIME_ERROR, message=f"OSError: {where}", detail=f'File "{where}", line 1')
    changes = {"output": f"wrote {where}\n", "environment": ENVIRONMENT | {"compiler": f"nvcc at {where}"}}
    store(toy_root, "mine", **changes, **failed() | {"ending": ending})
    (toy_root / "results" / "local" / "double" / "test-1000" / "odd.json").write_text("{")
    page = page_of(toy_root)
    assert "secret" not in page and str(toy_root) not in page and page.count("…/kernel.py") >= 4


def test_the_contents_lead_to_every_part_of_a_device(toy_root):
    for number in (1, 2):
        store(toy_root, f"mine_{number}", 1000.0 / number, error=0.01 * number)
    page = page_of(toy_root)
    contents, _, below = page.partition("</nav>")
    parts = set(re.findall(r'id="(p1d1[a-su-z])"', below))  # t is the device's own title
    assert {part[-1] for part in parts} > set("bcxhr") and set(re.findall(r'href="#(p1d1[a-z])"', contents)) == parts


def test_every_label_and_every_reason_is_explained_where_it_stands(toy_root):
    timed = measurement(CASES[0], 1000.0, 100.0, 1, 4)
    for label in Label:
        store(toy_root, f"case_{label}", measurements=(timed.model_copy(update={"labels": (label,)}),))
    unranked = [reason for reason in Unranked if reason is not Unranked.WORKER_TIMED]
    for reason in unranked:
        store(toy_root, f"run_{reason}".replace(" ", "_"), unranked_because=reason)
    page = page_of(toy_root)
    for label in Label:
        sheet = page.partition(f'data-name="case_{label}">\n  <summary>')[2].partition("</figure>")[0]
        words = " ".join(Elements(sheet).text.split())
        assert re.search(rf"{label}: .*{re.escape(label.why)}", words, re.IGNORECASE), label
    table = page.partition("<caption>Accepted, not ranked</caption>")[2].partition("</table>")[0]
    below = page.partition("<summary>All runs")[2].partition("<summary>Environments")[0]
    for reason in unranked:
        for part in (table, below):
            words = " ".join(Elements(part).text.split())
            assert re.search(rf"{reason}: {re.escape(reason.why)}", words, re.IGNORECASE), reason


def test_quick_tries_that_failed_are_folded_and_the_cause_comes_first(toy_root):
    store(toy_root, "mine")
    wrong = f"2 of 3 test cases are wrong; the first is {CASES[0].label}: y: rel_l2 0.3 (limit 0.2)"
    store(toy_root, "wrong", **failed(message=wrong))
    for number in range(3):
        store(toy_root, f"try_{number}", unranked_because="quick", **failed(message=wrong))
    words = Elements(page_of(toy_root)).words
    table, _, folded = words.partition("Quick tries that failed 3")
    assert "wrong answer y: rel_l2 0.3 (limit 0.2) (2 of 3 test cases are wrong)" in table
    assert "Not accepted submission verdict what was seen wrong wrong answer" in table
    assert all(f"try_{number} wrong answer" in folded for number in range(3)) and "try_0" not in table


@given(st.floats(1e-3, 1e6), st.floats(1.0, 1e6))
def test_no_two_labels_of_an_axis_run_into_one_another(low, factor):
    axis = log_axis([low, low * factor])
    for length_px, ticks in ((WIDE, axis.ticks), (NARROW, [tick for tick in axis.ticks if tick.narrow])):
        ends = [label_ends(tick, length_px) for tick in ticks]
        assert len(ends) >= 1 and all(one[1] + 4 <= other[0] for one, other in itertools.pairwise(ends))


# In a browser

OPEN_ALL = "document.querySelectorAll('details').forEach(part => part.open = true)"
GROUND = "getComputedStyle(document.body).backgroundColor"
RANKED = 14


@pytest.fixture(scope="module")
def chromium():
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if program is None:
        pytest.skip("Chromium is not installed (Debian and Ubuntu: apt install chromium)")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=program, args=["--disable-gpu"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def board_root(tmp_path_factory):
    """A checkout with RANKED submissions on its board, one of them hostile, and one that was wrong."""
    root = lay_out(tmp_path_factory.mktemp("board"))
    for number in range(RANKED - 2):
        latency_ns, error = 1000.0 + 700 * (number * 5 % 12), 0.001 * (1 + number)
        store(root, f"try_{number}", latency_ns, error=error, samples=70 if number else 8)
    store(root, "a_submission_with_a_name_that_is_longer_than_any_phone_is_wide", 1500.0, output="x" * 500)
    store(root, HOSTILE, 1200.0, source=HOSTILE, output=HOSTILE)
    store(root, "bad", **failed(message="e" * 400))
    return root


@pytest.fixture(scope="module")
def board_file(board_root):
    path = board_root / "board.html"
    path.write_text(page_of(board_root), encoding="utf-8")
    return path


class Tabs:
    """Opens the report as a file; what its console said and what it asked for are in `said` and `asked_for`.

    Each tab takes a process: those with the same options are one, which loads the report anew.
    """

    def __init__(self, chromium, board_file):
        self._chromium, self._address, self._tabs = chromium, board_file.as_uri(), {}

    def __call__(self, width=1200, scheme="light", fragment="", **options):
        kind = (scheme, *options.items())
        if kind not in self._tabs:
            self._tabs[kind] = self._chromium.new_context(color_scheme=scheme, **options).new_page()
            self._tabs[kind].on("console", lambda message: self._tabs[kind].said.append(message.text))
            self._tabs[kind].on("pageerror", lambda error: self._tabs[kind].said.append(str(error)))
            self._tabs[kind].on("request", lambda request: self._tabs[kind].asked_for.append(request.url))
        page = self._tabs[kind]
        page.goto("about:blank")
        page.said, page.asked_for = [], []
        page.set_viewport_size({"width": width, "height": 800})
        page.goto(f"{self._address}{fragment}")
        return page


@pytest.fixture(scope="module")
def opened(chromium, board_file):
    return Tabs(chromium, board_file)


def in_windows(opened, *widths):
    """The report with all that folds opened, in a window that takes each of these widths in turn."""
    page = opened(widths[0])
    page.evaluate(OPEN_ALL)
    for width in widths:
        page.set_viewport_size({"width": width, "height": 800})
        yield width, page


def names_on_board(page):
    return page.locator("table.board tbody tr:visible th a").all_inner_texts()


@pytest.mark.slow(ci=True)
def test_it_opens_from_disk_without_a_word_or_a_request(opened, board_file):
    page = opened()
    page.evaluate(OPEN_ALL)
    page.wait_for_timeout(100)
    assert page.said == [] and page.asked_for == [board_file.as_uri()]
    assert page.evaluate("typeof pwned") == "undefined"


@pytest.mark.slow(ci=True)
def test_no_other_script_would_be_obeyed_and_nothing_fetched(opened):
    page = opened()
    page.evaluate("""() => {
        const script = document.createElement('script');
        script.textContent = 'window.pwned = 1';
        document.body.append(script);
        const picture = new Image();
        picture.src = 'https://example.org/x.png';
        document.body.append(picture);
    }""")
    page.wait_for_timeout(100)
    assert page.evaluate("typeof pwned") == "undefined"
    assert len([line for line in page.said if "Content Security Policy" in line]) == 2


def test_a_table_sorts_by_a_click_and_by_the_keyboard(opened):
    page = opened()
    ranked = names_on_board(page)
    header = page.locator("table.board thead th").filter(has_text="error")
    button = header.get_by_role("button")
    button.click()
    assert header.get_attribute("aria-sort") == "ascending" and names_on_board(page)[0] == "try_0"
    button.focus()
    page.keyboard.press("Enter")
    assert header.get_attribute("aria-sort") == "descending"
    assert names_on_board(page)[:2] == ["try_11", "try_10"] and names_on_board(page)[-1] == "try_0"
    assert "sorted by error, descending" in page.get_by_role("status").inner_text()
    page.keyboard.press("Shift+Tab")
    assert "of the limit" in page.evaluate("document.activeElement.textContent")
    page.locator("table.board thead button").first.click()
    assert names_on_board(page) == ranked and len(ranked) == RANKED
    assert page.locator("table.board [aria-sort]").count() == 1


def test_intervals_sort_as_numbers_and_what_has_none_comes_last_both_ways(opened, board_root, tmp_path):
    root = tmp_path / "with_intervals"
    shutil.copytree(board_root, root)
    for number, part in enumerate((0.09, 0.005, 0.1)):
        store(root, f"wide_{number}", score=around(1000.0 + number, part))
    path = root / "intervals.html"
    path.write_text(page_of(root), encoding="utf-8")
    page = opened()
    page.goto(path.as_uri())
    page.evaluate(OPEN_ALL)
    table = page.get_by_role("region", name="All runs")
    rows = table.locator("tbody tr")
    button = table.get_by_role("button", name="interval")
    button.click()
    assert "wide_1" in rows.first.inner_text() and "bad" in rows.last.inner_text()
    button.click()
    assert "wide_2" in rows.nth(0).inner_text() and "wide_0" in rows.nth(1).inner_text()
    assert "bad" in rows.last.inner_text()


def test_rows_are_filtered_by_words(opened):
    page = opened()
    field = page.get_by_role("searchbox").first
    field.fill("try_1")
    assert sorted(names_on_board(page)) == ["try_1", "try_10", "try_11"]
    field.fill("")
    assert len(names_on_board(page)) == RANKED


def test_the_field_in_the_bar_leaves_the_submissions_whose_name_has_each_word(opened):
    page = opened()
    page.evaluate(OPEN_ALL)
    field = page.get_by_role("searchbox", name="Filter submissions")
    field.fill("try_1")
    assert sorted(names_on_board(page)) == ["try_1", "try_10", "try_11"]
    assert sorted(page.locator("details.sheet:visible .title").all_inner_texts()) == ["try_1", "try_10", "try_11"]
    rows = page.get_by_role("region", name="All runs").locator("tbody tr:visible")
    assert rows.count() == 3 and page.get_by_role("status").inner_text() == "3 submissions"
    field.fill("")
    assert len(names_on_board(page)) == RANKED


@pytest.mark.parametrize("width", [390, pytest.param(1280, marks=pytest.mark.slow)])
def test_contents_and_filter_stay_and_the_contents_lead_to_each_part(opened, width):
    page = opened(width)
    bar = page.locator(".top")
    page.evaluate("scrollTo(0, document.body.scrollHeight)")
    page.wait_for_timeout(100)
    assert bar.bounding_box()["y"] == 0 and bar.bounding_box()["height"] < 60
    parts = ["Board", "Latency by case", "Latency against error", "Best over time", "Submissions", "All runs"]
    for name in [*parts, "Environments"]:
        page.locator(".contents > summary").click()
        page.locator(".contents").get_by_role("link", name=name, exact=True).click()
        page.wait_for_timeout(50)
        target = page.locator(page.evaluate("location.hash"))
        below = bar.bounding_box()["y"] + bar.bounding_box()["height"]
        assert below <= target.bounding_box()["y"] + 1 < 800 and target.inner_text().strip(), name
        assert page.locator(".contents[open]").count() == 0


SMALL_TARGETS = """[...document.querySelectorAll('a, button, summary, input')].filter(part => part.checkVisibility())
    .map(part => [part.outerHTML.slice(0, 90), part.getBoundingClientRect()])
    .filter(([, box]) => box.bottom > 0 && (box.width < 24 || box.height < 24))
    .map(([name, box]) => `${name} ${box.width} x ${box.height}`)"""


def test_whatever_is_clicked_is_24_pixels_wide_and_high(opened):
    """https://www.w3.org/TR/WCAG22/#target-size-minimum"""
    for _, page in in_windows(opened, 390, 1280):
        assert page.evaluate(SMALL_TARGETS) == []


COLLISIONS = """[...document.querySelectorAll('svg.scale, svg.upright')].flatMap(axis => {
    const boxes = [...axis.querySelectorAll('text')].filter(text => text.checkVisibility())
        .map(text => text.getBoundingClientRect());
    return boxes.flatMap((one, i) => boxes.slice(i + 1).filter(other => one.left < other.right + 3
        && other.left < one.right + 3 && one.top < other.bottom && other.top < one.bottom).map(() => axis.outerHTML));
})"""


def test_labels_of_an_axis_stay_apart_in_any_window(opened):
    for _, page in in_windows(opened, 320, 390, 768, 1280):
        assert page.locator("svg.scale").count() > 10 and page.evaluate(COLLISIONS) == []


def test_a_table_that_goes_on_shows_a_shadow_at_the_edge_where_it_does(opened):
    """Two covers move with the table, two shadows below them do not; cells let them through."""
    board = opened(390).locator(".scroll").first
    assert board.evaluate("part => part.scrollWidth > part.clientWidth")
    assert board.evaluate("part => getComputedStyle(part).backgroundAttachment") == "local, local, scroll, scroll"
    assert board.evaluate("part => getComputedStyle(part.querySelector('td')).backgroundColor") == "rgba(0, 0, 0, 0)"


def test_a_link_on_the_board_opens_what_it_leads_to(opened):
    page = opened()
    page.locator("table.board").get_by_role("link", name="try_0", exact=True).click()
    page.locator("details.sheet[open]").wait_for()
    assert page.locator("details.sheet[open] .title").all_inner_texts() == ["try_0"]
    assert opened(fragment="#p1d1s2").locator("details.sheet[open]").count() == 1


def test_a_link_opens_again_what_was_closed_since(opened):
    page = opened()
    link = page.locator("table.board").get_by_role("link", name="try_0", exact=True)
    for _ in range(2):
        link.click()
        page.locator("details.sheet[open]").wait_for()
        page.locator("details.sheet[open] > summary").click()
        assert page.locator("details.sheet[open]").count() == 0


def test_it_follows_the_systems_theme_until_told_otherwise(opened):
    light, dark = opened(scheme="light"), opened(scheme="dark")
    assert (light.evaluate(GROUND), dark.evaluate(GROUND)) == ("rgb(255, 255, 255)", "rgb(20, 22, 26)")
    toggle = dark.get_by_role("button", name="Theme")
    toggle.click()
    assert dark.evaluate(GROUND) == "rgb(255, 255, 255)" and toggle.inner_text() == "Theme: light"
    dark.reload()
    assert dark.evaluate(GROUND) == "rgb(255, 255, 255)"


def test_no_window_is_too_narrow_for_the_page(opened):
    for width, page in in_windows(opened, 320, 390, 768, 1200):
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_every_chart_has_words_and_a_table(opened):
    page = opened()
    page.evaluate(OPEN_ALL)
    figures = page.locator("figure", has=page.locator("[role=img]")).all()
    assert len(figures) == 3 + RANKED
    for figure in figures:
        assert len(figure.locator("[role=img]").get_attribute("aria-label")) > 40
        assert figure.locator("table tbody tr").count() >= 1
    assert page.locator("svg:not([aria-hidden])").count() == page.locator("[role=img] svg").count()


def test_without_its_script_the_page_reads_as_well(opened):
    page = opened(java_script_enabled=False)
    assert page.locator("table.board tbody tr").count() == RANKED and page.locator("button:visible").count() == 0
