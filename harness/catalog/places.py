"""Where files lie: those of a checkout or of the current directory, then those that came with an installed Podium.

    a checkout     harness/, problems/, reference/, configs/, submissions/ and results/ side by side
    installed      harness/bundled/ holds problems, reference, configs and submissions; nothing is written there

A root need not have them all: what it lacks is taken from `harness/bundled`, where that is. In a checkout another root
that has no configs/eval.yml takes it from the checkout; one that has is a checkout of its own.
"""

from __future__ import annotations

from pathlib import Path

from harness.command import ROOT, installed

BUNDLED = ROOT / "harness" / "bundled"
"""Where an installed Podium has what a checkout has beside harness/; in a checkout it is not there."""

SETTINGS = "configs/eval.yml"


def default_root() -> Path:
    """The root, unless another is named: the checkout that this module lies in, of an installed Podium the current
    directory."""
    return Path.cwd() if installed() else ROOT


def places(root: Path) -> tuple[Path, ...]:
    """Where to look for a root's files, first those that win."""
    if installed():
        return (root, BUNDLED)
    return (root,) if (root / SETTINGS).exists() else tuple(dict.fromkeys((root, ROOT)))


def find(root: Path, name: str) -> Path:
    """The file or folder `name` of `root`, such as configs/eval.yml, or the bundled one; where neither is, the path
    that it would have in `root`."""
    return next((path / name for path in places(root) if (path / name).exists()), root / name)


def mathematics(problem: Path) -> Path:
    """The directory that holds reference/, which the problem in this folder imports."""
    root = problem.parents[1]
    return find(root, "reference").parent
