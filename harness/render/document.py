"""A verb's output in parts, and two ways to write them: for a terminal, and as Markdown for GitHub.

    parts ─► text(parts)      tables drawn with lines
          └► markdown(parts)  for a comment or a page; text by strangers cannot add markup

A part is a str (one or more lines), Prose, a Table, Facts, or Verbatim. Parts without content are left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import tabulate

from harness.render import fit
from harness.render.legible import legible

TABLE_FORMAT = "simple_outline"
tabulate.MIN_PADDING = 0  # otherwise it makes each column two wider than its header
_MARKUP = re.compile(r"([\\`*\[\]|~$])")
_EMPHASIS = re.compile(r"(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")
_STARTS_A_BLOCK = re.compile(r"^(\s*)([#+>=-]|\d+(?=[.)]))", re.MULTILINE)


@dataclass(frozen=True)
class Table:
    """A table. Columns that are empty in every row are not shown. `title`: a line above. `below`: lines below.

    `widths`: the most columns that each header's column takes on a terminal; None means no limit. Without a `frame` a
      terminal shows only the rows.
    """

    headers: Sequence[str]
    rows: Sequence[Sequence[object]]
    below: Sequence[str] = ()
    title: str = ""
    widths: Sequence[int | None] | None = None
    frame: bool = True


@dataclass(frozen=True)
class Facts:
    """Names with values, below a `title`."""

    rows: Sequence[tuple[str, object]]
    title: str = ""


@dataclass(frozen=True)
class Verbatim:
    """Lines shown unchanged, so a terminal obeys control characters in them. `language`: GitHub's name for the syntax
    colouring.

    `title`: the line above.
    """

    content: str
    title: str = ""
    language: str = ""


@dataclass(frozen=True)
class Prose:
    """Lines that wrap on a narrow terminal. A str does not wrap, because it is to be copied or read by a program."""

    content: str


Part = str | Prose | Table | Facts | Verbatim


def text(parts: Iterable[Part]) -> str:
    return "\n\n".join(written for part in parts if (written := _text(part)))


def markdown(parts: Iterable[Part]) -> str:
    return "\n\n".join(written for part in parts if (written := _markdown(part)))


def fits(parts: Iterable[Part]) -> bool:
    """Whether the terminal shows all of the text, with the command above it and the prompt below. True without one."""
    return len(text(parts).splitlines()) + 2 <= fit.height()


def escaped(value: object) -> str:
    """Return `value` as Markdown that shows it literally: no markup, no HTML, no end of a cell or line, nothing
    invisible."""
    shown = "" if value is None else legible(str(value).strip("\n"))
    shown = shown.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    shown = _EMPHASIS.sub(r"\\_", _MARKUP.sub(r"\\\1", shown))
    return re.sub(r"(https?|www)(?=[:.])", r"\1<!---->", shown).replace("@", "@<!---->")


def _text(part: Part) -> str:
    match part:
        case str():
            return legible(part)
        case Prose():
            return _filled(legible(part.content))
        case Facts():
            return _lines(_filled(legible(part.title)), *_facts(part)) if part.rows else ""
        case Verbatim():
            return _lines(legible(part.title), part.content)
    headers, rows, kept = _shown(part)
    if not rows:
        return ""
    cells = [[_legible(value) for value in row] for row in rows]
    title, below = _filled(legible(part.title)), [_filled(legible(line)) for line in part.below]
    # Numbers are already formatted; tabulate must not parse them again.
    if not part.frame:
        headers = [""] * len(headers)
    most = [part.widths[i] if part.widths else None for i in kept]
    columns = list(zip(headers, *cells, strict=True))
    # tabulate's maxcolwidths is not used: it takes -1,034 for an integer and fails.
    found = fit.pieces(columns, most, fit.room())
    if found is None or (len(found) > 1 and not part.frame):
        return _lines(title, fit.stacked(columns, fit.room()), *below)
    return _lines(title, *(_grid_of(each, part.frame) for each in found), *below)


def _markdown(part: Part) -> str:
    match part:
        case str():
            return _paragraph(part)
        case Prose():
            return _paragraph(part.content)
        case Facts():
            return _blocks(_heading(part.title), _grid(["", ""], part.rows)) if part.rows else ""
        case Verbatim():
            if not part.content:
                return _heading(part.title)
            # The fence must be longer than any fence in the content.
            longest = max(map(len, re.findall(r"`+", part.content)), default=0)
            fence = "`" * max(3, longest + 1)
            return _blocks(_heading(part.title), f"{fence}{part.language}\n{legible(part.content)}\n{fence}")
    headers, rows, _ = _shown(part)
    if not rows:
        return ""
    return _blocks(_heading(part.title), _grid(headers, rows), _paragraph("\n".join(part.below)))


def _filled(content: str) -> str:
    """Wrap each line to the terminal's width and keep its indentation."""
    return "\n".join(fit.filled(line.strip(), fit.room(), _indent(line)) for line in content.splitlines())


def _indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip(" "))]


def _facts(part: Facts) -> Iterator[str]:
    """Yield a line for each fact, with the values in a column. A value with a word too long for the column begins below
    its name."""
    facts = [(_legible(name), _legible(value)) for name, value in part.rows]
    margin = max(len(name) for name, _ in facts) + 2
    for name, value in facts:
        if fit.longest_word(value) > fit.room() - margin:
            yield from (name, fit.filled(value, fit.room(), " " * fit.INDENT))
        else:
            yield f"{name:{margin}}{fit.filled(value, fit.room(), ' ' * margin).lstrip(' ')}".rstrip()


def _grid_of(columns: Sequence[fit.Column], frame: bool) -> str:
    headers, *rows = zip(*columns, strict=True)
    if not frame:
        return tabulate.tabulate(rows, tablefmt="plain", disable_numparse=True)
    return tabulate.tabulate(rows, headers, tablefmt=TABLE_FORMAT, disable_numparse=True)


def _legible(value: object) -> str:
    return "" if value is None else legible(str(value))


def _lines(*lines: str) -> str:
    return "\n".join(line for line in lines if line)


def _blocks(*blocks: str) -> str:
    return "\n\n".join(block for block in blocks if block)


def _heading(title: str) -> str:
    return f"**{escaped(title).strip()}**" if title.strip() else ""


def _shown(table: Table) -> tuple[list[str], list[list[object]], list[int]]:
    kept = [i for i in range(len(table.headers)) if any(row[i] not in (None, "") for row in table.rows)]
    return [table.headers[i] for i in kept], [[row[i] for i in kept] for row in table.rows], kept


def _grid(headers: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [[_cell(header) for header in headers], ["---"] * len(headers), *([_cell(v) for v in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(value: object) -> str:
    return escaped(value).replace("\n", "<br>")


def _paragraph(content: str) -> str:
    """Return Markdown that keeps the line breaks and in which no line starts a heading, a list or a quotation."""
    lines = _STARTS_A_BLOCK.sub(lambda found: f"{found[1]}\\{found[2]}", escaped(content))
    lines = re.sub(r"(?m)^(\s*)\\(\d+)([.)])", r"\1\2\\\3", lines)
    return "\\\n".join(line.strip() for line in lines.splitlines())
