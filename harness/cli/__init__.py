"""The command line: `python3 -m harness VERB`. This room defines the verbs, their options and exit codes. `verbs` does
the work.

    judging      eval (watching: --watch), verify
    rejudging    replay, repro
    working      doctor, new, forget, check, profile, import
    looking      leaderboard, show, compare, report, export, problems, schema, docs
    serving      serve, user, submit, status
    cluster      node, cluster
    completion   completion
    options      the group of all verbs, the options that several verbs share, and the help on exit codes
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from harness.cli import cluster, completion, judging, looking, rejudging, serving, working
from harness.cli.options import verbs
from harness.command import MODULE, called, typed
from harness.errors import InfrastructureError, PodiumError, UsageError
from harness.render import github
from harness.render.legible import legible

__all__ = ["cluster", "completion", "judging", "looking", "main", "rejudging", "serving", "verbs", "working"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb and return its exit code. Every exception becomes an exit code, except Ctrl-C and bugs of Podium."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    if asked := os.environ.get(completion.VARIABLE):
        return completion.answer(asked)
    with github.without_commands():
        try:
            _check_where_this_is()
            with verbs.make_context(_name(), given) as context:  # click's own main would catch Ctrl-C
                code = verbs.invoke(context)
                return code if isinstance(code, int) else 0
        except click.exceptions.Exit as done:  # --help was printed
            return done.exit_code
        except PodiumError as error:
            click.echo(f"error: {legible(str(error))}", err=True)
            github.annotate([github.command("error", str(error), "podium")])
            return error.exit_code
        except click.exceptions.NoArgsIsHelpError as error:
            click.echo(error.format_message())
            return 0
        except click.ClickException as error:
            said = _plain(error.format_message().rstrip("."))
            hint = f"\n  {_hint(error, error.ctx)}" if isinstance(error, click.UsageError) and error.ctx else ""
            click.echo(f"error: {legible(said[:1].lower() + said[1:])}{hint}", err=True)
            return error.exit_code
        except BrokenPipeError:
            sys.stderr.close()
            return 0
        except OSError as error:
            if error.errno == errno.ENAMETOOLONG:  # any word that may be a path: pathlib raises it even in exists()
                click.echo(f"error: no file can have a name as long as {legible(Path(error.filename).name)}", err=True)
                return UsageError.exit_code
            if not _stdout_is_full():
                raise
            with contextlib.suppress(OSError):  # stderr may be the same full file
                click.echo(f"error: stdout cannot be written: {error.strerror}", err=True)
            return InfrastructureError.exit_code


def _check_where_this_is() -> None:
    """Raise InfrastructureError if the current directory was deleted: relative paths would mean nothing."""
    try:
        os.getcwd()
    except OSError:
        raise InfrastructureError("the current directory is gone", "cd to one that is there") from None


def _name() -> str:
    """The program's name in usage lines. A target of make takes other words than its verb, so make shows the module."""
    return MODULE if called() == "make" else called()


def _plain(said: str) -> str:
    """What click says of a number, in words of people who do not know its types."""
    said = re.sub(r"is not a valid integer( range)?$", "is not a whole number", said)
    return re.sub(r"is not a valid float( range)?$", "is not a number", said)


def _hint(error: click.UsageError, context: click.Context) -> str:
    """The command that explains the verb. Before it stand the words that the verb takes, if they are not as typed, or
    what a missing option is."""
    if isinstance(error, click.MissingParameter) and isinstance(error.param, click.Option) and error.param.help:
        return f"{error.param.help} {_help(context)}"
    if isinstance(error, click.MissingParameter) or error.message.startswith("Got unexpected extra argument"):
        words = [word for word in context.command.collect_usage_pieces(context) if word != "[OPTIONS]"]
        return f"{context.info_name} takes {' '.join(words) or 'no words'}: {_help(context)}"
    return _help(context)


def _help(context: click.Context) -> str:
    """The command that explains the verb, or all verbs if none was named."""
    return typed(context.info_name, "--help") if context.parent and context.info_name else f"{_name()} --help"


def _stdout_is_full() -> bool:
    """Whether stdout can no longer be written. If so, redirect it to /dev/null."""
    try:
        print(flush=True)
    except OSError:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)  # Python flushes its buffers at exit
        os.close(null)
        return True
    return False
