"""The program that runs in an enclosure, and the two ways to start it: by a new interpreter, or in a fork of a warm
one."""

from __future__ import annotations

import runpy
import sys
from dataclasses import asdict, dataclass
from typing import Any

from harness.sandbox import waiter

_BARE = ("-I", "-S", "-B")
_FLAGS = ("-s", "-P", "-B", "-u")  # no user site, no implicit path, no .pyc files, unbuffered output


@dataclass(frozen=True)
class Program:
    """A module that confines itself before anything else (`confine_as_told`), run with the arguments `words`.

    With `report_fd` its parent is a waiter, which writes to that descriptor; `whom` is the waiter's argument.
    """

    module: str
    words: tuple[str, ...] = ()
    report_fd: int | None = None
    whom: str = waiter.ALONE

    def command(self) -> list[str]:
        """The command that starts it in a new interpreter."""
        worker = [sys.executable, *_FLAGS, "-m", self.module, *self.words]
        if self.report_fd is None:
            return worker
        return [sys.executable, *_BARE, waiter.__file__, str(self.report_fd), self.whom, *worker]

    def run(self) -> None:
        """Run it in this process. With a waiter, run it in a child; this process then ends as the child does."""
        if self.report_fd is None:
            self._run_module()
        else:
            waiter.wait_on(self.report_fd, self.whom, self._run_module)

    def _run_module(self) -> None:
        sys.argv = [self.module, *self.words]
        runpy.run_module(self.module, run_name="__main__", alter_sys=True)

    def as_message(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def of_message(cls, message: dict[str, Any]) -> Program:
        return cls(message["module"], tuple(message["words"]), message["report_fd"], message["whom"])
