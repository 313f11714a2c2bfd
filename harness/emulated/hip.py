"""Launches of harness.hip's kernels in the emulator.

    present("gfx942")     sends later launches to the emulator; a module is compiled once

The message of a fault names the line of the submission's file if the source's line can be found there, else the line of
the source string.
"""

from __future__ import annotations

import contextlib
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
from harness.emulator.findings import OF_THE_STRING, Malformed, NotEmulated
from harness.emulator.start import Three
from harness.hip import CompilationError, NoDevice, compilers

_compiled: dict[tuple[int, str], tuple[CodeObject, str]] = {}


OF_THE_SOURCE = re.compile(rf"\bline (\d+){OF_THE_STRING}")
"""A line number as the emulator's messages write it."""


def present(target: str) -> None:
    """Make harness.hip launch in the emulator from now on. This cannot be undone."""
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
    """Run one kernel on CPU tensors. packed: the arguments, as ctypes values.

    Raises CompilationError, EmulatedFault with the finding, LaunchError for a launch that the chip would refuse,
    NoDevice for what is not emulated or not installed.
    """
    image, assembly = _loaded(module, target)
    if kernel not in image.kernels:
        raise CompilationError(f'the source defines no extern "C" __global__ {kernel}')
    launches = of_process(target)
    arguments, told = [bytes(value) for value in packed], len(launches.remarks)
    try:
        launches.run(image, kernel, blocks, threads, arguments, tensors, shared_bytes, assembly)
    except EmulatedFault as fault:
        raise EmulatedFault(_in_submission(str(fault), module)) from None
    except NoDevice as reason:
        raise NoDevice(f"{kernel} could not be emulated: {_in_submission(str(reason), module)}") from None
    finally:
        launches.remarks[told:] = [_in_submission(one, module) for one in launches.remarks[told:]]


def _loaded(module: Any, target: str) -> tuple[CodeObject, str]:
    if target not in EMULATED_TARGETS:
        raise NoDevice(f"there is no GPU, and {target} is not emulated; {', '.join(EMULATED_TARGETS)} are")
    if (refusal := module.refusal(target)) is not None:
        others = [one for one in EMULATED_TARGETS if module.refusal(one) is None]
        run = f"; `check --target {others[0]}` runs it" if others else ""
        raise NoDevice(f"it needs another GPU: {refusal}{run}")
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
        except CompilationError as error:
            raise CompilationError(f"{error}{_elsewhere(module)}") from None
        except LookupError as error:
            raise NoDevice(f"it needs a GPU: {error}") from None
        except (Malformed, NotEmulated) as error:
            raise NoDevice(str(error)) from None
    return _compiled[key]


def _elsewhere(module: Any) -> str:
    """For a source that does not compile for a chip: a line that names an emulated chip for which it compiles. "" if
    there is none."""
    for target in EMULATED_TARGETS:
        with contextlib.suppress(CompilationError, LookupError):
            compilers.compile(module.source, target, module.defines)
            return f'\nit compiles for {target}: `check --target {target}` runs it, and targets=("{target}",) says so'
    return ""


def _in_submission(message: str, module: Any) -> str:
    """The message with line numbers of the submission's file, where the source's lines can be found in it."""
    path = getattr(sys.modules.get("submission"), "__file__", None)
    if path is None:
        return message
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            text = file.read()
    except OSError:
        return message

    def of_the_file(found: re.Match[str]) -> str:
        line = module.line_in(text, int(found[1]))
        return found[0] if line is None else f"line {line}"

    return OF_THE_SOURCE.sub(of_the_file, message)
