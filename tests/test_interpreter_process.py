"""How the interpreter's tests run: a module's claims together, in one process of their own.

Triton decides when it is imported whether it interprets, so pytest's own process must not interpret anything:

    pytest ── first test of a module ──► TRITON_INTERPRET=1, torch and Triton imported, nothing installed
       ▲                                    └─ fork: as python -m tests.test_interpreter_bf16 TEST...
       │                                         install(), then those of the module's tests that were selected
       └────────── JSON: {test: traceback or null} ────────────┘
"""

from __future__ import annotations

import functools
import json
import os
import runpy
import subprocess
import sys
import tempfile
import traceback
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
CLAIMS: dict[str, Callable[[], None]] = {}


def interpreted(test: Callable[[], None]) -> Callable[[], None]:
    """Have `test` run in its module's interpreting process."""
    CLAIMS[test.__name__] = test

    def ask(request: pytest.FixtureRequest) -> None:
        selected = (item.name for item in request.session.items if item.path == request.node.path)
        failure = outcomes(test.__module__, tuple(name for name in selected if name in CLAIMS))[test.__name__]
        if failure is not None:
            pytest.fail(failure, pytrace=False)

    functools.update_wrapper(ask, test)
    del ask.__wrapped__  # pytest is to see the fixture that is asked for here
    return ask


@functools.cache
def outcomes(module: str, tests: tuple[str, ...]) -> dict[str, str | None]:
    """What became of each of the interpreted `tests` of `module`: None, or a traceback."""
    name = f"tests.{module.rpartition('.')[2]}"
    with tempfile.TemporaryDirectory() as folder:
        server = forking_server()
        server.stdin.write(json.dumps([name, tests, folder]) + "\n")
        server.stdin.flush()
        status = server.stdout.readline().strip()
        printed, said = (Path(folder, stream).read_text() for stream in ("stdout", "stderr"))
    if status != "0":
        return defaultdict(lambda: f"{name} ended with {status}:\n{said[-4000:]}")
    return json.loads(printed.splitlines()[-1])


@functools.cache
def forking_server() -> subprocess.Popen[str]:
    """It ends with pytest, whose end of the pipe is closed then."""
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    words = [sys.executable, "-c", "from tests.test_interpreter_process import serve; serve()"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    return subprocess.Popen(words, cwd=ROOT, env=environment, text=True, **pipes)


def serve() -> None:
    """In the process that interprets: run each module that stdin names, with arguments, in a fork whose streams are
    files of a folder; print how it ended."""
    import torch  # noqa: F401
    import triton.language  # noqa: F401

    import harness.interpreter.installation  # noqa: F401

    for line in sys.stdin:
        name, arguments, folder = json.loads(line)
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                for stream, number in (("stdout", 1), ("stderr", 2)):
                    os.dup2(os.open(Path(folder, stream), os.O_WRONLY | os.O_CREAT), number)
                sys.argv[1:] = arguments
                runpy.run_module(name, run_name="__main__", alter_sys=True)
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(status)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)


def run_claims() -> None:
    """In the interpreting process: run the marked tests that the command line names, print what became of them."""
    results: dict[str, str | None] = {}
    for name in sys.argv[1:]:
        try:
            CLAIMS[name]()
            results[name] = None
        except (Exception, pytest.fail.Exception):
            results[name] = traceback.format_exc()
    print(json.dumps(results))


@interpreted
def test_kernels_are_interpreted_in_this_process() -> None:
    assert os.environ["TRITON_INTERPRET"] == "1"


if __name__ == "__main__":
    from tests.test_interpreter_process import run_claims

    run_claims()
