"""Confine this process, and only then run the module that is asked for: what it imports may be a submission.

    python3 -m harness.sandbox.confined MODULE WORDS...      < policy

In the current directory, work/, the module finds what it is given. What it writes to stdout goes to a file there,
`printed`, which whoever started this reads once the process is dead; stderr stays as it is.
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
