"""The directory of one evaluation, in $TMPDIR:

podium-XXXXXXXX/     see harness.temporary
  submission.py      the submission as it was read; the worker may not write to it
  work/              the worker's: its home, its caches, its temporary files
  shm/               what it sees as /dev/shm, where it is in a mount namespace: not in work/, where it could lay a link
                     in its place, which the next worker would be given
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from harness.temporary import temporary_folder


@contextlib.contextmanager
def scratch(source: bytes, uid: int | None = None) -> Iterator[Path]:
    """A fresh directory holding the submission `source`, its work/ owned by `uid`; gone afterwards. Raises OSError."""
    with temporary_folder() as folder:
        (folder / "submission.py").write_bytes(source)
        (folder / "submission.py").chmod(0o444)
        for path in (folder / "work", folder / "shm"):
            path.mkdir(mode=0o700)
            if uid is not None:
                os.chown(path, uid, uid)
        folder.chmod(0o711)  # another user's worker must get through
        yield folder


def give(folder: Path, source: bytes) -> None:
    """Write `source` to a directory made by `scratch`: into the file that is there, which a worker may have mounted.
    Raises OSError."""
    path = folder / "submission.py"
    path.chmod(0o644)
    path.write_bytes(source)
    path.chmod(0o444)
