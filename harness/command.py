"""How Podium is called: whether it is installed, and commands in the form that their reader types.

    typed("eval", "mla", "mine.py")     podium eval mla mine.py                       if `podium` was typed
                                        make eval PROBLEM=mla SUBMISSION=mine.py      if make runs it
                                        python3 -m harness eval mla mine.py           in a checkout otherwise
                                        podium --root ../cup eval mla mine.py         if that root was named

    page("check")                       docs/check.md in a checkout, `podium docs check` of an installed Podium

This module imports nothing of the harness: workers use it too.
"""

from __future__ import annotations

import functools
import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
"""The checkout, or the directory of packages that Podium is installed in."""

PROGRAM, MODULE = "podium", "python3 -m harness"

CALLER = "PODIUM_CALLER"
"""The environment variable in which make, and the shell function that `completion` prints, say which command was
typed."""

VARIABLES = {
    "new": ("PROBLEM", "NAME"),
    "new-problem": ("NAME",),
    "eval": ("PROBLEM", "SUBMISSION"),
    "check": ("PROBLEM", "SUBMISSION"),
    "profile": ("PROBLEM", "SUBMISSION"),
    "verify": ("PROBLEM",),
    "leaderboard": ("PROBLEM",),
    "report": ("PROBLEM",),
    "show": ("RUN",),
    "repro": ("RUN",),
    "compare": ("A", "B"),
    "problems": (),
    "doctor": (),
    "serve": (),
}
"""The verbs that are targets of make, with the make variables for their arguments."""

CLANG, NVRTC = "'ziglang>=0.15'", "nvidia-cuda-nvrtc"
"""The packages with a compiler for all of AMD's chips, and one for NVIDIA's, quoted for a shell. The clang of an older
ziglang does not know gfx950."""

OFFLINE = (CLANG, NVRTC, "tinygrad==0.14.0", "pyelftools")
"""The packages of the extra `offline` in pyproject.toml."""


_roots: list[str] = []
"""The argument of --root, while a verb runs that was given one."""


@contextmanager
def at_root(named: str | None) -> Iterator[None]:
    """Within this block `typed` names this root, in the form that was typed. None: no root was named."""
    _roots[:] = [] if named is None else [named]
    try:
        yield
    finally:
        _roots.clear()


@functools.cache
def installed() -> bool:
    """Whether this Podium runs from a wheel instead of a checkout: then its metadata lies beside it. A worker that may
    read no bundled file can see that too."""
    return any(ROOT.glob("podium-*.dist-info"))


def called() -> str:
    """The command that was typed: `podium`, `make` or `python3 -m harness`. A program that imports Podium gets the
    command that exists on its machine."""
    caller, program = os.environ.get(CALLER), Path(sys.argv[0] if sys.argv else "")
    if caller in (PROGRAM, "make"):
        return caller
    if program.name == PROGRAM:
        return PROGRAM
    by_module = program.name == "__main__.py" and program.parent.name == "harness"
    return PROGRAM if installed() and not by_module else MODULE


def typed(verb: str, *words: str) -> str:
    """The command for `verb` with these words, options last, quoted for a shell."""
    return _line([] if "--help" in words else _roots, verb, words)


def page(name: str) -> str:
    """Where to read the page `name` of docs/: its path in a checkout, else the verb that prints it."""
    return f"`{called()} docs {name}`" if installed() else f"docs/{name}.md"


def translated(text: str) -> str:
    """Return `text` with each `Example: python3 -m harness ...` at the end of a line, and each page of docs/, in the
    form that the reader types."""
    text = re.sub(r"docs/([a-z-]+)\.md", lambda found: page(found[1]), text)
    head, mark, line = text.partition(f"Example: {MODULE} ")
    if not mark or called() == MODULE:
        return text
    example, *rest = line.split("\n", 1)
    verb, *words = shlex.split(example)
    return "\n".join([f"{head}Example: {_line([], verb, words)}", *rest])


def how_to_get_offline() -> str:
    """The command that installs the compilers for inline HIP and CUDA that pip has, and the emulator's dependencies."""
    return pip_install(*OFFLINE) if installed() else "make setup-offline"


def pip_install(*packages: str) -> str:
    """The command that installs these packages for the Python that judges."""
    return f"{_pip() if installed() else '.venv/bin/python -m pip'} install {' '.join(packages)}"


def _pip() -> str:
    """`pip` if the shell finds this Python's, else the path of this Python with `-m pip`."""
    found = shutil.which("pip")
    same = found is not None and Path(found).parent == Path(sys.executable).parent
    return "pip" if same else f"{shlex.quote(sys.executable)} -m pip"


def _line(roots: Sequence[str], verb: str, words: Sequence[str]) -> str:
    by = called()
    if by == "make" and verb in VARIABLES and not roots:
        return _of_make(verb, words)
    root = ["--root", *roots] if roots else []
    return " ".join([MODULE if by == "make" else by, shlex.join([*root, verb, *words])])


def _of_make(verb: str, words: Sequence[str]) -> str:
    options = next((at for at, word in enumerate(words) if word.startswith("-")), len(words))
    names, values = VARIABLES[verb], list(words[:options])
    if len(values) > len(names) > 0:  # SUBMISSION is a list
        values[len(names) - 1 :] = [" ".join(values[len(names) - 1 :])]
    given = [f"{name}={shlex.quote(value)}" for name, value in zip(names, values)]
    if options < len(words):
        given.append(f"ARGS={shlex.quote(shlex.join(words[options:]))}")
    return " ".join(["make", verb, *given])
