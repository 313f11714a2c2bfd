"""Appends to every file of the harness that it can see, so that the judge imports it the next time.

verdict: runtime error
seen: PermissionError|Read-only file system
defence: D5, nothing outside the scratch directory can be written
"""

import sys
from pathlib import Path

harness = Path(sys.modules["harness"].__file__).parent
for path in harness.rglob("*.py"):
    with path.open("a") as file:
        file.write("\n# podium_exploit\n")


def custom_kernel(data):
    return data[0] * 2
