"""Runs Triton's front end on each specialisation of a kernel before it is interpreted. A kernel that does not compile
on a device fails here too.

    kernel[grid](x, n, BLOCK=64) ─► arguments bound and specialised as for a device ─► Triton's IR, verified, dropped
                                                             │
                                                             └─► CompilationError, as a device's launch raises it

The target is sm_90, the card that a CPU pretends to be. A launch with options or number formats that only AMD's backend
has is compiled for gfx942. No device is needed, and no code is generated. `check` finds what only a backend refuses
(shared memory over the limit, an instruction that the chip lacks). A block with more threads than any chip allows is
refused here.

The process interprets, so Triton's own functions and the submission's are InterpretedFunctions, and an interpreted
kernel leaves triton.language patched. `uninterpreted()` undoes that for a while: triton.language is as it was imported,
and the front end gets the JITFunction of the same source for each InterpretedFunction.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from triton import knobs
from triton._C.libtriton import ir
from triton.backends.compiler import GPUTarget
from triton.compiler.code_generator import CodeGenerator
from triton.compiler.compiler import ASTSource
from triton.compiler.errors import CompilationError
from triton.language.extra import libdevice  # noqa: F401  its modules are to be remembered as well
from triton.runtime.driver import driver
from triton.runtime.interpreter import InterpretedFunction
from triton.runtime.jit import JITFunction

from harness.interpreter.cuda_on_cpu import PRETENDED
from harness.interpreter.refusal import CannotInterpret

NVIDIA = GPUTarget("cuda", 10 * PRETENDED.major + PRETENDED.minor, PRETENDED.warp_size)
AMD = GPUTarget("hip", "gfx942", 64)
FOR_AMD = ("specified but unrecognised", "not supported in this architecture")
"""Triton's messages about an option (waves_per_eu, ...) or a number format (fp8e4b8, ...) that NVIDIA's backend lacks.
"""

MAX_THREADS = 1024
"""The most threads per block on every chip of NVIDIA's and AMD's: CUDA's and HIP's maxThreadsPerBlock."""

MAX_CLUSTER = 16
"""The most blocks of a cluster on sm_90 (num_ctas)."""

NOT_OF_A_CLASS = {"__dict__", "__weakref__", "__doc__", "__module__", "__annotations__", "__abstractmethods__"}

LANGUAGE = "triton.language."

upstream_visit_attribute = CodeGenerator.visit_Attribute


class FrontEnd(JITFunction[Any]):
    """The kernel that an InterpretedFunction would be on a device. It compiles to Triton's IR and is never launched."""

    @property
    def cache_key(self) -> str:
        """A key for this process only. Upstream's key hashes the source of all that a kernel calls, for a cache on
        disk."""
        return f"{self.fn.__qualname__} {id(self)}"

    def get_capture_scope(self) -> dict[str, Any]:
        return {name: compiled(value) for name, value in super().get_capture_scope().items()}

    def _do_compile(
        self, key: Any, signature: Any, device: Any, constexprs: Any, options: Any, attrs: Any, *rest: Any
    ) -> Any:
        kernels, _, target, backend, _ = self.device_caches[device]
        source, context = ASTSource(self, signature, constexprs, attrs), ir.context()
        with uninterpreted():
            ir.load_dialects(context)
            backend.load_dialects(context)
            functions, modules = backend.get_codegen_implementation(options), backend.get_module_map()
            try:
                source.make_ir(target, options, functions, modules, context)
            except CannotInterpret:
                raise
            except RuntimeError as error:  # the verifier's error; its reason goes to stderr
                raise CompilationError(self.src, self.parse().body[0], str(error)) from error
        threads = options.num_warps * target.warp_size
        if threads > MAX_THREADS:
            why = f"{threads:,} threads a block, {options.num_warps} warps; there may be {MAX_THREADS:,}"
            raise CompilationError(self.src, self.parse().body[0], why)
        if options.num_ctas > MAX_CLUSTER:
            why = f"{options.num_ctas} blocks a cluster; there may be {MAX_CLUSTER}"
            raise CompilationError(self.src, self.parse().body[0], why)
        kernels[key] = True  # marks the specialisation as compiled, so `run` does not come here again
        return True


class CompilingDriver:
    """The part of Triton's driver that binding and specialising need. A device is the GPUTarget itself."""

    def __init__(self, target: GPUTarget) -> None:
        self.target = target

    def get_current_device(self) -> GPUTarget:
        return self.target

    def get_current_target(self) -> GPUTarget:
        return self.target

    def get_current_stream(self, device: Any) -> int:
        return 0


_compiled: dict[InterpretedFunction[Any], FrontEnd] = {}
_imported: dict[Any, dict[str, Any]] = {}


def remember_triton() -> None:
    """Store triton.language as it was imported. Call this before any of it is replaced."""
    waiting: list[Any] = [module for name, module in sys.modules.items() if f"{name}.".startswith(LANGUAGE)]
    while waiting:
        owner = waiting.pop()
        if owner in _imported:
            continue
        is_class = isinstance(owner, type)
        _imported[owner] = {
            name: value
            for name, value in vars(owner).items()
            if (name not in NOT_OF_A_CLASS if is_class else not name.startswith("__"))
        }
        if not is_class:  # modules of tl.extra are loaded under the names in sys.modules, and again under others
            waiting += [value for value in vars(owner).values() if is_of_language(value)]


def is_of_language(value: Any) -> bool:
    """True if `value` is a module or a class of triton.language."""
    if isinstance(value, type):
        return f"{value.__module__}.".startswith(LANGUAGE)
    return isinstance(value, ModuleType) and f"{value.__name__}.".startswith(LANGUAGE)


def compiled(value: Any) -> Any:
    """`value`, or for an InterpretedFunction the JITFunction of the same source. Raises CannotInterpret if the source
    cannot be read."""
    if not isinstance(value, InterpretedFunction):
        return value
    if value not in _compiled:
        try:
            _compiled[value] = FrontEnd(value.fn, **value.kwargs)
        except ValueError as error:  # inspect's OSError, reworded by Triton
            raise CannotInterpret(f"the source of kernel {value.fn.__name__} cannot be read: {error}") from error
    return _compiled[value]


def check(kernel: InterpretedFunction[Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Compile `kernel` as a launch with these arguments would, unless that was done before.

    Raises CompilationError with a message that begins with the reason, the line and the target. For arguments that do
    not fit the kernel, raises what Triton raises: TypeError or KeyError.
    """
    function = compiled(kernel)
    args, kwargs = tuple(map(compiled, args)), {name: compiled(value) for name, value in kwargs.items()}
    try:
        compile_for(NVIDIA, function, args, kwargs)
    except (CompilationError, KeyError) as error:
        if any(words in str(link) for link in causes(error) for words in FOR_AMD):
            compile_for(AMD, function, args, kwargs)
        else:
            raise


def compile_for(target: GPUTarget, function: FrontEnd, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    active, driver._active = driver._active, CompilingDriver(target)
    try:
        function.run(*args, grid=None, warmup=True, **kwargs)
    except CompilationError as error:
        error.message = f"{explained(error)} (for {named(target)})\n{error.message}"
        raise
    finally:
        driver._active = active


@contextmanager
def uninterpreted() -> Iterator[None]:
    """Within the block, Triton is as in a process that does not interpret."""
    changed: list[tuple[Any, str, Any]] = []
    interpreting = knobs.runtime.interpret
    try:
        for owner, members in _imported.items():
            now = vars(owner)
            for name, imported in members.items():
                if now.get(name, ABSENT) is not (wanted := as_compiled(owner, name, imported)):
                    changed.append((owner, name, now.get(name, ABSENT)))
                    setattr(owner, name, wanted)
            if isinstance(owner, type):
                for name in now.keys() - members.keys() - NOT_OF_A_CLASS:
                    changed.append((owner, name, now[name]))
                    delattr(owner, name)
        knobs.runtime.interpret = False
        CodeGenerator.visit_Attribute = visit_attribute
        yield
    finally:
        CodeGenerator.visit_Attribute = upstream_visit_attribute
        knobs.runtime.interpret = interpreting
        for owner, name, value in reversed(changed):
            if value is ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, value)


ABSENT = object()


def as_compiled(owner: Any, name: str, imported: Any) -> Any:
    """The value of an attribute of triton.language in a process that does not interpret."""
    if isinstance(owner, ModuleType):
        return compiled(imported)
    # On a device, a tensor's `sum` is tl.sum itself. In an interpreting process it is a Python function that calls it.
    of_module = _imported.get(sys.modules["triton.language"], {}).get(name)
    if owner is sys.modules["triton.language"].tensor and isinstance(of_module, InterpretedFunction):
        return compiled(of_module)
    return imported


def visit_attribute(self: CodeGenerator, node: Any) -> Any:
    """Replaces CodeGenerator.visit_Attribute: it also converts functions in modules that the submission imported."""
    return compiled(upstream_visit_attribute(self, node))


def explained(error: CompilationError) -> str:
    """One line that says which kernel or device function does not compile, in which line of its file, and why."""
    links = list(causes(error))
    why = next((text for link in reversed(links) if (text := said(link))), type(links[-1]).__name__)
    last = [link for link in links if isinstance(link, CompilationError)][-1]
    for function in _compiled.values():
        if function.src == last.src and hasattr(last.node, "lineno"):
            first = function.starting_line_number + "".join(function.raw_src).split("def ", 1)[0].count("\n")
            return f"{function.fn.__name__}, line {first + last.node.lineno - 1}: {why}"
    return why


def said(error: BaseException) -> str:
    """The first line of an error's own message; "" if there is none."""
    text = error.error_message or "" if isinstance(error, CompilationError) else str(error)
    return next((line.strip() for line in text.splitlines() if line.strip()), "")


def causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__


def named(target: GPUTarget) -> str:
    return f"sm_{target.arch}" if target.backend == "cuda" else str(target.arch)
