"""Colour: of verdicts, on a terminal, and never where NO_COLOR is set."""

import os
import pty
import re
import subprocess
import sys

import click
import pytest

from harness.records.store import Store
from harness.render import colour, compare
from tests.test_cli import CHECKOUT, HONEST, WRONG, submit
from tests.test_store import SUBMISSION, make_run

TEXT = """\
mine:
  right  close: 0.01 of rel_l2                 rows=4 cols=8
  wrong  close: some bits differ               rows=3 cols=5
│ run │ verdict      │
│ 1   │ accepted     │
│ 2   │ wrong answer │
   1.5 s  timeout: it took 3 s
accepted on CPU (all 2 test cases)
wrong answer: mine on double: the rest, accepted: right
SLOWER: b is slower than a
accepted as it is"""


@pytest.fixture
def terminal(monkeypatch):
    """stdout says that it is a terminal; click believes it."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")


def test_verdicts_are_coloured_where_they_stand_as_such_and_nowhere_else(terminal):
    coloured = colour.verdicts(TEXT)
    found = re.findall(r"\x1b\[(\d+)m([^\x1b]*)\x1b\[0m", coloured)
    green, red = "32", "31"
    assert found == [
        (green, "right"),
        (red, "wrong"),
        (green, "accepted"),
        (red, "wrong answer"),
        (red, "timeout"),
        (green, "accepted"),
        (red, "wrong answer"),
        (red, "SLOWER"),
    ]
    assert click.unstyle(coloured) == TEXT


@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("NO_COLOR", "0"), ("TERM", "dumb")])
def test_who_wants_no_colour_gets_none(terminal, monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    assert colour.verdicts(TEXT) == TEXT and not colour.wanted()


def test_an_empty_no_color_is_none(terminal, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "")
    assert colour.wanted() and compare.wanted is colour.wanted


def test_without_a_terminal_there_is_none():
    assert colour.verdicts(TEXT) == TEXT


def shown_on_a_terminal(words: list[str], **environment: str) -> str:
    """What a verb prints on a real terminal."""
    inherited = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    parent, child = pty.openpty()
    with os.fdopen(parent, "rb", buffering=0) as terminal:
        fields = {"cwd": CHECKOUT, "stderr": subprocess.DEVNULL, "env": {**inherited, "TERM": "xterm", **environment}}
        process = subprocess.Popen(words, stdout=child, **fields)
        os.close(child)
        printed = b""
        try:
            while piece := terminal.read(4096):
                printed += piece
        except OSError:  # how Linux says that nobody writes any more
            pass
    assert process.wait() in (0, 10)
    return printed.decode()


@pytest.mark.slow
def test_eval_and_replay_colour_their_verdict_on_a_terminal(toy_root, forking):
    wrong, honest = (str(submit(toy_root, name, text)) for name, text in (("wrong", WRONG), ("honest", HONEST)))
    evaluation = ["eval", "double", wrong, "--device", "cpu"]
    replay = ["replay", "double", honest, "rows=3 cols=5", "--seed", "1", "--device", "cpu"]
    program = f"""
import pathlib
from harness.cli import main
from harness.machine import lock
lock.FOLDERS = (pathlib.Path({str(toy_root)!r}, "tmp"),)
for words in ({evaluation}, {replay}):
    main(["--root", {str(toy_root)!r}, *words])
    print("next", flush=True)
"""
    judged, replayed, _ = shown_on_a_terminal([sys.executable, "-c", program]).split("next\r\n")
    assert "\x1b[31mwrong answer\x1b[0m: wrong on double" in judged and "  \x1b[31mwrong\x1b[0m  close: " in judged
    assert replayed.startswith("\x1b[32maccepted\x1b[0m: rows=3")


def test_a_list_of_runs_is_coloured_on_a_terminal_and_in_no_other_form(toy_root):
    Store(toy_root).write(make_run(), SUBMISSION)
    program = f"""
import os
from harness.cli import main
for words in ([], ["--json"], ["--markdown"], ["--csv"], ["NO_COLOR"]):
    if words == ["NO_COLOR"]:
        os.environ["NO_COLOR"] = words.pop()
    assert main(["--root", {str(toy_root)!r}, "show", *words]) == 0
    print("next", flush=True)
"""
    shown, *others, end = shown_on_a_terminal([sys.executable, "-c", program]).split("next\r\n")
    assert "│ \x1b[32maccepted\x1b[0m " in shown
    assert len(others) == 4 and all("accepted" in each and "\x1b" not in each for each in others) and end == ""
