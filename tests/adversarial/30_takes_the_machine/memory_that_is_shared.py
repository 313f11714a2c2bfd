"""Takes memory that others might map as well, up to 1 GB.

verdict: runtime error
seen: of memory
defence: D5, a limit on memory
settings: {harness.sandbox.enclosure.SHARE_OF_MEMORY: 0.02}
"""

import mmap
import time

held = mmap.mmap(-1, 1 << 30)
for _ in range(1024):
    held.write(bytes(1 << 20))


def custom_kernel(data):
    time.sleep(2)
    return data[0] * 2
