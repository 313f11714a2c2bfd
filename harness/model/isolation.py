"""The layers of isolation, and the names of their combinations, strongest first.

bubblewrap+landlock   namespaces and Landlock: two independent fences
bubblewrap            namespaces
landlock              Landlock and seccomp: other processes' names can be seen, nothing of them read
process               limits and clean-up alone: no isolation
"""

from __future__ import annotations

import random
from dataclasses import dataclass

FIRST_FREE_UID, FREE_UIDS = 60578, 606
"""User ids that nobody hands out: systemd.io/UIDS-GIDS, "unused"."""


@dataclass(frozen=True)
class Isolation:
    """The layers in force. `own_uid`: the worker runs under a user id of its own, which takes a judge that is root;
    `one_gpu`: of several GPUs it can open only the one that it is judged on."""

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
        """A user id for a scratch directory and the workers in it."""
        return FIRST_FREE_UID + random.SystemRandom().randrange(FREE_UIDS) if self.own_uid else None


NO_ISOLATION = Isolation(bubblewrap=False, landlock=False, seccomp=False, own_uid=False, one_gpu=False)
