"""The verbs that judge: eval and verify."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import click

from harness import catalog
from harness.catalog.choice import choose
from harness.cli import watching
from harness.cli.options import (
    cases_option,
    device_option,
    json_option,
    junit_option,
    markdown_option,
    narrate,
    narration,
    optional_problem_argument,
    print_json,
    print_parts,
    problem_argument,
    stop_option,
    verbs,
    watch_over,
    words_option,
)
from harness.command import typed
from harness.errors import UsageError
from harness.model import Device, Problem, Run, Unranked, Verdict
from harness.render import boards, github, progress
from harness.render.cases import case_list
from harness.render.document import Part, Prose, Verbatim
from harness.verbs import leaderboard


@verbs.command("eval")
@problem_argument
@click.argument("files", nargs=-1, type=click.Path(path_type=Path))
@device_option
@click.option("--quick", is_flag=True, help="Time one process only. Such a run is never ranked.")
@cases_option
@words_option
@stop_option
@junit_option
@click.option("--watch", is_flag=True, help="Judge one FILE at each save, until Ctrl-C. Nothing is stored.")
@click.option("--allow-unsandboxed", is_flag=True, help="Rank runs even if no sandbox holds here.")
@click.option(
    "--cluster",
    metavar="ADDRESS",
    help="Judge on a cluster's nodes: auto, HOST:PORT or ray://HOST:PORT. --device is then a kind, a model's folder, "
    "or a card's id, which pins all to that card.",
)
@json_option
@markdown_option
@click.pass_obj
def eval_(
    root: Path,
    problem: str,
    files: tuple[Path, ...],
    device: str,
    quick: bool,
    named: tuple[str, ...],
    words: tuple[str, ...],
    stop_at_first: bool,
    junit: Path | None,
    watch: bool,
    allow_unsandboxed: bool,
    cluster: str | None,
    as_json: bool,
    as_markdown: bool,
) -> int:
    """Judge FILES and show the board. Without FILES, judge every submission that has no verdict yet.

    A CPU has its own, smaller cases and its own board. With --case or -k only some cases are judged: such a run is
    neither ranked nor stored.

    --watch judges one FILE at each save. It reports in this order: whether the file compiles, whether it is right on
    the smallest case, whether it is right on all cases, and how fast it is in one process. --case, -k and -x apply to
    each save. Ctrl-C ends it with exit code 0.

    Example: python3 -m harness eval mla submissions/mla/torch_bf16.py
    """
    if cluster is not None and (watch or named or words):
        raise UsageError("--cluster goes with neither --watch nor --case nor -k", "leave out --cluster")
    if watch and (len(files) != 1 or as_json or as_markdown or junit):
        raise UsageError("--watch takes exactly one FILE, and neither --json nor --markdown nor --junit")
    whole = task = catalog.load_problem(root, problem)
    watch_over(task)
    if watch:
        return watching.watch(root, task, files[0], device, named, words, stop_at_first)
    if cluster is None and device != "cpu":  # after `watch_over`: this process judges. Before the imports: one is torch
        from harness.judge import worker_program

        worker_program.begin_to_import()
    from harness.machine.device import detect
    from harness.render import junit as junit_xml
    from harness.verbs import eval as evaluation
    from harness.verbs.forewarning import of_interpreting

    if junit:
        junit_xml.check_free(junit, files)
    chosen = bool(named or words)
    with contextlib.ExitStack() as stack:
        link = None
        if cluster is not None:
            from harness.cluster import parcel
            from harness.cluster.link import Link

            parcel.check(task)  # before Ray is asked, which takes seconds
            link = stack.enter_context(Link(cluster, root, tell=narrate))
        here = detect(root, device) if link is None else link.device(device)
        if chosen:
            if not files:
                raise UsageError("--case and -k need the FILE that is to be judged")
            task = choose(task, here.kind, named, words)
        waiting = evaluation.submissions_to_judge(root, task, files, here, quick or chosen, allow_unsandboxed)
        told = stack.enter_context(narration(as_json))
        for submission in waiting:
            if misplaced := catalog.of_another_problem(root, task, submission):
                told(misplaced)
        for submission in waiting if chosen and here.kind == "cpu" else ():
            task, line = of_interpreting(root, whole, task, submission)
            if line:
                told(line)

        def stored(run: Run) -> None:
            if run.ranked and run.submission_sha256 != waiting[-1].sha256:
                told(progress.so_far([board for _, board in leaderboard.boards(root, task, here.slug).boards]))

        judge: Callable[..., list[Run]]
        if link is None:
            judge = partial(evaluation.judge, chosen=chosen)
        else:
            from harness.cluster import batch

            judge = partial(batch.judge, link, card=device if device in link.cards(here.slug) else None)
        asked = {"allow_unsandboxed": allow_unsandboxed, "stop_at_first": stop_at_first}
        runs = judge(root, task, waiting, here, quick, told, stored=stored, **asked)
    with junit_xml.beside(junit, [junit_xml.of_run(run, stored=not chosen) for run in runs] if junit else []):
        if as_json:
            print_json(_with_boards(root, task, here, runs))
        else:
            _print_outcome(root, task, here, runs, chosen, quick, as_markdown)
        github.annotate([github.of_run(run) for run in runs])
    # Without file names the user did not ask for submissions that this machine cannot judge. The board still lists
    # them.
    judged = runs if files else [run for run in runs if run.unranked_because != Unranked.UNJUDGED]
    return next((code for run in judged if (code := run.ending.verdict.exit_code)), 0)


@verbs.command()
@optional_problem_argument
@device_option
@json_option
@markdown_option
@click.pass_obj
def verify(root: Path, problem: str | None, device: str, as_json: bool, as_markdown: bool) -> int:
    """Judge every control of PROBLEM (default: of all problems). Each must get the verdict it was written for.

    Example: python3 -m harness verify mla
    """
    from harness.machine.device import detect
    from harness.render import lists
    from harness.verbs import verify as verification

    tasks = catalog.load_problems(root, problem)
    for task in tasks:
        watch_over(task)
    here = detect(root, device)
    faults: list[str] = []
    documents = []
    for task in tasks:
        name = task.name
        with narration(as_json) as told:
            results = list(verification.verify(root, task, here, told))
            faults += verification.broken_promises(task, here, told)
        of = f"{name}: " if len(tasks) > 1 else ""
        faults += [f"{of}{fault}" for result in results for fault in result.faults]
        faults += [f"{name}: no accepted control meets the tolerance {t}" for t in verification.unmet(task, results)]
        documents.append({"problem": name, "controls": [result.as_json() for result in results]})
        if not as_json:
            print_parts([lists.verification(task, results)], as_markdown)
            click.echo()
    if as_json:
        print_json({"problems": documents, "faults": faults})
    else:
        good = "Every control got its verdict, and every tolerance by itself rejects every wrong_answer control."
        print_parts(["\n".join(faults) if faults else good], as_markdown)
    github.annotate([github.command("error", fault, "verify") for fault in faults])
    return Verdict.WRONG_ANSWER.exit_code if faults else 0


def _with_boards(root: Path, task: Problem, here: Device, runs: Sequence[Run]) -> dict[str, Any]:
    """The runs, where each stands, and the boards: what `--json` prints."""
    found = leaderboard.bearings(root, task, runs)
    where = {run.id: asdict(each) if each else None for run, each in zip(runs, found, strict=True)}
    told = [json.loads(run.model_dump_json()) for run in runs]
    return {"runs": told, "bearings": where, **leaderboard.as_json(root, task, here.slug)}


def _print_outcome(
    root: Path,
    problem: Problem,
    device: Device,
    runs: Sequence[Run],
    chosen: bool,
    quick: bool,
    as_markdown: bool,
) -> None:
    """Print the board unless all runs failed, then the details of each failed run, then one line for each verdict.

    `chosen`: some cases were chosen, which no board shows, so print the cases. `quick`: nothing is ranked, so print the
      latencies and the meaning of their labels.
    """
    from harness.judge.secret_cases import untried
    from harness.render import run as rendered
    from harness.render import verdicts

    failed = [run.ending.verdict is not Verdict.ACCEPTED and run.unranked_because != Unranked.UNJUDGED for run in runs]
    parts: list[Part] = []
    if chosen:
        right = [run.checks for run, has in zip(runs, failed, strict=True) if run.checks and not has]
        parts += [Verbatim(case_list(checks)) for checks in right]
    elif not runs or not all(failed):
        parts += boards.parts(root, problem, device.slug, published=False)
    if chosen or quick:
        timed = [run for run in runs if run.measurements]
        parts += [rendered.case_table(run, run.submission) for run in timed]
        parts += map(Prose, dict.fromkeys(note for run in timed for note in rendered.label_notes(run)))
    if not runs and not catalog.submissions(root, problem):
        parts.append(f"There is no submission yet: {typed('new', problem.argument, 'mine')} writes one to begin with.")
    elif not runs:
        parts.append("Nothing new: every submission has its verdict. Name a file to judge it again.")
    cases = problem.cases_for(device.kind)
    tests = [case.label for case in cases.test]
    wrong = [run for run, has in zip(runs, failed, strict=True) if has]
    parts += [verdicts.failure(run, not chosen, tests, untried(cases, run)) for run in wrong]
    found = leaderboard.bearings(root, problem, runs)
    lines = [verdicts.verdict_line(run, where, stored=not chosen) for run, where in zip(runs, found, strict=True)]
    parts.append("\n".join(lines))
    print_parts(parts, as_markdown)
