"""Runs on disk, one JSON file each: the truth. `index` is a cache over them.

results/<published|local>/<problem>/<device>/<run id>.json       written whole or not at all
results/<published|local>/<problem>/sources/<sha256>.py          the submission as it was
results/index.sqlite                                             rebuilt if it is deleted
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import tempfile
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

from harness.command import typed
from harness.errors import InfrastructureError, UsageError, did_you_mean, listed, nearest
from harness.model import Run, Submission
from harness.records import whole_file
from harness.records.entry import Entry
from harness.records.index import Index
from harness.records.run_file import MAX_RUN_BYTES, load_run
from harness.records.scan import TIERS
from harness.traces.solution import source_of

_SHA256 = re.compile(r"[0-9a-f]{64}")


class Store:
    """The runs under `root/results`."""

    def __init__(self, root: Path) -> None:
        self._results = root / "results"

    def index(self, only: Collection[str] | None = None) -> Index:
        """The index, updated with all files, or with the files in `only`."""
        return Index(self._results, only)

    def write(self, run: Run, submission: Submission, tier: str = "local") -> Path:
        """Store `run` and its source. Raises InfrastructureError on failure, and leaves no partial file."""
        problem = self._results / tier / run.problem
        path = problem / run.device.slug / f"{run.id}.json"
        try:
            whole_file.write(problem / "sources" / f"{submission.sha256}.py", submission.source)
            whole_file.write(path, run.model_dump_json(indent=1).encode())
        except OSError as error:
            raise InfrastructureError(
                f"the run could not be stored in {path.parent}: {error.strerror}",
                "make room or unlock the directory and judge again: what was stored before is untouched",
            ) from None
        return path

    def remove(self, files: Sequence[tuple[str, Entry | None]]) -> None:
        """Remove run files, each with its entry if it is a run, and the sources beside them that no remaining run uses.
        If a file beside them is not a valid run, its source is unknown, so no source is removed. Raises
        InfrastructureError."""
        try:
            for path, _ in files:
                (self._results / path).unlink(missing_ok=True)
            with self.index() as index:
                kept = {run.sha256 for run in index.runs()}
                unread = {Path(path).parent.parent for path, _ in index.faults()}
            for path, run in files:
                folder = Path(path).parent.parent  # the folder counts, whatever problem the file names
                if run and run.sha256 not in kept and folder not in unread and _SHA256.fullmatch(run.sha256):
                    (self._results / folder / "sources" / f"{run.sha256}.py").unlink(missing_ok=True)
        except OSError as error:
            raise InfrastructureError(f"{error.filename} cannot be removed: {error.strerror}") from None

    def source(self, problem: str, sha256: str) -> bytes:
        """The source that a run of `problem` judged. Raises InfrastructureError with the reason if it is missing."""
        if not _SHA256.fullmatch(sha256):
            raise InfrastructureError("the run does not name its source's sha256")
        for tier in TIERS:
            path = f"{tier}/{problem}/sources/{sha256}.py"
            try:
                source = (self._results / path).read_bytes()
            except (OSError, ValueError):  # ValueError: a null byte in a problem's name
                continue
            if hashlib.sha256(source).hexdigest() != sha256:
                message = f"the file stored as source {sha256[:12]} is not what was judged: the sha256 differs"
                raise InfrastructureError(message, f"results/{path} was changed")
            return source
        hint = f"it would be results/local/{problem}/sources/{sha256}.py"
        raise InfrastructureError(f"the source {sha256[:12]} is not stored here", hint)

    def has_changed(self, problem: str, path: str, sha256: str) -> bool:
        """True if the file at `path`, relative to the root, exists and holds another source than the one with `sha256`,
        which was judged as a submission of `problem`."""
        file = self._results.parent / path
        try:
            if not file.is_file() or file.stat().st_size > MAX_RUN_BYTES:
                return False
            if file.suffix == ".json":
                return hashlib.sha256(source_of(problem, file.read_bytes(), path)).hexdigest() != sha256
            with file.open("rb") as source:
                return hashlib.file_digest(source, "sha256").hexdigest() != sha256
        except UsageError:  # it is no longer a Solution
            return True
        except (OSError, ValueError):  # a stored path may be anything
            return False

    def has_file(self, path: str) -> bool:
        """Whether a submission's file is still at `path`, relative to the root."""
        try:
            return (self._results.parent / path).is_file()
        except (OSError, ValueError):  # a stored path may be anything
            return False

    def mark_sources(self, entries: Sequence[Entry]) -> list[Entry]:
        """The entries, each marked as of an `older_source` if the file that it judged has changed since."""
        return [replace(e, older_source=self.has_changed(e.problem, e.submission_path, e.sha256)) for e in entries]

    def check_writable(self) -> None:
        """Raises InfrastructureError if runs cannot be stored: before the measuring, not after it."""
        try:
            self._results.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self._results):
                pass
        except OSError as error:
            raise InfrastructureError(
                f"{self._results} cannot be written to: {error.strerror}", "make it writable: runs are stored there"
            ) from None

    def _of_file(self, name: str, index: Index) -> dict[str, str]:
        """The id of the latest run of the submission file `name`, by problem. The run must have judged this file under
        this root, or a file of the same name with the same source. Empty if `name` is not such a file."""
        if not is_path_of(name, Path(name)):
            return {}
        found = {problem: (run_id, index.entry(run_id)) for problem, run_id in index.latest(Path(name).stem).items()}
        of_file = {
            problem: run_id
            for problem, (run_id, entry) in found.items()
            if entry
            and (
                is_path_of(name, self._results.parent / entry.submission_path)
                or not self.has_changed(problem, str(Path(name).resolve()), entry.sha256)
            )
        }
        if not of_file:
            raise UsageError(f"{name} has no run", "`eval` judges it")
        return of_file

    def _how_to_judge(self, name: str) -> str | None:
        """The command that judges the submission `name`, if it has a file at the usual place."""
        root = self._results.parent
        with contextlib.suppress(OSError, ValueError):
            for problem in sorted(root.glob("submissions/*/")):
                if Path(name).name == name and (problem / f"{name}.py").is_file():
                    return typed("eval", problem.name, f"submissions/{problem.name}/{name}.py")
        return None

    def find(self, name: str) -> dict[str, str]:
        """The run ids that `name` stands for, by problem. `name` may be a run's id. It may be a submission's name or
        file, which stands for its latest run on each problem. Or it may be the beginning of exactly one run's id.

        Raises UsageError if there is no such run or if several ids begin so; InfrastructureError if the run's file is
        no longer valid.
        """
        if not is_text(name):
            raise UsageError(f"there is no run {name}")
        with self.index() as index:
            entry = index.entry(name)
            found = {entry.problem: entry.id} if entry else index.latest(name) or self._of_file(name, index)
            if found:
                return found
            ids, names = sorted(index.paths(), reverse=True), index.submissions()
            begun = [run_id for run_id in ids if name and run_id.startswith(name)]
            if len(begun) > 1:
                raise _ambiguous(name, dict.fromkeys(begun, ""))
            entry = index.entry(begun[0]) if begun else None
            spoilt = [(path, fault) for path, fault in index.faults() if is_called(path, name)] if entry is None else []
        if spoilt:
            raise InfrastructureError(f"{self._results / spoilt[-1][0]} {spoilt[-1][1]}")
        if entry is None and (command := self._how_to_judge(name)):
            raise UsageError(f"{name} has no run yet", command)
        if entry is None:
            choices = ids if nearest(name, ids) else names  # both lists have the newest first
            raise UsageError(f"there is no run {name}", did_you_mean(name, choices, newest_first=True) if ids else None)
        return {entry.problem: entry.id}

    def on_boards(self, name: str, problem: str) -> list[Entry]:
        """The runs that stand on boards of `problem` for the submission or file that `name` is. Empty if `name` is a
        run's id or the beginning of one: that means this run and no other. Raises UsageError for a file without a
        run."""
        with self.index() as index:
            if index.entry(name) is not None:
                return []
            submission = name if index.latest(name) else Path(name).stem if self._of_file(name, index) else None
            return index.on_boards(submission, problem) if submission is not None else []

    def read(self, name: str, problem: str | None = None) -> Run:
        """The run that `name` stands for (`find`). For a submission's name, the run on `problem` if there is one. A
        first look (`--quick`) counts only if its source was not judged in full.

        Raises UsageError if there is none or several, InfrastructureError if its file is damaged.
        """
        found = self.find(name)
        ids = [found[problem]] if problem in found else list(found.values())
        if len(ids) > 1:
            raise _ambiguous(name, {run_id: f" on {of}" for of, run_id in found.items()})
        with self.index() as index:
            paths = index.paths()
        if ids[0] not in paths:
            raise UsageError(f"there is no run {ids[0]} any more")
        return self._load(paths[ids[0]])

    def load(self, entry: Entry) -> Run:
        """The run of an entry, read from its file alone. Raises InfrastructureError if the file is missing or
        damaged."""
        return self._load(entry.path)

    def _load(self, name: str) -> Run:
        path = self._results / name
        try:
            return load_run(path)
        except ValueError as error:
            raise InfrastructureError(f"{path} {error}") from None


def is_path_of(name: str, file: Path) -> bool:
    """True if `name` is a path of `file`, and the file exists and may be a submission."""
    path = Path(name)
    try:
        return path.suffix in (".py", ".json") and path.is_file() and path.resolve() == file.resolve()
    except OSError:  # too long a name
        return False


def is_text(name: str) -> bool:
    """Whether UTF-8 can hold it, and so the index. A word on the command line may be any bytes."""
    return name.encode(errors="replace").decode() == name


def is_called(path: str, name: str) -> bool:
    """True if the name of the run file at `path` begins with the id `name`, or is that of a run of the submission
    `name`."""
    return bool(name) and (Path(path).stem.startswith(name) or is_of(path, name))


def is_of(path: str, name: str) -> bool:
    """True if the name of the run file at `path` is that of a run of the submission `name`."""
    return Path(path).stem.split("-", 2)[2:] == [name]


def _ambiguous(name: str, ids: dict[str, str]) -> UsageError:
    """`ids`: the runs that may be meant, each with the words that tell it from the others, or ""."""
    newest_first = [run_id + ids[run_id] for run_id in sorted(ids, reverse=True)]  # an id begins with its start time
    return UsageError(f"{name} could be any of {len(ids)} runs", listed("name one by its id:", newest_first))
