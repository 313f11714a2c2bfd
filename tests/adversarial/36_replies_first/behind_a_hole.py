"""Makes a hole in the shared memory, which holds up whoever reads there: the judge would wait for the answer unawares.

verdict: runtime error
seen: Operation not supported
defence: D5, the system call filter refuses holes in files
"""

import ctypes
import os
import sys

PUNCH_HOLE_AND_KEEP_SIZE = 3
libc = ctypes.CDLL(None, use_errno=True)
libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long]


def custom_kernel(data):
    frame = sys._getframe()
    while not hasattr(frame.f_locals.get("self"), "regions"):
        frame = frame.f_back
    if libc.fallocate(frame.f_locals["self"].regions["arena"].fd, PUNCH_HOLE_AND_KEEP_SIZE, 0, 4096) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return data[0] * 2
