"""Runs the interpreter's tests with each supported Triton version: `make test-triton`.

    python -m tests.triton_versions [VERSION ...]

Each version gets its own virtual environment under ~/.cache/podium/triton (0.5 GB, kept for the next time). It has that
Triton and takes everything else from this one. Prints a table; exit code 1 if a test failed.
"""

from __future__ import annotations

import os
import shutil
import site
import subprocess
import sys
import venv
from pathlib import Path

from tabulate import tabulate

VERSIONS = ("3.6.0", "3.7.1", "3.9.0")  # the oldest supported version, the pinned one, and the newest tried
ROOT = Path(__file__).resolve().parents[1]
REST = site.getsitepackages()
TESTS = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "tests").glob("test_interpreter*.py"))


def main() -> int:
    rows = [[version, *tested(version)] for version in sys.argv[1:] or VERSIONS]
    print(tabulate(rows, ["triton", "", "pytest's last line"], tablefmt="simple_outline", disable_numparse=True))
    return 0 if all(row[1] == "passed" for row in rows) else 1


def tested(version: str) -> tuple[str, str]:
    """The result of the tests with a version, and pytest's last line."""
    python = environment(version) / "bin" / "python"
    ask = [python, "-c", "import triton; print(triton.__version__)"]
    found = subprocess.run(ask, capture_output=True, text=True, check=True).stdout.strip()
    if found != version:
        return "NOT TESTED", f"{python} has triton {found}"
    print(f"triton {version}: {', '.join(TESTS)}", file=sys.stderr, flush=True)
    command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *TESTS]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        print(done.stdout, file=sys.stderr)
    return "passed" if done.returncode == 0 else "FAILED", (done.stdout.strip().splitlines() or [""])[-1]


def environment(version: str) -> Path:
    """The environment of a version, made if needed."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "podium" / "triton"
    folder = base / f"{version}-python{sys.version_info.major}.{sys.version_info.minor}"
    if not (folder / "ready").exists():
        print(f"triton {version}: installing", file=sys.stderr, flush=True)
        shutil.rmtree(folder, ignore_errors=True)
        venv.create(folder, with_pip=False)
        (packages,) = folder.glob("lib/python3*/site-packages")
        pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--disable-pip-version-check"]
        subprocess.run([*pip, "--target", str(packages), f"triton=={version}"], check=True)
        (packages / "rest.pth").write_text("".join(f"import site; site.addsitedir({here!r})\n" for here in REST))
        (folder / "ready").touch()
    return folder


if __name__ == "__main__":
    sys.exit(main())
