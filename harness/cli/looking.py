"""The verbs that look at stored runs: leaderboard, show, compare, report, export, problems; also schema and docs."""

from __future__ import annotations

import math
import re
from dataclasses import asdict
from pathlib import Path

import click

from harness import catalog
from harness.catalog.config import DUEL_PAIRS, MOST_DUEL_PAIRS
from harness.cli.options import (
    csv_option,
    json_option,
    markdown_option,
    narration,
    optional_problem_argument,
    print_json,
    print_parts,
    problem_argument,
    say_what_is_left_alone,
    say_what_is_spoilt,
    verbs,
    watch_over,
)
from harness.errors import INTERRUPTED_EXIT_CODE, UsageError
from harness.model import OLDER_SOURCE, Run
from harness.ranking.comparison import LEAST_PAIRS
from harness.render import boards, colour, document, github, sheet
from harness.render.legible import legible
from harness.render.lists import left_alone, runs
from harness.verbs import leaderboard as ranked
from harness.verbs import problems as known
from harness.verbs import show as stored

ONE_DEVICE = "its name, its folder in results/ or a part of either, such as h200; or cpu, cuda:0: this machine's."
_KINDS = re.compile(r"cpu|auto|cuda(:\d+)?")


def _folder(root: Path, device: str | None) -> str | None:
    """Return the device's folder in results/ for what `eval` accepts for a device of this machine. Raises UsageError if
    there is no such device here. Any other word stays as it is, for `verbs.devices`."""
    if device is None or not _KINDS.fullmatch(device):
        return device
    from harness.machine.device import detect

    return detect(root, device).slug


@verbs.command()
@problem_argument
@click.option("--device", default=None, help=f"Show one device only: {ONE_DEVICE}")
@click.option("--cases", is_flag=True, help="Also show each case of the ranked runs.")
@json_option
@markdown_option
@csv_option
@click.pass_obj
def leaderboard(
    root: Path, problem: str, device: str | None, cases: bool, as_json: bool, as_markdown: bool, as_csv: bool
) -> None:
    """Show the boards of PROBLEM, one for each device that has runs.

    --csv prints a row for each submission, the ranked ones first; with --cases a row for each case of a ranked run.
    Times are in ns. A rank takes two columns: the first and the last that it may be. A device is named by its folder in
    results/.

    Example: python3 -m harness leaderboard mla
    """
    task, device = catalog.load_problem(root, problem), _folder(root, device)
    if as_json:
        print_json(ranked.as_json(root, task, device, cases))
    elif as_csv:
        read = ranked.boards(root, task, device)
        found = [board for _, board in read.boards]
        runs_of = (run for board in found for run in ranked.ranked_runs(root, board))
        click.echo(sheet.cases(runs_of) if cases else sheet.boards(found), nl=False)
        say_what_is_left_alone(read.faults)
    else:
        print_parts(boards.parts(root, task, device, cases=cases), as_markdown)


@verbs.command()
@click.argument("run", metavar="[RUN]", required=False)
@json_option
@markdown_option
@csv_option
@click.pass_obj
def show(root: Path, run: str | None, as_json: bool, as_markdown: bool, as_csv: bool) -> None:
    """Show one run in full. Without RUN, list the stored runs; --csv is for that list.

    The list begins with the latest run. On a terminal that is too low for it, it ends with the latest, above the
    prompt. --json and --csv always end with the latest.

    RUN is a run's id, a unique beginning of an id, or a submission's name or file. A submission means the latest run of
    its latest source. An accepted --quick run counts only if its source was not judged in full. A problem's name lists
    the runs of that problem.

    Example: python3 -m harness show torch_bf16
    """
    from harness.render import run as rendered

    if run is None or stored.is_problem(root, run):
        found, faults = stored.every(root, run)
        if as_json:
            print_json({"runs": [asdict(entry) for entry in found], "left_alone": dict(faults)})
        elif as_csv:
            click.echo(sheet.runs(found), nl=False)
            say_what_is_left_alone(faults)
        else:
            gone, below = stored.without_file(root, found), left_alone(faults)
            latest_first = [*runs(found[::-1], gone), *below]
            fits = as_markdown or document.fits(latest_first)
            print_parts(latest_first if fits else [*runs(found, gone), *below], as_markdown)
        return
    if as_csv:
        raise UsageError("--csv applies only to the list of runs", "leave out RUN, or print it with --json")
    shown = stored.one(root, run)
    say_what_is_spoilt(root, [(run, shown)])
    _say_what_has_changed(root, shown)
    if as_json:
        print_json(shown)
    else:
        print_parts(rendered.parts(shown, not_ranked=ranked.why_not_ranked(root, shown)), as_markdown)


def _say_what_has_changed(root: Path, *runs: Run) -> None:
    """Say on stderr which files have changed since these runs judged them."""
    for path in stored.changed(root, *runs):
        told = f"{legible(path)} has changed since it was judged, so the run is of an {OLDER_SOURCE}"
        click.echo(f"{told}; eval judges the file as it is now", err=True)


@verbs.command()
@click.argument("a", metavar="A")
@click.argument("b", metavar="B")
@click.option("--duel", is_flag=True, help="Time both sources again in turns, to tell smaller differences.")
@click.option(
    "--pairs",
    type=click.IntRange(LEAST_PAIRS, MOST_DUEL_PAIRS),
    metavar="N",
    help=f"Number of process pairs in a duel (default: {DUEL_PAIRS}).",
)
@click.option(
    "--fail-if-slower",
    type=click.FloatRange(0),
    metavar="PCT",
    help="Exit with code 20 if B is slower than A by more than PCT percent.",
)
@click.option("--device", default="auto", help="The device of a duel, as in `eval`.")
@json_option
@markdown_option
@click.pass_obj
def compare(
    root: Path,
    a: str,
    b: str,
    duel: bool,
    pairs: int | None,
    fail_if_slower: float | None,
    device: str,
    as_json: bool,
    as_markdown: bool,
) -> int:
    """Compare run B with run A: FASTER, SLOWER, SAME or AMBIGUOUS, the ratio of each case, and the difference of the
    sources.

    A and B are named as in `show`. A submission's name stands for the run that the board counts, and in a duel for its
    latest source. Ctrl-C ends a duel early: it shows the result of the pairs so far, with exit code 130.

    Example: python3 -m harness compare torch_bf16 torch_fp8 --duel
    """
    if fail_if_slower is not None and not math.isfinite(fail_if_slower):
        raise UsageError(f"--fail-if-slower {fail_if_slower} is not a percentage", "5, say")
    from harness.machine.device import detect
    from harness.ranking.speed import Speed
    from harness.render import compare as rendered
    from harness.verbs import compare as versions

    if pairs is not None and not duel:
        raise UsageError("--pairs applies to a duel only", "add --duel")
    taken = versions.take_latest(root, a, b) if duel else versions.take(root, a, b)
    say_what_is_spoilt(root, [(a, taken.a), (b, taken.b)])
    _say_what_has_changed(root, taken.a, taken.b)
    if duel:
        watch_over(catalog.problem_of(root, taken.a))
        with narration(as_json) as told:
            compared, samples = versions.duel(root, taken, detect(root, device), pairs or DUEL_PAIRS, told)
    else:
        compared, samples = versions.compare(root, taken), ()
    if as_json:
        print_json(rendered.as_json(compared, *taken.texts, samples))
    elif as_markdown:
        click.echo(rendered.markdown(compared, *taken.texts))
    else:
        click.echo(colour.verdicts(rendered.text(compared, *taken.texts)))
    if github.wanted():
        github.summarise(rendered.markdown(compared, *taken.texts))
    code = 0 if fail_if_slower is None else versions.exit_code(taken, compared, fail_if_slower)
    said = rendered.verdict_line(compared)
    if fail_if_slower is not None and not code and compared.finding.speed is Speed.AMBIGUOUS:
        timed = taken.a.score is not None and taken.b.score is not None
        advice = "; --duel times both in turns" if timed and not duel else ""
        click.echo(
            f"--fail-if-slower: it cannot be told whether {legible(b)} is slower, so this does not fail{advice}",
            err=True,
        )
    github.annotate([github.command("error" if code else "notice", said, "compare", taken.b.submission_path)])
    return INTERRUPTED_EXIT_CODE if versions.was_interrupted(compared) else code


@verbs.command()
@optional_problem_argument
@click.option("--device", default=None, help=f"Show one device only: {ONE_DEVICE}")
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    default=Path("board.html"),
    help="The file to write (default: board.html).",
)
@json_option
@click.pass_obj
def report(root: Path, problem: str | None, device: str | None, out: Path, as_json: bool) -> None:
    """Write the boards of PROBLEM (default: of all problems) to one HTML file that needs no network.

    The file holds boards, charts, samples, sources and the environment of each run. --json prints the same as data and
    writes no file.

    Example: python3 -m harness report mla --out board.html
    """
    from harness.render import html
    from harness.verbs import report as contents

    tasks, device = [catalog.load_problem(root, problem)] if problem else known.problems(root), _folder(root, device)
    if as_json:
        print_json(contents.as_json(root, tasks, device))
    else:
        click.echo(legible(html.write(root, tasks, out, device)))


@verbs.command()
@click.argument("problems", metavar="[PROBLEM…]", nargs=-1)
@click.option(
    "--format", "form", type=click.Choice(["flashinfer-trace"]), default="flashinfer-trace", help="The form to write."
)
@click.option("--to", "folder", type=click.Path(path_type=Path), required=True, help="A new folder to write to.")
@click.option("--device", default=None, help=f"Runs of one device only: {ONE_DEVICE}")
@json_option
@click.pass_obj
def export(root: Path, problems: tuple[str, ...], form: str, folder: Path, device: str | None, as_json: bool) -> None:
    """Write PROBLEM (default: every problem that has a Definition) and its stored runs in FlashInfer's trace format.

    The folder holds definitions, workloads, solutions and traces, as flashinfer_bench's TraceSet reads them. `eval`
    accepts a Solution of such a Definition in place of a .py file.

    Example: python3 -m harness export prefill --to traces
    """
    from harness.verbs import export as exporting

    done = exporting.export(root, problems, folder, _folder(root, device))
    if as_json:
        print_json(asdict(done))
        return
    counts = (
        f"{done.definitions} definitions, {done.workloads} workloads, {done.solutions} solutions, {done.traces} traces"
    )
    click.echo(f"{legible(str(folder))}: {counts}")
    for run, why in sorted(done.left_out.items()):
        click.echo(f"left out: {legible(run)}: {legible(why)}", err=True)


@verbs.command()
@json_option
@markdown_option
@click.pass_obj
def problems(root: Path, as_json: bool, as_markdown: bool) -> None:
    """List the problems.

    Example: python3 -m harness problems
    """
    from harness.render import lists

    found, faults = known.sound_and_broken(root)
    if as_json:
        print_json([problem.model_dump(mode="json", exclude={"folder", "hidden"}) for problem in found])
    else:
        print_parts([lists.problems(found)], as_markdown)
    for name, why in known.lost(root).items():
        click.echo(f"{legible(name)}, which was imported, cannot be loaded: {legible(why)}", err=True)
    for fault in faults[1:]:
        click.echo(legible(fault.message), err=True)
    if faults:
        raise faults[0]


@verbs.command()
def schema() -> None:
    """Print the JSON Schema of a run: in the files in results/, in --json output, and as returned by
    `harness.evaluate`.

    Its `$id` holds the version of the run files that this program writes. Runs of earlier versions fit the schema as
    well.

    Example: python3 -m harness schema
    """
    from harness.verbs import schema as schemas

    print_json(schemas.run_schema())


@verbs.command()
@click.argument("page", metavar="[PAGE]", required=False)
def docs(page: str | None) -> None:
    """Print a page of docs/ in Markdown. Without PAGE, list the pages. An installed Podium includes all of them.

    Example: python3 -m harness docs debugging
    """
    from harness.verbs import docs as written

    if page is not None:
        click.echo(written.page(page), nl=False)
        return
    found = written.pages()
    width = max(map(len, found), default=0)
    for name, title in found.items():
        click.echo(f"{name:{width}}  {title}")
