"""A problem's files, packed for another machine and named by their hash.

    pack ─► bytes of a tar file, the same for the same files ─► sha256 ─► unpack: a root of its own in the node's cache

What is there already is not unpacked again, if it still has its hash: a file that is missing or changed would change
verdicts, or lose every job that comes to this node. The hash is checked before anything is read.
"""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from harness.catalog import places
from harness.errors import InfrastructureError, UsageError
from harness.model import Problem

_LEFT_OUT = {"__pycache__", "controls"}


def check(problem: Problem) -> None:
    """Raises UsageError for a problem in another project's form, whose files lie elsewhere."""
    if problem.foreign is not None:
        raise UsageError(
            f"{problem.name} is in another project's form: a cluster judges problems of problems/",
            "leave out --cluster",
        )


def pack(root: Path, problem: Problem) -> bytes:
    """The files that judging `problem` takes: its folder, reference/, configs/ and its baselines, uncompressed.

    Raises as `check`.
    """
    check(problem)
    return _packed(_files(root, problem))


def _packed(files: Iterable[tuple[str, Path]]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, path in sorted(files):
            content = path.read_bytes()
            entry = tarfile.TarInfo(name)  # neither owner nor time: the same files have the same hash
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def sha256_of(parcel: bytes) -> str:
    return hashlib.sha256(parcel).hexdigest()


def cache() -> Path:
    """Where a node keeps what was unpacked."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "podium" / "parcels"


def unpack(sha256: str, fetch: Callable[[], bytes], folder: Path | None = None) -> Path:
    """The root that the parcel of this hash holds; `fetch` is asked for it where it is not there yet or was damaged.

    Raises InfrastructureError where it has another hash or cannot be written.
    """
    folder = folder or cache()
    there = folder / sha256
    if _holds(there, sha256):
        return there
    parcel = fetch()
    if sha256_of(parcel) != sha256:
        raise InfrastructureError(f"the problem's files arrived spoilt: their sha256 is not {sha256[:12]}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(dir=folder))
        try:
            with tarfile.open(fileobj=io.BytesIO(parcel)) as tar:
                tar.extractall(fresh, filter="data")
            fresh.chmod(0o755)
            if there.is_dir() and not _holds(there, sha256):
                there.rename(fresh.with_suffix(".spoilt"))
                shutil.rmtree(fresh.with_suffix(".spoilt"), ignore_errors=True)
            fresh.rename(there)
        except OSError:
            shutil.rmtree(fresh, ignore_errors=True)
            if not _holds(there, sha256):  # else another job was quicker
                raise
    except OSError as error:
        raise InfrastructureError(f"the problem's files cannot be written to {folder}: {error.strerror}") from None
    return there


def _holds(there: Path, sha256: str) -> bool:
    """Whether this folder has what the parcel of this hash holds, and nothing else that judging reads."""
    try:
        return there.is_dir() and sha256_of(_packed(_unpacked(there))) == sha256
    except OSError:
        return False


def _unpacked(there: Path) -> Iterator[tuple[str, Path]]:
    for name in ("problems", "reference", "configs", "submissions"):
        for path in (there / name).rglob("*"):
            inside = path.relative_to(there)
            if path.is_file() and not _LEFT_OUT & set(inside.parts):
                yield inside.as_posix(), path


def _files(root: Path, problem: Problem) -> Iterator[tuple[str, Path]]:
    """Each file with its name in the parcel."""
    for name in (f"problems/{problem.name}", "reference", "configs"):
        top = places.find(root, name)
        for path in top.rglob("*"):
            inside = path.relative_to(top)
            if path.is_file() and not _LEFT_OUT & set(inside.parts):
                yield f"{name}/{inside.as_posix()}", path
    for baseline in problem.baselines:
        name = f"submissions/{problem.name}/{baseline}.py"
        path = places.find(root, name)
        if path.is_file():
            yield name, path
