"""GitHub Actions: workflow commands, which annotate files and runs, and the summary of a step.

    ::error file=mine.py,line=3,title=compile error%3A mine on mla::SyntaxError ...

A runner executes a command in any line of stdout and stderr, in two spellings: `::name ...::` at a line's beginning,
and `##[name ...]` anywhere in it. A command could set outputs or hide words from the log. So no text from a submission
(output, exception or name) may contain one. If GITHUB_ACTIONS is `true`, all output passes through `Defused`; only
`annotate` bypasses it.

`::stop-commands::` does not suffice: the runner reads the two streams in no fixed order, so a line printed before
commands are resumed may be read afterwards.

Format and escapes: https://docs.github.com/en/actions/reference/workflows-and-actions/workflow-commands. How a runner
recognises a command: ActionCommand.cs in https://github.com/actions/runner.
"""

from __future__ import annotations

import io
import os
import re
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from harness.model import ClockOwner, Run, Unranked, Verdict, outcome
from harness.render.legible import legible

MESSAGE_CHARACTERS = 4000
DETAIL_LINES = 12


def wanted() -> bool:
    """Whether this runs as a step of a workflow on GitHub."""
    return os.environ.get("GITHUB_ACTIONS") == "true"


def of_run(run: Run) -> str:
    """Return the command for a run: a notice if it is accepted, else an error at the line of the file to blame."""
    title = f"{outcome(run.ending.verdict, run.unranked_because)}: {run.submission} on {run.problem}"
    if run.ending.verdict is Verdict.ACCEPTED:
        score = f"; {run.score.latency_ns / 1e3:,.4g} µs on {run.device.name}" if run.score else ""
        score += f", {Unranked.WORKER_TIMED}" if run.score and run.clock is ClockOwner.WORKER else ""
        return command("notice", f"{run.ending.message}{score}", title, run.submission_path)
    level = "warning" if run.unranked_because == Unranked.UNJUDGED else "error"
    detail = "\n".join((run.ending.detail or "").strip().splitlines()[:DETAIL_LINES])
    message = f"{run.ending.message}\n\n{detail}" if detail else run.ending.message
    return command(
        level, message, title, run.submission_path, line_of(run.ending.verdict, run.ending.detail, run.submission_path)
    )


def command(level: str, message: str, title: str, file: str | None = None, line: int | None = None) -> str:
    """Return a workflow command. `level` is error, warning or notice. `file` is relative to the repository that the
    workflow checked out.

    Invisible characters are replaced by their names, so that no program that shows the annotation interprets them.
    """
    properties = {"file": _in_repository(file) if file else None, "line": line, "title": title}
    told = ",".join(
        f"{name}={_property(_shown(str(value)))}" for name, value in properties.items() if value is not None
    )
    return f"::{level} {told}::{_data(_shown(message)[:MESSAGE_CHARACTERS])}"


def annotate(commands: Sequence[str]) -> None:
    """Print these commands on stderr if a runner reads it."""
    if not wanted():
        return
    stream = sys.stderr.raw if isinstance(sys.stderr, Defused) else sys.stderr
    for line in commands:
        stream.write(f"{line}\n")
    stream.flush()


def summarise(markdown: str) -> None:
    """Append to the summary of the workflow's step, which the run's page shows."""
    if path := os.environ.get("GITHUB_STEP_SUMMARY"):
        with open(path, "a", encoding="utf-8", errors="replace") as summary:
            summary.write(f"{markdown}\n\n")


@contextmanager
def without_commands() -> Iterator[None]:
    """While this is active, output contains no workflow command except those of `annotate`."""
    if not wanted():
        yield
        return
    before = sys.stdout, sys.stderr
    defused = Defused(sys.stdout), Defused(sys.stderr)
    sys.stdout, sys.stderr = defused
    try:
        yield
    except Exception:  # a bug of Podium; the traceback may hold a submission's text
        traceback.print_exc()
        raise SystemExit(1) from None
    finally:
        sys.stdout, sys.stderr = before
        for stream in defused:
            stream.finish()


class Defused(io.TextIOBase):
    """A stream that removes workflow commands. It prints whole lines; `finish` prints the rest."""

    def __init__(self, raw: TextIO) -> None:
        self.raw = raw
        self._line = ""

    def write(self, text: str) -> int:
        *lines, self._line = (self._line + text).split("\n")
        self.raw.write("".join(f"{_defused(line)}\n" for line in lines))
        return len(text)

    def writable(self) -> bool:
        return True

    def flush(self) -> None:
        self.raw.flush()

    def finish(self) -> None:
        """Print the last line, which has no end of line yet."""
        self.raw.write(_defused(self._line))
        self._line = ""
        self.flush()


def _defused(line: str) -> str:
    """Return `line` with a backslash where a command would begin."""
    parts = []
    for part in line.split("\r"):  # a runner takes it for the end of a line
        # .NET compares strings by culture and ignores some characters. So only these characters count.
        bare = "".join(character for character in part if " " <= character <= "~" or character == "\t")
        part = part.replace("[", "\\[") if "##[" in bare else part
        parts.append(f"\\{part}" if bare.lstrip().startswith("::") else part)
    return "\r".join(parts)


def line_of(verdict: Verdict, detail: str | None, path: str) -> int | None:
    """Return the line of the submission at `path` to blame for a failure: the line of its innermost frame, or of the
    syntax error.

    For a timeout it is the line that was running when the time was up.
    """
    if verdict not in (Verdict.COMPILE_ERROR, Verdict.RUNTIME_ERROR, Verdict.TIMEOUT):
        return None
    # Runs stored by an older Podium hold the path of the judged copy.
    own = rf'File "(?:{re.escape(path)}|[^"\n]*/submission\.py)", line (\d{{1,7}})'
    frames = re.findall(own, detail or "")
    return int(frames[-1]) if frames else None


def _in_repository(file: str) -> str:
    """Return `file` relative to the root of the repository, if it is inside."""
    root = os.environ.get("GITHUB_WORKSPACE")
    path = Path(file).resolve()
    return str(path.relative_to(Path(root).resolve())) if root and path.is_relative_to(Path(root).resolve()) else file


def _shown(text: str) -> str:
    return legible(text.replace("\r\n", "\n"))


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
