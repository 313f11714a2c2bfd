"""Launches of harness.hip's kernels in the emulator.

    present("gfx942")     from here on a launch goes to the emulator; a module is compiled once

A fault names the line of the submission where the module's source stands in it, else the line of the source.
"""

from __future__ import annotations

import dataclasses
import functools
import re
import sys
from collections.abc import Sequence
from typing import Any

import torch

from harness import hip
from harness.chips.targets import EMULATED_TARGETS
from harness.emulated.launches import EmulatedFault, of_process
from harness.emulator import available
from harness.emulator.code_object import CodeObject
from harness.emulator.findings import Malformed, NotEmulated
from harness.emulator.start import Three
from harness.hip import CompilationError, NoDevice, compilers

_compiled: dict[tuple[int, str], tuple[CodeObject, str]] = {}


OF_THE_SOURCE = re.compile(r"\bline (\d+)\b(?! of the prelude)")
"""A line as the emulator's messages name it."""


def present(target: str) -> None:
    """From here on harness.hip launches in the emulator. Nothing is put back."""
    hip.emulator = functools.partial(launch, target)


def launch(
    target: str,
    module: Any,
    kernel: str,
    blocks: Three,
    threads: Three,
    shared_bytes: int,
    packed: Sequence[Any],
    tensors: Sequence[tuple[str, torch.Tensor]],
) -> None:
    """Run one kernel on tensors of the CPU. packed: the arguments, as ctypes values.

    Raises CompilationError, EmulatedFault with the finding, NoDevice for what is not emulated or not installed.
    """
    image, assembly = _loaded(module, target)
    if kernel not in image.kernels:
        raise CompilationError(f'the source defines no extern "C" __global__ {kernel}')
    launches = of_process(target)
    arguments = [bytes(value) for value in packed]
    try:
        launches.run(image, kernel, blocks, threads, arguments, tensors, shared_bytes, assembly)
    except EmulatedFault:
        finding = launches.findings[-1] if launches.findings else None
        if finding is None:
            raise
        raise EmulatedFault(str(_in_submission(finding, module.source))) from None
    except NoDevice as reason:
        words = OF_THE_SOURCE.sub(lambda found: f"line {int(found[1]) + _lines_before(module.source)}", str(reason))
        raise NoDevice(f"{kernel} could not be emulated: {words}") from None


def _loaded(module: Any, target: str) -> tuple[CodeObject, str]:
    if target not in EMULATED_TARGETS:
        raise NoDevice(f"there is no GPU, and {target} is not emulated; {', '.join(EMULATED_TARGETS)} are")
    if (refusal := module.refusal(target)) is not None:
        raise NoDevice(f"it needs another GPU: {refusal}")
    lacking = available()
    if lacking is not None:
        words, _ = module.offline
        raise NoDevice(f"it needs a GPU: {words}, not run; {lacking}")
    key = id(module), target
    if key not in _compiled:
        try:
            with of_process(target).compiling():
                image, assembly = compilers.code_object(module.source, target, module.defines)
            _compiled[key] = CodeObject(image), assembly
        except LookupError as error:
            raise NoDevice(f"it needs a GPU: {error}") from None
        except (Malformed, NotEmulated) as error:
            raise NoDevice(str(error)) from None
    return _compiled[key]


def _in_submission(finding: Any, source: str) -> Any:
    """A finding with the line of the submission's file."""
    if finding.line is None or not (finding.file or "").endswith("source"):
        return finding
    return dataclasses.replace(finding, line=finding.line + _lines_before(source))


def _lines_before(source: str) -> int:
    """How many lines of the submission's file stand before the source; 0 where the file does not hold it as it is."""
    path = getattr(sys.modules.get("submission"), "__file__", None)
    if path is None:
        return 0
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            text = file.read()
    except OSError:
        return 0
    return text.count("\n", 0, max(text.find(source), 0))
