"""Merge one person's runs of the same source into one board entry, under the latest of the files' names.

All runs of the source that the server judged count, including those of files with other names and of submissions that
the author has deleted. So nobody can shed bad luck or a wrong answer by sending the same bytes under another name.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from harness.model import Problem
from harness.records.entry import Entry, of_present, standing
from harness.server.board.ledger import Origin

Judged = tuple[str, str, str]
"""A run's id, its submission's name, and the hash of its source."""


def authors_to_merge(judged: Iterable[Judged], origins: Mapping[str, Origin]) -> set[int]:
    """Return the authors with a source that was judged under several names, or in a submission that they have
    deleted."""
    names: dict[tuple[int, str], set[str]] = defaultdict(set)
    found = set()
    for run, name, sha256 in judged:
        origin = origins.get(run)
        if origin is not None:
            names[origin.user_id, sha256].add(name)
            if not origin.stands:
                found.add(origin.user_id)
    return found | {author for (author, _), several in names.items() if len(several) > 1}


def merged(
    entries: Sequence[Entry], runs: Iterable[Entry], origins: Mapping[str, Origin], problem: Problem
) -> list[Entry]:
    """Return the entries of a board with those of the authors of `runs` made again. `runs`: all runs of these authors
    on the board."""
    by_author: dict[int, list[Entry]] = defaultdict(list)
    for run in runs:
        by_author[origins[run.id].user_id].append(run)
    others = [e for e in entries if e.id not in origins or origins[e.id].user_id not in by_author]
    return [*others, *(entry for theirs in by_author.values() for entry in _of_author(theirs, origins, problem))]


def _of_author(runs: Sequence[Entry], origins: Mapping[str, Origin], problem: Problem) -> list[Entry]:
    """Return one entry for each source, from the problem's present files. A name without such an entry gets one from
    older files."""
    of_files: dict[tuple[int, str], list[Entry]] = defaultdict(list)
    for run in runs:
        of_files[run.revision, run.problem_sha256].append(run)
    found: dict[str, Entry] = {}
    for same_files in of_files.values():
        for entry in _of_same_files(same_files, origins):
            marked = of_present(entry, problem)
            earlier = found.get(entry.submission)
            if earlier is None or (not marked.older, marked.started_at) > (not earlier.older, earlier.started_at):
                found[entry.submission] = marked
    return list(found.values())


def _of_same_files(runs: Sequence[Entry], origins: Mapping[str, Origin]) -> list[Entry]:
    by_name: dict[str, list[Entry]] = defaultdict(list)
    of_source: dict[str, list[Entry]] = defaultdict(list)
    for run in runs:
        of_source[run.sha256].append(run)
        if origins[run.id].stands:
            by_name[run.submission].append(run)
    latest: dict[str, tuple[int, str]] = {}
    for name, standing_runs in by_name.items():
        source = standing(standing_runs).sha256  # the latest of this name
        number = max(origins[run.id].submission for run in standing_runs if run.sha256 == source)
        latest[source] = max(latest.get(source, (0, "")), (number, name))
    return [replace(standing(of_source[source]), submission=name) for source, (_, name) in latest.items()]
