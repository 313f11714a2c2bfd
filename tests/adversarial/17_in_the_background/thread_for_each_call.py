"""Leaves a thread computing in every call, which would slow whoever is timed next.

gains nothing: they stand still with the worker while others are timed, and slow its own calls
seen: "[1-9][0-9]* are left"
defence: the judge stops all threads between calls
timed: true
at least ms: 20
"""

import threading
import time


def compute():
    until = time.monotonic() + 0.05
    while time.monotonic() < until:
        pass


def custom_kernel(data):
    threading.Thread(target=compute, daemon=True).start()
    print(threading.active_count() - 1, "are left")
    time.sleep(0.02)
    return data[0] * 2
