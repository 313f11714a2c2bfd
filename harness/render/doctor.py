"""What this machine can do, as text: a table of facts, then the remedies."""

from __future__ import annotations

import shutil
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from harness.render import document
from harness.render.document import Part, Table
from harness.verbs.doctor import Fact

NARROWEST = 30
_FRAME = 12
"""The columns for the table's lines and the spaces beside them."""


def text(facts: Sequence[Fact], width: int | None = None) -> str:
    """Return the whole text, at most `width` columns wide (default: the terminal's width)."""
    return document.text(parts(facts, width))


def parts(facts: Sequence[Fact], width: int | None = None) -> list[Part]:
    """A table of `facts`, and below it each remedy once, with the names of what it adds or repairs."""
    columns = width or shutil.get_terminal_size((120, 24)).columns
    widest, states = max(len(fact.name) for fact in facts), max(len(fact.state) for fact in facts)
    room = max(columns - widest - states - _FRAME, NARROWEST)
    rows = [[fact.name, fact.state if fact.state != "ok" else "", fact.found] for fact in facts]
    named = defaultdict[str, list[str]](list)
    for fact in facts:
        if fact.state != "ok" and fact.remedy:
            named[fact.remedy].append(fact.name)
    remedies = [f"  {', '.join(names)}: {remedy}" for remedy, names in named.items()]
    needed = any(fact.fatal for fact in facts)
    above = "To install or repair what is missing:" if needed else "To add what is missing. Judging works without it:"
    below = [*([above, *remedies] if remedies else []), _summary(facts)]
    return [Table(["", "", "found"], rows, below, widths=[None, None, room])]


def as_json(facts: Sequence[Fact]) -> dict[str, Any]:
    return {"facts": [asdict(fact) for fact in facts], "ready": not any(fact.fatal for fact in facts)}


def _summary(facts: Sequence[Fact]) -> str:
    fatal = [fact.name for fact in facts if fact.fatal]
    if fatal:
        return f"Nothing can be judged here until this is repaired: {', '.join(fatal)}."
    lacking = [fact.name for fact in facts if fact.state != "ok"]
    return "Ready." if not lacking else f"Ready, but for: {', '.join(lacking)}."
