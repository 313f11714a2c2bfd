"""Puts a module beside torch that Python imports at every start.

verdict: runtime error
seen: PermissionError|Read-only file system
defence: D5, nothing outside the scratch directory can be written
slow: true
"""

from pathlib import Path

import torch

(Path(torch.__file__).parents[1] / "podium_exploit.pth").write_text("import os\n")


def custom_kernel(data):
    return data[0] * 2
