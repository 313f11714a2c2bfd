"""Opens the reference's file and runs it.

verdict: runtime error
seen: FileNotFoundError|PermissionError
defence: D5, problems cannot be read
"""

from pathlib import Path

source = (Path(__file__).parents[2] / "problems" / "double" / "reference.py").read_text()
exec(source)


def custom_kernel(data):
    return ref_kernel(data)  # noqa: F821
