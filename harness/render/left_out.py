"""What a board leaves out: of each submission the cause first, and quick tries that failed in a line."""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence

from harness.model import Unranked, Verdict, outcome
from harness.records.entry import Entry
from harness.render.document import Part, Prose, Table
from harness.render.fit import shortened

_CASE = r"(?:\w+=\S+ )*\w+=\S*[^\s:;]"
"""A case's label, as messages have it: what follows may begin with a colon."""
_WHICH = "(?:the one shown|the first|it) is"
"""The first: in runs from before 2026-11-24."""
_COUNT = r"\d+ of \d+ test cases? (?:are|is) wrong(?:, \d+ not tried)?"
_WRONG = re.compile(rf"({_COUNT}); {_WHICH} {_CASE}: (.*)", re.DOTALL)
OTHER_COLUMNS = 45
"""Characters that a submission's name, its verdict and the lines take beside what was seen."""
LINES = 3
"""Of what was seen; `show` has all of it."""


def parts(entries: Sequence[Entry]) -> list[Part]:
    """Of a board's unranked `entries` those that were not accepted."""
    failed = [entry for entry in entries if entry.verdict is not Verdict.ACCEPTED]
    shown, tried = [e for e in failed if not is_quick_try(e)], [e for e in failed if is_quick_try(e)]
    room = max(shutil.get_terminal_size((120, 24)).columns - OTHER_COLUMNS, 40)
    rows = [
        [
            e.submission,
            outcome(e.verdict, e.unranked),
            Unranked.OLDER if e.older else "",
            shortened(cause(e.message), LINES * room - room // 4),  # words do not fill their lines
        ]
        for e in shown
    ]
    headers = [f"left out ({len(shown)})", "verdict", "judged", "what was seen"]
    found: list[Part] = [Table(headers, rows, widths=[None, None, None, room])]
    if tried:
        names = ", ".join(sorted(entry.submission for entry in tried))
        found.append(Prose(f"Quick tries that failed: {names}. show NAME says why, forget NAME removes it."))
    return found


def is_quick_try(entry: Entry) -> bool:
    """Whether it is a first look that failed: of interest to who took it, and nothing of the board's."""
    return entry.unranked == Unranked.QUICK and entry.verdict is not Verdict.ACCEPTED


def cause(message: str) -> str:
    """What went wrong, before how often and in which case: a line that is cut loses the latter."""
    if wrong := _WRONG.match(message):
        return f"{wrong[2]} ({wrong[1]})"
    return re.sub(rf" with {_CASE}", "", message)
