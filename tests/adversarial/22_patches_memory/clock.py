"""Overwrites, in memory, the address of the C function behind `perf_counter_ns`: handles taken early are hit as well.

gains nothing: the judge asks no clock of the worker's
seen: it is 0
defence: the judge's clock
timed: true
at least ms: 20
"""

import ctypes
import time

FUNCTION = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_void_p)
still = FUNCTION(lambda self, arguments: 0)
definition = ctypes.c_void_p.from_address(id(time.perf_counter_ns) + 16).value
ctypes.c_void_p.from_address(definition + 8).value = ctypes.cast(still, ctypes.c_void_p).value


def custom_kernel(data):
    time.sleep(0.02)
    print("it is", time.perf_counter_ns())
    return data[0] * 2
