"""Replaces what makes a call: the kernel runs before the worker says that it is ready, on whatever lies in the shared
memory then.

verdict: wrong answer
seen: x what is allowed
defence: inputs are poured when the worker is stopped, and guesses at them are wrong
"""

import sys

calls = sys.modules["harness.worker.calls"].Calls
between_stops = calls.between_stops


def compute_before(self, kernel, request, around, ready):
    output = kernel(self._data(request))
    return between_stops(self, lambda data: output, request, around, ready)


calls.between_stops = compute_before


def custom_kernel(data):
    return data[0] * 2
