"""The reason why a submission does not compile for a target: one sentence, with the submission's line if known.

exceptions of host code          the line of the innermost frame in the submission
Triton's CompilationError        the line of the syntax node, in any of the submission's functions
MLIR's and LLVM's diagnostics    file:line:column of a location, or the inline assembly that they quote
ptxas                            the line of PTX, and the .loc before it
"""

from __future__ import annotations

import re
import signal
import textwrap
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from triton.compiler.errors import CompilationError

from harness.compile.apart import ForkedCall
from harness.hip import NoDevice

MAX_MESSAGE = 300

FROM_OUTSIDE = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""Signals that end a compiler, and not because of what it compiles: a user's, or the system's where memory is short."""


@dataclass(frozen=True)
class CompileFault:
    """The reason why something does not compile or cannot be followed. `line`: the submission's line, if known.
    `unfinished`: the compiler was stopped, at a limit or from outside. `refused`: the submission says that it is for
    another device."""

    message: str
    line: int | None = None
    unfinished: bool = False
    refused: bool = False


def of_exception(error: BaseException, file: Path) -> CompileFault:
    """Describe an exception of the submission's host code or of Triton's front end."""
    chain = list(causes(error))
    compilation = [link for link in chain if isinstance(link, CompilationError)]
    if compilation:
        text = file.read_text(encoding="utf-8")
        lines = [line for link in compilation if (line := line_of_node(link, text)) is not None]
        return CompileFault(sentence(chain[-1]), lines[-1] if lines else None)
    told = next((link for link in chain if type(link).__name__ in ("NetworkNeeded", "DataDependent")), error)
    if killed := re.search(r"PTXAS error.* failed with error code -(\d+)", str(error)):
        ended = signal.Signals(int(killed[1]))
        return CompileFault(f"ptxas was ended by {ended.name}", unfinished=ended in FROM_OUTSIDE)
    if isinstance(error, NoDevice):
        return CompileFault(shortened(str(error)), refused=True)
    if isinstance(error, SyntaxError) and error.filename == str(file):
        return CompileFault(sentence(error), error.lineno)
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(file)]
    return CompileFault(sentence(told), frames[-1].lineno if frames else None)


def of_outcome(outcome: ForkedCall, kernel: str, file: Path, line: int | None, limit: str) -> CompileFault | None:
    """Describe the outcome of a forked compilation, or return None if it succeeded. `outcome.returned`: the fields of
    its CompileFault, or None.

    `line`: the line of the kernel's `def`, used if no better line is known. `limit`: how much time there was, in words.
    """
    if outcome.status is None:
        return CompileFault(f"the compiler ran out of time on {kernel}: the limit is {limit}", line, unfinished=True)
    located = from_ptxas(outcome.printed, file) or from_diagnostics(outcome.said, file, line)
    if outcome.status == 0:
        # LLVM can report an error, go on and produce incomplete code. Then nothing is raised.
        stated = CompileFault(**outcome.returned) if outcome.returned else None
        best = stated if located is None or (stated and stated.line is not None) else located
        return best if best is None or best.line is not None else CompileFault(best.message, line)
    ended = signal.Signals(-outcome.status).name if outcome.status < 0 else f"status {outcome.status}"
    why = f": {located.message}" if located else ""
    at = located.line if located and located.line is not None else line
    stopped = -outcome.status in FROM_OUTSIDE
    return CompileFault(shortened(f"the compiler crashed ({ended}) on {kernel}{why}"), at, unfinished=stopped)


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an exception, the exception that it was raised from, and so on, including the `reason` of urllib's
    errors."""
    while error is not None:
        yield error
        reason = getattr(error, "reason", None)
        error = error.__cause__ or error.__context__ or (reason if isinstance(reason, BaseException) else None)


def sentence(error: BaseException) -> str:
    if isinstance(error, CompilationError):
        said = error.error_message or type(error).__name__
    elif isinstance(error, ModuleNotFoundError) and error.name:
        said = f"there is no module called {error.name!r} here"
    elif isinstance(error, SyntaxError):
        said = f"SyntaxError: {error.msg}"
    elif isinstance(error, SystemExit):
        said = f"the submission calls sys.exit({error.code!r})"
    elif type(error).__name__ in ("NetworkNeeded", "DataDependent", "Unloadable"):
        said = str(error)
    else:
        said = f"{type(error).__name__}: {error}"
    return shortened(said)


def shortened(said: str) -> str:
    first = next((line.strip() for line in said.splitlines() if line.strip()), "")
    return first.removesuffix(":")[:MAX_MESSAGE]


def line_of_node(error: CompilationError, text: str) -> int | None:
    """Return the line of `text` that an error's node is on. `text` contains the function's source, which the error
    holds dedented."""
    if error.src is None or not hasattr(error.node, "lineno"):
        return None
    wanted = [line.strip() for line in textwrap.dedent(error.src).strip().splitlines()]
    lines = [line.strip() for line in text.splitlines()]
    for first in range(len(lines) - len(wanted) + 1):
        if lines[first : first + len(wanted)] == wanted:
            return first + error.node.lineno
    return None


def from_diagnostics(said: str, file: Path, after: int | None) -> CompileFault | None:
    """Find the first error that MLIR or LLVM wrote to stderr, with the submission's line that it names or quotes.

    `after`: the line of the kernel's `def`.
    """
    found = DIAGNOSTIC.search(said)
    if not found:
        return None
    if found["path"] == str(file):
        return CompileFault(shortened(found["what"]), int(found["line"]))
    quoted = re.match(r"\n\s+(\S.*)\n\s*\^", said[found.end() :])
    if quoted:
        return CompileFault(
            shortened(f"{found['what']}: {quoted[1]}"), line_of_assembly(quoted[1].split()[0], file, after)
        )
    return CompileFault(shortened(found["what"]))


DIAGNOSTIC = re.compile(
    r"^(?:loc\()?(?:\"?(?P<path>[^\":\n]+)\"?:(?P<line>\d+):\d+\)?:? )?(?:(?:fatal )?error|LLVM ERROR): (?P<what>.+)$",
    re.MULTILINE,
)


def line_of_assembly(mnemonic: str, file: Path, after: int | None) -> int | None:
    """Return the line of the file that contains a mnemonic. If there are several, prefer the first after `after`."""
    lines = file.read_text(encoding="utf-8").splitlines()
    holding = [number for number, line in enumerate(lines, start=1) if mnemonic in line]
    later = [number for number in holding if number > (after or 0)]
    return next(iter(later or holding), None)


def from_ptxas(printed: str, file: Path) -> CompileFault | None:
    """Find the first error of ptxas. Triton prints it with the PTX."""
    found = re.search(r"^ptxas\S* .*?, line (\d+); (?:error|fatal)\s*: (.+)$", printed, re.MULTILINE)
    if not found:
        return None
    ptx = printed[max(printed.find("//\n// Generated by LLVM"), 0) :].splitlines()
    numbers = {
        match[1]
        for line in ptx
        if (match := re.match(r'\s*\.file\s+(\d+) "(.*?)"(?: "(.*?)")?', line))
        and str(Path(match[2]) / (match[3] or "")) == str(file)
    }
    line = None
    for earlier in ptx[: int(found[1]) - 1]:
        if (location := re.match(r"\s*\.loc\s+(\d+) (\d+) ", earlier)) and location[1] in numbers:
            line = int(location[2])
    return CompileFault(shortened(f"ptxas: {found[2]}"), line)
