"""The server's log: lines on stderr, each with its time. It contains no client ids and no tokens."""

from __future__ import annotations

import sys
import time


def say(line: str) -> None:
    """Write a line to the log."""
    printable = "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in line)
    print(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {printable}", file=sys.stderr, flush=True)
