"""Python's byte code for what pip installs: made beside pip and on all processors.

pip itself makes it one file after the other, and only when all packages are unpacked. A package counts as unpacked once
its INSTALLER is there, which pip writes behind the last of its files.

    with Compilers(python) as compilers:
        while pip is at work:
            compilers.look()

The compilers end when their lists of files do, so with this process whatever becomes of it.
"""

import csv
import glob
import os
import re
import subprocess
from types import TracebackType
from typing import Iterator, List, Optional, Type

COMPILER = r"""
import compileall, os, sys
os.nice(10)  # pip comes first
for line in sys.stdin:
    compileall.compile_file(line.rstrip("\n"), quiet=2)
"""

MOST = 8
"""Compilers at once."""

UNUSED = re.compile(r"(^|/)tests?/")
"""Packages' own tests, a quarter of all files: whoever imports one has Python compile it then."""


class Compilers:
    """Processes of `python`, the Python of `venv`, that compile what is installed there from now on."""

    def __init__(self, venv: str, python: str) -> None:
        self._folders = glob.glob(os.path.join(glob.escape(venv), "lib", "python3*", "site-packages"))
        self._known = set(self._installed())
        self._next = 0
        command = [python, "-I", "-c", COMPILER]
        self._processes = [
            # They inherit the lock of the installation, as pip does.
            subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, close_fds=False)
            for _ in range(min(os.cpu_count() or 1, MOST))
        ]

    def look(self) -> None:
        """Have them compile the packages that were unpacked since the last look."""
        for package in sorted(set(self._installed()) - self._known):
            self._known.add(package)
            for path in _sources(package):
                self._hand_on(path)

    def _installed(self) -> Iterator[str]:
        """The metadata's folder of each package that is unpacked."""
        for folder in self._folders:
            for installer in glob.glob(os.path.join(glob.escape(folder), "*.dist-info", "INSTALLER")):
                yield os.path.dirname(installer)

    def _hand_on(self, path: str) -> None:
        """To each in turn. What none compiles is compiled when it is imported."""
        process = self._processes[self._next % len(self._processes)]
        self._next += 1
        try:
            assert process.stdin is not None
            process.stdin.write(os.fsencode(path) + b"\n")
            process.stdin.flush()
        except BrokenPipeError:
            pass

    def __enter__(self) -> "Compilers":
        return self

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        """Wait until all is compiled; after an error nothing more is."""
        for process in self._processes:
            if kind is not None:
                process.kill()
            try:
                assert process.stdin is not None
                process.stdin.close()
            except BrokenPipeError:
                pass
        for process in self._processes:
            process.wait()


def _sources(package: str) -> List[str]:
    """The Python files that a package's RECORD names and somebody may import; none where that cannot be read."""
    folder = os.path.dirname(package)
    try:
        with open(os.path.join(package, "RECORD"), encoding="utf-8", newline="") as record:
            names = [row[0] for row in csv.reader(record) if row]
    except (OSError, ValueError, csv.Error):
        return []
    return [os.path.join(folder, name) for name in names if name.endswith(".py") and not UNUSED.search(name)]
