"""Compile the packages that pip installs to byte code, beside pip and on all processors.

pip itself compiles one file after the other, and only when all packages are unpacked. A package counts as unpacked when
its INSTALLER exists, which pip writes after the last of its files.

    with Compilers(venv, python) as compilers:
        while pip is at work:
            compilers.look()

The compilers end when their input pipes close, so they end with this process in any case.
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
"""The most compilers at once."""

UNUSED = re.compile(r"(^|/)tests?/")
"""The packages' own tests, a quarter of all files. Python compiles such a file if it is ever imported."""


class Compilers:
    """Processes of `python`, the Python of `venv`, that compile the packages installed there from now on."""

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
        """Pass on the packages that were unpacked since the last look."""
        for package in sorted(set(self._installed()) - self._known):
            self._known.add(package)
            for path in _sources(package):
                self._hand_on(path)

    def _installed(self) -> Iterator[str]:
        """Yield the metadata folder of each unpacked package."""
        for folder in self._folders:
            for installer in glob.glob(os.path.join(glob.escape(folder), "*.dist-info", "INSTALLER")):
                yield os.path.dirname(installer)

    def _hand_on(self, path: str) -> None:
        """Pass a file to the next compiler in turn. A file that none compiles is compiled when it is imported."""
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
        """Wait until everything is compiled. After an error, stop the compilers."""
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
    """Return the Python files in a package's RECORD that may be imported, or none if the RECORD cannot be read."""
    folder = os.path.dirname(package)
    try:
        with open(os.path.join(package, "RECORD"), encoding="utf-8", newline="") as record:
            names = [row[0] for row in csv.reader(record) if row]
    except (OSError, ValueError, csv.Error):
        return []
    return [os.path.join(folder, name) for name in names if name.endswith(".py") and not UNUSED.search(name)]
