"""Rewrites its own file, so that other source stands there than was hashed.

verdict: runtime error
seen: PermissionError|Read-only file system
defence: D5, a submission is read once and lies there read-only
"""

from pathlib import Path

Path(__file__).write_text("def custom_kernel(data):\n    return data[0]\n")


def custom_kernel(data):
    return data[0] * 2
