"""Verbs that judge: eval, verify, replay, repro, check."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import click

from harness import catalog
from harness.cli.verbs import (
    device_option,
    json_option,
    markdown_option,
    narrate,
    narration,
    print_json,
    print_parts,
    problem_argument,
    verbs,
)
from harness.errors import UsageError, did_you_mean
from harness.model import UNJUDGED, Problem, Run, Verdict
from harness.render import boards, github

UNWRAPPED = 10_000
"""Columns of a page, which wraps its cells by itself."""


@verbs.command("eval")
@problem_argument
@click.argument("files", nargs=-1, type=click.Path(path_type=Path))
@device_option
@click.option("--quick", is_flag=True, help="One timed process only: a first look, which is never ranked.")
@click.option("--watch", is_flag=True, help="Judge one FILE quickly at each save, until Ctrl-C; nothing is stored.")
@click.option("--allow-unsandboxed", is_flag=True, help="Rank runs even where nothing can confine the submission.")
@json_option
@markdown_option
@click.pass_obj
def eval_(
    root: Path,
    problem: str,
    files: tuple[Path, ...],
    device: str,
    quick: bool,
    watch: bool,
    allow_unsandboxed: bool,
    as_json: bool,
    as_markdown: bool,
) -> int:
    """Judge FILES, or without any every submission that has no verdict yet; then show the board.

    A CPU has cases of its own, smaller ones, and a board of its own.

    With --watch, one FILE again and again while you write it. Told first is what is known first: whether it compiles,
    is right on the smallest case, on all, and how fast it is in one process. Ctrl-C ends it, with exit code 0.

    Example: python3 -m harness eval mla submissions/mla/torch_bf16.py
    """
    if watch:
        if len(files) != 1 or as_json or as_markdown:
            said = "--watch takes one file, and no --json or --markdown: it prints as it goes"
            raise UsageError(said, "name the file to watch")
        return _watch(root, catalog.load_problem(root, problem), files[0], device)
    from harness import docket
    from harness.device import detect

    task = catalog.load_problem(root, problem)
    here = detect(root, device)
    waiting = docket.submissions_to_judge(root, task, files, here, quick, allow_unsandboxed)
    with narration(as_json) as told:
        runs = docket.judge(root, task, waiting, here, quick, told, allow_unsandboxed)
    if as_json:
        board = boards.as_json(root, task, here.slug)
        found = boards.bearings(root, task, runs)
        where = {run.id: asdict(each) if each else None for run, each in zip(runs, found, strict=True)}
        print_json({"runs": [json.loads(run.model_dump_json()) for run in runs], "bearings": where, "boards": board})
    else:
        _print_outcome(root, task, here.slug, runs, as_markdown)
    github.annotate([github.of_run(run) for run in runs])
    # Whoever names no file did not ask for what this machine cannot judge; the board says so all the same.
    judged = runs if files else [run for run in runs if run.unranked_because != UNJUDGED]
    return next((code for run in judged if (code := run.ending.verdict.exit_code)), 0)


@verbs.command()
@click.argument("problem", metavar="[PROBLEM]", required=False)
@device_option
@json_option
@markdown_option
@click.pass_obj
def verify(root: Path, problem: str | None, device: str, as_json: bool, as_markdown: bool) -> int:
    """Judge every control of PROBLEM (of all problems without one): each must get the verdict it is there for.

    Example: python3 -m harness verify mla
    """
    from harness import verification
    from harness.device import detect
    from harness.render import terminal

    here = detect(root, device)
    faults: list[str] = []
    documents = []
    for name in [problem] if problem else catalog.problem_names(root):
        task = catalog.load_problem(root, name)
        with narration(as_json) as told:
            results = list(verification.verify(root, task, here, told))
            faults += verification.broken_promises(task, here, told)
        faults += [fault for result in results for fault in result.faults]
        faults += [f"no accepted control of {name} shows the tolerance {t}" for t in verification.unmet(task, results)]
        documents.append({"problem": name, "controls": [result.as_json() for result in results]})
        if not as_json:
            print_parts([terminal.verification(task, results)], as_markdown)
            click.echo()
    if as_json:
        print_json({"problems": documents, "faults": faults})
    else:
        good = "Every control got its verdict, and every tolerance by itself rejects its canaries."
        print_parts(["\n".join(faults) if faults else good], as_markdown)
    github.annotate([github.command("error", fault, "verify") for fault in faults])
    return Verdict.WRONG_ANSWER.exit_code if faults else 0


@verbs.command()
@problem_argument
@click.argument("file", type=click.Path(path_type=Path))
@click.argument("case", metavar="CASE")
@click.option(
    "--seed",
    type=click.IntRange(0, 2**63 - 1),
    required=True,
    help="The seed of the inputs, as a mismatch report gives it.",
)
@device_option
@click.pass_obj
def replay(root: Path, problem: str, file: Path, case: str, seed: int, device: str) -> int:
    """Judge FILE on one CASE with the very inputs of a mismatch report. Nothing is timed or stored.

    Example: python3 -m harness replay mla my.py 'batch_size=2 q_seq_len=1 kv_seq_len=128' --seed 17
    """
    from harness import machine_lock
    from harness.config import load_config
    from harness.device import detect
    from harness.judge.evaluate import replay as judge_again
    from harness.judge.reply import Fault

    task = catalog.load_problem(root, problem)
    here = detect(root, device)
    chosen = task.case_called(case)
    if chosen is None:
        raise UsageError(f"{problem} has no case {case!r}", did_you_mean(case, {c.label for c in task.every_case}))
    submission = catalog.load_submission(task, file)
    try:
        with machine_lock.hold_if_gpu(here, narrate):
            check = judge_again(task, submission, here, load_config(root), chosen, seed)
    except Fault as fault:
        click.echo(f"{fault.ending.detail or ''}\n{fault.ending.verdict.words}: {fault.ending.message}")
        return fault.ending.verdict.exit_code
    click.echo(check.report or f"accepted: {case} with seed {seed} meets the tolerance {check.tolerance}")
    return check.verdict.exit_code


@verbs.command()
@click.argument("run", metavar="RUN")
@device_option
@json_option
@markdown_option
@click.pass_obj
def repro(root: Path, run: str, device: str, as_json: bool, as_markdown: bool) -> int:
    """Judge stored RUN again: its source, cases, sampling and seeds, on the kind of device it was judged on.

    Shown is what differs around it, then whether verdict and score agree within the intervals. The new run is stored,
    and never ranked, since its inputs were known. Exit code: 0 if it agrees or that cannot be told, 20 for another
    score, that of the verdict for another verdict. RUN is named as in `show`.

    Example: python3 -m harness repro torch_bf16
    """
    from harness import repro as reproduction
    from harness.render import repro as rendered

    recipe = reproduction.take(root, run)
    here = reproduction.device_for(root, recipe.run, device)
    with narration(as_json) as told:
        found = reproduction.reproduce(root, recipe, here, told)
    if as_json:
        print_json(rendered.as_json(found))
    else:
        print_parts(rendered.parts(found), as_markdown)
    level, path = "error" if found.exit_code else "notice", found.now.submission_path
    github.annotate([github.command(level, rendered.summary(found), "repro", path)])
    return found.exit_code


@verbs.command()
@problem_argument
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--target",
    "targets",
    multiple=True,
    metavar="TARGET",
    help="gfx942, gfx950, gfx1100 or sm_90, any number of times (default: all).",
)
@click.option(
    "--emit",
    type=click.Path(path_type=Path, file_okay=False),
    help="Write what the compilers made (IR, assembly, code objects) to this directory.",
)
@json_option
@markdown_option
@click.pass_obj
def check(
    root: Path,
    problem: str,
    file: Path,
    targets: tuple[str, ...],
    emit: Path | None,
    as_json: bool,
    as_markdown: bool,
) -> int:
    """Without the target GPU: judge FILE on the CPU test cases, and compile its kernels for each TARGET.

    Example: python3 -m harness check mla submissions/mla/triton_bf16.py --target gfx950
    """
    from harness import checkup
    from harness.offline import tools
    from harness.render import check as rendered

    task = catalog.load_problem(root, problem)
    with narration(as_json) as told:
        found = checkup.check(root, task, catalog.load_submission(task, file), targets, emit, told)
    if as_json:
        print_json({**found.as_json(), "tools": tools.here(root).model_dump(mode="json")})
    else:
        print_parts(rendered.parts(found, UNWRAPPED if as_markdown else None), as_markdown)
    github.annotate(rendered.commands(found))
    return found.exit_code


def _watch(root: Path, problem: Problem, file: Path, device: str) -> int:
    from harness import watch
    from harness.device import detect
    from harness.render import watch as rendered

    narrate(f"watching {file}: judged at each save, nothing is ranked or stored; Ctrl-C ends it")
    try:
        watch.watch(root, problem, file, detect(root, device), lambda feedback: click.echo(rendered.text(feedback)))
    except KeyboardInterrupt:
        narrate("\nno longer watching")
    return 0


def _print_outcome(root: Path, problem: Problem, device: str, runs: Sequence[Run], as_markdown: bool) -> None:
    """The board unless all runs failed, then what is to be known of each that did, and last a line for each verdict."""
    from harness.render import terminal

    failed = [run.ending.verdict is not Verdict.ACCEPTED and run.unranked_because != UNJUDGED for run in runs]
    parts = [] if runs and all(failed) else boards.parts(root, problem, device, published=False)
    if not runs:
        parts.append("Nothing new: every submission has its verdict. Name a file to judge it again.")
    parts += [terminal.failure(run) for run, has in zip(runs, failed, strict=True) if has]
    found = boards.bearings(root, problem, runs)
    parts.append("\n".join(terminal.verdict_line(run, where) for run, where in zip(runs, found, strict=True)))
    print_parts(parts, as_markdown)
