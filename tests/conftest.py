"""Fixtures and hooks of the tests: a miniature checkout with one problem that takes milliseconds, and few samples."""

import contextlib
import gc
import importlib
import os
import re
import shutil
import signal
import sys
import tempfile
from collections import Counter
from pathlib import Path

import pytest

from harness.machine import lock
from harness.machine.device import detect
from harness.model import NO_ISOLATION
from harness.sandbox import bubblewrap, forked, tiers

# Tests start makes of their own. These must not inherit the variables of a `make test` that runs the tests.
_MAKEFILE = (Path(__file__).resolve().parents[1] / "Makefile").read_text()
for _name in _MAKEFILE.partition("VARIABLES :=")[2].partition("\n")[0].split():
    os.environ.pop(_name, None)

# Hints use the words of the caller. These tests call by module, unless they say otherwise.
os.environ.pop("PODIUM_CALLER", None)

# pytest-xdist sets a width for its processes. A test about widths sets its own.
os.environ.pop("COLUMNS", None)

# Keep the bytecode of 30,000 lines of tests for the next run, even if the shell forbids it.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# About as many processes test as there are processors. Threads that wait for each other spin: on a busy machine, this
# took two thirds of the time of all computation here.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

# Five thousand tests and their imports are not garbage. So collect no garbage until all tests are collected, and never
# look at them afterwards.
gc.disable()

# How long an example takes says nothing on a busy machine.
with contextlib.suppress(ImportError):  # tests that do not use it need not have it
    hypothesis = importlib.import_module("hypothesis")
    hypothesis.settings.register_profile("no deadline", deadline=None)
    hypothesis.settings.load_profile("no deadline")

# A process started in the background ignores Ctrl-C, and so would all its children.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

EVAL_YML = """\
cpu:
  processes: 2
  warmup_calls: 1
  pilot_calls: 1
  min_samples: 2
  max_samples: 3
  budget_s: 0.01
  judging_budget_s: 1
  fresh: false  # most tests are not about how a process is started
gpu:
  processes: 2
  warmup_calls: 1
  pilot_calls: 1
  min_samples: 2
  max_samples: 3
  budget_s: 0.01
  judging_budget_s: 1
quick_processes: 1
confidence: 0.95
"""

PROBLEM_YML = """\
name: double
title: Twice as much
description: Every element of a matrix, doubled.
revision: 1

inputs: [x, config]
outputs: [y]
axes:
  y: [row, col]

tolerances:
  close: {rtol: 1.0e-5, atol: 1.0e-6, max_mismatch: 0, rel_l2: 1.0e-5}

cases:
  test:
    - {rows: 4, cols: 8}
    - {rows: 3, cols: 5}
  benchmark:
    - {rows: 64, cols: 64}

cpu:
  test:
    - {rows: 4, cols: 8}
    - {rows: 3, cols: 5}
  benchmark:
    - {rows: 64, cols: 64}

limits: {load_s: 600, call_s: 300}
"""

CPU_YML = """\
matches: ["* CPUs)"]
flush_bytes: 1048576  # caches matter to no test, and to empty them takes half of the time of a call
sources: {flush_bytes: so that tests take less time}
"""

REFERENCE_PY = '''\
"""Every element of a matrix, doubled."""

import torch


def generate_input(*, rows: int, cols: int, seed: int, device: str):
    generator = torch.Generator(device).manual_seed(seed)
    return torch.randn(rows, cols, generator=generator, device=device), {"factor": 2.0}


def ref_kernel(data):
    x, config = data
    return x * config["factor"]


def cost(*, rows: int, cols: int):
    return {"float32": {"bytes": 8 * rows * cols, "flops": {"float32": rows * cols}}}
'''


def lay_out(root: Path) -> Path:
    """Make `root` the root of a checkout with the problem `double`."""
    for folder in ("configs/devices", "problems/double", "submissions/double", "results"):
        (root / folder).mkdir(parents=True)
    (root / "configs" / "eval.yml").write_text(EVAL_YML)
    (root / "configs" / "devices" / "cpu.yml").write_text(CPU_YML)
    (root / "problems" / "double" / "problem.yml").write_text(PROBLEM_YML)
    (root / "problems" / "double" / "reference.py").write_text(REFERENCE_PY)
    return root


def pytest_xdist_auto_num_workers(config):
    """One more than there are processors, because tests spend a third of their time waiting for processes that they
    started."""
    return (len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1) + 1


@pytest.fixture
def toy_root(tmp_path, monkeypatch):
    """The root of a checkout with the problem `double`: data = (x float32 [rows, cols], config), output 2 x.

    The lock of the device, which belongs to the machine, is replaced by the test's own, so that other evaluations do
    not delay the test. Processes that the test starts use the machine's lock (but see `test_cli.command`).
    """
    (tmp_path / "tmp").mkdir()
    (tmp_path / "tmp").chmod(0o1777)
    monkeypatch.setattr(lock, "FOLDERS", (tmp_path / "tmp",))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return lay_out(tmp_path)


@pytest.fixture
def podium(toy_root, capsys):
    """Runs a verb on that checkout. Returns its exit code, stdout and stderr."""
    from harness.cli import main

    def run(*arguments: str) -> tuple[int, str, str]:
        code = main(["--root", str(toy_root), *arguments])
        streams = capsys.readouterr()
        return code, streams.out, streams.err

    return run


@pytest.fixture
def limited(toy_root):
    """Gives `double` other limits. Its normal limits are never reached, however busy the machine is. Only a test about
    a limit sets one, and a short limit only for code that never ends."""
    path = toy_root / "problems" / "double" / "problem.yml"

    def limit(load_s: float = 600, call_s: float = 300, **more: float) -> None:
        limits = {"load_s": load_s, "call_s": call_s} | more
        text = ", ".join(f"{name}: {value}" for name, value in limits.items())
        path.write_text(re.sub(r"(?m)^limits: .*", f"limits: {{{text}}}", path.read_text()))

    return limit


@pytest.fixture
def in_triton():
    """A submission to `double` that is interpreted on a CPU."""
    return """
import torch, triton, triton.language as tl
@triton.jit
def twice(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + i, mask=i < n) * 2, mask=i < n)
def custom_kernel(data):
    y = torch.empty_like(data[0])
    twice[(triton.cdiv(y.numel(), 64),)](data[0], y, y.numel(), BLOCK=64)
    return y
"""


@pytest.fixture(scope="session")
def _folder_of_programs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("programs")
    folder.chmod(0o755)  # for a process with a user id of its own
    return folder


@pytest.fixture
def a_program(_folder_of_programs, monkeypatch):
    """Makes a module from a text, for `harness.compile.processes` to run; returns its name. All modules are in one
    folder, because each search path has its own server, which imports torch and Triton."""
    monkeypatch.setenv("PYTHONPATH", str(_folder_of_programs))

    def make(text: str) -> str:
        name = f"a_program_{len(list(_folder_of_programs.iterdir()))}"
        (_folder_of_programs / f"{name}.py").write_text(text)
        return name

    return make


@pytest.fixture
def roomy(monkeypatch):
    """The machine is never too crowded for a verdict. Beside other tests it may be."""
    from harness.machine import neighbours

    monkeypatch.setattr(neighbours, "MOST_FOR_OTHERS", 1.0)


@pytest.fixture
def server(toy_root):
    """A competition's server with a judge that answers at once (served.py)."""
    from served import Server

    server = Server(toy_root)
    yield server
    server.close()


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """A server that several tests of a module share."""
    from served import Server

    server = Server(lay_out(tmp_path_factory.mktemp("kept")))
    yield server
    server.close()


@pytest.fixture(autouse=True, scope="session")
def _without_bubblewrap():
    """Most tests judge in the strongest isolation without namespaces, where workers are forked. The sandbox's tests try
    each isolation, and a process that a test starts chooses its own."""
    cpu = detect(Path(__file__).resolve().parents[1], "cpu")
    if bubblewrap.program():
        held = (tier for tier in tiers.candidates(cpu) if not tier.bubblewrap and tiers.holds(tier, cpu))
        tiers._found[cpu.torch_device] = next(held, NO_ISOLATION)


@pytest.fixture(scope="session")
def no_namespaces(tmp_path_factory):
    """A folder for PATH with a bubblewrap that does not work."""
    folder = tmp_path_factory.mktemp("no_namespaces")
    (folder / "bwrap").write_text("#!/bin/sh\nexit 1\n")
    (folder / "bwrap").chmod(0o755)
    return str(folder)


@pytest.fixture
def forking(no_namespaces, monkeypatch):
    """Commands that a test starts fork their workers. In namespaces each worker would import torch."""
    monkeypatch.setenv("PATH", no_namespaces, prepend=os.pathsep)


@pytest.fixture(autouse=True, scope="session")
def _servers_are_kept():
    """Tests use more kinds of workers in turn than a user does. Each kind needs a server that has imported torch."""
    forked.MOST_SERVERS = 10


@pytest.fixture(autouse=True, scope="session")
def _anchors_are_small():
    """Shrink the judge's own matrix product. It measures the machine's speed, which no test needs. Thirty products of
    full size took a sixth of a timed evaluation of `double`."""
    import torch

    from harness.judge import anchor

    anchor.MATRIX["cpu"] = (32, torch.float32)


MUST_HAVE = os.environ.get("PODIUM_MUST_HAVE", "").split()
"""Programs that .ci/run has installed: a test must not be skipped because one is missing."""


def lacks(report, programs):
    """True if a test was skipped because one of `programs` is missing."""
    reason = str(report.longrepr).lower()
    skipped = report.skipped and not hasattr(report, "wasxfail")
    return skipped and any(f"{name} is not installed" in reason for name in programs)


@pytest.fixture
def chromium(monkeypatch):
    monkeypatch.setenv("TMPDIR", "/tmp")  # its socket's path must be short
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if program is None:
        pytest.skip("Chromium is not installed (Debian and Ubuntu: apt install chromium)")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=program)
        yield browser
        browser.close()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    report = (yield).get_result()
    if lacks(report, MUST_HAVE):
        report.outcome = "failed"


LEFT_OUT = pytest.StashKey[list[str]]()
"""The slow tests that are left out. The end of the output names them, so that no claim goes missing unnoticed."""


def pytest_addoption(parser):
    words = "with `make test`: the slow tests that are marked ci, too"
    parser.addoption("--short", action="store_true", help=words)


def pytest_configure(config):
    config.stash[LEFT_OUT] = []
    if config.getoption("short") and config.option.markexpr == "not slow":
        config.option.markexpr = ""  # the hook below selects the slow tests


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    if config.getoption("short"):
        # `all` of its marks: a quick test has none, and a slow one may have its own and one of a parameter.
        kept = [item for item in items if all(mark.kwargs.get("ci") for mark in item.iter_markers("slow"))]
        chosen = set(kept)
        left_out = [item for item in items if item not in chosen]
        items[:] = kept
        config.hook.pytest_deselected(items=left_out)


def pytest_collection_finish():
    gc.freeze()
    gc.enable()


def pytest_deselected(items):
    for item in items:
        deliberate = item.config.getoption("short") or "not slow" in item.config.getoption("markexpr")
        if item.get_closest_marker("slow") and deliberate:
            item.config.stash[LEFT_OUT].append(item.nodeid)


def pytest_sessionfinish(session):
    if hasattr(session.config, "workeroutput"):  # in a process of xdist
        session.config.workeroutput["left_out"] = session.config.stash[LEFT_OUT]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node):
    node.config.stash[LEFT_OUT] = node.workeroutput.get("left_out", []) if hasattr(node, "workeroutput") else []


def pytest_terminal_summary(terminalreporter, config):
    left_out = config.stash[LEFT_OUT]
    if left_out:
        terminalreporter.section(f"left out: {len(left_out)} slow tests, which make test-all runs")
        counts = Counter(node.partition("::")[0] for node in left_out)
        terminalreporter.line(", ".join(f"{count} of {file}" for file, count in counts.items()))
