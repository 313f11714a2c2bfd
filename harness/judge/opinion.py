"""What a folder's checker says of an answer, or that it says nothing.

    heard    in this process
    apart    in a child of it: a checker that hangs in C, crashes or takes all memory ends nobody else

A checker that has nothing to say of one answer and answers to another is no fault of the folder's: `NoOpinion` has what
to say where it does not answer to the reference's own either.
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
"""Characters of what a checker says."""

_OF_TORCH = "DefaultCPUAllocator"
"""Stands in the RuntimeError by which torch says that the host has no memory left."""


@dataclass(frozen=True)
class Opinion:
    """What a folder's checker says of an answer."""

    right: bool
    why: str


class NoOpinion(Exception):
    """The checker said nothing: `how` it came to that, and the `error` if nothing but that is known. `passing`: it may
    have been the machine's moment."""

    def __init__(self, how: str, error: PodiumError, passing: bool = False) -> None:
        super().__init__(how)
        self.how, self.error, self.passing = how, error, passing

    @classmethod
    def late(cls, what: str, limit_s: float) -> NoOpinion:
        """Of a checker, `what`, that took longer than it may."""
        return cls(f"took longer than {limit_s:g} s", Overtime(*custody.too_long(what, limit_s)))

    @classmethod
    def out_of_memory(cls, message: str) -> NoOpinion:
        return cls("ran out of memory", InfrastructureError(message), passing=True)

    @classmethod
    def ended(cls, what: str, status: int) -> NoOpinion:
        """Of one that has ended its process, with `status` as subprocess has it."""
        how = f"ended its process, with {custody.ended_with(status)}"
        hint = "a problem's own code must neither exit nor crash"
        return cls(how, ProblemError(f"{what} {how}: there is no verdict", hint))


def heard(check: Callable[[], Any], what: str) -> Opinion:
    """What the checker returns, in either of its forms. An exception of its own means no: it may be what a wrong output
    does to it. Raises NoOpinion where memory runs out, InfrastructureError where the device fails."""
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
    """What `ask` gives, in a child of this process: where there is no GPU in use, which no child may touch. Raises
    NoOpinion if it takes longer, or the child ends without a word."""
    ours, theirs = multiprocessing.Pipe(duplex=False)
    pid = os.fork()
    if pid == 0:
        _answer(theirs, ask)
    theirs.close()
    said, late = None, False
    try:
        late = not ours.poll(limit_s)
        said = None if late else json.loads(ours.recv_bytes())
    except EOFError:  # it has ended, or closed all that it found open
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
    """Say what `ask` gives, and end this process whatever comes of it."""
    try:
        custody.end_with_its_parent()
        try:
            said: dict[str, Any] = asdict(ask())
        except NoOpinion as none:
            said = {"lacks_memory": none.error.message}
        connection.send_bytes(json.dumps(said).encode())
    finally:
        os._exit(0)
