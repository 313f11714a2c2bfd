"""Replaces every clock of Python's in the worker by one that stands still.

gains nothing: the judge asks no clock of the worker's
seen: it is 0
defence: the judge's clock
timed: true
at least ms: 20
"""

import time

sleep = time.sleep
for name in "perf_counter", "monotonic", "time", "process_time", "thread_time":
    setattr(time, name, lambda: 0.0)
    setattr(time, f"{name}_ns", lambda: 0)


def custom_kernel(data):
    sleep(0.02)
    print("it is", time.perf_counter_ns())
    return data[0] * 2
