"""Call a submission's host code with a GPU that records launches and runs none.

The host code continues with outputs that nothing was written to.

    rehearse    on the small CPU cases; the sources for torch's load_inline are recorded
    follow      if the file refuses a CPU: on the other cases, on the target's simulated card
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import re
import traceback
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from harness import hip
from harness.chips.targets import TARGETS
from harness.compile import telling
from harness.compile.compilation import Flaw
from harness.compile.cross_compile import CALLS
from harness.compile.inputs import DescribedCase, Inputs
from harness.hip.runtime import AMD, NVIDIA, Gpu
from harness.worker import load


@dataclass
class Launched:
    """The launches of one kernel of one module, over all cases. `shared_bytes`, `threads`: the maximum per block.
    `arguments`: the bytes of each. `grids`: their blocks in x, y, z."""

    cases: list[str] = field(default_factory=list)
    shared_bytes: int = 0
    threads: int = 0
    arguments: tuple[int, ...] = ()
    grids: set[tuple[int, ...]] = field(default_factory=set)


class Rehearsal(Gpu):
    """A GPU of the target's vendor that records each launch and runs none. `launches`: as a TritonCompiler's."""

    def __init__(self, target: str) -> None:
        self.vendor = AMD if TARGETS[target].vendor == "amd" else NVIDIA
        self.launched: dict[tuple[hip.Module, str], Launched] = {}
        self.launches = 0
        self.again = False
        self.case = ""

    def index_of(self, tensor: Any) -> int:
        return 0

    def current_device(self) -> int:
        return 0

    def function(self, module: Any, name: str) -> Any:
        return module, name

    def grant_shared(self, function: Any, count: int) -> None: ...

    def encode(self, words: Any, what: str) -> None: ...

    def follow(self) -> None: ...

    def launch(self, function: Any, grid: Sequence[int], block: Sequence[int], shared: int, packed: list[Any]) -> None:
        self.launches += not self.again
        launched = self.launched.setdefault(function, Launched())
        launched.shared_bytes = max(launched.shared_bytes, shared)
        launched.threads = max(launched.threads, math.prod(block))
        launched.arguments = tuple(map(ctypes.sizeof, packed))
        launched.grids.add(tuple(grid))
        if self.case not in launched.cases:
            launched.cases.append(self.case)


class NotedOnly(Exception):
    """Replaces the call of an extension that load_inline would have built."""


class NotedExtension:
    """The result of load_inline here: a module whose functions cannot be called."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise NotedOnly(name)


def rehearse(cpu: Inputs, path: Path, rehearsal: Rehearsal, sources: list[str]) -> tuple[Flaw | None, bool]:
    """Import the file and call it on each CPU test case, CALLS times. Return the first flaw, and whether the file
    itself demands another device than a CPU (NoDevice), which is no flaw."""
    from torch.utils import cpp_extension

    def noted(*arguments: Any, **named: Any) -> NotedExtension:
        given = named.get("cuda_sources", arguments[2] if len(arguments) > 2 else None) or []
        sources.extend([given] if isinstance(given, str) else given)
        return NotedExtension()

    cpp_extension.load_inline = noted
    hip.visible_gpu = lambda: rehearsal  # type: ignore[assignment]
    hip.Module.loaded = lambda module, gpu, device: module  # type: ignore[assignment,method-assign,return-value]
    try:
        telling.tell("the import of the file")
        submission = load.load(path, interpreted=True)
        for case in cpu.cases:
            telling.tell(f"custom_kernel with {case.label}")
            rehearsal.case = case.label
            for call in range(CALLS):
                rehearsal.again = call > 0
                _call(submission, case)
    except hip.NoDevice:
        return None, True
    except BaseException as error:  # SystemExit and KeyboardInterrupt come from the submission, too
        return _flaw(error, path), False
    return None, False


def follow(inputs: Inputs, path: Path, target: str, rehearsal: Rehearsal, sources: list[str]) -> Flaw | None:
    """Import the file again and call it on each GPU case, on a machine with the target's simulated card. Return the
    first flaw. Triton kernels are skipped, because `cross_compile` compiles them."""
    try:
        from triton import knobs

        from harness.compile.cross_compile import followed
        from harness.compile.triton_compiler import NoCompiler
    except ImportError:  # Triton exists only for Linux, and the simulated card needs it
        return None
    knobs.runtime.interpret = False  # the kernels are for the card when the file is imported again
    hip.modules.clear()  # the file creates them again
    sources.clear()
    fault = followed(inputs, path, NoCompiler(target, path), rehearsal)
    return Flaw(**asdict(fault)) if fault else None


def needs_torch(source: str) -> bool:
    """Whether a source for load_inline is more than device code. torch always puts its headers before the source."""
    return re.search(r"#\s*include|\b(?:torch|at|c10)::|<<<", source) is not None


def _call(submission: load.LoadedSubmission, case: DescribedCase) -> None:
    data = case.data()
    with contextlib.suppress(NotedOnly), submission.around_call():
        submission.kernel(data)


def _flaw(error: BaseException, path: Path) -> Flaw:
    """Describe an exception of the submission's code, with the submission's line."""
    own = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    line = error.lineno if isinstance(error, SyntaxError) else own[-1] if own else None
    first_line = (str(error).strip().splitlines() or [""])[0]
    message = first_line if isinstance(error, load.Unloadable) else f"{type(error).__name__}: {first_line}"
    return Flaw(message=message.removesuffix(": "), line=line)
