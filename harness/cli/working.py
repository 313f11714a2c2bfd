"""The verbs to work with, which rank nothing: doctor, new, forget, check, profile and import."""

from __future__ import annotations

from pathlib import Path

import click

from harness import catalog
from harness.catalog.choice import choose_to_check
from harness.chips.targets import TARGETS
from harness.cli.options import (
    cases_option,
    device_option,
    json_option,
    junit_option,
    markdown_option,
    narrate,
    narration,
    print_json,
    print_parts,
    problem_argument,
    stop_option,
    verbs,
    watch_over,
    words_option,
)
from harness.errors import InfrastructureError, UsageError
from harness.render import github
from harness.render.legible import legible

UNWRAPPED = 10_000
"""The table width for Markdown, where the page wraps the cells itself."""


@verbs.command()
@click.option(
    "--calibrate", is_flag=True, help="First measure this device's noise, which decides what counts as faster."
)
@click.option(
    "--fleet",
    is_flag=True,
    help="With --calibrate: measure how far the cards of a cluster differ, which widens intervals over several cards.",
)
@click.option("--cluster", default="auto", metavar="ADDRESS", help="The cluster for --fleet (default: this node's).")
@device_option
@json_option
@markdown_option
@click.pass_obj
def doctor(
    root: Path, calibrate: bool, fleet: bool, cluster: str, device: str, as_json: bool, as_markdown: bool
) -> int:
    """Show what this machine can do, what it lacks, and the command that installs what is missing.

    Example: python3 -m harness doctor --calibrate
    """
    from harness.render import doctor as rendered
    from harness.verbs import calibration
    from harness.verbs import doctor as doctors

    if fleet:
        if not calibrate:
            raise UsageError("--fleet goes with --calibrate")
        return _calibrate_fleet(root, cluster, device, as_json)
    here = doctors.device(root, device)
    if calibrate:
        with narration(as_json) as told:
            calibration.calibrate(root, here, told)
    facts = doctors.survey(root, here, narrate)
    if as_json:
        print_json(rendered.as_json(facts))
    else:
        print_parts(rendered.parts(facts), as_markdown)
    return InfrastructureError.exit_code if any(fact.fatal for fact in facts) else 0


def _calibrate_fleet(root: Path, cluster: str, device: str, as_json: bool) -> int:
    from harness.cluster import spread
    from harness.cluster.link import Link

    with Link(cluster, root, tell=narrate) as link, narration(as_json) as told:
        found = spread.measure(root, link, link.device(device), told)
    component = found.component()
    if as_json:
        print_json(found.model_dump(mode="json") | {"percent": component.percent, "freedom": component.freedom})
    else:
        click.echo(
            f"{component.kernels} kernels on {component.cards} cards of {found.device_slug}: a card adds a standard "
            f"deviation of {component.percent:.2g} %, with {component.freedom:.1f} degrees of freedom"
        )
    return 0


@verbs.command()
@problem_argument
@click.argument("name", metavar="NAME")
@click.pass_obj
def new(root: Path, problem: str, name: str) -> None:
    """Write submissions/PROBLEM/NAME.py: a correct but slow start, with the contract in its docstring.

    Example: python3 -m harness new mla mine
    """
    from harness.verbs import new as scaffold

    task = catalog.load_problem(root, problem)
    click.echo(legible(scaffold.next_steps(task, problem, scaffold.new(root, task, name))))


@verbs.command()
@click.argument("runs", metavar="[RUN…]", nargs=-1)
@click.option("--older-than", metavar="AGE", help="Only runs that began longer ago, such as 30d, 12h or 2w.")
@click.option("--dry-run", is_flag=True, help="Say what would be removed, and remove nothing.")
@click.pass_obj
def forget(root: Path, runs: tuple[str, ...], older_than: str | None, dry_run: bool) -> None:
    """Remove stored runs of your own, and the sources that no other run uses. Published runs stay.

    RUN is a run's id, a unique beginning of an id, or a submission's name or file. A submission means all of its runs.
    Without RUN, remove all runs that are older than AGE.

    Example: python3 -m harness forget mine --older-than 2w
    """
    from harness.verbs import forget as forgetting

    removed = forgetting.forget(root, runs, forgetting.age(older_than) if older_than else None, dry_run)
    for path in removed:
        click.echo(f"results/{legible(path)}")
    count = f"{len(removed)} run{'' if len(removed) == 1 else 's'}"
    click.echo(f"{count} would be removed" if dry_run else f"{count} removed", err=True)


@verbs.command("new-problem")
@click.argument("name", metavar="NAME")
@click.pass_obj
def new_problem(root: Path, name: str) -> None:
    """Write problems/NAME, a small problem that passes `verify`, to be changed piece by piece.

    Example: python3 -m harness new-problem sliding_window
    """
    from harness.verbs import new_problem as scaffold

    click.echo(legible(scaffold.next_steps(scaffold.new_problem(root, name))))


@verbs.command()
@problem_argument
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--target",
    "targets",
    multiple=True,
    metavar="TARGET",
    shell_complete=lambda context, parameter, begun: [name for name in TARGETS if name.startswith(begun)],
    help="gfx942, gfx950, gfx1100, sm_90 (default: these four), gfx90a or gfx908; any number of times.",
)
@click.option(
    "--emit",
    type=click.Path(path_type=Path, file_okay=False),
    help="Write the compilers' output (IR, assembly, code objects) to this directory.",
)
@click.option(
    "--no-run",
    is_flag=True,
    help="Compile for TARGET, and do not run the code in the emulator (gfx942, gfx950 and gfx1100 are emulated).",
)
@cases_option
@words_option
@stop_option
@junit_option
@json_option
@markdown_option
@click.pass_obj
def check(
    root: Path,
    problem: str,
    file: Path,
    targets: tuple[str, ...],
    emit: Path | None,
    no_run: bool,
    named: tuple[str, ...],
    words: tuple[str, ...],
    stop_at_first: bool,
    junit: Path | None,
    as_json: bool,
    as_markdown: bool,
) -> int:
    """Judge FILE on the CPU test cases and compile its kernels for each TARGET. Needs no GPU.

    With --case or -k only some cases are judged, and only the kernels that they launch are compiled. A number stands
    for a CPU benchmark case.

    Example: python3 -m harness check mla submissions/mla/triton_bf16.py --target gfx950
    """
    from harness.compile import tools
    from harness.render import check as rendered
    from harness.render import junit as junit_xml
    from harness.verbs import check as checkup

    if junit:
        junit_xml.check_free(junit, [file])
    whole = task = catalog.load_problem(root, problem)
    watch_over(task)
    if named or words:
        task = choose_to_check(task, named, words)
    with narration(as_json) as told:
        submission = catalog.load_submission(task, file)
        if line := catalog.of_another_problem(root, task, submission):
            told(line)
        if task is not whole:
            from harness.verbs.forewarning import of_interpreting  # torch, which an unchanged file needs for nothing

            task, line = of_interpreting(root, whole, task, submission)
            if line:
                told(line)
        found = checkup.check(root, task, submission, targets, emit, told, stop_at_first, not no_run)
    with junit_xml.beside(junit, [junit_xml.of_checkup(found)] if junit else []):
        if as_json:
            print_json({**found.as_json(), "tools": tools.here(root).model_dump(mode="json")})
        else:
            print_parts(rendered.parts(found, UNWRAPPED if as_markdown else None), as_markdown)
        github.annotate(rendered.commands(found))
    return found.exit_code


@verbs.command()
@problem_argument
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--case",
    metavar="CASE",
    help="A benchmark case's number from 1, or any case in quotes (default: the one with the highest floor; of "
    "--tool emulator the smallest CPU test case).",
)
@click.option(
    "--tool",
    type=click.Choice(["auto", "ncu", "rocprofv3", "torch", "emulator"]),
    default="auto",
    help="auto: ncu on NVIDIA, rocprofv3 on AMD, torch.profiler on a CPU. torch works anywhere, without counters. "
    "emulator: the instructions that gfx942 would execute, by kernel and line, without times.",
)
@click.option("--calls", type=click.IntRange(1, 100), default=3, help="How many calls to profile (default: 3).")
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    help="An empty directory for the profiler's files (default: one in build/profiles/PROBLEM).",
)
@device_option
@json_option
@markdown_option
@click.pass_obj
def profile(
    root: Path,
    problem: str,
    file: Path,
    case: str | None,
    tool: str,
    calls: int,
    out: Path | None,
    device: str,
    as_json: bool,
    as_markdown: bool,
) -> None:
    """Show where the time of FILE goes, by kernel and next to the floor, with the vendor's profiler.

    FILE runs outside the sandbox with your own rights, because profilers need that: read it first. Nothing is ranked.

    Example: python3 -m harness profile mla submissions/mla/triton_bf16.py --case 2
    """
    from harness.machine.device import detect
    from harness.render import profile as rendered
    from harness.verbs import profile as profiling

    task = catalog.load_problem(root, problem)
    submission = catalog.load_submission(task, file)
    if tool == "emulator":
        from harness.profiling import counting
        from harness.render import counts as rendered_counts

        counts = counting.counted(root, task, submission, case, narrate=narrate)
        if as_json:
            print_json(counts.model_dump(mode="json"))
        else:
            print_parts(rendered_counts.parts(counts), as_markdown)
        return
    found = profiling.profile(
        root, task, submission, detect(root, device), tool=tool, case=case, calls=calls, out=out, narrate=narrate
    )
    if as_json:
        print_json(found.as_json())
    else:
        print_parts(rendered.parts(found), as_markdown)


@verbs.command("import")
@click.argument("folder", metavar="FOLDER", type=click.Path(path_type=Path))
@json_option
@markdown_option
@click.pass_obj
def import_(root: Path, folder: Path, as_json: bool, as_markdown: bool) -> None:
    """Give names to the problems of other projects in FOLDER: a checkout of such a project, or one problem.

    Every verb accepts such a name. The files stay where they are; the names are written to configs/imported.yml. FOLDER
    may also be a set file. Problems that cannot be judged are left out, each with its reason.

    Example: python3 -m harness import ../reference-kernels
    """
    from harness.render import imported as rendered
    from harness.verbs import import_ as importing

    done = importing.import_(root, folder)
    if as_json:
        print_json(rendered.as_json(done))
        return
    print_parts(rendered.parts(done), as_markdown)
