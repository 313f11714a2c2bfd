"""Command-line completion in bash, zsh and fish, with click's own scripts.

click completes only a program that is a single word, and `python3 -m harness` is three words. So the script defines the
function `podium`, which runs this checkout with this Python from any directory, and completes its words.

    eval "$(python3 -m harness completion bash)"     podium ev<TAB>  podium eval m<TAB>  podium check mla F<TAB>
"""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import click
from click.shell_completion import get_completion_class, shell_complete

from harness.cli.options import verbs
from harness.command import CALLER, PROGRAM

WORD, VARIABLE = PROGRAM, "_PODIUM_COMPLETE"
_FUNCTIONS = {
    "bash": f'{WORD}() {{ %s "$@"; }}',
    "zsh": f'{WORD}() {{ %s "$@"; }}',
    "fish": f"function {WORD}; %s $argv; end",
}


@verbs.command("completion")
@click.argument("shell", metavar="SHELL", type=click.Choice(list(_FUNCTIONS)))
def complete(shell: str) -> None:
    """Print a script for bash, zsh or fish that defines the command `podium`, with completion of its words.

    From any directory the command does what `python3 -m harness` does in this checkout. It is a function of the shell,
    so xargs, make and other programs do not see it. `pip install .` gives them the command.

    Example: python3 -m harness completion bash
    """
    click.echo(script(shell))


def script(shell: str) -> str:
    """Return the shell function that runs Podium, followed by click's script, changed to call that function."""
    checkout = Path(__file__).resolve().parents[2]
    run = f"PYTHONPATH={shlex.quote(str(checkout))}${{PYTHONPATH:+:$PYTHONPATH}}"
    run += f' {CALLER}={WORD} exec {shlex.quote(sys.executable)} -P -m harness "$@"'
    command = f"sh -c {shlex.quote(run)} {WORD}"
    kind = get_completion_class(shell)
    assert kind is not None
    source = kind(verbs, {}, WORD, VARIABLE).source()
    # click's script calls $1 in bash, and the program `podium` in zsh and fish. zsh also requires a program on PATH.
    asked = re.compile(rf"(\b{shell}_complete(?: COMP_\w+=\([^)]*\))*) (?:\$1|{WORD})\)")
    source = asked.sub(lambda found: f"{found[1]} {command})", source)
    source = source.replace(f"$+commands[{WORD}]", f"$+functions[{WORD}]")
    return f"{_FUNCTIONS[shell] % command}\n\n{source.strip()}\n"


def answer(instruction: str) -> int:
    """Answer the completion script while the user types. Return the exit code."""
    return shell_complete(verbs, {}, WORD, VARIABLE, instruction)
