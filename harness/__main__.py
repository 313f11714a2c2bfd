"""`python3 -m harness VERB`, or `podium VERB`. If a dependency is missing, the checkout's .venv takes over."""

import gc
import os
import sys
from pathlib import Path

from harness.command import installed

EXIT_INFRASTRUCTURE = 30
EXIT_INTERRUPTED = 130


def main() -> int:
    """Run the command and return its exit code. Ctrl-C ends every verb here, but for `--watch` it is the normal end."""
    try:
        try:
            from harness import custody
            from harness.cli import main as run
        except ModuleNotFoundError as error:
            return take_over(error.name)
        with custody.as_command():
            code = run()
        custody.over(code)
        custody.leave(code)
        gc.freeze()  # at its end Python collects garbage, which takes a third of a second with torch
        return code
    except KeyboardInterrupt:
        print("\ninterrupted: what was unfinished is not stored, earlier runs are kept", file=sys.stderr)
        return EXIT_INTERRUPTED
    finally:
        clear_interrupt_flag()


def clear_interrupt_flag() -> None:
    """Let this process end with its own exit code. If Ctrl-C interrupts the `exec` of a string, as when a dataclass is
    made, CPython ends `python3 -m` by SIGINT although the KeyboardInterrupt was caught. Any further `exec` of a string
    clears its flag (run_eval_code_obj of Python/pythonrun.c)."""
    exec("")


def take_over(missing: str | None) -> int:
    here = Path(__file__).resolve().parents[1] / ".venv" / "bin" / "python"
    if here.exists() and Path(sys.prefix).resolve() != here.parents[1]:
        os.execv(here, [str(here), "-m", "harness", *sys.argv[1:]])
    remedy = f"`pip install {missing}`" if installed() else "`make problems` installs it in .venv"
    print(f"error: this Python lacks {missing}: {remedy}", file=sys.stderr)
    return EXIT_INFRASTRUCTURE


if __name__ == "__main__":
    sys.exit(main())
