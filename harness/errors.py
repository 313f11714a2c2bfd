"""The errors that Podium reports, each with an exit code and advice.

Exit codes: 0 accepted, 2 usage, 10 to 14 the verdicts on a submission (`model.Verdict`), 20 slower than asked or, for a
reproduction, another score, 30 infrastructure, 130 interrupted. `model/verdict` defines those of verdicts, the module
of a verb its own (`SLOWER_EXIT_CODE`), and `cli/options` the explanations in `--help`.

A `PodiumError` is for the person at the keyboard: one sentence says what happened and where, and a hint says what to do
next. Any other exception that escapes is a bug of Podium.
"""

from __future__ import annotations

import contextlib
import difflib
import tempfile
from collections.abc import Iterable, Iterator, Sequence

INTERRUPTED_EXIT_CODE = 130


class PodiumError(Exception):
    """A failure with an exit code, one sentence and, if there is one, the next step."""

    exit_code = 30

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return self.message if self.hint is None else f"{self.message}\n  {self.hint}"


class UsageError(PodiumError):
    """The command line names something that is not there or makes no sense."""

    exit_code = 2


class ProblemError(PodiumError):
    """A problem's own files are broken. An organiser has to fix them before anything can be judged."""

    exit_code = 2


class Overtime(ProblemError):
    """A problem's own code took longer than it may."""


class InfrastructureError(PodiumError):
    """The machine, not the submission, is at fault: disk, device, a missing package."""

    exit_code = 30


@contextlib.contextmanager
def judging(name: str) -> Iterator[None]:
    """Turn an OSError in this block into an InfrastructureError: `name` could not be judged."""
    try:
        yield
    except OSError as error:
        where = f"workers write to {tempfile.gettempdir()} ($TMPDIR)"
        raise InfrastructureError(f"{name} could not be judged: {error}", where) from error


LONGEST_HINT, MOST_HINTS = 100, 12
"""The most characters of choices on one line, and the most lines of choices."""


def nearest(word: str, choices: Iterable[str]) -> str | None:
    """The valid word that `word` was probably meant to be, or None if none is close."""
    matches = difflib.get_close_matches(word, list(choices), n=1, cutoff=0.5)
    return matches[0] if matches else None


def did_you_mean(word: str, choices: Iterable[str], *, newest_first: bool = False) -> str:
    """A hint for a misspelt `word`: the nearest choice if there is one, else all choices. Long lists get a line for
    each choice and are cut off. They are sorted by name, or with `newest_first` kept in their order."""
    options = list(choices) if newest_first else sorted(choices)
    guess = nearest(word, options)
    if guess is not None:
        return f"did you mean {guess}?"
    if not options:
        return "there are none"
    line = "valid: " + ", ".join(options)
    if len(line) <= LONGEST_HINT:
        return line
    return listed("valid, the newest first:" if newest_first else "valid:", options)


def listed(head: str, options: Sequence[str]) -> str:
    """`head`, the first of `options` below it, and the number of the others."""
    more = len(options) - MOST_HINTS
    return "\n    ".join((head, *options[:MOST_HINTS], *([f"and {more} more"] if more > 0 else [])))
