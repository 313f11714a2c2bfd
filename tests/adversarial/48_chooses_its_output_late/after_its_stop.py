"""Stops at once and then, untimed, finds out which row of its input is the answer: it says that its output lies there.

problem: foreign/pick
verdict: integrity violation
seen: an output lies where it puts none
defence: D3, an output lies at the beginning of an input or in the tail
timed: true
"""

import os
import signal
import sys

calls = sys.modules["harness.worker.calls"].Calls
between_stops = calls.between_stops


def choose_late(self, kernel, request, around, ready):
    (data,) = [self.data_of(request)]
    if data.shape[0] != 16:
        return between_stops(self, kernel, request, around, ready)
    ready(False)
    os.kill(os.getpid(), signal.SIGSTOP)
    os.kill(os.getpid(), signal.SIGSTOP)
    row = int(data.sum(1).argmax())
    output = {"type": "Tensor", "dtype": "float32", "shape": [64], "stride": [1], "device": "cpu"}
    place = {"offset": request["inputs"][0]["offset"] + 256 * row}
    return {"several": False, "returned": 1, "outputs": [output | place]}


calls.between_stops = choose_late


def custom_kernel(data):
    return data[data.sum(1).argmax()]
