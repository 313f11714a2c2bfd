"""What this machine can do, what it cannot do, and the commands that add the rest.

    survey(root, device) ─► Fact, Fact, ...     name, finding, ok | missing | broken, remedy

A `missing` thing is optional, such as a GPU or a compiler for one chip. If a required thing is not `ok`, nothing can be
judged: exit code 30.
"""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import util
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Literal

from harness.catalog.config import DUEL_PAIRS
from harness.chips.targets import DEFAULT_TARGETS
from harness.command import how_to_get_offline, installed, page, pip_install, typed
from harness.compile import tools
from harness.compile.survey import HipCompiler
from harness.emulator import decoding
from harness.errors import InfrastructureError
from harness.machine.device import detect
from harness.model import Device
from harness.profiling import tool
from harness.records.store import Store
from harness.sandbox import tiers
from harness.verbs import calibration
from harness.worker import cpp

SUPPORTED = {"torch": (2, 11), "triton": (3, 6)}
"""The oldest supported versions. pyproject.toml states the same."""

LOW_DISK_BYTES = 2 << 30
"""Less free space than this is reported. A check of a Triton kernel for four targets writes some ten megabytes; builds
of torch extensions write about a hundred."""

ASK_S = 20.0
_NVIDIA = "NVIDIA's"
_DRIVERS = {"/proc/driver/nvidia/version": _NVIDIA, "/dev/kfd": "AMD's"}
_DRIVER_QUESTIONS = (
    ("nvidia-smi", "--query-gpu=name,driver_version,clocks.max.sm,power.limit", "--format=csv,noheader"),
    ("amd-smi", "version"),
    ("rocm-smi", "--showdriverversion", "--csv"),
)


@dataclass(frozen=True)
class Fact:
    """One finding about the machine. `remedy`: the command or step that repairs or adds it."""

    name: str
    found: str
    state: Literal["ok", "missing", "broken"] = "ok"
    remedy: str | None = None
    required: bool = False

    @property
    def fatal(self) -> bool:
        return self.required and self.state != "ok"


def survey(root: Path, device: Device, narrate: Callable[[str], None] = lambda line: None) -> list[Fact]:
    """Find all facts, in the order of display. The first call takes seconds, to test Triton's interpreter."""
    facts = [
        _python(),
        *_packages(),
        *_bytecode(util.find_spec("torch")),
        _device(device),
        _driver(device),
        _peaks(root, device),
        _noise(root, device),
    ]
    facts.append(_profiler(device))
    narrate("looking at the sandbox")
    facts.append(_isolation(device))
    narrate("looking at Triton's interpreter and the compilers")
    facts += [*_offline(), _emulator(), _cpp()]
    return [*facts, _results(root), *_disks(root), _checkout(root)]


def device(root: Path, wanted: str) -> Device:
    """Return the device that `wanted` names, or the CPU if torch is not installed. Raises UsageError, as `detect`
    does."""
    try:
        return detect(root, wanted)
    except ImportError:
        return detect(root, "cpu")


def _python() -> Fact:
    """The Python here. Its version needs no test: a Python that is too old does not get this far."""
    return Fact("python", f"{platform.python_version()} ({sys.executable})", required=True)


def _packages() -> Iterator[Fact]:
    for name, oldest in SUPPORTED.items():
        version, needed = tools.version(name), ".".join(map(str, oldest))
        remedy = pip_install(f"'{name}>={needed}'")
        if not installed():
            remedy = f"make problems, which sets .venv up, or: {remedy}"
        required = name == "torch"
        if version is None:
            yield Fact(name, "not installed", "broken" if required else "missing", remedy, required)
        elif _release(version) < oldest:
            yield Fact(name, f"{version}, older than {needed}", "broken", remedy, required)
        else:
            yield Fact(name, version, required=required)


def _bytecode(torch: ModuleSpec | None) -> Iterator[Fact]:
    """Whether Python keeps the bytecode of torch's 2,000 sources. Images for containers often forbid it. Each command
    then compiles them anew: `import torch` took 4.1 s on one host of H200s, and 2.4 s with bytecode on another
    (2026-11-30)."""
    if torch is None or torch.origin is None:
        return
    folder = Path(torch.origin).parent
    if Path(util.cache_from_source(torch.origin)).exists():
        yield Fact("bytecode", "torch starts from compiled files")
    elif sys.dont_write_bytecode or not os.access(folder, os.W_OK):
        remedy = f"python3 -m compileall -q {folder}, as one who may write there"
        yield Fact("bytecode", "is not kept: each command compiles torch anew, for seconds", "missing", remedy)
    else:
        yield Fact("bytecode", "the next command compiles torch's sources, once")


def _device(device: Device) -> Fact:
    found = f"{device.name} ({device.arch}), {device.memory_bytes / 1e9:.0f} GB"
    drivers = [vendor for path, vendor in _DRIVERS.items() if os.path.exists(path)]
    if device.kind == "cpu" and drivers:
        how = "install Podium into a Python" if installed() else "make doctor PYTHON=/path/to/a/python3"
        remedy = f"to judge on that GPU: {how} whose torch sees it"
        if drivers[0] == _NVIDIA and not installed() and (tools.version("torch") or "").endswith("+cpu"):
            remedy += "; .venv has the torch for CPUs: make clean, then make doctor, installs the one for CUDA"
        return Fact("device", f"{found}; {drivers[0]} driver is here, too, but is not used", "missing", remedy)
    return Fact("device", found)


def _driver(device: Device) -> Fact:
    """The output of the vendor's own tool. A tool that is missing or finds no GPU is skipped."""
    for question in _DRIVER_QUESTIONS:
        answer = _ask(*question)
        if answer:
            return Fact("driver", "; ".join(answer.splitlines()))
    if device.kind == "cpu":
        return Fact("driver", "no GPU here")
    return Fact("driver", "neither nvidia-smi, amd-smi nor rocm-smi answers", "missing", "install the vendor's tools")


def _peaks(root: Path, device: Device) -> Fact:
    if device.bandwidth_bytes_per_s is None:
        remedy = f"describe {device.name} in {root / 'configs' / 'devices'}, as {page('adding-a-device')} shows"
        return Fact("peaks", "not known: no floors, no percentages", "missing", remedy)
    return Fact("peaks", f"{device.bandwidth_bytes_per_s / 1e12:.3g} TB/s; floors are shown")


def _noise(root: Path, device: Device) -> Fact:
    remedy = typed("doctor", "--calibrate")
    try:
        duel, runs = (calibration.noise(root, device, pairs) for pairs in (DUEL_PAIRS, None))
    except InfrastructureError as error:
        return Fact("noise", error.message, "broken", error.hint)
    found = f"±{duel.percent:.2g} % in duels, ±{runs.percent:.2g} % between runs, {duel.source}"
    return Fact("noise", found) if duel.calibrated else Fact("noise", found, "missing", remedy)


def _profiler(device: Device) -> Fact:
    """The profiler that `profile` would use, or how to install one."""
    chosen = tool.fitting(device)[0]
    try:
        return Fact("profiler", tool.named(chosen) if chosen == "torch" else tool.find(chosen))
    except InfrastructureError as error:
        return Fact("profiler", f"{error.message}: profile has times, no counters", "missing", error.hint)


def _isolation(device: Device) -> Fact:
    isolation = tiers.strongest(device)
    if not isolation.confines:
        return Fact("sandbox", "no sandbox works here: runs are not ranked", "missing", tiers.HOW_TO_GET_ONE)
    if trouble := tiers.bubblewrap_refused(device):
        return Fact("sandbox", f"{isolation.tier}; bubblewrap is installed and does not hold: {trouble}")
    return Fact("sandbox", isolation.tier)


def _offline() -> Iterator[Fact]:
    """Triton's interpreter, and for each target Triton's compiler and the compiler of inline HIP or CUDA."""
    try:
        found = tools.here()
    except InfrastructureError as error:
        says_more = "TRITON_INTERPRET=1 python3 -m harness.compile.survey says more"
        yield Fact("interpreter", error.message, "broken", says_more)
        return
    wrong = found.interpreter
    yield Fact("interpreter", wrong or "passes its self-test", "broken" if wrong else "ok", _mend(wrong))
    for target in DEFAULT_TARGETS:
        yield Fact(target, f"Triton {found.triton}") if found.triton else Fact(target, "no Triton", "missing")
        yield _inline(target, found.hip_compilers.get(target))


def _inline(target: str, here: HipCompiler | None) -> Fact:
    name = f"inline {'CUDA' if target.startswith('sm_') else 'HIP'} for {target}"
    if here is not None and here.compiler is not None:
        return Fact(name, here.compiler)
    every, one = how_to_get_offline(), here.install if here else None
    # In an installed Podium the first command may include the second.
    ways = [every] if one is None or set(one.split()) <= set(every.split()) else [every, one]
    return Fact(name, "no compiler", "missing", ", or: ".join(ways))


def _emulator() -> Fact:
    if decoding.available() is not None:
        return Fact("emulator", "no tables of instructions", "missing", how_to_get_offline())
    return Fact("emulator", "runs inline HIP, and Triton's code for AMD's chips")


def _cpp() -> Fact:
    """What builds submissions in C++, as a worker would find it."""
    try:
        return Fact("C++", cpp.compiler())
    except cpp.NoCppCompiler as lacking:
        return Fact("C++", str(lacking), "missing", cpp.HOW_TO_GET_IT)


def _mend(wrong: str | None) -> str | None:
    return f"install a Triton that is supported: {pip_install('triton==3.7.1')}" if wrong else None


def _results(root: Path) -> Fact:
    try:
        Store(root).check_writable()
    except InfrastructureError as error:
        return Fact("results", error.message, "broken", error.hint, True)
    return Fact("results", str(root / "results"), required=True)


def _disks(root: Path) -> Iterator[Fact]:
    """Free space for results, scratch directories and cached compilations."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    for name, folder in (("results", root), ("scratch", Path(tempfile.gettempdir())), ("cache", cache)):
        there = next(path for path in (folder, *folder.parents) if path.exists())
        free = shutil.disk_usage(there).free
        found = f"{free / 1e9:.1f} GB free at {there}"
        low = free < LOW_DISK_BYTES
        yield Fact(f"disk for {name}", found, "broken" if low else "ok", f"make room at {there}" if low else None)


def _checkout(root: Path) -> Fact:
    commit = _ask("git", "-C", str(root), "rev-parse", "--short", "HEAD")
    if not commit:
        return Fact("checkout", f"{root}, not a git checkout")
    changed = len(_ask("git", "-C", str(root), "status", "--short", "--untracked-files=no").splitlines())
    return Fact("checkout", f"{root} at {commit}" + (f", {changed} files changed" if changed else ""))


def _ask(*words: str) -> str:
    """Return the output of a program, or "" if it is missing or fails."""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(words, capture_output=True, text=True, errors="replace", timeout=ASK_S, check=False)
        return done.stdout.strip() if done.returncode == 0 else ""
    return ""


def _release(version: str) -> tuple[int, ...]:
    """Parse the release: 2.11.0a1+cu130 gives (2, 11)."""
    return tuple(int("".join(filter(str.isdigit, part)) or 0) for part in version.split("+")[0].split(".")[:2])
