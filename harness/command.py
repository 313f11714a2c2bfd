"""How Podium is called: whether it is installed, and a command in the words of whoever reads it.

    typed("eval", "mla", "mine.py")     podium eval mla mine.py                       where `podium` was typed
                                        make eval PROBLEM=mla SUBMISSION=mine.py      where make runs it
                                        python3 -m harness eval mla mine.py           in a checkout otherwise
                                        podium --root ../cup eval mla mine.py         where that root was named

    page("check")                       docs/check.md in a checkout, `podium docs check` of an installed Podium

Imports nothing of the harness: workers use it as well.
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
"""The environment variable in which make, and the function that `completion` prints, say what was typed."""

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
"""The verbs that are targets of make, and the variables that stand there for a verb's words."""

OFFLINE = ("ziglang", "nvidia-cuda-nvrtc", "tinygrad==0.14.0", "pyelftools")
"""What pyproject.toml calls `offline`."""


_roots: list[str] = []
"""What stood behind --root, while a verb is at work that was given one."""


@contextmanager
def at_root(named: str | None) -> Iterator[None]:
    """Within it `typed` names this root, in the words that were typed. None: none was."""
    _roots[:] = [] if named is None else [named]
    try:
        yield
    finally:
        _roots.clear()


@functools.cache
def installed() -> bool:
    """Whether this Podium runs from a wheel, and not from a checkout: its metadata lies beside it. A worker that may
    read no bundled file sees that as well."""
    return any(ROOT.glob("podium-*.dist-info"))


def called() -> str:
    """`podium`, `make` or `python3 -m harness`: what was typed. A program that imports Podium is told of the command
    that it has."""
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
    """Where the page `name` of docs/ is read: its path in a checkout, else the verb that prints it."""
    return f"`{called()} docs {name}`" if installed() else f"docs/{name}.md"


def translated(text: str) -> str:
    """`text` with each `Example: python3 -m harness ...` at the end of a line, and each page of docs/, in the reader's
    words."""
    text = re.sub(r"docs/([a-z-]+)\.md", lambda found: page(found[1]), text)
    head, mark, line = text.partition(f"Example: {MODULE} ")
    if not mark or called() == MODULE:
        return text
    example, *rest = line.split("\n", 1)
    verb, *words = shlex.split(example)
    return "\n".join([f"{head}Example: {_line([], verb, words)}", *rest])


def how_to_get_offline() -> str:
    """What brings the compilers for inline HIP and CUDA, as far as pip has them, and what the emulator needs."""
    return pip_install(*OFFLINE) if installed() else "make setup-offline"


def pip_install(*packages: str) -> str:
    """The command that adds these packages to the Python that judges."""
    return f"{_pip() if installed() else '.venv/bin/python -m pip'} install {' '.join(packages)}"


def _pip() -> str:
    """`pip` where the shell finds this Python's, else the way that names this Python."""
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
