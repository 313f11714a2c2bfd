"""Finds the processes around a submission, from outside."""

import contextlib
import os
from pathlib import Path

from harness.sandbox.footprint import descendants, process_table

NAMES = {"podium-keeper", "podium-waiter", "podium-worker"}


def name_of(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()
    return ""


def below(pid: int, *names: str) -> set[int]:
    """The living processes beneath `pid` with one of `names` (default: any of NAMES)."""
    found = descendants(pid, process_table())
    return {young for young in found if name_of(young) in (names or NAMES) and alive(young)}


def working_in(root: Path) -> list[int]:
    """Keepers, waiters and workers whose scratch directory is beneath `root`."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if name_of(int(entry.name)) in NAMES and os.readlink(entry / "cwd").startswith(f"{root}/tmp/podium-"):
                found.append(int(entry.name))
    return found


def alive(pid: int) -> bool:
    """True if the process can still compute: it exists and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
