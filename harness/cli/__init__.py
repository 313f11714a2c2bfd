"""The command line: `python -m harness VERB`. Verbs and their exit codes; what they do is elsewhere."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

import click

from harness.cli import judging, looking, working
from harness.cli.verbs import verbs
from harness.errors import PodiumError
from harness.render import github

__all__ = ["judging", "looking", "main", "verbs", "working"]

INTERRUPTED_EXIT_CODE = 130
INTERRUPTED = "interrupted: the run that was under way is not stored; what was stored before stays"
LOOKS_AGAIN_S = 0.02  # how often an interrupt that waits for an import looks whether it is done


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb; the exit code. Nothing but a bug of ours gets past this."""
    with github.obeyed_by_nobody(), _interruptible():
        return _main(arguments)


@contextmanager
def _interruptible() -> Iterator[None]:
    """Ctrl-C is a KeyboardInterrupt; in the midst of an import it waits until that is done, since torch imports numpy,
    and goes on without it, half imported, where that is interrupted. A second Ctrl-C does not wait."""
    in_main_thread = threading.current_thread() is threading.main_thread()
    if not in_main_thread or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    before = signal.signal(signal.SIGALRM, _interrupt)
    signal.signal(signal.SIGINT, _interrupt)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGALRM, before)


def _interrupt(signum: int, frame: FrameType | None) -> None:
    if not _imports(frame):
        raise KeyboardInterrupt
    if signum == signal.SIGINT and signal.getitimer(signal.ITIMER_REAL)[0]:
        os.write(2, f"{INTERRUPTED}\n".encode())
        os._exit(INTERRUPTED_EXIT_CODE)
    signal.setitimer(signal.ITIMER_REAL, LOOKS_AGAIN_S)


def _imports(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            return True
        frame = frame.f_back
    return False


def _main(arguments: Sequence[str] | None) -> int:
    try:
        code = verbs.main(args=arguments, prog_name="python -m harness", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except PodiumError as error:
        click.echo(f"error: {error}", err=True)
        github.annotate([github.command("error", str(error), "podium")])
        return error.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        return 0
    except click.ClickException as error:
        said = error.format_message().rstrip(".")
        hint = f"\n  {error.ctx.command_path} --help" if isinstance(error, click.UsageError) and error.ctx else ""
        click.echo(f"error: {said[:1].lower()}{said[1:]}{hint}", err=True)
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        click.echo(INTERRUPTED, err=True)
        return INTERRUPTED_EXIT_CODE
    except BrokenPipeError:
        sys.stderr.close()
        return 0
