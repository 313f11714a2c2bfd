"""Verbs to work with: doctor, new."""

from __future__ import annotations

from pathlib import Path

import click

from harness import catalog
from harness.cli.verbs import device_option, json_option, narrate, narration, print_json, problem_argument, verbs
from harness.errors import InfrastructureError


@verbs.command()
@click.option("--calibrate", is_flag=True, help="First measure how small a difference counts here.")
@device_option
@json_option
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
        with narration(as_json) as told:
            calibration.calibrate(root, here, told)
    facts = doctors.survey(root, here, narrate)
    if as_json:
        print_json(rendered.as_json(facts))
    else:
        click.echo(rendered.text(facts))
    return InfrastructureError.exit_code if any(fact.fatal for fact in facts) else 0


@verbs.command()
@problem_argument
@click.argument("name", metavar="NAME")
@click.pass_obj
def new(root: Path, problem: str, name: str) -> None:
    """Write submissions/PROBLEM/NAME.py, to start from: correct as it stands, with the contract in its docstring.

    Example: python -m harness new mla mine
    """
    from harness import scaffold

    click.echo(scaffold.next_steps(problem, scaffold.new(root, catalog.load_problem(root, problem), name)))
