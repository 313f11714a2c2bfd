"""How the interpreter's tests run: a module's claims together, in one process of their own.

Triton decides when it is imported whether it interprets, so pytest's own process must not interpret anything:

    pytest ── first test of a module ──► TRITON_INTERPRET=1 python -m tests.test_interpreter_bf16 TEST...
       ▲                                     install(), then those of the module's tests that were selected
       └────────── JSON: {test: traceback or null} ────────────┘
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
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
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    name = f"tests.{module.rpartition('.')[2]}"
    words = [sys.executable, "-m", name, *tests]
    process = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True)
    if process.returncode != 0:
        return defaultdict(lambda: f"{name} ended with {process.returncode}:\n{process.stderr[-4000:]}")
    return json.loads(process.stdout.splitlines()[-1])


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
