"""Measures itself with every clock there is, and changes none.

timed: true
"""

import time

took_ns = []


def custom_kernel(data):
    started = time.perf_counter_ns()
    out = data[0] * 2
    took_ns.append(time.perf_counter_ns() - started)
    return out
