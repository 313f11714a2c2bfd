"""What a verb shows, in parts, and two ways to write them: for a terminal, and in Markdown as GitHub reads it.

    parts ─► text(parts)      tables drawn with lines
          └► markdown(parts)  for a comment or a page; what strangers wrote cannot mark anything up

A part is a paragraph (str), a Table, Facts, or Verbatim. Parts without content are left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tabulate import tabulate

from harness.render.legible import legible

TABLE_FORMAT = "simple_outline"
_MARKUP = re.compile(r"([\\`*\[\]|~$])")
_EMPHASIS = re.compile(r"(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")
_STARTS_A_BLOCK = re.compile(r"^(\s*)([#+>=-]|\d+(?=[.)]))", re.MULTILINE)


@dataclass(frozen=True)
class Table:
    """Columns that are empty in every row are not shown. `below`: lines that belong to it. `widths`: the most that a
    column of `headers` takes on a terminal; None leaves it as wide as it is."""

    headers: Sequence[str]
    rows: Sequence[Sequence[object]]
    below: Sequence[str] = ()
    widths: Sequence[int | None] | None = None


@dataclass(frozen=True)
class Facts:
    """Names, each with what is to be said of it."""

    rows: Sequence[tuple[str, object]]


@dataclass(frozen=True)
class Verbatim:
    """Lines shown as they are. `language`, as GitHub calls it, colours them. `title`: the line above."""

    content: str
    title: str = ""
    language: str = ""


Part = str | Table | Facts | Verbatim


def text(parts: Iterable[Part]) -> str:
    return "\n\n".join(written for part in parts if (written := _text(part)))


def markdown(parts: Iterable[Part]) -> str:
    return "\n\n".join(written for part in parts if (written := _markdown(part)))


def escaped(value: object) -> str:
    """`value` as Markdown that shows it: no markup, no HTML, no end of a cell or line, nothing invisible."""
    shown = "" if value is None else legible(str(value).strip("\n"))
    shown = shown.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    shown = _EMPHASIS.sub(r"\\_", _MARKUP.sub(r"\\\1", shown))
    return re.sub(r"(https?|www)(?=[:.])", r"\1<!---->", shown).replace("@", "@<!---->")


def _text(part: Part) -> str:
    match part:
        case str():
            return part
        case Facts():
            return tabulate([[name, value] for name, value in part.rows], tablefmt="plain", disable_numparse=True)
        case Verbatim():
            return "\n".join(line for line in (part.title, part.content) if line)
    headers, rows, kept = _shown(part)
    if not rows:
        return ""
    widths = [part.widths[i] for i in kept] if part.widths else None
    # Numbers come formatted; tabulate must not read them again.
    grid = tabulate(rows, headers, tablefmt=TABLE_FORMAT, maxcolwidths=widths, disable_numparse=True)
    return "\n".join([grid, *part.below])


def _markdown(part: Part) -> str:
    match part:
        case str():
            return _paragraph(part)
        case Facts():
            return _grid(["", ""], part.rows)
        case Verbatim():
            if not part.content:
                return _paragraph(part.title)
            # A fence is longer than any in what it holds.
            longest = max(map(len, re.findall(r"`+", part.content)), default=0)
            fence = "`" * max(3, longest + 1)
            block = f"{fence}{part.language}\n{legible(part.content)}\n{fence}"
            return "\n\n".join(piece for piece in (_paragraph(part.title), block) if piece)
    headers, rows, _ = _shown(part)
    if not rows:
        return ""
    below = [_paragraph(line.strip()) for line in part.below]
    return "\n\n".join([_grid(headers, rows), *below])


def _shown(table: Table) -> tuple[list[str], list[list[object]], list[int]]:
    kept = [i for i in range(len(table.headers)) if any(row[i] not in (None, "") for row in table.rows)]
    return [table.headers[i] for i in kept], [[row[i] for i in kept] for row in table.rows], kept


def _grid(headers: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [[_cell(header) for header in headers], ["---"] * len(headers), *([_cell(v) for v in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(value: object) -> str:
    return escaped(value).replace("\n", "<br>")


def _paragraph(content: str) -> str:
    """Its line breaks stay; no line starts a heading, a list or a quotation."""
    lines = _STARTS_A_BLOCK.sub(lambda found: f"{found[1]}\\{found[2]}", escaped(content))
    lines = re.sub(r"(?m)^(\s*)\\(\d+)([.)])", r"\1\2\\\3", lines)
    return "\\\n".join(line.strip() for line in lines.splitlines())
