"""What this machine has for working without the target GPU: Triton, whether it can be interpreted, compilers for HIP.

    here() ─► Tools                      looked at in a process of its own, which takes seconds, and kept
    python3 -m harness.offline.tools      that process: prints one Tools document
    fingerprint()                        changes whenever the answer may: versions and file times, no torch

Looking runs the interpreter's self-check and asks each compiler whether it knows the targets.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from importlib import metadata
from pathlib import Path

from pydantic import ValidationError

from harness.errors import InfrastructureError
from harness.offline.compilation import Document
from harness.offline.kept import Kept
from harness.offline.processes import Job, Processes
from harness.temporary import temporary_folder

PACKAGES = ("torch", "triton", "numpy", "ziglang", "nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu12")


class HipCompiler(Document):
    """The compiler of inline HIP or CUDA for one target: which one there is, or the command that installs one."""

    compiler: str | None
    install: str | None


class Tools(Document):
    """`interpreter`: None where Triton kernels are interpreted as the hardware computes, else what is wrong."""

    triton: str | None
    interpreter: str | None
    hip_compilers: dict[str, HipCompiler]
    cached: bool = False


def here() -> Tools:
    """What this machine has. Raises InfrastructureError if that cannot even be looked at."""
    kept = Kept({"tools": fingerprint()})
    found = kept.read("tools", Tools)
    if found is not None:
        return found
    with temporary_folder() as folder, Processes(folder, folder / "triton") as processes:
        processes.start([Job("tools", ("harness.offline.tools",), interpreted=True)])
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


def version(package: str) -> str | None:
    """The installed version of a package, or None."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def main() -> None:
    print(survey().model_dump_json())


def survey() -> Tools:
    """Look at everything. In a process of its own with TRITON_INTERPRET=1, since the interpreter is put right in it."""
    from harness.offline import hip
    from harness.offline.interpreter import InterpreterUnfit, install

    wrong: str | None = None
    try:
        install()
    except (InterpreterUnfit, ImportError) as error:
        wrong = str(error)
    compilers = {}
    for target in hip.TARGETS:
        lacking = hip.missing(target)
        compilers[target] = HipCompiler(compiler=None if lacking else _compiler(target), install=lacking)
    return Tools(triton=version("triton"), interpreter=wrong, hip_compilers=compilers)


def _compiler(target: str) -> str:
    from harness.offline import hip

    if hip.TARGETS[target].vendor == "amd":
        return " ".join(hip.clang_for(target) or ())
    library = hip.nvrtc()
    return library.version() if library else shutil.which("nvcc") or ""


if __name__ == "__main__":
    main()
