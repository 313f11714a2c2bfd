"""What a compiling process is at, told on stderr among whatever the submission prints, and found there again.

tell("kernel decode (BLOCK=64)") ─► stderr ─► told_last(said)      the last thing told, or ""
                                              rest(said)           what else was printed
"""

from __future__ import annotations

import os

MARK = "podium is at: "
MOST_CHARS = 160


def tell(what: str) -> None:
    """In the compiling process. Not through sys.stderr, which is the submission's to replace."""
    os.write(2, f"\n{MARK}{' '.join(what.split())[:MOST_CHARS]}\n".encode(errors="replace"))


def told_last(said: str) -> str:
    lines = [line for line in said.splitlines() if line.startswith(MARK)] or [""]
    return plain(lines[-1].removeprefix(MARK)[:MOST_CHARS])


def rest(said: str) -> str:
    return "\n".join(line for line in said.splitlines() if not line.startswith(MARK))


def plain(text: str) -> str:
    """`text`, which may be the submission's, in one line that obeys nothing of a terminal."""
    return "".join(c if c.isprintable() else " " for c in text)
