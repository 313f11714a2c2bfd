"""Where files lie: first in the checkout or the current directory, then in the installed package.

    a checkout     harness/, problems/, reference/, configs/, submissions/ and results/ side by side
    installed      harness/bundled/ holds problems, reference, configs and submissions; nothing is written there

A root need not have all folders. With an installed Podium, `harness/bundled` supplies the missing ones. In a checkout,
the checkout supplies them to another root that has no configs/eval.yml. A root with a configs/eval.yml is a checkout of
its own.
"""

from __future__ import annotations

from pathlib import Path

from harness.command import ROOT, installed

BUNDLED = ROOT / "harness" / "bundled"
"""The folder in which an installed Podium keeps what a checkout has beside harness/. It does not exist in a checkout.
"""

SETTINGS = "configs/eval.yml"


def default_root() -> Path:
    """The default root: the checkout that contains this module, or the current directory for an installed Podium."""
    return Path.cwd() if installed() else ROOT


def places(root: Path) -> tuple[Path, ...]:
    """The places to look for a root's files, in order of precedence."""
    if installed():
        return (root, BUNDLED)
    return (root,) if (root / SETTINGS).exists() else tuple(dict.fromkeys((root, ROOT)))


def find(root: Path, name: str) -> Path:
    """The file or folder `name` of `root`, such as configs/eval.yml, or the bundled one. If neither exists, the path
    that it would have in `root`."""
    return next((path / name for path in places(root) if (path / name).exists()), root / name)


def mathematics(problem: Path) -> Path:
    """The directory that contains reference/, which the problem in this folder imports."""
    root = problem.parents[1]
    return find(root, "reference").parent
