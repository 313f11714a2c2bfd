"""The worker's program: read a request, do it, answer; end when told to or when the judge is gone.

    python3 -m harness.worker --channel FD --device cpu|cuda|rocm --threads N --flush-bytes N

Requests and replies are in `protocol`; only `load` and `call` run the submission's code. An exception of the
submission's is an answer like any other; whatever else ends the process, the judge sees that it ended.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any

import torch

from harness.arena import FLAG_BYTES, Arena
from harness.device_arena import CudaMemory, DeviceArena
from harness.protocol import Channel, ChannelClosed
from harness.worker import load
from harness.worker.bracket import Bracket
from harness.worker.gates import AskingGate, Gate, SleepingGate, StreamGate
from harness.worker.timers import CpuTimer, GpuTimer
from harness.worker.transports import CpuTransport, GpuRuntime, GpuTransport


class Worker:
    def __init__(self, channel: Channel, device_kind: str, flush_bytes: int) -> None:
        self._channel = channel
        self._device_kind, self._flush_bytes = device_kind, flush_bytes
        self._submission = load.NOTHING
        self._path = Path()

    def serve(self) -> None:
        """Answer requests until `quit`. Raises ChannelClosed when the judge is gone."""
        while True:
            request = self._channel.receive()
            self._nonce = request["nonce"]
            try:
                self._channel.send({"nonce": self._nonce, "reply": self._answer(request)})
                if request["op"] == "call":
                    self._channel.send({"nonce": self._nonce, "aftermath": self._bracket.aftermath()})
            except ChannelClosed:
                raise
            except BaseException as error:  # SystemExit and KeyboardInterrupt are the submission's as well
                self._channel.send({"nonce": self._nonce, "failure": load.describe_failure(error, self._path)})
            if request["op"] == "quit":
                return

    def _answer(self, request: dict[str, Any]) -> dict[str, Any]:
        match request["op"]:
            case "load":
                self._get_ready()
                if request["path"] is not None:
                    self._path = Path(request["path"])
                    self._submission = load.load(self._path, interpreted=self._device_kind == "cpu")
                return {}
            case "arena":
                if self._bracket.arena is not None:
                    self._bracket.arena.close()
                self._bracket.arena = self._adopt(self._channel.fds.pop(), request["size"], request["on_device"])
                return {}
            case "call":
                submission = self._submission
                reply = self._bracket.call(submission.kernel, request, submission.around_call)
                return {**reply, "interpreted": submission.interpreted_launches() > 0}
            case "quit":
                return {}
        raise ValueError(f"unknown request {request['op']!r}")

    def _get_ready(self) -> None:
        """Not done at the start: a worker that waits for its turn leaves the device to the one that has it."""
        if self._device_kind == "cpu":
            self._bracket = Bracket("cpu", CpuTimer(self._flush_bytes, AskingGate(self._await_go)), CpuTransport())
            return
        torch.cuda.init()
        transport = GpuTransport(GpuRuntime.loaded_by_torch(), "cuda")
        self._bracket = Bracket("cuda", GpuTimer(self._flush_bytes, self._gpu_gate()), transport)

    def _gpu_gate(self) -> Gate:
        if not self._channel.fds:
            return SleepingGate(self._await_go)
        self._gpu_memory = CudaMemory.of_torch()
        flag = Arena.adopt(self._channel.fds.pop(), FLAG_BYTES)
        return StreamGate(ctypes.CDLL("libcuda.so.1"), flag, self._announce)

    def _announce(self) -> None:
        self._channel.send({"nonce": self._nonce, "ready": True})

    def _await_go(self) -> None:
        """Tell the judge that inputs may come, and wait until they have. Raises ChannelClosed."""
        self._announce()
        self._channel.receive()

    def _adopt(self, fd: int, size: int, on_device: bool) -> Arena:
        if not on_device:
            return Arena.adopt(fd, size)
        return DeviceArena.adopt_on(self._gpu_memory, fd, size)


def main() -> None:
    parser = argparse.ArgumentParser(prog="harness.worker")
    parser.add_argument("--channel", type=int, required=True)
    parser.add_argument("--device", choices=("cpu", "cuda", "rocm"), required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--flush-bytes", type=int, required=True)
    options = parser.parse_args()
    _die_with_parent()
    torch.set_num_threads(options.threads)
    _hide_harness_from_imports()
    channel = Channel(socket.socket(fileno=options.channel), accepts_fds=True)
    try:
        Worker(channel, options.device, options.flush_bytes).serve()
    except ChannelClosed:
        os._exit(1)
    sys.stdout.flush()
    sys.stderr.flush()
    # Not sys.exit: the hooks and threads that a submission left behind get no say in how this ends.
    os._exit(0)


def _die_with_parent() -> None:
    """A judge that is killed takes its workers along."""
    if sys.platform == "linux":
        set_parent_death_signal = 1  # PR_SET_PDEATHSIG, linux/prctl.h
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL, 0, 0, 0)


def _hide_harness_from_imports() -> None:
    """The submission's directory stands first on the path, and the project's own is not on it."""
    root = str(Path(__file__).resolve().parents[2])
    sys.path[:] = [os.getcwd()] + [entry for entry in sys.path if Path(entry).resolve() != Path(root)]
