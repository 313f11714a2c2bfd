"""What GitHub Actions shows beside a file and on a run's page: workflow commands, and none but ours; a step's summary.

    ::error file=mine.py,line=3,title=compile error%3A mine on mla::SyntaxError ...

A runner obeys a command in any line of stdout and of stderr, in two spellings: `::name ...::` at a line's beginning,
and `##[name ...]` anywhere in it. It could set outputs or hide words from the log, so what a submission printed, raised
or is called must not hold one. Where GITHUB_ACTIONS is `true`, all goes through `Defused`; `annotate` goes past it.

Stopping commands with `::stop-commands::` would not do: the runner reads the two streams without order between them, so
a line printed before commands are resumed may be read after it.

Format and escapes: https://docs.github.com/en/actions/reference/workflows-and-actions/workflow-commands and, of what a
runner takes for a command, ActionCommand.cs in https://github.com/actions/runner.
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
    """The command for a run: an error, or a notice if it is accepted; at the line of the file that is to blame."""
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
    """`level` is error, warning or notice. `file` is looked for in the repository that the workflow checked out.

    Characters that nobody would see are named: whatever shows an annotation takes none of them for its own.
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
    """Add to the summary of the workflow's step, which is shown on the run's page."""
    if path := os.environ.get("GITHUB_STEP_SUMMARY"):
        with open(path, "a", encoding="utf-8", errors="replace") as summary:
            summary.write(f"{markdown}\n\n")


@contextmanager
def obeyed_by_nobody() -> Iterator[None]:
    """Within it no runner finds a command in what is printed, but for those of `annotate`."""
    if not wanted():
        yield
        return
    before = sys.stdout, sys.stderr
    defused = Defused(sys.stdout), Defused(sys.stderr)
    sys.stdout, sys.stderr = defused
    try:
        yield
    except Exception:  # a bug of ours; its traceback may hold a submission's words
        traceback.print_exc()
        raise SystemExit(1) from None
    finally:
        sys.stdout, sys.stderr = before
        for stream in defused:
            stream.finish()


class Defused(io.TextIOBase):
    """A stream whose lines hold no workflow command. It prints whole lines; the rest follows with `finish`."""

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
        """Print what has no end of line."""
        self.raw.write(_defused(self._line))
        self._line = ""
        self.flush()


def _defused(line: str) -> str:
    """`line` with a backslash where a command would begin."""
    parts = []
    for part in line.split("\r"):  # which ends a line for a runner
        # .NET compares by culture, for which some characters are not there: no command has any but these.
        bare = "".join(character for character in part if " " <= character <= "~" or character == "\t")
        part = part.replace("[", "\\[") if "##[" in bare else part
        parts.append(f"\\{part}" if bare.lstrip().startswith("::") else part)
    return "\r".join(parts)


def line_of(verdict: Verdict, detail: str | None, path: str) -> int | None:
    """The line of the submission at `path` to blame for a failure: of its innermost frame, or where it is no Python.

    Of a timeout it is the line where the submission was when its time was up.
    """
    if verdict not in (Verdict.COMPILE_ERROR, Verdict.RUNTIME_ERROR, Verdict.TIMEOUT):
        return None
    # Runs stored earlier have the path of the copy that was judged.
    own = rf'File "(?:{re.escape(path)}|[^"\n]*/submission\.py)", line (\d{{1,7}})'
    frames = re.findall(own, detail or "")
    return int(frames[-1]) if frames else None


def _in_repository(file: str) -> str:
    """`file` as from the root of the repository, if it is in it."""
    root = os.environ.get("GITHUB_WORKSPACE")
    path = Path(file).resolve()
    return str(path.relative_to(Path(root).resolve())) if root and path.is_relative_to(Path(root).resolve()) else file


def _shown(text: str) -> str:
    return legible(text.replace("\r\n", "\n"))


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
