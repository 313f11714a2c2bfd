"""Find the tools on this machine for work without the target GPU. `tools` runs this and caches the result.

python3 -m harness.compile.survey      prints one Tools document; with TRITON_INTERPRET=1, in the sandbox of the
                                       compilers, so that it finds exactly the tools that they find
"""

from __future__ import annotations

import shutil
from importlib import metadata

from harness.compile.compilation import Document


class HipCompiler(Document):
    """The compiler of inline HIP or CUDA for one target: the compiler's name, or the command that installs one."""

    compiler: str | None
    install: str | None


class Tools(Document):
    """The tools of this machine. `interpreter`: None if Triton kernels are interpreted as the hardware computes, else
    the fault."""

    triton: str | None
    interpreter: str | None
    hip_compilers: dict[str, HipCompiler]
    cached: bool = False


def main() -> None:
    print(survey().model_dump_json())


def survey() -> Tools:
    """Find all tools. Run this in a process of its own with TRITON_INTERPRET=1, because it patches the interpreter."""
    from harness.hip import compilers as hip
    from harness.interpreter.installation import InterpreterUnfit, install

    wrong: str | None = None
    try:
        install()
    except (InterpreterUnfit, ImportError) as error:
        wrong = str(error)
    compilers = {}
    for target in hip.DEFAULT_TARGETS:
        lacking = hip.missing(target)
        compilers[target] = HipCompiler(compiler=None if lacking else _compiler(target), install=lacking)
    return Tools(triton=version("triton"), interpreter=wrong, hip_compilers=compilers)


def _compiler(target: str) -> str:
    from harness.hip import compilers as hip

    if hip.TARGETS[target].vendor == "amd":
        return " ".join(hip.clang_for(target) or ())
    library = hip.nvrtc()
    return library.version() if library else shutil.which("nvcc") or ""


def version(package: str) -> str | None:
    """Return the installed version of a package, or None."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


if __name__ == "__main__":
    main()
