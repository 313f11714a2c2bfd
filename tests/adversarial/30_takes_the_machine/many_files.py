"""Fills the file system's table with empty files, up to 20 000.

verdict: runtime error
seen: files
defence: D5, a limit on files
"""

import time
from pathlib import Path

for number in range(20_000):
    Path(f"{number}").touch()


def custom_kernel(data):
    time.sleep(2)
    return data[0] * 2
