"""The group of all verbs, and the parts that verbs share: options, narration and JSON.

stdout carries the result, stderr the narration. `--json` prints exactly one JSON document. `--markdown` prints the
terminal's tables as Markdown.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource
from pydantic_core import to_json

from harness import __version__, catalog, custody
from harness.catalog import imported
from harness.command import at_root, called, translated
from harness.errors import PodiumError, UsageError, did_you_mean
from harness.model import Problem, Run, Verdict
from harness.progress import Narrate
from harness.render import colour, document, github
from harness.render.legible import legible

_ALWAYS = "2 usage, 30 infrastructure, 130 interrupted"
_VERDICTS = ", ".join(f"{each.exit_code} {each.words}" for each in Verdict if 10 <= each.exit_code < 20)
_EXIT_CODES = {
    "eval": f"0 accepted, {_VERDICTS} (of several files the first that is not accepted), {_ALWAYS} (--watch: 0)",
    "check": f"0 accepted, {_VERDICTS}, {_ALWAYS}",
    "replay": f"0 accepted, {_VERDICTS}, {_ALWAYS}",
    "verify": f"0 every control got its verdict, 10 one did not, {_ALWAYS}",
    "compare": f"0 compared, 20 slower than --fail-if-slower allows, the verdict's where one fails in a duel or, with "
    f"--fail-if-slower, has no score ({_VERDICTS}), {_ALWAYS}",
    "repro": f"0 reproduced or it cannot be told, 20 another score, another verdict's ({_VERDICTS}), {_ALWAYS}",
    "submit": f"0 accepted, {_VERDICTS}, {_ALWAYS}",
    "doctor": "0 this machine can judge, 2 usage, 30 it cannot, 130 interrupted",
    "verbs": f"0 accepted or done, {_VERDICTS}, 20 slower or not reproduced, {_ALWAYS}",
}
"""The exit codes in a verb's help. Other verbs have `0 done` and the codes of `_ALWAYS`."""


_MAY_BE_EMPTY = ("--reason",)
"""Options that may be empty. An empty reason opens an account in `user block`; `user remove` has its own message."""


class _Verb(click.Command):
    """A verb whose help shows the example as the reader would type it and ends with the exit codes.

    An empty word is refused: it comes from a shell variable that is not set and would name nothing.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        for before, word in zip(["", *args], args, strict=False):
            option, sign, value = word.partition("=") if word.startswith("--") else (before, "=", word)
            if sign and not value and not ctx.resilient_parsing and option not in _MAY_BE_EMPTY:
                what = f"{option} is given nothing" if option.strip("-") else "one of the words is empty"
                raise UsageError(f"{self.name}: {what}", "an empty variable of the shell leaves such a word")
        return super().parse_args(ctx, args)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        codes = _EXIT_CODES.get(self.name or "", f"0 done, {_ALWAYS}")
        of_make = "; make turns each but 0 into 2" if called() == "make" else ""
        formatter.write_paragraph()
        formatter.write_text(f"Exit codes: {codes}{of_make}.")

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        said, self.help = self.help, translated(self.help or "")
        try:
            super().format_help_text(ctx, formatter)
        finally:
            self.help = said


class _Verbs(_Verb, click.Group):
    """A group that suggests the nearest verb when one is misspelt."""

    command_class = _Verb
    group_class = type  # subgroups are of this class, too

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return click.Group.parse_args(self, ctx, args)  # the verbs check their own words

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        unknown = args and self.get_command(ctx, args[0]) is None and not args[0].startswith("-")
        if unknown and not ctx.resilient_parsing:  # completion refuses nothing
            raise UsageError(f"there is no verb {args[0]!r}", did_you_mean(args[0], self.commands))
        return super().resolve_command(ctx, args)


@click.group(cls=_Verbs, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.option(
    "--root",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    default=catalog.default_root,
    help="The directory that holds problems/, submissions/, configs/ and results/ (default: this checkout; of an "
    "installed Podium the current directory, and what that lacks came with it).",
)
@click.version_option(__version__, prog_name="Podium", message="%(prog)s %(version)s")
@click.pass_context
def verbs(context: click.Context, root: Path) -> None:
    """Podium judges attention kernels, times them and ranks them.

    Example: python3 -m harness eval mla submissions/mla/torch_bf16.py
    """
    context.obj = root
    if context.get_parameter_source("root") is ParameterSource.COMMANDLINE:
        context.with_resource(at_root(str(root)))


def _problems(context: click.Context, parameter: click.Parameter, begun: str) -> list[str]:
    """Complete PROBLEM for a shell."""
    root = context.find_root().params.get("root")  # None if it is not a directory
    if root is None:
        return []
    with contextlib.suppress(PodiumError):
        return [name for name in (*catalog.problem_names(root), *imported.paths(root)) if name.startswith(begun)]
    return []


def _devices(context: click.Context, parameter: click.Parameter, begun: str) -> list[str]:
    return [name for name in ("auto", "cpu", "cuda") if name.startswith(begun)]


problem_argument = click.argument("problem", metavar="PROBLEM", shell_complete=_problems)
optional_problem_argument = click.argument("problem", metavar="[PROBLEM]", required=False, shell_complete=_problems)


_FORMS = {"as_json": "--json", "as_markdown": "--markdown", "as_csv": "--csv"}


def _one_form(context: click.Context, parameter: click.Parameter, asked: bool) -> bool:
    both = [word for name, word in _FORMS.items() if name == parameter.name or context.params.get(name)]
    if asked and len(both) > 1:
        raise UsageError(f"{both[0]} and {both[1]} cannot be combined", "give one of them")
    return asked


def _in_a_directory(context: click.Context, parameter: click.Parameter, path: Path | None) -> Path | None:
    """Refuse a FILE that cannot be written before the judging, which takes minutes."""
    if path is not None and not path.parent.is_dir():
        raise UsageError(f"{path} cannot be written: {path.parent} is no directory", "name another file with --junit")
    return path


json_option = click.option(
    "--json", "as_json", is_flag=True, callback=_one_form, help="Print exactly one JSON document."
)
markdown_option = click.option(
    "--markdown", "as_markdown", is_flag=True, callback=_one_form, help="Print Markdown, for a page or a comment."
)
csv_option = click.option(
    "--csv", "as_csv", is_flag=True, callback=_one_form, help="Print CSV, for a spreadsheet or a script."
)
junit_option = click.option(
    "--junit",
    type=click.Path(path_type=Path, dir_okay=False, writable=True),
    callback=_in_a_directory,
    metavar="FILE",
    help="Also write the cases and what is wrong with them to FILE, as JUnit XML.",
)
cases_option = click.option(
    "--case",
    "named",
    multiple=True,
    metavar="CASE",
    help="Only this case: a benchmark case's number from 1, or any case in quotes. Any number of times.",
)
words_option = click.option(
    "-k",
    "words",
    multiple=True,
    metavar="TEXT",
    help="Only cases whose description contains TEXT; with several -k it must contain all. A number matches whole: 1 "
    "is not in 16.",
)
stop_option = click.option("-x", "stop_at_first", is_flag=True, help="Stop at the first test case that is wrong.")
device_option = click.option(
    "--device",
    default="auto",
    shell_complete=_devices,
    help="cpu, cuda, cuda:1 or auto (default): the GPU if there is one, else the CPU.",
)


def watch_over(problem: Problem) -> None:
    """Guard against foreign code that ends the process silently (`custody`). Call this before torch is imported."""
    if problem.foreign is not None:
        custody.watched(problem.foreign.path)


def narrate(line: str) -> None:
    click.echo(legible(line), err=True)


@contextlib.contextmanager
def narration(as_json: bool) -> Iterator[Narrate]:
    """Yield the receiver of progress messages: a bar on a terminal, else lines on stderr. rich, which draws the bar, is
    slow to import, so lines do without it."""
    if as_json or not sys.stderr.isatty():
        yield narrate
        return
    from harness.render import progress

    if not progress.drawable():
        yield narrate
        return
    with progress.bar() as shown:
        yield shown


def say_what_is_left_alone(faults: Sequence[tuple[str, str]]) -> None:
    """On stderr, where the result has no place for what lies in results/ and is no run."""
    from harness.render.lists import left_alone

    for part in left_alone(faults):
        click.echo(document.text([part]), err=True)


def say_what_is_spoilt(root: Path, named: Iterable[tuple[str, Run]]) -> None:
    """Say on stderr which unreadable files might otherwise stand for one of these names."""
    from harness.verbs import show

    say_what_is_left_alone(list(dict.fromkeys(fault for name, run in named for fault in show.spoilt(root, name, run))))


def print_json(document: Any) -> None:
    # JSON has no infinity: it is printed as the string "Infinity", as in the run files.
    text = to_json(document, inf_nan_mode="strings", indent=1).decode()
    # Escape #, so that a workflow's runner finds no command in the output. The strings stay the same.
    click.echo(text.replace("#", r"\u0023") if github.wanted() else text)


def print_parts(parts: Iterable[document.Part], as_markdown: bool) -> None:
    parts = list(parts)
    click.echo(document.markdown(parts) if as_markdown else colour.verdicts(document.text(parts)))
    if github.wanted():
        github.summarise(document.markdown(parts))
