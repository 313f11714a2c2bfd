"""Takes memory, up to 2 GB, and never gives it back.

verdict: runtime error
seen: of memory|MemoryError|not enough memory|can't allocate memory|Cannot allocate memory
defence: D5, a limit on memory, here 4 per cent of the machine's
settings: {harness.sandbox.enclosure.SHARE_OF_MEMORY: 0.04}
"""

import time

taken = [bytearray(1 << 26) for _ in range(32)]
for block in taken:
    block[:: 1 << 12] = b"x" * (len(block) >> 12)


def custom_kernel(data):
    time.sleep(2)
    return data[0] * 2
