"""The opinion of a problem folder's own checker on an answer, or the fact that it gave none.

    heard    ask in this process
    apart    ask in a child process: a checker that hangs in C, crashes or takes all memory ends only the child

A checker may give no opinion on one answer and answer for another. That is not the folder's fault. `NoOpinion` has the
error to report if the checker gives no opinion on the reference's own answer either.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
from collections.abc import Callable
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from typing import Any

import torch

from harness import custody
from harness.errors import InfrastructureError, Overtime, PodiumError, ProblemError

MOST_SHOWN = 2000
"""Characters kept of a checker's message."""

_OF_TORCH = "DefaultCPUAllocator"
"""Part of the message of the RuntimeError that torch raises if the host has no memory left."""


@dataclass(frozen=True)
class Opinion:
    """A checker's opinion on an answer."""

    right: bool
    why: str


class NoOpinion(Exception):
    """The checker gave no opinion.

    `how`: the reason, as a verb phrase. `error`: the error to raise if nothing else is known. `passing`: whether the
    cause may be temporary, such as a lack of memory.
    """

    def __init__(self, how: str, error: PodiumError, passing: bool = False) -> None:
        super().__init__(how)
        self.how, self.error, self.passing = how, error, passing

    @classmethod
    def late(cls, what: str, limit_s: float) -> NoOpinion:
        """The checker, called `what`, took longer than it may."""
        return cls(f"took longer than {limit_s:g} s", Overtime(*custody.too_long(what, limit_s)))

    @classmethod
    def out_of_memory(cls, message: str) -> NoOpinion:
        return cls("ran out of memory", InfrastructureError(message), passing=True)

    @classmethod
    def ended(cls, what: str, status: int) -> NoOpinion:
        """The checker ended its process, with `status` in the form of subprocess."""
        how = f"ended its process, with {custody.ended_with(status)}"
        hint = "a problem's own code must neither exit nor crash"
        return cls(how, ProblemError(f"{what} {how}: there is no verdict", hint))


def heard(check: Callable[[], Any], what: str) -> Opinion:
    """Ask the checker, which may return either of two forms. An exception of its own counts as refusal: a wrong output
    may cause it. Raises NoOpinion if memory runs out, InfrastructureError if the device fails."""
    try:
        said = check()
        right, why = said if isinstance(said, tuple) and len(said) == 2 else (not said, said)
        return Opinion(bool(right), str(why or "")[:MOST_SHOWN])
    except torch.AcceleratorError as error:
        raise InfrastructureError(f"the device failed in {what}: {error}") from error
    except (Exception, SystemExit) as error:
        if isinstance(error, MemoryError | torch.OutOfMemoryError) or _OF_TORCH in str(error):
            raise NoOpinion.out_of_memory(f"no memory left for {what}: {error}") from None
        return Opinion(False, f"the checker raises {type(error).__name__}: {error}"[:MOST_SHOWN])


def apart(ask: Callable[[], Opinion], what: str, limit_s: float) -> Opinion:
    """Run `ask` in a child of this process. Only without a GPU in use: a forked child must not touch one. Raises
    NoOpinion if it takes longer than `limit_s` or ends without an answer."""
    ours, theirs = multiprocessing.Pipe(duplex=False)
    pid = os.fork()
    if pid == 0:
        _answer(theirs, ask)
    theirs.close()
    said, late = None, False
    try:
        late = not ours.poll(limit_s)
        said = None if late else json.loads(ours.recv_bytes())
    except EOFError:  # the child has ended, or closed the pipe
        pass
    finally:
        ours.close()
        os.kill(pid, signal.SIGKILL)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if said is None:
        raise NoOpinion.late(what, limit_s) if late else NoOpinion.ended(what, status)
    if "lacks_memory" in said:
        raise NoOpinion.out_of_memory(said["lacks_memory"])
    return Opinion(**said)


def _answer(connection: Connection, ask: Callable[[], Opinion]) -> None:
    """Send the result of `ask`, then end this process in any case."""
    try:
        custody.end_with_its_parent()
        try:
            said: dict[str, Any] = asdict(ask())
        except NoOpinion as none:
            said = {"lacks_memory": none.error.message}
        connection.send_bytes(json.dumps(said).encode())
    finally:
        os._exit(0)
