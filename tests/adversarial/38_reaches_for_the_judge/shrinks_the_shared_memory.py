"""Cuts off the memory that it shares with the judge, which would die of reading it.

verdict: runtime error
seen: PermissionError|Operation not permitted
defence: D6, its size is sealed
"""

import os


def custom_kernel(data):
    for fd in os.listdir("/proc/self/fd"):
        try:
            name = os.readlink(f"/proc/self/fd/{fd}")
        except OSError:
            continue
        if "memfd:podium" in name:
            os.ftruncate(int(fd), 0)
    return data[0] * 2
