"""Fit a table into the width of a terminal.

    full width ─► wrap words in the widest columns ─► wrap any ─► two tables with the same first column ─► stacked

No word is broken, since it may be an id to copy. A single word wider than the terminal stays as it is.
"""

from __future__ import annotations

import re
import shutil
import textwrap
from collections.abc import Sequence

LEAST_WIDTH = 20
"""The least width of a column that is made narrower, as long as the table still fits."""
INDENT = 2

COMMAND = "reproduce: "
"""The beginning of the line of a report that the user copies."""

UNBOUNDED = 1 << 20
"""The line length, and the number of lines, for a file or another program."""

Column = Sequence[str]
"""A header and its cells."""


def room() -> int:
    """Return the characters that fit on a line of the terminal, or UNBOUNDED without a terminal."""
    return shutil.get_terminal_size((UNBOUNDED, 0)).columns


def height() -> int:
    """Return the lines that the terminal shows, or UNBOUNDED without a terminal."""
    return shutil.get_terminal_size((0, UNBOUNDED)).lines


def pieces(columns: Sequence[Column], most: Sequence[int | None], room: int) -> list[list[Column]] | None:
    """Return `columns` as one or two tables with wrapped cells, or None if not even two fit.

    `most`: the most that each column takes; None for its own width.
    """
    whole = _wrapped(columns, most, room)
    if whole is not None:
        return [whole]
    for number in range(len(columns) - 1, 1, -1):
        others = [0, *range(number, len(columns))]
        first = _wrapped(columns[:number], most[:number], room)
        second = _wrapped([columns[i] for i in others], [most[i] for i in others], room)
        if first is not None and second is not None:
            return [first, second]
    return None


def stacked(columns: Sequence[Column], room: int) -> str:
    """Write row by row: the first cell, and below it each other cell that is not empty, after its header."""
    headers, *rows = zip(*columns, strict=True)
    lines: list[str] = []
    for first, *others in rows:
        told = " · ".join(
            f"{header} {value}".strip() for header, value in zip(headers[1:], others, strict=True) if value
        )
        lines += [filled(first, room), filled(told, room, " " * INDENT)]
    return "\n".join(line for line in lines if line)


class _AtCommas(textwrap.TextWrapper):
    wordsep_simple_re = re.compile(r"(\s+|(?<=,))")


def filled(text: str, room: int, indent: str = "") -> str:
    """Wrap `text` into lines of at most `room`, each after `indent`. A longer word is broken after its commas: a case
    may list the lengths of many sequences."""
    kind = _AtCommas if longest_word(text) > room - len(indent) else textwrap.TextWrapper
    wrapper = kind(
        room,
        initial_indent=indent,
        subsequent_indent=indent,
        replace_whitespace=False,
        break_on_hyphens=False,
        break_long_words=False,
    )
    return "\n".join(line for part in text.splitlines() for line in wrapper.wrap(part) or [""])


def hanging(report: str) -> str:
    """Wrap a mismatch report. A long line continues below, indented to the end of the name at its beginning. The
    command in the report stays one line, to be copied."""
    lines = []
    for line in report.splitlines():
        if len(line) > room() and not line.startswith(COMMAND):
            named = re.match(r"  \S+(?: \d+)? +", line)
            margin = named.end() if named else INDENT
            kept = line[: margin if named else 0]
            line = kept + filled(line[len(kept) :], room(), " " * margin)[len(kept) if named else INDENT :]
        lines.append(line)
    return "\n".join(lines)


def shortened(text: str, room: int) -> str:
    """Cut a line to `room` characters."""
    return text if len(text) <= room else text[: room - 1] + "…"


def longest_word(text: str) -> int:
    """Return the length of the longest word. A non-breaking space joins words."""
    return max(map(len, re.split(r"[ \t\n]+", text)), default=0)


def _wrapped(columns: Sequence[Column], most: Sequence[int | None], room: int) -> list[Column] | None:
    """Wrap the cells of `columns` so that all columns fit side by side with their frame. Return None if they cannot."""
    inner = room - 3 * len(columns) - 1
    wanted = [min(_width(column), limit or room) for column, limit in zip(columns, most, strict=True)]
    words = [max(map(longest_word, column), default=0) for column in columns]
    for least in (LEAST_WIDTH, 1):
        widths = _narrowed(wanted, [min(w, max(word, least)) for w, word in zip(wanted, words, strict=True)], inner)
        if sum(widths) <= inner:
            return [[filled(cell, width) for cell in column] for column, width in zip(columns, widths, strict=True)]
    return None


def _narrowed(wanted: Sequence[int], least: Sequence[int], room: int) -> list[int]:
    """Reduce the widest of `wanted` until all fit, none below its `least`."""
    widths = list(wanted)
    while sum(widths) > room and widths != list(least):
        widest = max((i for i in range(len(widths)) if widths[i] > least[i]), key=lambda i: widths[i])
        widths[widest] -= 1
    return widths


def _width(column: Column) -> int:
    return max((len(line) for cell in column for line in cell.splitlines()), default=0)
