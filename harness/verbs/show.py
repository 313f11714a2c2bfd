"""Looking at what is stored: one run, or the list of all; and whether a run's file is still what it judged."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

from harness.catalog import MAX_SOURCE_BYTES
from harness.model import Run
from harness.records.entry import Entry
from harness.records.store import Store


def one(root: Path, run: str) -> Run:
    """The run that `run` names: its id, a part of it that no other has, or a submission's name for the latest run of
    its latest source. Raises UsageError."""
    return Store(root).read(run)


def every(root: Path) -> tuple[list[Entry], list[tuple[str, str]]]:
    """All that is stored, the latest last; and what lies in results/ and is no run, each with what is wrong with it."""
    with Store(root).index() as index:
        return index.runs(), index.faults()


def changed(root: Path, *runs: Run) -> Iterator[str]:
    """The paths of submissions whose file is not any more what these runs judged; one that is gone is not named."""
    for path, sha256 in dict.fromkeys((run.submission_path, run.submission_sha256) for run in runs):
        file = root / path
        try:
            is_source = file.is_file() and file.stat().st_size <= MAX_SOURCE_BYTES
            if is_source and hashlib.sha256(file.read_bytes()).hexdigest() != sha256:
                yield path
        except (OSError, ValueError):  # a stored path may be anything
            continue
