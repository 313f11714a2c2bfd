"""In a workflow on GitHub: what failed is shown at its line, and a submission's words never are a command."""

import io
import json
import os
import re
import shlex
import subprocess
import sys
import unicodedata
from pathlib import Path

import click
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.cli.options import verbs as cli
from harness.model import ClockOwner, Ending, Unranked, Verdict
from harness.render import github
from harness.render.legible import legible
from tests.test_cli import CHECKOUT, HONEST, WRONG, command, submit
from tests.test_compare_verb import store
from tests.test_comparison import run

__all__ = ["store"]  # a fixture

COMMANDS = {"error", "warning", "notice", "debug", "group", "endgroup", "add-mask", "set-output", "stop-commands"}
IGNORED = ("Cc", "Cf", "Cn", "Co", "Cs", "Me", "Mn", "Zl", "Zp")
WORKFLOW = CHECKOUT / "docs" / "github-workflow.yml"


def unescaped(text: str) -> str:
    for code, character in (("%0D", "\r"), ("%0A", "\n"), ("%3A", ":"), ("%2C", ","), ("%25", "%")):
        text = text.replace(code, character)
    return text


def obeyed(printed: str) -> list[tuple[str, dict[str, str], str]]:
    """The commands that a runner finds: their names, properties and messages.

    After ActionCommand.TryParseV2 and TryParse of actions/runner, and taking its comparisons by culture at their worst.
    """
    found = []
    for line in re.split(r"\r\n|\r|\n", printed):
        line = "".join(c for c in line if unicodedata.category(c) not in IGNORED or c == "\t").lstrip()
        if match := re.fullmatch(r"::(?P<name>[^ ]*?)(?: (?P<told>.*?))?::(?P<message>.*)", line):
            pairs = [pair.split("=", 1) for pair in (match["told"] or "").split(",") if "=" in pair]
            told = {name.strip(): unescaped(value) for name, value in pairs}
            if match["name"] in COMMANDS:
                found.append((match["name"], told, unescaped(match["message"])))
                continue
        if match := re.search(r"##\[([^ \]]*).*?\]", line):
            found += [(match[1], {}, "")] if match[1] in COMMANDS else []
    return found


@pytest.fixture
def on_github(monkeypatch, toy_root):
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_WORKSPACE", str(toy_root))
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(toy_root / "summary.md"))


def printed(*parts: str) -> str:
    """What two writes to a defused stream come to."""
    raw = io.StringIO()
    stream = github.Defused(raw)
    for part in parts:
        stream.write(part)
    stream.finish()
    return raw.getvalue()


pieces = st.lists(
    st.sampled_from(["::", ":", "##[", "#", "[", "]", "error", "set-output name=a", " ", "\n", "\r", "\t", "\u200b"])
    | st.sampled_from(["\ufe0f", "\u00ad", "\ufeff", "\u3000", "\x85", "\x00", "\\", "add-mask", "%0A", "%"])
    | st.characters()
).map("".join)


@settings(deadline=None)
@given(pieces, pieces)
def test_no_words_are_a_command_whatever_they_are_written_in(first, second):
    assert obeyed(printed(first, second)) == []


@pytest.mark.parametrize(
    "hostile",
    [
        "::error::x",
        "  \t::set-output name=a::b",
        "before ##[add-mask]word",
        "\r::add-mask::word",
        ":\u00ad:notice::x",
        "##\u200b[group]x",
    ],
)
def test_each_spelling_of_a_command_would_be_one_if_it_were_not_defused(hostile):
    assert obeyed(hostile) and not obeyed(printed(hostile, "\n"))


@settings(deadline=None)
@given(st.text(alphabet=st.characters(codec="ascii")).filter(lambda text: "::" not in text and "##[" not in text))
def test_what_holds_no_command_is_printed_as_it_is(text):
    assert printed(text) == text


@settings(deadline=None)
@given(pieces, pieces)
def test_an_annotation_is_one_command_with_its_words_as_they_are_shown(message, title):
    line = github.command("error", message, f"t{title}")
    assert "\n" not in line and "\r" not in line
    kept = "".join(c for c in line if unicodedata.category(c) not in IGNORED)
    ((name, told, said),) = obeyed(kept)
    assert name == "error" and set(told) == {"title"}

    def bare(text):
        shown = legible(text.replace("\r\n", "\n"))
        return "".join(c for c in shown if c == "\n" or unicodedata.category(c) not in IGNORED)

    assert told["title"].strip() == bare(f"t{title}").strip() and said == bare(message)
    assert not any(unicodedata.category(c) in ("Cc", "Cf") and c != "\t" for c in line)


def test_an_escape_sequence_in_what_was_raised_is_named_in_its_annotation():
    line = github.command("error", "ValueError: \x1b[31mred\x07", "a\x1b]0;owned\x07")
    assert line == "::error title=a‹U+001B›]0;owned‹U+0007›::ValueError: ‹U+001B›[31mred‹U+0007›"


@pytest.mark.parametrize(
    ("source", "level", "line", "title"),
    [
        (HONEST, "notice", None, "accepted: mine on double"),
        (WRONG, "error", None, "wrong answer: mine on double"),
        ("import torch\n\ndef custom_kernel(data:\n    pass\n", "error", "3", "compile error: mine on double"),
        (
            "def custom_kernel(data):\n    y = {}\n    return y['a']\n",
            "error",
            "3",
            "runtime error: mine on double",
        ),
    ],
)
def test_a_run_is_annotated_with_its_file_and_the_line_to_blame(
    podium, toy_root, on_github, source, level, line, title
):
    file = submit(toy_root, "mine", source)
    _, out, err = podium("eval", "double", str(file), "--device", "cpu")
    ((name, told, message),) = obeyed(err)
    assert name == level and told.get("line") == line and told["title"] == title
    assert told["file"] == "submissions/double/mine.py" and message
    assert not obeyed(out)
    summary = (toy_root / "summary.md").read_text()
    assert title.partition(":")[0] in summary and ("| mine |" in summary) == (level == "notice")


def test_a_call_that_takes_too_long_is_annotated_at_the_line_where_it_was(podium, toy_root, limited, on_github):
    limited(call_s=1)
    source = "import time\n\ndef custom_kernel(data):\n    time.sleep(600)\n"
    code, _, err = podium("eval", "double", str(submit(toy_root, "mine", source)), "--device", "cpu")
    ((name, told, _),) = obeyed(err)
    assert code == Verdict.TIMEOUT.exit_code and name == "error" and told["line"] == "4"
    assert told["file"] == "submissions/double/mine.py" and told["title"].startswith("timeout")


def test_a_call_that_takes_too_long_outside_of_the_file_is_annotated_at_none():
    timeout = {"ending": Ending(verdict=Verdict.TIMEOUT, message="too long", detail="case n=1\ntoo long")}
    ((_, told, _),) = obeyed(github.of_run(run("a", **timeout, score=None)))
    assert "line" not in told


def test_elsewhere_nothing_is_annotated_and_nothing_changed(podium, toy_root, monkeypatch):
    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(toy_root / "summary.md"))
    file = submit(toy_root, "mine", "print('::error::x')\n" + WRONG)
    _, out, err = podium("eval", "double", str(file), "--device", "cpu")
    assert not obeyed(err) and "\n  ::error::x" in out and not (toy_root / "summary.md").exists()


HOSTILE = """\
import sys
WORDS = "::error::printed\\n##[add-mask]printed\\n  ::set-output name=a::b\\n\\r::stop-commands::x\\n"
WORDS += ":\\u00ad:notice::x\\n"
print(WORDS)
print(WORDS, file=sys.stderr)
def custom_kernel(data):
    raise ValueError("one line\\n" + WORDS + "::warning file=other.py,line=1::raised ##[group]x")
"""


@pytest.mark.slow(ci=True)
@pytest.mark.parametrize("options", [(), pytest.param(("--json",), marks=pytest.mark.slow)])
def test_a_hostile_submission_commands_nothing(toy_root, forking, options):
    name = "::warning ##[group]x::"
    file = submit(toy_root, name, HOSTILE)
    environment = os.environ | {"GITHUB_ACTIONS": "true", "GITHUB_WORKSPACE": str(toy_root)}
    words = command(toy_root, "eval", "double", str(file), "--device", "cpu", *options)
    done = subprocess.run(words, cwd=CHECKOUT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 12 and not obeyed(done.stdout)
    ((level, told, message),) = obeyed(done.stderr)
    assert level == "error" and told["file"] == f"submissions/double/{name}.py" and "one line" in message
    if options:
        (stored,) = json.loads(done.stdout)["runs"]
        assert "##[add-mask]printed" in stored["output"] and stored["submission"] == name
    else:
        assert "add-mask" in done.stdout  # it is shown, and harmless


def test_a_machine_that_cannot_judge_is_a_warning_about_no_line():
    unjudged = {
        "ending": Ending(verdict=Verdict.INFRASTRUCTURE_ERROR, message="no"),
        "unranked_because": Unranked.UNJUDGED,
    }
    ((level, told, _),) = obeyed(github.of_run(run("a", **unjudged)))
    assert level == "warning" and "line" not in told and told["title"].startswith("not judged here")


def test_a_notice_says_whose_clock_it_was_where_it_was_the_worker_s():
    for clock, expected in ((ClockOwner.JUDGE, False), (ClockOwner.WORKER, True)):
        ((level, _, message),) = obeyed(github.of_run(run("a", clock=clock)))
        assert level == "notice" and message.endswith("worker-timed") is expected


def test_an_error_of_the_command_is_annotated_too(podium, on_github):
    code, _, err = podium("eval", "duoble")
    ((level, _, message),) = obeyed(err)
    assert code == 2 and level == "error" and "did you mean double?" in message


def test_a_check_and_a_comparison_are_annotated(podium, toy_root, store, on_github):
    broken = submit(toy_root, "broken", "def custom_kernel(data:\n    pass\n")
    _, _, err = podium("check", "double", str(broken), "--target", "sm_90")
    assert [(level, told["file"]) for level, told, _ in obeyed(err)] == [("error", "submissions/double/broken.py")]
    raising = submit(toy_root, "raising", "def custom_kernel(data):\n    y = {}\n    return y['a']\n")
    _, _, err = podium("check", "double", str(raising), "--target", "sm_90")
    assert [(level, told.get("line")) for level, told, _ in obeyed(err)] == [("error", "3")]
    store("old", HONEST)
    store("new", HONEST + "#", (130_000.0, 520_000.0))
    code, _, err = podium("compare", "old", "new", "--fail-if-slower", "5")
    ((level, _, message),) = obeyed(err)
    assert code == 20 and level == "error" and message.startswith("SLOWER: new is slower than old")
    assert "\nSLOWER: new is slower than old" in (toy_root / "summary.md").read_text()
    _, _, err = podium("compare", "new", "old", "--fail-if-slower", "5")
    assert obeyed(err)[0][0] == "notice"


def test_a_bug_of_ours_commands_nothing_either(on_github, capsys):
    with pytest.raises(SystemExit) as ended, github.without_commands():
        raise ValueError("a traceback\n::add-mask::word")
    assert ended.value.code == 1 and sys.stdout is not None
    err = capsys.readouterr().err
    assert "Traceback" in err and not obeyed(err)


def test_the_example_workflow_runs_verbs_and_options_that_there_are():
    document = yaml.safe_load(WORKFLOW.read_text())
    makefile = (CHECKOUT / "Makefile").read_text()
    variables = re.search(r"^VARIABLES := (.*)$", makefile, re.MULTILINE)
    assert variables is not None
    steps = [step for job in document["jobs"].values() for step in job["steps"]]
    lines = [line for step in steps for line in step.get("run", "").splitlines() if line.startswith("make ")]
    found = set()
    for line in lines:
        make, option, folder, verb, *assigned = shlex.split(line)
        assert (make, option, folder) == ("make", "-C", "podium")
        values = dict(word.split("=", 1) for word in assigned)
        assert set(values) <= set(variables[1].split())
        options = shlex.split(values.get("ARGS", ""))
        known = {name for parameter in cli.commands[verb].params for name in parameter.opts}
        assert {word for word in options if word.startswith("-")} <= known
        found.add(verb)
    assert found == {"check", "eval", "compare"} and document["env"]["PROBLEM"] in os.listdir(CHECKOUT / "problems")
    assert isinstance(cli, click.Group) and all(step.get("uses") or step.get("run") for step in steps)
    assert Path(WORKFLOW).read_text().isascii()
