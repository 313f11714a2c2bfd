"""The directory of one evaluation, in $TMPDIR:

podium-XXXXXXXX/     see harness.temporary
  submission.py      the submission as it was read; the worker may not write to it
  work/              the worker's: its home, its caches, its temporary files
  shm/               mounted as its /dev/shm, if it has a mount namespace; not in work/, where the worker could
                     replace it by a link, which the next worker would get
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from harness.model.isolation import held
from harness.temporary import temporary_folder


@contextlib.contextmanager
def scratch(source: bytes, uid: int | None = None) -> Iterator[Path]:
    """Yield a fresh directory with the submission `source` and a work/ owned by `uid`. It is removed afterwards, and
    until then nothing else gets `uid`. Raises OSError."""
    with held(uid), temporary_folder() as folder:
        (folder / "submission.py").write_bytes(source)
        (folder / "submission.py").chmod(0o444)
        for path in (folder / "work", folder / "shm"):
            path.mkdir(mode=0o700)
            if uid is not None:
                os.chown(path, uid, uid)
        folder.chmod(0o711)  # a worker of another user must be able to pass
        yield folder


def give(folder: Path, source: bytes) -> None:
    """Write `source` to a directory made by `scratch`, into the existing file: a worker may have mounted it. Raises
    OSError."""
    path = folder / "submission.py"
    path.chmod(0o644)
    path.write_bytes(source)
    path.chmod(0o444)
