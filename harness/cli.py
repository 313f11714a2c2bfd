"""The verbs and their exit codes; what they do is elsewhere.

stdout carries the result, stderr the narration. `--json` prints exactly one JSON document.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from pydantic_core import to_json

from harness import catalog
from harness.errors import InfrastructureError, PodiumError, UsageError, did_you_mean
from harness.model import UNJUDGED, Problem, Run, Verdict
from harness.render import boards
from harness.store import Store

INTERRUPTED_EXIT_CODE = 130


class _Verbs(click.Group):
    """A group that names the nearest verb when one is misspelt."""

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        if args and self.get_command(ctx, args[0]) is None and not args[0].startswith("-"):
            raise UsageError(f"there is no verb {args[0]!r}", did_you_mean(args[0], self.commands))
        return super().resolve_command(ctx, args)


@click.group(cls=_Verbs, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.option(
    "--root",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    default=Path(__file__).resolve().parents[1],
    help="The directory that holds problems/, submissions/, configs/ and results/ (default: this checkout).",
)
@click.pass_context
def cli(context: click.Context, root: Path) -> None:
    """Podium judges attention kernels, times them and ranks them.

    Example: python -m harness eval mla submissions/mla/torch_bf16.py
    """
    context.obj = root


_problem = click.argument("problem", metavar="PROBLEM")
_json = click.option("--json", "as_json", is_flag=True, help="Print exactly one JSON document.")
_device = click.option("--device", default="auto", help="cpu, cuda, cuda:1 or auto: a GPU if there is one.")


@cli.command("eval")
@_problem
@click.argument("files", nargs=-1, type=click.Path(path_type=Path))
@_device
@click.option("--quick", is_flag=True, help="One timed process only: a first look, which is never ranked.")
@click.option("--allow-unsandboxed", is_flag=True, help="Rank runs even where nothing can confine the submission.")
@_json
@click.pass_obj
def eval_(
    root: Path,
    problem: str,
    files: tuple[Path, ...],
    device: str,
    quick: bool,
    allow_unsandboxed: bool,
    as_json: bool,
) -> int:
    """Judge FILES, or without any every submission that has no verdict yet; then show the board.

    Example: python -m harness eval mla submissions/mla/torch_bf16.py
    """
    from harness import docket
    from harness.device import detect

    task = catalog.load_problem(root, problem)
    here = detect(root, device)
    waiting = docket.submissions_to_judge(root, task, files, here, quick, allow_unsandboxed)
    runs = docket.judge(root, task, waiting, here, quick, _narrate, allow_unsandboxed)
    if as_json:
        board = boards.as_json(root, task, here.slug)
        _print_json({"runs": [json.loads(run.model_dump_json()) for run in runs], "boards": board})
    else:
        _print_outcome(root, task, here.slug, runs)
    # Whoever names no file did not ask for what this machine cannot judge; the board says so all the same.
    judged = runs if files else [run for run in runs if run.unranked_because != UNJUDGED]
    return next((code for run in judged if (code := run.ending.verdict.exit_code)), 0)


@cli.command()
@_problem
@click.option("--device", default=None, help="One device's board only: its folder in results/, such as nvidia-h200.")
@_json
@click.pass_obj
def leaderboard(root: Path, problem: str, device: str | None, as_json: bool) -> None:
    """Show the board of PROBLEM, one for each device that has runs.

    Example: python -m harness leaderboard mla
    """
    task = catalog.load_problem(root, problem)
    if as_json:
        _print_json({"boards": boards.as_json(root, task, device)})
    else:
        click.echo(boards.as_text(root, task, device))


@cli.command()
@click.argument("run", metavar="RUN")
@_json
@click.pass_obj
def show(root: Path, run: str, as_json: bool) -> None:
    """Show one run in full. RUN is its id, a part of it that no other has, or a submission's name for its latest run.

    Example: python -m harness show torch_bf16
    """
    from harness.render import terminal

    stored = Store(root).read(run)
    if as_json:
        click.echo(stored.model_dump_json(indent=1))
    else:
        click.echo(terminal.run(stored))


@cli.command()
@click.argument("problem", metavar="[PROBLEM]", required=False)
@click.option("--device", default=None, help="One device's board only: its folder in results/, such as nvidia-h200.")
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    default=Path("board.html"),
    help="The file to write (default: board.html).",
)
@click.pass_obj
def report(root: Path, problem: str | None, device: str | None, out: Path) -> None:
    """Write the boards of PROBLEM (of all problems without one) as one HTML file that needs no network.

    In it are the boards, charts, samples, sources and the environment of each run.

    Example: python -m harness report mla --out board.html
    """
    from harness.render import html

    names = [problem] if problem else catalog.problem_names(root)
    click.echo(html.write(root, [catalog.load_problem(root, name) for name in names], out, device))


@cli.command()
@_json
@click.pass_obj
def problems(root: Path, as_json: bool) -> None:
    """List the problems.

    Example: python -m harness problems
    """
    from harness.render import terminal

    found = [catalog.load_problem(root, name) for name in catalog.problem_names(root)]
    if as_json:
        _print_json([problem.model_dump(mode="json", exclude={"folder"}) for problem in found])
    else:
        click.echo(terminal.problems(found))


@cli.command()
@click.argument("problem", metavar="[PROBLEM]", required=False)
@_device
@_json
@click.pass_obj
def verify(root: Path, problem: str | None, device: str, as_json: bool) -> int:
    """Judge every control of PROBLEM (of all problems without one): each must get the verdict it is there for.

    Example: python -m harness verify mla
    """
    from harness import verification
    from harness.device import detect
    from harness.render import terminal

    here = detect(root, device)
    faults: list[str] = []
    documents = []
    for name in [problem] if problem else catalog.problem_names(root):
        task = catalog.load_problem(root, name)
        results = list(verification.verify(root, task, here, _narrate))
        faults += [fault for result in results for fault in result.faults]
        faults += [f"no accepted control of {name} shows the tolerance {t}" for t in verification.unmet(task, results)]
        documents.append({"problem": name, "controls": [result.as_json() for result in results]})
        if not as_json:
            click.echo(f"{name}: {len(results)} controls\n{terminal.verification(results, list(task.tolerances))}\n")
    if as_json:
        _print_json({"problems": documents, "faults": faults})
    else:
        good = "Every control got its verdict, and every tolerance by itself rejects its canaries."
        click.echo("\n".join(faults) if faults else good)
    return Verdict.WRONG_ANSWER.exit_code if faults else 0


@cli.command()
@_problem
@click.argument("file", type=click.Path(path_type=Path))
@click.argument("case", metavar="CASE")
@click.option(
    "--seed",
    type=click.IntRange(0, 2**63 - 1),
    required=True,
    help="The seed of the inputs, as a mismatch report gives it.",
)
@_device
@click.pass_obj
def replay(root: Path, problem: str, file: Path, case: str, seed: int, device: str) -> int:
    """Judge FILE on one CASE with the very inputs of a mismatch report. Nothing is timed or stored.

    Example: python -m harness replay mla my.py 'batch_size=2 q_seq_len=1 kv_seq_len=128' --seed 17
    """
    from harness.config import load_config
    from harness.device import detect
    from harness.judge.evaluate import replay as judge_again
    from harness.judge.session import Fault

    task = catalog.load_problem(root, problem)
    here = detect(root, device)
    cases = {known.label: known for known in task.every_case}
    if case not in cases:
        raise UsageError(f"{problem} has no case {case!r}", did_you_mean(case, cases))
    submission = catalog.load_submission(task, file)
    try:
        check = judge_again(task, submission, here, load_config(root), cases[case], seed)
    except Fault as fault:
        click.echo(f"{fault.ending.detail or ''}\n{fault.ending.verdict.words}: {fault.ending.message}")
        return fault.ending.verdict.exit_code
    click.echo(check.report or f"accepted: {case} with seed {seed} meets the tolerance {check.tolerance}")
    return check.verdict.exit_code


@cli.command()
@_problem
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
@_json
@click.pass_obj
def check(
    root: Path, problem: str, file: Path, targets: tuple[str, ...], emit: Path | None, as_json: bool
) -> int:
    """Without the target GPU: judge FILE on the smallest cases on the CPU, and compile its kernels for each TARGET.

    Example: python -m harness check mla submissions/mla/triton_bf16.py --target gfx950
    """
    from harness import checkup
    from harness.offline import tools
    from harness.render import check as rendered

    task = catalog.load_problem(root, problem)
    found = checkup.check(root, task, catalog.load_submission(task, file), targets, emit, _narrate)
    if as_json:
        _print_json({**found.as_json(), "tools": tools.here().model_dump(mode="json")})
    else:
        click.echo(rendered.text(found))
    return found.exit_code


@cli.command()
@click.argument("a", metavar="A")
@click.argument("b", metavar="B")
@click.option("--duel", is_flag=True, help="Time both sources again, in turns: tells smaller differences.")
@click.option("--fail-if-slower", type=click.FloatRange(0), metavar="PCT", help="Exit with 20 if B is slower by that.")
@click.option("--device", default="auto", help="Where a duel takes place, as in `eval`.")
@_json
@click.pass_obj
def compare(root: Path, a: str, b: str, duel: bool, fail_if_slower: float | None, device: str, as_json: bool) -> int:
    """Hold run B against run A: the sources' difference, each case's ratio, and FASTER, SLOWER, SAME or AMBIGUOUS.

    A and B are named as in `show`.

    Example: python -m harness compare torch_bf16 torch_fp8 --duel
    """
    from harness import versions
    from harness.device import detect
    from harness.render import compare as rendered

    taken = versions.take(root, a, b)
    if duel:
        compared, samples = versions.duel(root, taken, detect(root, device), _narrate)
    else:
        compared, samples = versions.compare(root, taken), ()
    if as_json:
        _print_json(rendered.as_json(compared, *taken.texts, samples))
    else:
        click.echo(rendered.text(compared, *taken.texts))
    return 0 if fail_if_slower is None else versions.exit_code(taken, compared, fail_if_slower)


@cli.command()
@click.option("--calibrate", is_flag=True, help="First measure how small a difference counts here.")
@_device
@_json
@click.pass_obj
def doctor(root: Path, calibrate: bool, device: str, as_json: bool) -> int:
    """Say what this machine can do, what it cannot, and the command that brings the rest.

    Example: python -m harness doctor --calibrate
    """
    from harness import calibration
    from harness import doctor as doctors
    from harness.render import doctor as rendered

    here = doctors.device(root, device)
    if calibrate:
        calibration.calibrate(root, here, _narrate)
    facts = doctors.survey(root, here, _narrate)
    if as_json:
        _print_json(rendered.as_json(facts))
    else:
        click.echo(rendered.text(facts))
    return InfrastructureError.exit_code if any(fact.fatal for fact in facts) else 0


@cli.command()
@_problem
@click.argument("name", metavar="NAME")
@click.pass_obj
def new(root: Path, problem: str, name: str) -> None:
    """Write submissions/PROBLEM/NAME.py, to start from: correct as it stands, with the contract in its docstring.

    Example: python -m harness new mla mine
    """
    from harness import scaffold

    click.echo(scaffold.next_steps(problem, scaffold.new(root, catalog.load_problem(root, problem), name)))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb; the exit code. Nothing but a bug of ours gets past this."""
    try:
        code = cli.main(args=arguments, prog_name="python -m harness", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except PodiumError as error:
        click.echo(f"error: {error}", err=True)
        return error.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        return 0
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        click.echo("interrupted: the run that was under way is not stored; what was stored before is", err=True)
        return INTERRUPTED_EXIT_CODE
    except BrokenPipeError:
        sys.stderr.close()
        return 0


def _print_outcome(root: Path, problem: Problem, device: str, runs: Sequence[Run]) -> None:
    """The board, then what is to be known of each run that failed, and last a line for each verdict."""
    from harness.render import terminal

    click.echo(boards.as_text(root, problem, device, published=False))
    if not runs:
        click.echo("\nNothing new: every submission has its verdict. Name a file to judge it again.")
    for run in runs:
        if run.ending.verdict is not Verdict.ACCEPTED and run.unranked_because != UNJUDGED:
            click.echo(f"\n{terminal.failure(run)}")
    for run in runs:
        click.echo(("\n" if run is runs[0] else "") + terminal.verdict_line(run))


def _narrate(line: str) -> None:
    click.echo(line, err=True)


def _print_json(document: Any) -> None:
    # JSON has no infinity: it is printed as the string "Infinity", as in the run files.
    click.echo(to_json(document, inf_nan_mode="strings", indent=1).decode())
