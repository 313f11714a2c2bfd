"""The layers of isolation and the names of their combinations, strongest first.

bubblewrap+landlock   namespaces and Landlock: two independent fences
bubblewrap            namespaces
landlock              Landlock and seccomp: names of other processes can be seen, none of their data can be read
process               limits and clean-up alone: no isolation
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

FIRST_FREE_UID, FREE_UIDS = 60578, 606
"""User ids that systemd.io/UIDS-GIDS lists as "unused": no system assigns them."""

_recent: deque[int] = deque(maxlen=FREE_UIDS // 2)
_held: set[int] = set()


@contextmanager
def held(uid: int | None) -> Iterator[None]:
    """While this is entered, `new_uid` does not give `uid`."""
    if uid is None or uid in _held:
        yield
        return
    _held.add(uid)
    try:
        yield
    finally:
        _held.discard(uid)


@dataclass(frozen=True)
class Isolation:
    """The layers in force. `own_uid`: the worker has its own user id, which requires the judge to be root. `one_gpu`:
    the worker can open only the GPU that it is judged on."""

    bubblewrap: bool
    landlock: bool
    seccomp: bool
    own_uid: bool
    one_gpu: bool

    @property
    def tier(self) -> str:
        """The name that runs and boards show."""
        return "+".join(name for name in ("bubblewrap", "landlock") if getattr(self, name)) or "process"

    @property
    def confines(self) -> bool:
        return self.bubblewrap or self.landlock

    def new_uid(self) -> int | None:
        """A random user id for a scratch directory and the workers in it. None without `own_uid`.

        None that this process gave lately or that is `held`: a submission must not have the user id of the judge's
        worker for null calls, or of its rival's. A long duel gives more ids than there are.
        """
        if not self.own_uid:
            return None
        recent = set(_recent)
        unused = [uid for uid in range(FIRST_FREE_UID, FIRST_FREE_UID + FREE_UIDS) if uid not in _held]
        uid = random.SystemRandom().choice([uid for uid in unused if uid not in recent] or unused)
        _recent.append(uid)
        return uid


NO_ISOLATION = Isolation(bubblewrap=False, landlock=False, seccomp=False, own_uid=False, one_gpu=False)
