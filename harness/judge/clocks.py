"""The clocks of a device, one for each manner of timing."""

from __future__ import annotations

from harness.judge.clock import Clock, StopClock
from harness.judge.sandwich import Sandwich
from harness.judge.worker_clock import WorkerClock
from harness.model import ClockOwner, Device, Manner


class Clocks:
    """The clocks of one device. `whose`: whether the judge or the worker times the calls. `why_not`: why the judge's
    clock does not work, if it does not."""

    def __init__(self, device: Device) -> None:
        self.whose, self.why_not = ClockOwner.JUDGE, ""
        self._clocks: dict[Manner, Clock] = {}
        self._sandwich: Sandwich | None = None
        if device.kind == "cpu":
            self._clocks[Manner.STOPPED] = StopClock()
        elif device.kind == "rocm":
            self.give_up("the judge's clock has not been measured on ROCm")
        else:
            try:
                self._sandwich = Sandwich(device.torch_device)
            except OSError as error:
                self.give_up(str(error))

    def give_up(self, why: str) -> None:
        """From here on the worker times its own calls. `why` says why."""
        self.whose, self.why_not, self._sandwich = ClockOwner.WORKER, why, None
        self._clocks = {Manner.WORKER: WorkerClock()}

    @property
    def encloses(self) -> bool:
        """Whether the judge encloses calls on the device between its own stamps."""
        return self._sandwich is not None

    def of(self, manner: Manner) -> Clock:
        if manner not in self._clocks:
            assert self._sandwich is not None
            self._clocks[manner] = self._sandwich.in_manner(manner)
        return self._clocks[manner]

    @property
    def for_checks(self) -> Clock:
        """The clock for calls whose time does not count. Their inputs are there before the call is made."""
        return self.of(Manner.WORKER if self.whose is ClockOwner.WORKER else Manner.STOPPED)

    def with_events(self, manner: Manner) -> Clock:
        """The clock of this manner that also has the worker record its own events. For calls that do not count."""
        clock = self.of(manner)
        if self._sandwich is None or manner is Manner.STOPPED:
            return clock
        asking = self._sandwich.in_manner(manner)
        asking.asks_events = True
        return asking
