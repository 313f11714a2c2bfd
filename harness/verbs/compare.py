"""Two stored runs with their sources, compared as they were measured or timed again in turns.

take(root, A, B) ─► Versions ─► compare      from the stored samples
take_latest ──────► Versions ─► duel         on this machine's device; nothing is stored
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from harness import catalog
from harness.catalog.config import MOST_DUEL_PAIRS, load_config
from harness.command import typed
from harness.errors import PodiumError, judging
from harness.model import Device, Run, Submission, Unranked, Verdict
from harness.ranking import comparison, doubt
from harness.ranking.comparison import Comparison, PairedMeasurement
from harness.ranking.speed import DOUBTFUL_LABELS, Speed
from harness.records.entry import Entry, of_present, of_run
from harness.records.store import Store
from harness.verbs import calibration, spread

SLOWER_EXIT_CODE = 20
INTERRUPTED = "interrupted"


@dataclass(frozen=True)
class Versions:
    """Two runs of one problem, and the source that each judged. `notes`: which run was taken for a submission's name,
    if not its latest."""

    a: Run
    b: Run
    a_source: bytes
    b_source: bytes
    notes: tuple[str, ...] = ()

    @property
    def texts(self) -> tuple[str, str]:
        """Both sources as text, for display."""
        return self.a_source.decode("utf-8", "replace"), self.b_source.decode("utf-8", "replace")


def take(root: Path, a: str, b: str) -> Versions:
    """Return the runs that `a` and `b` stand for. An id stands for its run, and the name of a submission for the run
    that the board counts. A problem that both names share is preferred. If the two runs were not both timed on one
    device, runs of the same sources on one board are preferred. Raises UsageError and InfrastructureError."""
    store = Store(root)
    latest = _latest(store, a, b)
    old, new = latest
    if old.problem != new.problem:
        return _versions(store, old, new)
    boards = tuple(store.on_boards(name, run.problem) for name, run in ((a, old), (b, new)))
    old, new = (_counted(store, run, entries) for run, entries in zip(latest, boards, strict=True))
    if _are_of_two_places(old, new):
        old, new = _on_one_board(store, (old, new), boards)
    notes = [
        _which(run, entry, last)
        for run, entries, last in zip((old, new), boards, latest, strict=True)
        for entry in entries
        if entry.id == run.id != last.id
    ]
    return _versions(store, old, new, notes)


def take_latest(root: Path, a: str, b: str) -> Versions:
    """Return the latest runs that `a` and `b` name, as `show` understands the names. A problem that both names share is
    preferred. Raises UsageError and InfrastructureError."""
    store = Store(root)
    return _versions(store, *_latest(store, a, b))


def _latest(store: Store, a: str, b: str) -> tuple[Run, Run]:
    shared = store.find(a).keys() & store.find(b).keys()
    problem = shared.pop() if len(shared) == 1 else None
    return store.read(a, problem), store.read(b, problem)


def _versions(store: Store, old: Run, new: Run, notes: Iterable[str] = ()) -> Versions:
    a_source, b_source = (store.source(run.problem, run.submission_sha256) for run in (old, new))
    return Versions(old, new, a_source, b_source, tuple(dict.fromkeys(notes)))


def _counted(store: Store, run: Run, entries: Sequence[Entry]) -> Run:
    """The run that stands on the board on which `run` is. `entries`: the submission's run on each board, or none if
    `run` itself was named."""
    place = (run.device.slug, run.problem_revision, run.problem_sha256)
    entry = next((entry for entry in entries if _place(entry) == place), None)
    return run if entry is None or entry.id == run.id else store.load(entry)


def _on_one_board(store: Store, runs: tuple[Run, Run], boards: Sequence[Sequence[Entry]]) -> tuple[Run, Run]:
    """The latest pair of ranked runs of the two sources on one board, or `runs` if there is none."""
    of_a, of_b = (
        {_place(entry): entry for entry in entries if entry.ranked and entry.sha256 == run.submission_sha256}
        for run, entries in zip(runs, boards, strict=True)
    )
    pairs = [(of_a[place], of_b[place]) for place in of_a.keys() & of_b.keys()]
    if not pairs:
        return runs
    old, new = max(pairs, key=lambda pair: min(entry.id for entry in pair))  # an id begins with the run's start time
    return store.load(old), store.load(new)


def _place(entry: Entry) -> tuple[str, int, str]:
    """What tells one board from another of the same problem."""
    return entry.device, entry.revision, entry.problem_sha256


def _which(run: Run, entry: Entry, latest: Run) -> str:
    """Say which run was taken for a submission's name, since it is not the `latest`."""
    median = f", the median of {entry.runs} ranked runs" if entry.ranked and entry.runs > 1 else ""
    board = f"the board of {run.device.name} counts run {run.id}{median}"
    return f"{run.submission}: {board}, so it is compared; the latest run is {latest.id}"


def _are_of_two_places(old: Run, new: Run) -> bool:
    """Whether both runs were accepted but were not both timed on one device."""
    right = old.ending.verdict is new.ending.verdict is Verdict.ACCEPTED
    return right and (old.score is None or new.score is None or old.device.slug != new.device.slug)


def compare(root: Path, versions: Versions) -> Comparison:
    """Compare B's stored run with A's. Raises UsageError if they did not measure the same thing."""
    doubt.check_comparable(versions.a, versions.b)
    noise = calibration.noise(root, versions.a.device, None)
    config = load_config(root)
    compared = comparison.compare_runs(
        versions.a,
        versions.b,
        noise,
        config.confidence,
        config.rank_worker_timed,
        spread.between(root, versions.a, versions.b),
    )
    older = [name for name, run in zip(compared.names, (versions.a, versions.b), strict=True) if _is_older(root, run)]
    told = [f"{' and '.join(older)}: of an older revision of the problem, and not on its board"] if older else []
    return replace(compared, notes=(*_how_to_time(root, versions), *versions.notes, *told, *compared.notes))


def _how_to_time(root: Path, versions: Versions) -> Iterator[str]:
    """Say which command gives times if one of two accepted runs has none because its kernels did not run on a chip."""
    runs = (versions.a, versions.b)
    untimed = any(run.unranked_because in (Unranked.INTERPRETED, Unranked.EMULATED) for run in runs)
    if not untimed or any(run.ending.verdict is not Verdict.ACCEPTED for run in runs):
        return
    files = list(dict.fromkeys(run.submission_path for run in runs))
    if len(files) > 1 or versions.a_source == versions.b_source:
        named = versions.a.problem
        with contextlib.suppress(PodiumError):  # a problem that is not here any more
            named = catalog.problem_of(root, versions.a).argument
        command, where = typed("eval", named, *files), "on a machine with a GPU"
    else:  # one file cannot hold both sources
        command = typed("compare", versions.a.id, versions.b.id, "--duel")
        where = "on a machine with a GPU and these results"
    yield f"a kernel that is interpreted or emulated is checked, not timed; to get times, {where}: {command}"


def _is_older(root: Path, run: Run) -> bool:
    """Whether other files than the problem's present ones judged the run. False where the problem is not here."""
    with contextlib.suppress(PodiumError):
        return of_present(of_run("", run), catalog.problem_of(root, run)).older
    return False


def duel(
    root: Path, versions: Versions, device: Device, pairs: int, narrate: Callable[[str], None]
) -> tuple[Comparison, tuple[PairedMeasurement, ...]]:
    """Time B against A again in turns on `device`, with `pairs` pairs of processes (at least 2). Also return every
    sample. If Ctrl-C ended the duel early, a note of the comparison says so: `was_interrupted`.

    Raises UsageError, and judge.duel.Disqualified if one of the submissions fails.
    """
    from harness.judge import duel as judge  # imports torch
    from harness.machine import lock

    a, b = versions.a, versions.b
    doubt.check_of_one_problem(a, b)
    old, new = doubt.names_of(a, b) if a.id != b.id else (f"{a.submission} (A)", f"{b.submission} (B)")
    problem, config = catalog.problem_of(root, a), load_config(root)
    noise = calibration.noise(root, device, pairs)
    limit_s = problem.limits.evaluation_s * pairs
    with lock.hold_if_gpu(device, narrate, limit_s) as expect, judging(f"{old} against {new}"):
        found = judge.duel(
            problem,
            submission(a, versions.a_source).model_copy(update={"name": old}),  # the name is for messages only
            submission(b, versions.b_source).model_copy(update={"name": new}),
            device,
            config,
            pairs=pairs,
            exclusive=lambda: lock.hold_to_time(expect, device, narrate, limit_s),
            narrate=narrate,
        )
    names = (a.submission, b.submission)
    if found.pairs < pairs:
        noise = calibration.noise(root, device, found.pairs)
    compared = comparison.compare_pairs(
        problem.name, device.name, names, found.measurements, noise, config.confidence, problem.ranking
    )
    notes = [f"{INTERRUPTED} after {found.pairs} of {pairs} pairs"] if found.pairs < pairs else []
    notes += more_pairs(compared, found.pairs)
    return replace(compared, notes=tuple(notes), a_run=a.id, b_run=b.id), found.measurements


def was_interrupted(compared: Comparison) -> bool:
    """Whether Ctrl-C ended the duel before its last pair."""
    return any(note.startswith(INTERRUPTED) for note in compared.notes)


def more_pairs(compared: Comparison, pairs: int) -> Iterator[str]:
    """Advise on a duel of `pairs` pairs that found no difference, if more pairs would help.

    The noise floor and the interval both shrink with the square root of the number of pairs.
    """
    ratio, noise = compared.finding.ratio, compared.noise
    doubtful = any(label in DOUBTFUL_LABELS for case in compared.cases for label in case.labels)
    if compared.finding.speed is not Speed.AMBIGUOUS or doubtful or ratio is None:
        return
    assert ratio.low is not None and ratio.high is not None
    half_width = math.log(ratio.high / ratio.low) / 2
    if not noise.calibrated and half_width < noise.log_ratio:
        yield f"to tell smaller differences, measure this device's noise: {typed('doctor', '--calibrate')}"
        return
    blur = max(noise.log_ratio, half_width)
    needed = 8 * math.ceil(pairs / 8 * max(2.0, (blur / max(abs(math.log(ratio.value)), 1e-9)) ** 2))
    if needed <= MOST_DUEL_PAIRS:
        yield f"about {needed} pairs would tell a difference of this size: --pairs {needed}"


def exit_code(versions: Versions, compared: Comparison, percent: float) -> int:
    """Return 20 if B is slower than A by more than `percent`. If one has no score, return its verdict's exit code."""
    if compared.slower_by(percent):
        return SLOWER_EXIT_CODE
    if compared.finding.ratio is None:
        return versions.b.ending.verdict.exit_code or versions.a.ending.verdict.exit_code
    return 0


def submission(run: Run, source: bytes) -> Submission:
    """Return the submission that `run` judged, with its stored source."""
    return Submission(
        name=run.submission,
        problem=run.problem,
        sha256=run.submission_sha256,
        source=source,
        path=run.submission_path,
    )
