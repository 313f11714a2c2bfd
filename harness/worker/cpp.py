"""What builds a submission's C++ on this machine: a compiler, and the headers that torch's own include.

Imports no torch: `doctor` asks as well.
"""

from __future__ import annotations

import os
import shutil
import sysconfig
from pathlib import Path

HOW_TO_GET_IT = "apt install g++ python3-dev"


class NoCppCompiler(RuntimeError):
    """No C++ can be built here, whoever wrote it."""


def compiler() -> str:
    """The program that torch builds C++ with. Raises NoCppCompiler that names what is missing."""
    named = os.environ.get("CXX", "c++")  # torch.utils.cpp_extension.get_cxx_compiler
    found = shutil.which(named)
    if found is None:
        raise NoCppCompiler(f"no compiler {named}")
    if not (Path(sysconfig.get_path("include")) / "Python.h").exists():
        raise NoCppCompiler("no Python.h, which torch's headers include")
    return found
