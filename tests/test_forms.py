"""What a verb shows is one thing in three forms: for a terminal, as JSON, and as Markdown that no text marks up."""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from pydantic import BaseModel

from harness.cli import main
from harness.cli.options import verbs as cli
from harness.compile.compilation import Compilation, CompiledKernel
from harness.model import (
    Case,
    CaseCheck,
    ClockOwner,
    Constant,
    Device,
    Ending,
    Estimate,
    Excess,
    Finding,
    Floor,
    Manner,
    Measurement,
    ProfiledCase,
    Round,
    Run,
    Skipped,
    Submission,
    TimedBaseline,
    Total,
    Verdict,
)
from harness.model.profiled import ProfiledPart
from harness.records.store import Store
from harness.render import document, kernels, lists
from harness.render import run as rendered
from harness.render.document import Facts, Prose, Table, Verbatim
from harness.render.legible import legible

HOSTILE = [
    "a|b",
    "one\ntwo",
    "\\|",
    "<script>alert(1)</script>",
    "![x](https://example.org/x.png)",
    "[a](javascript:1)",
    "`code` ``` fence",
    "*bold* _slanted_ ~~gone~~ snake_case_name",
    "&lt;b&gt;",
    "# heading",
    "- item\n1. first",
    "https://example.org www.example.org @somebody",
    "\x1b[2J\u202etxt.exe",
    "$x^2$",
    "===\n---",
    "> said",
    "   four spaces",
    "\\",
]
parser = MarkdownIt("commonmark").enable(["table", "strikethrough"])
inline_text = st.text(st.characters(codec="utf-8") | st.sampled_from("|\\`*_[]<>&~#\n$!()-+="), max_size=40)


def tokens_of(markdown: str) -> list[Any]:
    return [token for outer in parser.parse(markdown) for token in (outer, *(outer.children or []))]


def squeezed(text: str) -> str:
    """Without what Markdown does not keep: runs of spaces, and how a line ends."""
    return " ".join(text.split())


def shown(tokens: list[Any]) -> str:
    """The text of an inline token's children as a reader sees it. <br> ends a line; <!----> is nothing."""
    words = []
    for token in tokens:
        if token.type in ("text", "text_special"):
            words.append(token.content)
        elif token.type in ("softbreak", "hardbreak") or token.content == "<br>":
            words.append("\n")
        else:
            assert token.type == "html_inline" and token.content == "<!---->", token
    return squeezed("".join(words))


def cells_of(markdown: str) -> list[str]:
    return [shown(token.children) for token in parser.parse(markdown) if token.type == "inline"]


@pytest.mark.parametrize("text", HOSTILE)
def test_a_cell_shows_its_text_and_marks_nothing_up(text):
    assert cells_of(document.markdown([Table(["a", "b"], [[text, "end"]])])) == [
        "a",
        "b",
        squeezed(legible(text)),
        "end",
    ]


@settings(deadline=None)
@given(inline_text, inline_text)
def test_whatever_is_in_two_cells_stays_in_two_cells(one, other):
    found = document.markdown([Table(["a", "b"], [[f"x{one}", f"{other}x"]])])
    assert cells_of(found) == ["a", "b", squeezed(legible(f"x{one}")), squeezed(legible(f"{other}x"))]


@settings(deadline=None)
@given(inline_text)
def test_a_paragraph_is_one_paragraph_or_none(text):
    tokens = parser.parse(document.markdown([f"x{text}"]))
    assert [token.type for token in tokens] == ["paragraph_open", "inline", "paragraph_close"]
    assert shown(tokens[1].children) == squeezed(legible(f"x{text}"))


@pytest.mark.parametrize("text", HOSTILE)
def test_a_line_of_a_paragraph_starts_no_block(text):
    tokens = parser.parse(document.markdown([f"first\n{text}"]))
    assert [token.type for token in tokens] == ["paragraph_open", "inline", "paragraph_close"]


@settings(deadline=None)
@given(st.lists(st.sampled_from(["```", "`````", "~~~", "\n", "a", " "]), max_size=12).map("".join))
@example("\n```\n")
def test_what_is_verbatim_cannot_end_its_own_fence(text):
    tokens = parser.parse(document.markdown([Verbatim(f"x{text}x", language="diff"), "after"]))
    assert tokens[0].type == "fence" and tokens[0].content == f"x{text}x\n"
    assert tokens[-2].content == "after"


def test_a_url_and_a_name_are_no_link_and_no_mention_on_github():
    # GitHub links these without markup: https://github.github.com/gfm/#autolinks-extension-
    found = document.escaped("https://example.org www.example.org @somebody")
    assert "https://" not in found and "www." not in found and "@somebody" not in found


def test_columns_that_are_empty_everywhere_are_left_out_of_both():
    table = Table(["a", "b", "c"], [["1", "", None], ["2", None, ""]], title="of numbers", below=["that is all"])
    for form in (document.text, document.markdown):
        found = form([table, "", Facts([])])
        assert "b" not in found.replace("numbers", "") and "of numbers" in found and found.endswith("that is all")
    assert document.text([Table(["a"], [])]) == document.markdown([Table(["a"], [])]) == ""


def test_a_column_is_no_wider_than_what_is_in_it():
    assert document.text([Table(["header"], [["1"]])]).splitlines()[0] == "┌────────┐"


@pytest.mark.parametrize("columns", [80, 100, 200])
def test_on_a_narrow_terminal_words_wrap_in_the_widest_columns(monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    label = "batch_size=16 seq_len=2048 num_kv_heads=4 num_q_heads=32 head_dim=127 dtype=bfloat16"
    found = document.text([Table(["case", "why", "µs"], [[label, "a " * 30, "1.2"], ["b", "", "3.4"]])])
    assert max(map(len, found.splitlines())) <= columns
    assert all(word in found for word in label.split()) and (label in found) == (columns == 200)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.text(max_size=60) | st.sampled_from(["-1,034", "1_0", "nan", "1e5", "±0.5\xa0%"]), min_size=3))
@example(["-1,034", "a b " * 40, ""])
def test_whatever_is_in_a_table_a_terminal_of_any_width_shows_it(cells):
    shown = {width: _shown_at(width, cells) for width in (40, 200)}
    for found in shown.values():
        assert "".join(legible(cells[0]).split()) in found and "".join(legible(cells[1]).split()) in found


def _shown_at(columns: int, cells: list[str]) -> str:
    """What a table of two columns shows, without lines and spaces, one column after the other."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", str(columns))
        found = document.text([Table(["one", "two"], [["x", "y"], cells[:2]])])
    if "┌" not in found:  # a word is too long for any column: row by row
        return "".join(found.split())
    rows = [line.split("│") for line in found.splitlines() if line.startswith("│")]
    return "".join("".join("".join(row[i] for row in rows).split()) for i in (1, 2))


CHECKOUT = Path(__file__).resolve().parents[1]
NUMBERS = ["number", "least", "5\xa0%", "25\xa0%", "median", "75\xa0%", "95\xa0%", "most"]


def test_a_table_that_does_not_fit_stands_in_two_with_the_same_first_column(monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    rows = [[f"batch_size={n} seq_len={n}", *(f"{n}{i}.00\xa0µs" for i in range(8))] for n in (1, 2)]
    found = document.text([Table(["case", *NUMBERS], rows)])
    assert max(map(len, found.splitlines())) <= 60
    assert found.count("┌") == 2 and found.count("case") == 2 and found.count("batch_size=1") == 2
    assert all(word in found for row in rows for word in row[1:])


def test_a_table_that_does_not_fit_in_two_either_is_shown_row_by_row(monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    run_id = "20261121T134059-847ee0-a_name_that_is_long"
    found = document.text([Table(["run", "problem", "score µs", "clock"], [[run_id, "kv_replicate", "1.2", ""]] * 2)])
    rows = f"{run_id}\n  problem kv_replicate · score µs 1.2"
    assert found == f"{rows}\n{rows}"


def test_facts_titles_and_words_fit_a_narrow_terminal_and_commands_stay_whole(monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    sha256, command = "0f" * 29, "python3 -m harness compare one_name another_name --duel tells which is faster"
    facts = Facts([("source", sha256), ("device", "many words " * 9), ("clock", "the judge's")], title="words " * 20)
    table = Table(["a"], [["1"]], below=["a note " * 20], title="a title " * 20)
    rows = Table(["a", "b", "c"], [["figures " * 9, "published " * 9, "by others " * 9]], frame=False)
    lines = document.text([facts, table, rows, Prose("plain words " * 20), command]).splitlines()
    assert max(len(line) for line in lines if line != command) <= 60 and command in lines
    assert (
        lines[2:4] == ["source", f"  {sha256}"]
        and lines[4].startswith("device  many")
        and lines[5][:9] == " " * 8 + "w"
    )
    assert "clock   the judge's" in lines


@pytest.mark.slow
@pytest.mark.parametrize("columns", [80, 120])
def test_every_published_run_is_shown_no_wider_than_the_terminal(monkeypatch, capsys, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    ids = [path.stem for path in sorted((CHECKOUT / "results" / "published").glob("*/*/*.json"))]
    for arguments in [["show"], *(["show", run_id] for run_id in ids[::3])]:
        assert main(arguments) == 0
        wide = [line for line in capsys.readouterr().out.splitlines() if len(line) > columns]
        assert not wide, arguments


def test_a_long_list_is_broken_behind_its_commas_and_a_short_one_is_not(monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    lengths = "[" + ",".join(map(str, range(1000, 1020))) + "]"
    lines = document.text([Table(["case", "x"], [[f"batch=1 lens={lengths} scores=plain", "1"]])]).splitlines()
    assert max(map(len, lines)) <= 40 and lengths in "".join(line.strip() for line in lines)
    assert "lens=[1,2,3]" in document.text([Table(["case"], [["a_case_of_some_length=1 lens=[1,2,3]"]])])


def test_an_id_is_never_broken(monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    run_id = "20261121T134059-847ee0-a_name_that_is_long"
    assert run_id in document.text([Table(["run", "why"], [[run_id, "words and words"]])])


def test_what_is_piped_is_as_wide_as_it_is(monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    assert "a" * 300 + " " + "b" * 300 in document.text([Table(["case"], [["a" * 300 + " " + "b" * 300]])])


@pytest.mark.parametrize("columns", [80, 100, None])
def test_the_list_of_submissions_wraps_its_reasons_and_is_120_columns_wide_without_a_terminal(monkeypatch, columns):
    monkeypatch.delenv("COLUMNS", raising=False)
    if columns is not None:
        monkeypatch.setenv("COLUMNS", str(columns))
    own = {"mode": "leaderboard", "state": "wrong answer", "error": "wrong answer: " + "of many words " * 20}
    listed = document.text(
        [lists.submissions([{"id": 7, "leaderboard_name": "mla", "file_name": "a.py", "podium": own}])]
    )
    assert (columns or 120) - 20 <= max(map(len, listed.splitlines())) <= (columns or 120)
    assert listed.count("many") == 20 and "leaderboard" in listed


def test_a_terminal_is_given_no_command_in_a_table_or_a_fact():
    found = document.text([Table(["a"], [["\x1b[2J"]]), Facts([("name", "\x1b]0;x\x07")]), "line \u202e"])
    assert not set("\x1b\x07\u202e") & set(found)


@pytest.mark.parametrize("frame", [True, False])
def test_a_terminal_is_given_no_command_above_or_below_a_table(frame):
    hostile = "\x1b[2J\u202e"
    table = Table(["a"], [["1"]], below=[hostile], title=hostile, frame=frame)
    found = document.text([table, Facts([("a", "b")], title=hostile), Verbatim("as it is", title=hostile)])
    assert not set(hostile[:1] + hostile[-1:]) & set(found) and found.count("‹U+001B›") == 4


DEVICE = Device(
    kind="cuda", name="Some GPU", slug="some-gpu", arch="sm_77", torch_device="cuda:3", memory_bytes=80 << 30,
    flush_bytes=1 << 20, bandwidth_bytes_per_s=1.25e12, peak_flops_per_s={"float4": 3.5e15},
)  # fmt: skip
CASE, OTHER, LEFT_OUT = (Case(parameters={"rows": rows, "cols": 64}) for rows in (64, 4096, 9999))
CHECK = CaseCheck(
    case=OTHER, verdict=Verdict.WRONG_ANSWER, tolerance="loose_limit",
    excess={"tight_limit": Excess(limit="a_norm", ratio=1.5)}, error=0.0123, reference_error=0.0045,
    report="the report of a check", calls=77, secret=True,
)  # fmt: skip
TIMED = Measurement(
    case=CASE, samples_ns=[[1000.0, 1100.0], [1200.0, 1300.0]],
    latency=Estimate(latency_ns=1150, low_ns=1140, high_ns=1160),
    floor=Floor(latency_ns=800, binds="a_side", format="a_format"), labels=("a-label",),
    hidden_ns=(-310.0, 52_000.0), idle_excess_ns=(7100.0, 7100.0),
    manner=Manner.GATED, bound_ns=430.0, inside_ns=1_337.0, voids={"cut-by-a-slice": 3, "flush-too-long": 1},
)  # fmt: skip
TOTAL = Total(
    what="calls-in-sum", gain=1.0311, row_gain=0.9722, dim_rel_l2=0.2533, parts={"a_part": 0.8144},
    excess={"tight_total": Excess(limit="a_band", ratio=1.25)}, tolerance="total_limit",
)  # fmt: skip
RUN = Run(
    id="20260102T030405-abcdef-somebody", problem="double", problem_revision=1, problem_sha256="1f" * 32,
    submission="somebody", submission_sha256="2e" * 32, submission_path="where/it/was.py", device=DEVICE,
    environment={
        "python": "3.99", "packages": {"torch": "2.77"}, "isolation": "a-tier", "load_average": [1.75, 0, 0],
        "isolation_layers": {"a_layer": "held"}, "system": "An-OS", "cuda": "13.7", "hip": None,
    },
    started_at="2026-01-02T03:04:05+00:00", duration_s=12.5,
    ending=Ending(verdict=Verdict.WRONG_ANSWER, message="the message", detail="the detail"),
    checks=(CHECK,), measurements=(TIMED,), skipped=(Skipped(case=LEFT_OUT, reason="the reason"),),
    totals=(TOTAL,),
    clock=ClockOwner.JUDGE, constants=(Constant(manner=Manner.SANDWICH, latency_ns=283_100, spread_ns=610, calls=417),),
    score=Estimate(latency_ns=1150), ranking="mean", tolerance="met_limit", error=0.25, output="what it printed",
    triage=(Finding(rule="a-rule", severity="high", what="what was found"),), master_seed="5eed",
    baselines=(
        TimedBaseline(
            name="a_baseline", score=Estimate(latency_ns=1725), latencies_ns=(1725,), speed_up=1.531,
            speed_up_low=1.417, speed_up_high=1.683, doubt="a doubt", why_not="no figures",
        ),
    ),
    reproduces="an-earlier-run", config={"gpu": {"processes": 55}},
    profiles=(
        ProfiledCase(
            case=LEFT_OUT, calls=3, call_ns=432_100, launches=0, instructions=0,
            parts=(ProfiledPart(name="an_operator", count=2, self_ns=98_760),),
        ),
    ),
    rounds=(
        Round(
            copy_ns=321_000, product_ns=654_000, gauges={"clocks": "1981"}, others_share=0.37, constant_ns=278_510,
            disturbed="too hot", objection="too slow", kept=False,
        ),
    ),
)  # fmt: skip


@pytest.mark.parametrize("form", [document.text, document.markdown])
def test_show_leaves_out_nothing_that_is_stored(form):
    found = form(rendered.parts(RUN)).replace("\\", "")
    for text in texts_of(RUN.model_dump(exclude={"schema_version"})):
        words = {"wrong_answer": "wrong answer", "cuda": "cuda:3", "mean": "arithmetic mean"}.get(text, text)
        assert words in found, text
    for figure in ("85.9 GB", "1.25 TB/s", "3500 TFLOP/s", "1 MiB", "12.5 s", "0.012", "0.0045", "1.50 a_norm", "77"):
        assert figure in found, figure
    assert "-0.310 to 52.0" in found and "7.10" in found  # beside the latencies, in µs
    assert "1.050 1.250" in found and "2×2" in found  # each process, of the samples
    assert "321.0" in found and "654.0" in found and "too hot; too slow; not counted" in found  # a round
    assert "37%" in found
    assert "432.1" in found and "98.76" in found  # a profiled call and a part of it
    for figure in ("1.0311", "0.9722", "0.2533", "0.8144", "1.25 a_band"):
        assert figure in found, figure  # all calls together
    for figure in (
        "0.4300",
        "1.337",
        "cut-by-a-slice: 3",
        "(38\N{NO-BREAK SPACE}%)",
        "flush-too-long: 1",
        "(12\N{NO-BREAK SPACE}%)",
    ):
        assert figure in found, figure  # how a case was timed
    assert "283.1" in found and "0.6100" in found and "417" in found  # the constant
    assert "gpu processes" in found and "55" in found and "[1.75, 0, 0]" in found


def test_below_the_worker_s_events_stands_why_they_are_no_latency_and_only_where_they_are():
    said = "They contain a kernel's launch, some µs, which a latency does not."
    assert document.text(rendered.parts(RUN)).count(said) == 1
    without = RUN.model_copy(update={"measurements": (TIMED.model_copy(update={"inside_ns": None}),)})
    shown = document.text(rendered.parts(without))
    assert said not in shown and "events µs" not in shown and "bound µs" in shown


def test_what_all_cases_share_is_said_once_above_them():
    cases = [Case(parameters={"rows": rows, "cols": 64}) for rows in (64, 4096)]
    timed = [TIMED.model_copy(update={"case": case}) for case in cases]
    run = RUN.model_copy(update={"measurements": tuple(timed), "checks": (), "skipped": (), "profiles": ()})
    shown = document.text(rendered.parts(run))
    assert shown.count("every case: cols=64") == shown.count("cols=64") == 1 and shown.count("rows=4096 ") == 4


def texts_of(stored: Any) -> list[str]:
    """Every text in it, and what a case is called."""
    if isinstance(stored, dict):
        named = [Case(parameters=stored["parameters"]).label] if "parameters" in stored else []
        return named + [text for value in stored.values() for text in texts_of(value)]
    if isinstance(stored, list | tuple):
        return [text for value in stored for text in texts_of(value)]
    return [str(stored)] if isinstance(stored, str) else []


def test_every_field_of_a_run_is_set_in_the_run_that_show_is_tried_on():
    """So that a field that is added to the model is shown, or this test is told."""

    def unset(value: BaseModel, path: str) -> list[str]:
        names = []
        for name in type(value).model_fields:
            held = getattr(value, name)
            if name not in value.model_fields_set and name not in ("schema_version", "unranked_because", "flagged"):
                names.append(f"{path}.{name}")
            for part in held if isinstance(held, tuple) else [held]:
                if isinstance(part, BaseModel) and not isinstance(part, Estimate):
                    names += unset(part, f"{path}.{name}")
        return names

    assert unset(RUN, "run") == []


@pytest.fixture
def mine(podium, toy_root) -> Path:
    """A submission with a run, and a second one of the same."""
    for name in ("other", "mine"):
        path = toy_root / "submissions" / "double" / f"{name}.py"
        path.write_text(f"def custom_kernel(data):  # {name}\n    return data[0] * 2\n")
    controls = toy_root / "problems" / "double" / "controls" / "accepted"
    controls.mkdir(parents=True)
    (controls / "plain.py").write_text(path.read_text())
    assert podium("eval", "double", "--device", "cpu")[0] == 0
    return path


def words_for(verb: str, mine: Path) -> list[str]:
    """What to call a verb with on the toy."""
    return {
        "eval": ["double", str(mine), "--quick", "--device", "cpu"],
        "leaderboard": ["double"],
        "show": ["mine"],
        "compare": ["other", "mine"],
        "problems": [],
        "doctor": ["--device", "cpu"],
        "verify": ["double", "--device", "cpu"],
        "check": ["double", str(mine)],
        "profile": ["double", str(mine), "--device", "cpu", "--calls", "1"],
        "report": ["double"],
    }[verb]


def with_option(name: str) -> list[str]:
    return [verb for verb, command in cli.commands.items() if any(p.name == name for p in command.params)]


def test_every_verb_that_shows_a_table_has_both_forms():
    tables = {"eval", "leaderboard", "show", "compare", "problems", "doctor", "verify", "check", "profile"}
    tables.add("repro")  # whose Markdown is looked at in test_repro.py
    assert tables <= set(with_option("as_json")) & set(with_option("as_markdown"))


SHOWN = ("eval", "leaderboard", "show", "compare", "problems", "verify")


@pytest.mark.parametrize(
    "verbs",
    [
        pytest.param(SHOWN, id="shown", marks=pytest.mark.slow(ci=True)),
        pytest.param(("doctor", "check", "profile"), id="looked into", marks=pytest.mark.slow),
    ],
)
def test_the_forms_of_a_verb_are_one_document_each_and_exclude_each_other(podium, mine, verbs):
    for verb in verbs:
        words = words_for(verb, mine)
        code, out, _ = podium(verb, *words, "--json")
        assert code == 0 and json.loads(out), verb
        code, out, _ = podium(verb, *words, "--markdown")
        types = {token.type for token in tokens_of(out)}
        assert code == 0 and "│" not in out and not types & {"html_block", "heading_open", "link_open"}, verb
        assert "table_open" in types or verb == "check", verb  # a file without kernels has nothing to tabulate
        code, out, err = podium(verb, *words, "--markdown", "--json")
        assert code == 2 and not out and "--json and --markdown" in err, verb


def test_the_table_of_a_checkup_keeps_its_rows_in_markdown():
    compiled = [CompiledKernel(kernel="k", vgprs=n, agprs=0, sgprs=9, configuration={"BLOCK": n}) for n in (8, 64)]
    table = kernels.part([Compilation(target="gfx942", kernels=tuple(compiled))], 10_000)
    cells = cells_of_tables(document.markdown([table]))
    assert cells == ["target", "kernel", "registers", "gfx942", "k BLOCK=8", "8/0/9", "", "k BLOCK=64", "64/0/9"]


def test_a_report_as_json_has_the_runs_with_every_sample_and_their_sources(podium, mine, toy_root, monkeypatch):
    monkeypatch.chdir(toy_root)
    code, out, _ = podium("report", "double", "--json")
    document_printed = json.loads(out)
    (problem,) = document_printed["problems"]
    (device,) = problem["devices"]
    sheets = {sheet["entry"]["submission"]: sheet for sheet in device["sheets"]}
    assert code == 0 and sheets["mine"]["source"] == mine.read_text()
    timed = sheets["mine"]["run"]["measurements"][0]
    assert len(timed["samples_ns"]) == 2 and timed["manner"] == "stopped" and timed["bound_ns"] > 0
    assert not (toy_root / "board.html").exists()


def test_the_page_shows_what_the_judge_s_clock_saw_beside_the_latencies(podium, toy_root):
    submission = Submission(name="somebody", problem="double", sha256="2e" * 32, source=b"", path="x")
    Store(toy_root).write(RUN, submission)
    page = toy_root / "page.html"
    assert podium("report", "double", "--out", str(page))[0] == 0
    assert "-0.310 to 52.0" in page.read_text() and "idle excess µs" in page.read_text()


def test_a_hostile_name_in_a_stored_run_marks_nothing_up(podium, toy_root):
    run = RUN.model_copy(
        update={
            "id": "20260102T030405-abcdef-x",
            "submission": "a|b <img src=x> `c`\n# d",
            "submission_sha256": "3d" * 32,
        }
    )
    Store(toy_root).write(run, Submission(name="x", problem="double", sha256="3d" * 32, source=b"", path="x"))
    for verb, word in (("leaderboard", "double"), ("show", run.id)):
        code, out, _ = podium(verb, word, "--markdown")
        assert code == 0 and "<img" not in out and "\n# d" not in out
        assert any("a|b <img src=x> `c`" in cell for cell in cells_of_tables(out))


def cells_of_tables(markdown: str) -> list[str]:
    tokens = parser.parse(markdown)
    return [shown(t.children) for before, t in itertools.pairwise(tokens) if before.type in ("td_open", "th_open")]


@pytest.mark.parametrize(("ranking", "share"), [("geometric", "22"), ("mean", "40")])
def test_a_score_has_the_bound_of_a_run_whose_cases_all_lied_as_far_as_they_could(ranking, share):
    def case(rows, latency_ns, bound_ns):
        latency = Estimate(latency_ns=latency_ns)
        return RUN.measurements[0].model_copy(
            update={"case": Case(parameters={"rows": rows}), "latency": latency, "bound_ns": bound_ns}
        )

    cases = (case(1, 100e3, 0.0), case(2, 400e3, 200e3))  # 100 and 400 us may be 100 and 600
    assert rendered.score_bound(RUN.model_copy(update={"measurements": cases, "ranking": ranking})).startswith(
        f"{share}\xa0%"
    )
    unknown = (cases[0], case(2, 400e3, None))
    assert rendered.score_bound(RUN.model_copy(update={"measurements": unknown})) == ""
