"""The output of `eval --watch`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from harness.catalog import load_submission
from harness.catalog.choice import choose
from harness.cli.options import narrate
from harness.model import Problem
from harness.render import colour


def watch(
    root: Path,
    problem: Problem,
    file: Path,
    device: str,
    named: Sequence[str],
    words: Sequence[str],
    stop_at_first: bool,
) -> int:
    """Watch until Ctrl-C and return the exit code. `named` and `words` choose cases, as in `eval`. Raises
    UsageError."""
    from harness.machine.device import detect
    from harness.render import watch as rendered
    from harness.verbs import watch as verb
    from harness.verbs.forewarning import of_interpreting

    whole, here = problem, detect(root, device)
    if named or words:
        problem = choose(problem, here.kind, named, words)
        if here.kind == "cpu":
            problem, line = of_interpreting(root, whole, problem, load_submission(problem, file))
            if line:
                narrate(line)
    narrate(f"watching {file}: judged at each save, nothing is ranked or stored; Ctrl-C ends it")
    try:
        verb.watch(
            root,
            problem,
            file,
            here,
            lambda feedback: click.echo(colour.verdicts(rendered.text(feedback))),
            stop_at_first=stop_at_first,
        )
    except KeyboardInterrupt:
        narrate("\nstopped watching")
    return 0
