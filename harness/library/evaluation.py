"""`evaluate` and `evaluate_many`. They check their arguments before they start a process."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path

from harness import catalog
from harness.catalog.config import Sampling
from harness.errors import UsageError, did_you_mean
from harness.library import judges
from harness.library.request import DEPTHS, Depth, Request
from harness.model import Problem, Run, Submission
from harness.progress import Narrate
from harness.verbs.new import NAME

SUBMISSION = "submission"
"""The name of a submission that is given without one."""


def _silent(line: str) -> None:
    pass


def evaluate(
    problem: str | Path,
    source: str | Path,
    device: str = "auto",
    sampling: Depth | Sampling = "quick",
    *,
    name: str | None = None,
    root: str | Path | None = None,
    store: bool = False,
    stop_at_first: bool = False,
    allow_unsandboxed: bool = False,
    narrate: Narrate = _silent,
) -> Run:
    """Judge one source. Return the run, a pydantic model with the fields of a run file (`podium schema`).

        problem: a problem's name, or the path of a problem in another project's form.
        source: the text of a submission, or the path of its file: a Path, or one line that ends in `.py`.
        device: cpu, cuda, cuda:1, or auto, which means the first GPU, or the CPU if there is none.
        sampling: "verdict" judges the test cases and times nothing. "quick" times one process. "full" times as many
            processes as configs/eval.yml says and can be ranked. "profile" runs torch.profiler inside the sandbox
            (`run.profiles`). A `harness.catalog.config.Sampling` gives your own counts and seconds; such a run is
            not ranked.
        name: the submission's name in the run (default: the file's name, or `submission`).
        root: the directory that holds problems/, configs/ and results/ (default: as the command without --root).
        store: write run and source to results/local under `root`.
        stop_at_first: the first wrong test case ends the run.
        allow_unsandboxed: judge and rank even if there is no sandbox here.
        narrate: receives lines on the progress of the evaluation and on what it waits for.

    Every verdict is returned as a run; `run.ending` holds the verdict. Raises UsageError for an argument that makes no
    sense, ProblemError if the problem's files are broken, InfrastructureError if this machine cannot judge. All of them
    are `harness.errors.PodiumError`.
    """
    found, request = _asked(problem, root, sampling, store, stop_at_first, allow_unsandboxed)
    submission = _submission(found, source, name or SUBMISSION, name)
    card = judges.cards()[0] if device == "auto" else _card(device)
    return judges.judge(request(submission=submission, device=card), narrate)


def evaluate_many(
    problem: str | Path,
    sources: Iterable[str | Path],
    device: str | Sequence[str] = "auto",
    sampling: Depth | Sampling = "quick",
    *,
    names: Sequence[str] | None = None,
    root: str | Path | None = None,
    store: bool = False,
    stop_at_first: bool = False,
    allow_unsandboxed: bool = False,
    narrate: Narrate = _silent,
) -> list[Run]:
    """Judge several sources and return their runs in the same order. Each card of `device` judges one source at a time.

        device: auto means all GPUs of the machine, or the CPU if there is none. Several devices are given as a list. A
            CPU judges one source after another.
        names: one for each source (default: a file's own name, or `submission_1` and so on).

    The other arguments are those of `evaluate`. An invalid name, path or size is raised before any source is judged. A
    later exception cancels the evaluations that have not begun. `narrate` may be called from several threads.
    """
    found, request = _asked(problem, root, sampling, store, stop_at_first, allow_unsandboxed)
    given = list(sources)
    if names is not None and len(names) != len(given):
        raise UsageError(f"there are {len(given)} sources and {len(names)} names", "give each source one name")
    submissions = [
        _submission(found, source, f"{SUBMISSION}_{number}", names[number - 1] if names is not None else None)
        for number, source in enumerate(given, 1)
    ]
    cards = judges.cards() if device == "auto" else [device] if isinstance(device, str) else list(device)
    cards = [_card(each) for each in cards]
    if not cards or len(set(cards)) < len(cards) or "auto" in cards:
        raise UsageError(f"{cards} are no devices to share the work", "name each once: cuda:0, cuda:1")
    waiting = deque(enumerate(submissions))
    runs: dict[int, Run] = {}

    def work(card: str) -> None:
        while True:
            try:
                number, submission = waiting.popleft()
            except IndexError:
                return
            try:
                runs[number] = judges.judge(request(submission=submission, device=card), narrate)
            except BaseException:
                waiting.clear()
                raise

    with ThreadPoolExecutor(len(cards)) as executor:
        working: list[Future[None]] = [executor.submit(work, card) for card in cards]
        try:
            for each in working:
                each.result()
        except BaseException:
            waiting.clear()
            judges.end(cards)
            raise
    return [runs[number] for number in range(len(given))]


def _asked(
    problem: str | Path,
    root: str | Path | None,
    sampling: Depth | Sampling,
    store: bool,
    stop_at_first: bool,
    allow_unsandboxed: bool,
) -> tuple[Problem, Callable[..., Request]]:
    """Return the problem, and a function that makes a request from a submission and a device."""
    where = catalog.default_root() if root is None else Path(root).absolute()
    if not where.is_dir():
        raise UsageError(f"root is {where}, which is no directory")
    found = catalog.load_problem(where, str(problem))
    depth, own = _sampling(sampling)
    called = found.foreign.address if found.foreign is not None else found.name
    return found, partial(
        Request,
        root=where,
        problem=called,
        depth=depth,
        sampling=own,
        store=store,
        stop_at_first=stop_at_first,
        allow_unsandboxed=allow_unsandboxed,
    )


def _card(device: str) -> str:
    """Return the one name of a card. Each card's judging process is kept under its name."""
    return f"{device}:0" if device in ("cuda", "rocm") else device


def _sampling(sampling: str | Sampling) -> tuple[Depth, Sampling | None]:
    if isinstance(sampling, Sampling):
        return "quick", sampling
    for depth in DEPTHS:
        if sampling == depth:
            return depth, None
    raise UsageError(f"{sampling!r} is no sampling", did_you_mean(str(sampling), DEPTHS))


def _submission(problem: Problem, source: str | Path, by_default: str, name: str | None) -> Submission:
    if name is not None and not NAME.fullmatch(name):
        raise UsageError(f"{name!r} is no name for a submission: letters, digits and _, at most 64", "such as split_kv")
    if not isinstance(source, str | Path):
        raise UsageError(f"a source is a text or a path, and not of {type(source).__name__}", "decode bytes first")
    if isinstance(source, Path) or (source.endswith(".py") and "\n" not in source):
        submission = catalog.load_submission(problem, Path(source).absolute(), name)
        try:
            submission.source.decode()
        except UnicodeDecodeError as error:
            raise UsageError(f"{source} is no UTF-8 text: {error.reason} at byte {error.start:,}") from None
        return submission
    try:
        text = source.encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"the source is no text: {error.reason} at character {error.start:,}") from None
    return catalog.submission_of(problem, text, name or by_default, f"<{name or by_default}>")
