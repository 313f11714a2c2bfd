"""Verdicts in colour on a terminal, unless NO_COLOR is set (https://no-color.org)."""

from __future__ import annotations

import os
import re
import sys

import click

_COLOURS = {
    "green": ("accepted", "right", "FASTER"),
    "red": (
        "wrong answer",
        "wrong",
        "compile error",
        "runtime error",
        "timeout",
        "integrity violation",
        "SLOWER",
    ),
    "yellow": ("infrastructure error", "not judged here", "not tried", "SAME", "AMBIGUOUS"),
}
_COLOUR_OF = {word: colour for colour, words in _COLOURS.items() for word in words}
_WORD = f"({'|'.join(map(re.escape, _COLOUR_OF))})"
_PLACES = (
    rf"^(?: *\d+\.\d s  )?{_WORD}(?=:| on CPU)",  # a verdict's line
    rf"^  {_WORD}(?=  )",  # a line of the list of cases
    rf"(?<=│ ){_WORD}(?= *│)",  # a cell of a table
)
_VERDICTS = re.compile("|".join(_PLACES), re.MULTILINE)


def wanted() -> bool:
    """Whether stdout is a terminal that should get colours."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def verdicts(text: str) -> str:
    """Return `text`, laid out for a terminal, with its verdicts coloured if colours are wanted."""
    return _VERDICTS.sub(_coloured, text) if wanted() else text


def _coloured(found: re.Match[str]) -> str:
    word = next(filter(None, found.groups()))
    before, _, after = found[0].rpartition(word)
    return f"{before}{click.style(word, fg=_COLOUR_OF[word])}{after}"
