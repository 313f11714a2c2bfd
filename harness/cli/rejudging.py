"""The verbs that judge again: replay and repro."""

from __future__ import annotations

from pathlib import Path

import click

from harness import catalog
from harness.cli.options import (
    device_option,
    json_option,
    markdown_option,
    narrate,
    narration,
    print_json,
    print_parts,
    problem_argument,
    say_what_is_spoilt,
    verbs,
    watch_over,
)
from harness.model import tolerances_met
from harness.render import colour, github
from harness.render.cases import case_list
from harness.render.fit import hanging
from harness.render.legible import legible


@verbs.command()
@problem_argument
@click.argument("file", type=click.Path(path_type=Path))
@click.argument("words", metavar="[CASE]", nargs=-1)
@click.option("--case", "named", metavar="CASE", help="The same as CASE, for consistency with other verbs.")
@click.option(
    "--seed",
    type=click.IntRange(0, 2**63 - 1),
    required=True,
    help="The seed of the inputs, from the mismatch report.",
)
@click.option(
    "--target",
    metavar="TARGET",
    help="Run the machine code for this chip in the emulator: gfx942, gfx950 or gfx1100.",
)
@device_option
@click.pass_obj
def replay(
    root: Path,
    problem: str,
    file: Path,
    words: tuple[str, ...],
    named: str | None,
    seed: int,
    target: str | None,
    device: str,
) -> int:
    """Judge FILE again on one CASE, with the inputs of a mismatch report, and if it is right once more with other
    values, as check and eval do. Nothing is timed or stored.

    CASE is in quotes, or the number of a benchmark case from 1.

    Example: python3 -m harness replay mla my.py 'batch_size=2 q_seq_len=1 kv_seq_len=128' --seed 17
    """
    from harness.judge.reply import Fault
    from harness.machine.device import detect
    from harness.verbs import replay as replaying

    case = replaying.one_case([*words, *([named] if named is not None else [])])
    task = catalog.load_problem(root, problem)
    watch_over(task)
    here = detect(root, "cpu" if target and device == "auto" else device)
    try:
        check = replaying.replay(root, task, file, case, seed, here, narrate, target)
    except Fault as fault:
        click.echo(legible(f"{fault.ending.detail or ''}\n{fault.ending.verdict.words}: {fault.ending.message}"))
        return fault.ending.verdict.exit_code
    wrong = f"{case_list([check])}\n{hanging(check.report or '')}"
    calls = f"with seed {seed}, and once more with other values"
    right = f"accepted: {check.case.label} is right {calls}, {tolerances_met([check])}"
    click.echo(colour.verdicts(legible(wrong if check.report else right)))
    return check.verdict.exit_code


@verbs.command()
@click.argument("run", metavar="RUN")
@device_option
@json_option
@markdown_option
@click.pass_obj
def repro(root: Path, run: str, device: str, as_json: bool, as_markdown: bool) -> int:
    """Judge a stored RUN again, with its source, cases, sampling and seeds, on the same kind of device.

    It shows the differences in the environment, then whether verdict and score agree within the intervals. The new run
    is stored but never ranked, because its inputs were known. RUN is named as in `show`.

    Example: python3 -m harness repro torch_bf16
    """
    from harness.render import repro as rendered
    from harness.verbs import recipe as recipes
    from harness.verbs import repro as reproduction

    recipe = recipes.take(root, run)
    say_what_is_spoilt(root, [(run, recipe.run)])
    watch_over(recipe.problem)
    here = recipes.device_for(root, recipe.run, device)
    with narration(as_json) as told:
        found = reproduction.reproduce(root, recipe, here, told)
    if as_json:
        print_json(rendered.as_json(found))
    else:
        print_parts(rendered.parts(found), as_markdown)
    level, path = "error" if found.exit_code else "notice", found.now.submission_path
    github.annotate([github.command(level, rendered.summary(found), "repro", path)])
    return found.exit_code
