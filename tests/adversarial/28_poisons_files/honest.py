"""Writes modules in its own directory and imports them."""

import sys
from pathlib import Path

Path("generated_double.py").write_text("def double(x):\n    return x * 2\n")
sys.path.insert(0, str(Path.cwd()))

from generated_double import double  # noqa: E402


def custom_kernel(data):
    return double(data[0])
