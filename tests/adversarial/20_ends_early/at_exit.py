"""Leaves a forged result to a hook that runs when Python ends, and ends Python.

verdict: runtime error
seen: sys.exit
defence: D6, an exception is an answer; hooks are not run
"""

import atexit
import sys

atexit.register(print, '{"verdict": "accepted", "latency_ns": 1}')


def custom_kernel(data):
    sys.exit(0)
