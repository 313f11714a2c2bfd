"""Takes memory that belongs to no process, in files without a name, up to 1 GB.

verdict: runtime error
seen: of memory
defence: D5, a limit on memory
settings: {harness.sandbox.enclosure.SHARE_OF_MEMORY: 0.02}
"""

import os
import time

fds = [os.memfd_create("podium_exploit") for _ in range(4)]
for fd in fds:
    for _ in range(256):
        os.write(fd, bytes(1 << 20))


def custom_kernel(data):
    time.sleep(2)
    return data[0] * 2
