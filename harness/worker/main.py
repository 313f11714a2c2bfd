"""The worker's program: read a request, do it, answer. It ends when told to or when the judge is gone.

    python3 -m harness.worker --channel FD --stack FD --device cpu|cuda|rocm --threads N --flush-bytes N

`wire/protocol` defines the frames, `judge/reply` the replies. Only `load`, `set up`, `call` and `profile` run the
submission's code. An exception of the submission is an ordinary answer. If anything else ends the process, the judge
notices.
"""

from __future__ import annotations

import argparse
import ctypes
import faulthandler
import functools
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any

import torch

from harness.command import ROOT, installed
from harness.sandbox import privileges
from harness.wire.arena import FLAG_BYTES, Arena
from harness.wire.device_arena import CudaMemory, DeviceArena
from harness.wire.protocol import Channel, ChannelClosed
from harness.wire.words import Words
from harness.worker import load
from harness.worker.calls import Calls, stopper
from harness.worker.pool import Pool
from harness.worker.profiled import profiled
from harness.worker.timers import GpuTimer
from harness.worker.transports import CpuTransport, GpuRuntime, GpuTransport, keep_freed_memory


class Worker:
    def __init__(self, channel: Channel, device_kind: str, flush_bytes: int) -> None:
        self._channel = channel
        self._device_kind, self._flush_bytes = device_kind, flush_bytes
        self._submission = load.NOTHING
        self._path = Path()
        self._pools: list[Pool] = []

    def serve(self) -> None:
        """Answer requests until `quit`. Raises ChannelClosed if the judge is gone."""
        while True:
            request = self._channel.receive()
            self._nonce, self._began = request["nonce"], False
            try:
                self._say("reply", self._answer(request))
            except ChannelClosed:
                raise
            except BaseException as error:  # the submission may raise SystemExit and KeyboardInterrupt too
                self._say("failure", load.describe_failure(error, self._path))
            if request.get("sequence") == "awaited" and self._began:
                stopper()()
            if request["op"] == "quit":
                return

    def _answer(self, request: dict[str, Any]) -> dict[str, Any]:
        match request["op"]:
            case "prepare":
                self._get_ready()
                return {}
            case "load":
                privileges.show()
                _hide_harness_from_imports()
                modules = request.get("modules", {})
                self._calls.around_imports = load.provide(modules, self._device_kind == "cpu")
                if request["alone"]:
                    load.release_builds()
                self._path = Path(request["path"])
                models = request.get("form") == "kernelbench"
                self._submission = load.load(self._path, self._device_kind == "cpu", modules, models)
                return {}
            case "map":
                self._map(request["region"], request["size"], request["on_device"])
                return {}
            case "trim":
                torch.cuda.empty_cache()
                return {}
            case "set up":
                self._submission.set_up(self._calls.data_of(request))
                return {}
            case "call":
                return self._call(request)
            case "profile":
                return self._profile(request)
            case "collect":
                return self._calls.collect()
            case "quit":
                return {}
        raise ValueError(f"unknown request {request['op']!r}")

    def _call(self, request: dict[str, Any]) -> dict[str, Any]:
        submission, calls = self._submission, self._calls
        kernel = submission.kernel if request["null"] is None else calls.null(request["null"])
        sequences = {
            "bare": calls.bare,
            "between_stops": calls.between_stops,
            "awaited": calls.awaited,
            "armed": calls.armed,
            "timed": calls.timed,
        }
        before = submission.interpreted_launches()
        reply = sequences[request["sequence"]](kernel, request, submission.around_call, self._be_ready)
        launches = submission.interpreted_launches()
        told = {"interpreted": launches > 0, "launched": launches > before}
        observed = load.observed() if self._device_kind == "cpu" else {}
        return {**reply, **told, **observed, **load.emulated()}

    def _profile(self, request: dict[str, Any]) -> dict[str, Any]:
        submission, found = self._submission, {}
        data = self._calls.data_on_device(request)

        def call() -> None:
            with submission.around_call():
                submission.kernel(data)

        if request["looked_at"]:
            found = profiled(call, self._device_kind != "cpu", request["most_parts"], request["longest_name"])
        else:
            call()
        executed = load.emulated().get("executed", 0)
        return {**found, "launches": submission.interpreted_launches(), "executed": executed}

    def _be_ready(self, waits: bool) -> None:
        """Tell the judge that the call may begin, and wait for its "go" if asked to. Raises ChannelClosed."""
        self._began = True
        self._say("ready", True)
        if waits:
            self._channel.receive()

    def _say(self, kind: str, what: Any) -> None:
        self._channel.send({"nonce": self._nonce, kind: what})

    def _get_ready(self) -> None:
        """Set up the device. Not done at the start: a waiting worker leaves the device to the process that uses it."""
        if self._device_kind == "cpu":
            keep_freed_memory()
            self._calls = Calls("cpu", CpuTransport())
            return
        privileges.show()
        torch.cuda.init()
        transport, words = GpuTransport(GpuRuntime.loaded_by_torch(), "cuda"), None
        if self._channel.fds:
            self._gpu_memory = CudaMemory.of_torch()
            words = Words.of_cuda(Arena.adopt(self._channel.fds.pop(), FLAG_BYTES))
        timer = functools.cache(lambda: GpuTimer(self._flush_bytes))  # allocates its buffers only if it is used
        self._calls = Calls("cuda", transport, timer, words)

    def _map(self, region: str, size: int, on_device: bool) -> None:
        fd = self._channel.fds.pop()
        arena = DeviceArena.adopt_on(self._gpu_memory, fd, size) if on_device else Arena.adopt(fd, size)
        if region == "pool":
            # Earlier pools and their callbacks stay: torch returns to them the memory allocated there.
            self._pools.append(Pool(arena, ctypes.CDLL("libcuda.so.1")))
            self._calls.pool = self._pools[-1]
        elif region in self._calls.regions:
            self._calls.regions[region].close()
        self._calls.regions[region] = arena


def main() -> None:
    parser = argparse.ArgumentParser(prog="harness.worker")
    parser.add_argument("--channel", type=int, required=True)
    parser.add_argument("--stack", type=int, required=True)
    parser.add_argument("--device", choices=("cpu", "cuda", "rocm"), required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--flush-bytes", type=int, required=True)
    options = parser.parse_args()
    _die_with_parent()
    _tell_where_it_is(options.stack)
    torch.set_num_threads(options.threads)
    channel = Channel(socket.socket(fileno=options.channel), accepts_fds=True)
    try:
        Worker(channel, options.device, options.flush_bytes).serve()
    except ChannelClosed:
        os._exit(1)
    sys.stdout.flush()
    sys.stderr.flush()
    # Not sys.exit: hooks and threads that a submission left behind must not change the exit.
    os._exit(0)


def _die_with_parent() -> None:
    """Ask the kernel to kill this process when its parent dies, so that a killed judge leaves no worker."""
    if sys.platform == "linux":
        set_parent_death_signal = 1  # PR_SET_PDEATHSIG, linux/prctl.h
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL, 0, 0, 0)


def _tell_where_it_is(fd: int) -> None:
    """Write this process's stack to `fd` on SIGUSR1. The judge asks for it before it ends a slow call."""
    os.set_inheritable(fd, False)
    faulthandler.register(signal.SIGUSR1, file=fd, all_threads=False)


def _hide_harness_from_imports() -> None:
    """Put the submission's directory first on the path and remove the checkout. An installed Podium stays: the
    submission's dependencies lie beside it."""
    here, root = installed(), ROOT
    sys.path[:] = [os.getcwd()] + [entry for entry in sys.path if here or Path(entry).resolve() != root]
