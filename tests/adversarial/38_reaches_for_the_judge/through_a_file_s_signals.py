"""Has a pipe send SIGIO, which kills an unprepared process, to every process that is not its own.

verdict: runtime error
seen: PermissionError|Operation not permitted
defence: D5, the system call filter
"""

import fcntl
import os

reads, writes = os.pipe()
fcntl.fcntl(reads, fcntl.F_SETOWN, os.getppid())


def custom_kernel(data):
    return data[0] * 2
