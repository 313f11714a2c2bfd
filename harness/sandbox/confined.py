"""Confine this process first, and then run a module: its imports may include a submission.

    python3 -m harness.sandbox.confined MODULE WORDS...      < policy

The module finds its inputs in the current directory, work/. Its stdout goes to a file there, `printed`, which the judge
reads once the process is dead. stderr is unchanged.
"""

import os
import runpy
import sys

from harness.sandbox.confinement import confine_as_told

PRINTED = "printed"


def main() -> None:
    confine_as_told()
    printed = os.open(PRINTED, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.dup2(printed, 1)
    os.close(printed)
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
