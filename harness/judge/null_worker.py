"""A worker without a submission. It makes null calls, which measure the fixed cost of timing a call."""

from __future__ import annotations

from contextlib import ExitStack

from harness.errors import InfrastructureError
from harness.judge.deadline import Deadline
from harness.judge.reference import Reference
from harness.judge.reply import Fault
from harness.judge.session import Session
from harness.model import Device, Isolation
from harness.sandbox.scratch import scratch


class NullWorker:
    """A worker in a directory where no submission has ever been. It makes null calls: calls that compute nothing."""

    def __init__(
        self,
        reference: Reference,
        device: Device,
        threads: int,
        deadline: Deadline | None,
        fresh: bool,
        isolation: Isolation,
    ) -> None:
        with ExitStack() as stack:
            folder = stack.enter_context(scratch(b"", isolation.new_uid()))
            self.session = Session(
                reference.problem, device, folder, threads, deadline, fresh=fresh, isolation=isolation
            )
            stack.callback(self.session.kill)
            self._stack = stack.pop_all()
        self._prepared = False

    def ready(self) -> Session:
        """Raises InfrastructureError if it cannot be made ready."""
        if not self._prepared:
            try:
                self.session.prepare()
            except Fault as fault:
                raise InfrastructureError(f"the judge's own worker failed: {fault}") from fault
            self._prepared = True
        return self.session

    def close(self) -> None:
        self._stack.close()
