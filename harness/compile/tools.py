"""The tools on this machine for work without the target GPU: Triton, its interpreter, and compilers for HIP.

    here() ─► Tools        found in a process of its own (`survey`), which takes seconds, and cached
    fingerprint()          changes whenever the tools may have changed: versions and file times, without torch
    packages()             changes whenever a package is installed, removed or replaced: a submission may import any

The survey runs the interpreter's self-check and asks each compiler whether it knows the targets.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import sys
from pathlib import Path

from pydantic import ValidationError

from harness.compile.kept import Kept
from harness.compile.processes import Job, Processes
from harness.compile.survey import Tools, version
from harness.errors import InfrastructureError

PACKAGES = ("torch", "triton", "numpy", "ziglang", "nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu12")


def here(root: Path | None = None) -> Tools:
    """Return the tools of this machine. Raises InfrastructureError if the survey fails.

    `root`: the root of the problems, if one was imported in this process. Then it is on the search path, and is hidden
      from the survey.
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
        raise InfrastructureError(f"the survey of the tools for offline work failed: {last}") from None
    kept.write("tools", found.model_dump(mode="json"))
    return found


def packages() -> str:
    """Return a hash of what lies in the folders of installed packages: names, which contain the versions, and the sizes
    and times of single files. What a package's own folder holds is not looked at."""
    facts = []
    for folder in sorted(each for each in set(sys.path) if Path(each).name in ("site-packages", "dist-packages")):
        with contextlib.suppress(OSError), os.scandir(folder) as entries:
            for entry in sorted(entries, key=lambda each: each.name):
                if entry.is_file():
                    found = entry.stat()
                    facts.append(f"{folder} {entry.name} {found.st_size} {found.st_mtime_ns}")
                elif entry.name != "__pycache__":
                    facts.append(f"{folder} {entry.name}")
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()


def fingerprint() -> str:
    """Return a hash of the versions and files that determine the tools."""
    rocm = Path(os.environ.get("ROCM_PATH", "/opt/rocm")) / "llvm" / "bin" / "clang"
    commands = ["hipcc", "clang", *(f"clang-{version}" for version in range(19, 30)), str(rocm), "nvcc"]
    facts = [f"{name} {version(name)}" for name in PACKAGES]
    for path in filter(None, map(shutil.which, commands)):
        found = os.stat(path)
        facts.append(f"{os.path.realpath(path)} {found.st_size} {found.st_mtime_ns}")
    facts.append(os.environ.get("CUDA_HOME", ""))
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()
