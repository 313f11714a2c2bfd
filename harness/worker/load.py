"""Import a submission: from one file to its `custom_kernel`, or a failure with the right verdict.

Files written for GPU MODE's competitions can import the module `task` (gpumode). On a CPU, a submission that uses
Triton gets the interpreter with corrected arithmetic.
"""

from __future__ import annotations

import contextlib
import difflib
import importlib.util
import os
import re
import sys
import tokenize
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from harness.wire.protocol import NoDescriptor
from harness.worker import gpumode, switches_of_torch
from harness.worker.kernelbench import ModelCall

MAX_TRACEBACK_CHARS = 8000
MOST_KERNELS, MOST_SWITCHES, LONGEST_NAME = 64, 256, 200
_COMPILE_ERROR_TYPES = {"CompilationError", "CompileTimeAssertionFailure", "OutOfResources", "PTXASError"}
_TO_BE_INSTALLED = {"NoCppCompiler", "NotInstalled"}  # no change of the file helps
_NOT_ITS_FAULT = {"CannotInterpret", "NoDevice", *_TO_BE_INSTALLED}  # it may run elsewhere
_COMPILE_ERROR_STARTS = ("Error building extension", "Error compiling objects for extension")


class Unloadable(Exception):
    """The submission's file defines no usable `custom_kernel`."""


class LoadedSubmission:
    """A submission's `custom_kernel`, ready to be called, and the context for its calls on this device."""

    def __init__(
        self,
        kernel: Callable[[Any], Any],
        around_call: Callable[[], Any],
        launches: Callable[[], int],
        set_up: Callable[[Any], None] = lambda data: None,
    ):
        self.kernel, self.around_call, self.interpreted_launches = kernel, around_call, launches
        self.set_up = set_up


def emulated() -> dict[str, Any]:
    """This process's launches in the emulator: the chip, the number of instructions, and the emulator's remarks."""
    launches = sys.modules.get("harness.emulated.launches")
    return launches.emulated() if launches else {"emulated": None}


def observed() -> dict[str, Any]:
    """What this process, which has no GPU, has seen of the submission: the kernels that were interpreted, the switches
    among their constexprs, and what a GPU would compute otherwise."""
    launch = sys.modules.get("harness.interpreter.launch")
    names, switches = (launch.names, launch.switches) if launch else ((), ())
    return {
        "kernels": [_storable(name)[:LONGEST_NAME] for name in sorted(names)[:MOST_KERNELS]],
        "switches": [_storable(words)[:LONGEST_NAME] for words in sorted(switches)[:MOST_SWITCHES]],
        "inexact": switches_of_torch.inexact_on_a_gpu(),
    }


NOTHING = LoadedSubmission(lambda data: None, contextlib.nullcontext, lambda: 0)
"""Used if no submission was loaded, for null calls."""


_COMPILER_ERROR = re.compile(r"^(?:\S*/)?([^/\s]+[:(]\d+.*\berror: .+)$", re.MULTILINE)
"""`/tmp/cache/main.cpp:5:16: error: 'zero' was not declared`, of gcc and clang; `main.cu(5): error: ...`, of nvcc."""


_NAMES_A_LINE = re.compile(r"^CompilationError: \w+, line \d+: ")
"""The front end's message already names the kernel's line, which is not the line that launches the kernel."""


def load(
    path: Path, interpreted: bool, modules: Mapping[str, str] = MappingProxyType({}), models: bool = False
) -> LoadedSubmission:
    """Import the file at `path`. `interpreted`: there is no GPU for its Triton kernels. `modules`: the texts of the
    problem's modules by name, which the submission may import once they were provided. `models`: the file has a class
    ModelNew.

    Raises Unloadable without a callable `custom_kernel` or a ModelNew, and any exception of the import.
    """
    try:
        with tokenize.open(path) as file:  # decodes as Python does: in UTF-8, or in the encoding that the file names
            source = file.read()
    except (UnicodeDecodeError, SyntaxError) as error:
        raise Unloadable("the file is not UTF-8 and names no other known encoding") from error
    everything = "\n".join([source, *modules.values()])
    around, launches = _cpu_stand_ins(everything) if interpreted else (contextlib.nullcontext, lambda: 0)
    if "task" not in modules:
        sys.modules["task"] = gpumode.task_module()
    spec = importlib.util.spec_from_file_location("submission", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["submission"] = module
    if interpreted:
        switches_of_torch.watch()
    with around():
        spec.loader.exec_module(module)
    switches_of_torch.forget()  # what is still set, a call will find set
    if models:
        cls = getattr(module, "ModelNew", None)
        if not isinstance(cls, type):
            raise Unloadable("the file defines no class ModelNew")
        model = ModelCall(cls, around, "cpu" if interpreted else "cuda")
        return LoadedSubmission(model, model.around_call, launches, model.set_up)
    kernel = getattr(module, "custom_kernel", None)
    if not callable(kernel):
        what = "no custom_kernel" if kernel is None else f"a custom_kernel of type {type(kernel).__name__}"
        near = difflib.get_close_matches("custom_kernel", [name for name in vars(module) if name != "custom_kernel"], 1)
        meant = f"; did you mean {near[0]}?" if near else ""
        raise Unloadable(f"the file defines {what}: it must define custom_kernel(data){meant}")
    return LoadedSubmission(kernel, around, launches)


def release_builds() -> None:
    """Remove the locks that a killed process left in its builds: torch waits for such a file forever
    (torch.utils.file_baton). No process that builds may be alive."""
    for lock in Path(os.environ.get("TORCH_EXTENSIONS_DIR", os.devnull)).rglob("lock"):
        with contextlib.suppress(OSError):
            lock.unlink()


def provide(modules: Mapping[str, str], interpreted: bool) -> Callable[[], Any]:
    """Make the problem's own modules ready for import. Returns the context in which to import them."""
    for name, text in modules.items():
        Path(f"{name}.py").write_text(text, encoding="utf-8")  # in the working directory, the first on the path
        sys.modules.pop(name, None)
    together = "\n".join(modules.values())
    return (lambda: _cpu_stand_ins(together)[0]()) if interpreted else contextlib.nullcontext


def describe_failure(error: BaseException, path: Path) -> dict[str, Any]:
    """Describe an exception for the judge: the kind of verdict, one sentence, the submission's own traceback.

    Raises nothing, whatever the exception's own code does.
    """
    try:
        return _described(error, path)
    except BaseException:  # __str__, __class__ and __traceback__ may be the submission's own code
        message = "the submission raised an exception whose own code raises another"
        return {"kind": "runtime_error", "message": message, "detail": ""}


def _described(error: BaseException, path: Path) -> dict[str, Any]:
    first = _first_of_group(error)
    text = _text(error)
    kind = "compile_error" if _is_compile_error(error, text) else "runtime_error"
    if type(error).__name__ in _NOT_ITS_FAULT:
        kind = "cannot_judge"
    own = _own_frames(error, path)
    within = _own_frames(first, path) or own
    lineless = isinstance(error, SyntaxError) or type(error).__name__ in _TO_BE_INSTALLED
    line = within[-1].lineno if within and not lineless else None
    message = _sentence(error, text)
    if first is not error:
        message += f", the first of them {_sentence(first, _text(first))}"
    # torch's error names the command that failed. The compiler's own error is in the output of that command.
    of_compiler = _COMPILER_ERROR.search(text) if kind == "compile_error" else None
    if of_compiler is not None:
        message = of_compiler[1]
    if isinstance(error, Unloadable | NoDescriptor) or kind == "cannot_judge":
        message = _first_line(text)
    if isinstance(error, SystemExit):
        message = f"the submission called sys.exit({'' if error.code is None else repr(error.code)})"
    shown = "" if isinstance(error, Unloadable) else "".join(traceback.format_exception_only(error))
    shown = "".join(traceback.format_list(own)) + shown
    if first is not error:
        shown += "".join((*traceback.format_list(within), *traceback.format_exception_only(first)))
    instead = gpumode.hint(error) or _signature(error, text)
    return {
        "kind": kind,
        "message": _storable(message[:2000])
        + (f" (line {line})" if line and not _NAMES_A_LINE.search(message) else "")
        + (f": {instead}" if instead else ""),
        "detail": _storable(shown[-MAX_TRACEBACK_CHARS:]),
    }


def _sentence(error: BaseException, text: str) -> str:
    """`ValueError: no such shape`, or the name with "without a message"."""
    said = _first_line(text)
    name = _first_line(type(error).__name__)[:200]  # the name may be any text too
    return f"{name}: {said}" if said else f"{name} without a message"


def _first_line(text: str) -> str:
    return text.strip().splitlines()[0] if text.strip() else ""


def _text(error: BaseException) -> str:
    """The exception's text. Its `__str__` may raise, or return no text."""
    try:
        return str(error)
    except BaseException as another:
        return f"its own __str__ raises {type(another).__name__}"


def _first_of_group(error: BaseException) -> BaseException:
    """The first exception in a group, also in nested groups. Any other exception is returned as it is."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _signature(error: BaseException, text: str) -> str:
    """A hint on the arguments of custom_kernel, if the call itself failed."""
    if isinstance(error, TypeError) and text.startswith("custom_kernel() ") and "argument" in text:
        return "it is called as custom_kernel(data)"
    return ""


def _own_frames(error: BaseException, path: Path) -> list[traceback.FrameSummary]:
    """The submission's own frames, down to the cause. For an interpreted kernel they include those of the cause's
    traceback."""
    own: list[traceback.FrameSummary] = []
    seen: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and not any(cause is one for one in seen):  # causes may form a cycle
        seen.append(cause)
        own += [frame for frame in traceback.extract_tb(cause.__traceback__) if frame.filename == str(path)]
        cause = cause.__cause__
    return own


def _storable(text: str) -> str:
    """`text` without characters that no file can hold: an exception's message may have lone surrogates."""
    return text.encode("utf-8", "replace").decode()


def _is_compile_error(error: BaseException, text: str) -> bool:
    names = {cls.__name__ for cls in type(error).__mro__}
    return (
        isinstance(error, SyntaxError | Unloadable)
        or bool(names & _COMPILE_ERROR_TYPES)
        or text.startswith(_COMPILE_ERROR_STARTS)
    )


def _cpu_stand_ins(source: str) -> tuple[Callable[[], Any], Callable[[], int]]:
    """Set up the replacements that GPU code needs on a CPU. Returns the context for calls and a counter of launches.
    Nothing is done for a source that mentions neither Triton nor CUDA."""
    if "harness.hip" in source and os.environ.get("PODIUM_EMULATE"):
        from harness.emulated import hip

        hip.present(os.environ["PODIUM_EMULATE"])
        _limit_waves()
    if "cpp_extension" in source:
        from harness.worker.extensions import refuse_what_cannot_be_built

        refuse_what_cannot_be_built()
    if "triton" not in source and "cuda" not in source:
        return contextlib.nullcontext, lambda: 0
    from harness.interpreter import installation as interpreter

    if "triton" in source and os.environ.get("PODIUM_EMULATE_TRITON"):
        from harness.emulated import triton_driver

        triton_driver.present(os.environ["PODIUM_EMULATE"])
        _limit_waves()
        return interpreter.cuda_on_cpu, lambda: 0
    if "triton" in source:
        interpreter.install()
    return interpreter.cuda_on_cpu, interpreter.launches


def _limit_waves() -> None:
    """Limit a wave's time, so that an endless wave is reported before the call's time is over."""
    from harness.emulated.launches import of_process

    of_process(os.environ["PODIUM_EMULATE"]).limit_s = float(os.environ.get("PODIUM_EMULATE_WAVE_S", "inf"))
