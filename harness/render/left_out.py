"""The part of a board with submissions that were left out: the cause of each, and the failed quick tries on one
line."""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence

from harness.model import Unranked, Verdict, outcome
from harness.records.entry import Entry
from harness.render.document import Part, Prose, Table
from harness.render.fit import shortened

_CASE = r"(?:\w+=\S+ )*\w+=\S*[^\s:;]"
"""A case's label in a message. A colon may follow."""
_WHICH = "(?:the one shown|the first|it) is"
""""the first" is the wording of runs from before 2026-11-24."""
_COUNT = r"\d+ of \d+ test cases? (?:are|is) wrong(?:, \d+ raised \w+)?(?:, \d+ not tried)?"
_WRONG = re.compile(rf"({_COUNT}); {_WHICH} {_CASE}: (.*)", re.DOTALL)
OTHER_COLUMNS = 45
"""The characters beside the cause: a submission's name, its verdict and the table's lines."""
LINES = 3
"""The most lines for a cause; `show` has all of it."""


def parts(entries: Sequence[Entry]) -> list[Part]:
    """Return the parts for those of a board's unranked `entries` that were not accepted."""
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
    """Whether the entry is a quick run that failed, which concerns only its author."""
    return entry.unranked == Unranked.QUICK and entry.verdict is not Verdict.ACCEPTED


def cause(message: str) -> str:
    """Return `message` with the cause first, and the count and the case after it, because a line may be cut at its
    end."""
    if wrong := _WRONG.match(message):
        return f"{wrong[2]} ({wrong[1]})"
    return re.sub(rf" with {_CASE}", "", message)
