"""Progress reports of a compiling process: written to stderr among the submission's output, and found there again.

tell("kernel decode (BLOCK=64)") ─► stderr ─► told_last(said)      the last report, or ""
                                              rest(said)           the other output
"""

from __future__ import annotations

import os

MARK = "podium is at: "
MOST_CHARS = 160


def tell(what: str) -> None:
    """Report a step, from the compiling process. Not through sys.stderr, which the submission can replace."""
    os.write(2, f"\n{MARK}{' '.join(what.split())[:MOST_CHARS]}\n".encode(errors="replace"))


def told_last(said: str) -> str:
    lines = [line for line in said.splitlines() if line.startswith(MARK)] or [""]
    return plain(lines[-1].removeprefix(MARK)[:MOST_CHARS])


def rest(said: str) -> str:
    return "\n".join(line for line in said.splitlines() if not line.startswith(MARK))


def plain(text: str) -> str:
    """Return `text`, which may come from the submission, as one line without control characters for a terminal."""
    return "".join(c if c.isprintable() else " " for c in text)
