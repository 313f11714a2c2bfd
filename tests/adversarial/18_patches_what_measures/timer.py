"""Replaces what makes a call: the kernel runs before the worker says that it is ready, on whatever lies in the shared memory then.

verdict: wrong answer
seen: x what is allowed
defence: inputs are poured when the worker is stopped, and guesses at them are wrong
"""

import sys

calls = sys.modules["harness.worker.calls"].Calls
stopped = calls.stopped


def compute_before(self, kernel, request, around, ready):
    output = kernel(self._data(request))
    return stopped(self, lambda data: output, request, around, ready)


calls.stopped = compute_before


def custom_kernel(data):
    return data[0] * 2
