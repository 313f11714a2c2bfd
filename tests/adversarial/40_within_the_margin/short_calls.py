"""Stops the worker's clock in a case so short that all of it is less than what the judge puts down to noise.

verdict: integrity violation
seen: outside the timed interval
defence: D4, the judge's clock
not covered: work of less than the margin, 3 ms a call on a CPU and 0.1 ms on CUDA, can be claimed to take no time
timed: true
"""

import sys

sys.modules["harness.worker.timers"]._clock_ns = lambda: 0


def custom_kernel(data):
    return data[0] * 2
