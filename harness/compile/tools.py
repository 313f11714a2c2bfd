"""What this machine has for working without the target GPU: Triton, whether it can be interpreted, compilers for HIP.

    here() ─► Tools        looked at in a process of its own (`survey`), which takes seconds, and kept
    fingerprint()          changes whenever the answer may: versions and file times, no torch

Looking runs the interpreter's self-check and asks each compiler whether it knows the targets.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

from pydantic import ValidationError

from harness.compile.kept import Kept
from harness.compile.processes import Job, Processes
from harness.compile.survey import Tools, version
from harness.errors import InfrastructureError

PACKAGES = ("torch", "triton", "numpy", "ziglang", "nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu12")


def here(root: Path | None = None) -> Tools:
    """What this machine has. Raises InfrastructureError if that cannot even be looked at.

    `root`: of the problems, if any of those was imported here. It is on the search path then, and for nobody to read.
    """
    kept = Kept({"tools": fingerprint()})
    found = kept.read("tools", Tools)
    if found is not None:
        return found
    with Processes(hidden=[root] if root else []) as processes:
        processes.start([Job("tools", ("harness.compile.survey",), interpreted=True)])
        ((_, finished),) = processes.results()
    try:
        found = Tools.model_validate_json(finished.printed)
    except ValidationError:
        last = (finished.said.strip().splitlines() or ["it said nothing"])[-1]
        raise InfrastructureError(f"the look at the tools for offline work failed: {last}") from None
    kept.write("tools", found.model_dump(mode="json"))
    return found


def fingerprint() -> str:
    """A hash of the versions and files that decide what is here."""
    rocm = Path(os.environ.get("ROCM_PATH", "/opt/rocm")) / "llvm" / "bin" / "clang"
    commands = ["hipcc", "clang", *(f"clang-{version}" for version in range(19, 30)), str(rocm), "nvcc"]
    facts = [f"{name} {version(name)}" for name in PACKAGES]
    for path in filter(None, map(shutil.which, commands)):
        found = os.stat(path)
        facts.append(f"{os.path.realpath(path)} {found.st_size} {found.st_mtime_ns}")
    facts.append(os.environ.get("CUDA_HOME", ""))
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()
