"""Writes the tables of docs/corruptions.md from the latest output of bench/corruptions.py. Takes no time.

    python bench/corruption_page.py [bench/measured/corruptions-*.jsonl ...]

Each line of a file is one document of that program. If a problem occurs twice, the later document counts. Rewrites the
page between its two marks. The text around the marks is written by hand.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import tabulate

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "corruptions.md"

tabulate.MIN_PADDING = 0  # whoever imports this may have set it; the page must not depend on that

BEGIN, END = "<!-- tables: python bench/corruption_page.py -->", "<!-- end of tables -->"

ARITHMETIC = {"exact": "", "copies": ""}
"""Of problems with one kind, which needs no name."""

Row = dict[str, Any]


def written(paths: Iterable[Path]) -> str:
    """All problems' tables, by name, each under what it was measured on where that differs from the one before."""
    found: dict[str, tuple[str, list[Row]]] = {}
    for path in paths:
        for line in path.read_text(encoding="utf-8").splitlines():
            document = json.loads(line)
            further = [{**row, "corruption": f"further: {row['further corruption']}"} for row in document["further"]]
            on = f"{document['device']}, {document['date']}; `--seed {document['seed']} --calls {document['calls']}`."
            for name in dict.fromkeys(row["problem"] for row in document["rows"]):
                found[name] = on, [row for row in (*document["rows"], *further) if row["problem"] == name]
    pieces, before = [], ""
    for name, (on, rows) in sorted(found.items()):
        pieces += [*([on] if on != before else []), f"## {name}", table(rows)]
        before = on
    return "\n\n".join(pieces)


def table(rows: Sequence[Row]) -> str:
    columns = list(dict.fromkeys(map(column, rows)))
    return pipe(
        [[*key, *(told(rows, column, key) for column in columns)] for key in dict.fromkeys(map(corruption, rows))],
        ["corruption", "tried", *columns],
    )


def corruption(row: Row) -> tuple[str, str]:
    """Its name, and the strengths that were tried."""
    return row["corruption"], row.get("tried") or row["strength"]


def column(row: Row) -> str:
    return ", ".join(filter(None, [f"`{row['tolerance']}`", ARITHMETIC.get(row["arithmetic"], row["arithmetic"])]))


def told(rows: Sequence[Row], of: str, key: tuple[str, str]) -> str:
    """`1.05, 1.01`: by single calls, and by all limits; one figure where they are the same. Of a further one whether it
    was found."""
    for row in rows:
        if column(row) == of and corruption(row) == key:
            return row["after"] if row["before"] == row["after"] else f"{row['before']}, {row['after']}"
    return ""


def pipe(rows: Sequence[Sequence[str]], headers: Sequence[str]) -> str:
    shown = tabulate.tabulate(rows, headers, tablefmt="pipe", disable_numparse=True)
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in shown.splitlines()]
    lines[1] = ["---"] * len(headers)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def renewed(page: str, tables: str) -> str:
    """`page` with these tables between its marks."""
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}\n\n{tables}\n\n{END}{rest.partition(END)[2]}"


def main() -> None:
    paths = [Path(name) for name in sys.argv[1:]] or sorted((ROOT / "bench" / "measured").glob("corruptions-*.jsonl"))
    PAGE.write_text(renewed(PAGE.read_text(encoding="utf-8"), written(paths)), encoding="utf-8")


if __name__ == "__main__":
    main()
