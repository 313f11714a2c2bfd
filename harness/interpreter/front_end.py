"""Triton's front end on each specialisation of a kernel, before it is interpreted: what does not compile ends here too.

    kernel[grid](x, n, BLOCK=64) ─► arguments bound and specialised as for a device ─► Triton's IR, verified, dropped
                                                             │
                                                             └─► CompilationError, as a device's launch raises it

The card is the one that a CPU pretends to be, of sm_90. A launch with options or number formats that only AMD's backend
has is for gfx942. No device is needed, and no code is made: what a backend alone refuses (shared memory over the limit,
an instruction that the chip lacks) is for `check` to find. A block of more threads than any chip has is refused here.

The process interprets, so Triton's own functions and the submission's are InterpretedFunctions, and an interpreted
kernel leaves triton.language patched. Within `uninterpreted()` that is undone: triton.language is as it was imported,
and wherever the front end comes upon an InterpretedFunction it is given the JITFunction of the same source.
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
"""What Triton says of an option (waves_per_eu, ...) and a number format (fp8e4b8, ...) that NVIDIA's backend lacks."""

MAX_THREADS = 1024
"""Of a block, on every chip of NVIDIA's and AMD's: CUDA's and HIP's maxThreadsPerBlock."""

NOT_OF_A_CLASS = {"__dict__", "__weakref__", "__doc__", "__module__", "__annotations__", "__abstractmethods__"}

LANGUAGE = "triton.language."

upstream_visit_attribute = CodeGenerator.visit_Attribute


class FrontEnd(JITFunction[Any]):
    """The kernel that an InterpretedFunction would be on a device. Compiles to Triton's IR; is never launched."""

    @property
    def cache_key(self) -> str:
        """Of this process alone. Upstream's is made of the source of all that a kernel calls, for a cache on disk."""
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
            except RuntimeError as error:  # its own verifier's, which says why on stderr
                raise CompilationError(self.src, self.parse().body[0], str(error)) from error
        threads = options.num_warps * target.warp_size
        if threads > MAX_THREADS:
            why = f"{threads:,} threads a block, {options.num_warps} warps; there may be {MAX_THREADS:,}"
            raise CompilationError(self.src, self.parse().body[0], why)
        kernels[key] = True  # what `run` looks for before it comes here again
        return True


class CompilingDriver:
    """Triton's driver as binding and specialising ask it. A device is the GPUTarget itself."""

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
    """Note how triton.language was imported. Call before anything of it is replaced."""
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
        if not is_class:  # what is in tl.extra is loaded under the names in sys.modules, and once more
            waiting += [value for value in vars(owner).values() if is_of_language(value)]


def is_of_language(value: Any) -> bool:
    """Whether `value` is a module or a class of triton.language."""
    if isinstance(value, type):
        return f"{value.__module__}.".startswith(LANGUAGE)
    return isinstance(value, ModuleType) and f"{value.__name__}.".startswith(LANGUAGE)


def compiled(value: Any) -> Any:
    """`value`, or for an InterpretedFunction the JITFunction of the same source. Raises CannotInterpret without one."""
    if not isinstance(value, InterpretedFunction):
        return value
    if value not in _compiled:
        try:
            _compiled[value] = FrontEnd(value.fn, **value.kwargs)
        except ValueError as error:  # inspect's OSError, in Triton's words
            raise CannotInterpret(f"the source of kernel {value.fn.__name__} cannot be read: {error}") from error
    return _compiled[value]


def check(kernel: InterpretedFunction[Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Compile `kernel` as a launch with these arguments would, if it has not been yet.

    Raises CompilationError, its message begun with the reason, the line and the target; for arguments that do not fit
    the kernel what Triton raises, TypeError or KeyError.
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
    """Triton as it is where nothing is interpreted."""
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
    """What an attribute of triton.language is where nothing is interpreted."""
    if isinstance(owner, ModuleType):
        return compiled(imported)
    # A tensor's `sum` is tl.sum itself on a device; where Triton interprets, a Python function that calls it.
    of_module = _imported.get(sys.modules["triton.language"], {}).get(name)
    if owner is sys.modules["triton.language"].tensor and isinstance(of_module, InterpretedFunction):
        return compiled(of_module)
    return imported


def visit_attribute(self: CodeGenerator, node: Any) -> Any:
    """Takes the place of CodeGenerator.visit_Attribute: a function in a module of the submission's own choice."""
    return compiled(upstream_visit_attribute(self, node))


def explained(error: CompilationError) -> str:
    """Which kernel or function of its does not compile, in which line of its file, and why, in a line."""
    links = list(causes(error))
    why = next((text for link in reversed(links) if (text := said(link))), type(links[-1]).__name__)
    last = [link for link in links if isinstance(link, CompilationError)][-1]
    for function in _compiled.values():
        if function.src == last.src and hasattr(last.node, "lineno"):
            first = function.starting_line_number + "".join(function.raw_src).split("def ", 1)[0].count("\n")
            return f"{function.fn.__name__}, line {first + last.node.lineno - 1}: {why}"
    return why


def said(error: BaseException) -> str:
    """What an error says of its own, in a line; "" for nothing."""
    text = error.error_message or "" if isinstance(error, CompilationError) else str(error)
    return next((line.strip() for line in text.splitlines() if line.strip()), "")


def causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__


def named(target: GPUTarget) -> str:
    return f"sm_{target.arch}" if target.backend == "cuda" else str(target.arch)
