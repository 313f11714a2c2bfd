"""Fills the disk, up to 2 GB.

verdict: runtime error
seen: to disk
defence: D5, a limit on disk, here 200 MB
settings: {harness.sandbox.enclosure.MAX_DISK_BYTES: 200000000}
"""

import time
from pathlib import Path

with Path("filler").open("wb") as file:
    for _ in range(2000):
        file.write(bytes(1_000_000))
        time.sleep(0.001)


def custom_kernel(data):
    time.sleep(2)
    return data[0] * 2
