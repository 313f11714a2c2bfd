"""Find where a slow worker is: the submission's own frames, from Python's faulthandler in the worker.

    judge ── SIGUSR1 ──► worker: faulthandler writes its main thread's stack, even out of `while True: pass` or C code
    judge ◄── pipe ──────────────┘

Everything that comes through the pipe is the worker's word. It is shown to the submission's author only.
"""

from __future__ import annotations

import contextlib
import linecache
import os
import re
import select
import signal
import time
from pathlib import Path

ASK = signal.SIGUSR1
ANSWER_S, QUIET_S = 4.0, 0.5
"""How long the answer may take, and the silence after which it counts as complete. faulthandler writes line by line,
and a busy machine may pause it in between."""

MAX_BYTES = 64 << 10
SHOWN = 12

LONGEST_NAME = 200

_FRAME = re.compile(rf'^ +File "(.+)", line (\d{{1,9}}) in (.{{1,{LONGEST_NAME}}})', re.MULTILINE | re.ASCII)
_JIT = re.compile(r"[ \t]*@[\w.]*jit\b")


class Whereabouts:
    """The pipe. `told_fd` is the worker's end."""

    def __init__(self) -> None:
        self._fd, self.told_fd = os.pipe()
        os.set_blocking(self._fd, False)

    def hand_over(self) -> None:
        """Close the worker's end in the judge, after the worker has it."""
        os.close(self.told_fd)

    def ask(self, pid: int, path: Path) -> list[tuple[int, str]]:
        """The line and the function of each frame of the file at `path`, the innermost last; [] if unknown."""
        try:
            os.kill(pid, ASK)
        except OSError:
            return []
        return frames(self._answer(), path)

    def _answer(self) -> str:
        said, deadline = b"", time.monotonic() + ANSWER_S
        while len(said) < MAX_BYTES and time.monotonic() < deadline:
            wait_s = QUIET_S if said else deadline - time.monotonic()
            if not select.select([self._fd], [], [], max(wait_s, 0))[0]:
                break
            data = b""
            with contextlib.suppress(OSError):
                data = os.read(self._fd, MAX_BYTES)
            if not data:
                break
            said += data
        return said.decode(errors="replace")

    def close(self) -> None:
        os.close(self._fd)


def frames(stack: str, path: Path) -> list[tuple[int, str]]:
    """The frames of the file at `path` in faulthandler's output. That lists the innermost first; here it is last."""
    own = [(int(line), name) for file, line, name in _FRAME.findall(stack) if file == str(path)]
    return own[::-1][-SHOWN:]


def traceback_of(found: list[tuple[int, str]], path: Path) -> str:
    """Format frames as Python prints a traceback."""
    lines = []
    for line, name in found:
        lines.append(f'  File "{path}", line {line}, in {name}')
        source = linecache.getline(str(path), line).strip()
        lines += [f"    {source}"] if source else []
    return "\n".join(["It was here (most recent call last):", *lines])


def is_kernel(name: str, path: Path) -> bool:
    """Whether the file defines a function of this name as a Triton kernel, which is interpreted if there is no GPU."""
    lines, definition = linecache.getlines(str(path)), re.compile(rf"[ \t]*def {re.escape(name)}\b")
    for number, line in enumerate(lines):
        above = number - 1 if definition.match(line) else -1
        while above >= 0 and lines[above].lstrip().startswith("@"):
            if _JIT.match(lines[above]):
                return True
            above -= 1
    return False


def last_of(found: list[tuple[int, str]], path: Path, interprets: bool, smallest: bool) -> str:
    """The innermost frame, in words. `interprets`: Triton kernels run in Triton's interpreter. `smallest`: the call had
    the problem's smallest case."""
    line, name = found[-1]
    slowly = interprets and is_kernel(name, path)
    said = ", which Triton's interpreter runs slowly here: " if slowly else ""
    if slowly and smallest:
        said += "look for a loop that does not end, for this is the smallest case"
    elif slowly:
        said += "try a smaller case, or look for a loop that does not end"
    return f"it was in {name} (line {line}){said}"
