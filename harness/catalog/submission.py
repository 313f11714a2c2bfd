"""Finds submissions on disk and turns them into values.

    submissions/<problem>/<name>.py             ─► Submission
    a Solution in FlashInfer's form, NAME.json  ─► Submission
    problems/<problem>/controls/<verdict>/*.py  ─► Submission, with the verdict it must get

Nothing here runs or imports a competitor's code, and nothing needs torch.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from harness.catalog import places
from harness.errors import ProblemError, UsageError, did_you_mean, nearest
from harness.model import Problem, Submission, Verdict
from harness.traces.solution import source_of

MAX_NAME_BYTES = 200
"""The longest name of a submission's file. The file of a stored run adds the run's id and an ending, and file names
have at most 255 bytes."""

MAX_SOURCE_BYTES = 1 << 20
"""The largest source. A person writes a submission by hand, so a larger file is a mistake."""


def load_submission(problem: Problem, path: Path, name: str | None = None) -> Submission:
    """The submission in the file at `path`: a .py file, or a Solution's JSON. Raises UsageError if it cannot be a
    submission."""
    if not str(path).isprintable():
        raise UsageError(f"{str(path)!r} has unprintable characters in its name", "rename it")
    if len(path.name.encode()) > MAX_NAME_BYTES:
        raise UsageError(
            f"the name of {path} has {len(path.name.encode())} bytes; at most {MAX_NAME_BYTES} fit", "rename it"
        )
    try:
        file = _as_bundled(path)
        mode = file.stat().st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):  # reading a pipe or a device may never end
            raise UsageError(f"{path} is not a regular file", "name a file that lies on a disk")
        source = file.read_bytes()
    except FileNotFoundError:
        if path.is_symlink():
            raise UsageError(f"{path} is a link to {os.readlink(path)}, which is not there") from None
        raise UsageError(f"there is no file {path}", _file_that_is_meant(problem, path)) from None
    except IsADirectoryError:
        raise UsageError(f"{path} is a folder", "name a file in it; eval without a file judges all") from None
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
    _check_size(source, str(path))
    if path.suffix == ".json":
        source = source_of(problem.name, source, _as_named(path))
    elif path.suffix != ".py":
        raise UsageError(f"{path} is not a .py file", "kernels in HIP, CUDA or C++ go inline in a Python file")
    return submission_of(problem, source, name or path.stem, _as_named(path))


def of_another_problem(root: Path, problem: Problem, submission: Submission) -> str | None:
    """Return a warning if the file of `submission` lies in another problem's folder of submissions."""
    above = Path(submission.path).parts[:-1]
    other = above[-1] if above[-2:-1] == ("submissions",) else problem.name
    if other == problem.name or not (root / "problems" / other / "problem.yml").is_file():
        return None
    return f"{submission.path} lies among the submissions of {other}, and is judged as one of {problem.name}"


def submission_of(problem: Problem, source: bytes, name: str, path: str) -> Submission:
    """The submission `name` with this `source`. Messages use `path` for its lines. Raises UsageError if it is too
    long."""
    _check_size(source, path)
    return Submission(
        name=name, problem=problem.name, sha256=hashlib.sha256(source).hexdigest(), source=source, path=path
    )


def _check_size(source: bytes, called: str) -> None:
    if len(source) > MAX_SOURCE_BYTES:
        raise UsageError(f"{called} is {len(source):,} bytes: a submission is one source file of at most 1 MiB")


def _as_bundled(path: Path) -> Path:
    """The file to read. If `submissions/mla/x.py` is not here, an installed Podium may have it."""
    ours = path.parts[:1] in (("submissions",), ("problems",)) and ".." not in path.parts
    return places.find(Path(), str(path)) if ours else path


def _as_named(path: Path) -> str:
    near = path.is_absolute() and path.is_relative_to(Path.cwd())  # as a user would type it
    return str(path.relative_to(Path.cwd()) if near else path)


def submissions(root: Path, problem: Problem) -> list[Submission]:
    """Every submission under `root/submissions/<problem>`, by name, and the bundled ones with other names."""
    folders = [place / "submissions" / problem.name for place in reversed(places.places(root))]
    found = {path.name: path for folder in folders for path in folder.glob("*.py") if not path.name.startswith("_")}
    return [load_submission(problem, path) for _, path in sorted(found.items())]


def controls(problem: Problem) -> Iterator[tuple[Submission, Verdict]]:
    """The control submissions of a problem, each with the verdict it must get: the name of its folder. GPU MODE's
    folders keep them in solutions/correct and solutions/wrong."""
    if problem.foreign is not None:
        for label, verdict in (("correct", Verdict.ACCEPTED), ("wrong", Verdict.WRONG_ANSWER)):
            for path in sorted((problem.folder / "solutions" / label).glob("*.py")):
                yield load_submission(problem, path, name=f"{label}/{path.stem}"), verdict
        return
    verdicts = {verdict.value for verdict in Verdict}
    for folder in sorted(path for path in (problem.folder / "controls").glob("*") if path.is_dir()):
        if folder.name.startswith((".", "__")):
            continue
        if folder.name not in verdicts:
            raise ProblemError(f"{folder} is not the name of a verdict", did_you_mean(folder.name, verdicts))
        for path in sorted(folder.glob("*.py")):
            yield load_submission(problem, path, name=f"{folder.name}/{path.stem}"), Verdict(folder.name)


def _file_that_is_meant(problem: Problem, path: Path) -> str | None:
    """A hint for a missing file: a similar file beside it or, for a name without a folder, a submission to
    `problem`."""
    siblings = {str(other) for other in path.parent.glob("*.py")} if path.parent.is_dir() else set()
    own = Path("submissions", problem.name)
    files = (problem.root or problem.folder.parents[1]).joinpath(own).glob("*.py")
    bundled = {other.stem: str(own / other.name) for other in (places.BUNDLED / own).glob("*.py")}
    known = bundled | {other.stem: os.path.relpath(other) for other in files}
    if path.parent == Path():
        near = {Path(other).stem: other for other in siblings} | known
        if (guess := nearest(path.stem, near)) is not None:
            return f"did you mean {near[guess]}?"
        return did_you_mean(str(path), known.values()) if known else None  # other files here need not be kernels
    if path.parent == own:
        siblings |= {*bundled.values()}
    return did_you_mean(str(path), siblings) if siblings else None
