"""Uses some of everything: processes, memory, disk and output."""

import subprocess
import sys
from pathlib import Path

children = [subprocess.Popen([sys.executable, "-c", "pass"]) for _ in range(4)]
memory = bytearray(1 << 28)
Path("cache").write_bytes(bytes(1 << 24))
for child in children:
    child.wait()


def custom_kernel(data):
    print("x" * 100_000)
    return data[0] * 2
