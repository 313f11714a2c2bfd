"""`python3 -m harness VERB`, also with a Python that lacks the dependencies: then the checkout's .venv takes over."""

import gc
import os
import sys
from pathlib import Path

from harness import interrupts


def main() -> int:
    try:
        with interrupts.interruptible():  # from here on, since the imports are the longest part of many verbs
            try:
                from harness.cli import main as run
            except ModuleNotFoundError as error:
                interrupts.no_longer_wait()
                missing = error.name
            else:
                interrupts.no_longer_wait()
                code = run()
                gc.freeze()  # Python looks for garbage as it ends: with torch imported a third of a second
                return code
    except KeyboardInterrupt:
        print(interrupts.MESSAGE, file=sys.stderr)
        return interrupts.EXIT_CODE
    here = Path(__file__).resolve().parents[1] / ".venv" / "bin" / "python"
    if here.exists() and Path(sys.prefix).resolve() != here.parents[1]:
        os.execv(here, [str(here), "-m", "harness", *sys.argv[1:]])
    print(f"error: this Python lacks {missing}: `make problems` installs it in .venv", file=sys.stderr)
    return 30


if __name__ == "__main__":
    sys.exit(main())
