"""Modules of other people's problems. They see each other under their own names, and nobody else sees them.

    with scope():              `import utils` finds the folder's file, and so does `import reference`
        scope.module("reference").generate_input(...)

Within the scope, code that says "cuda" runs on the CPU if that is the judge's device. The current directory and torch's
default dtype and device are those that the modules have set. Their output goes to stderr. The scope changes the state
of the whole process (sys.modules, sys.meta_path, sys.stdout, torch's functions). So only one thread at a time is in any
scope.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import threading
import types
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout, suppress
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import torch

_ONE_AT_A_TIME = threading.RLock()


class Scope:
    """`files`: the file of each module, by the module's name."""

    def __init__(self, files: Mapping[str, Path], on_cpu: bool) -> None:
        self._files, self._on_cpu = files, on_cpu
        self._modules: dict[str, types.ModuleType] = {}
        self._defaults = _defaults()
        self._directory: str | None = None

    @contextmanager
    def __call__(self) -> Iterator[None]:
        with _ONE_AT_A_TIME, ExitStack() as stack:
            hidden = {name: sys.modules.pop(name) for name in self._files if name in sys.modules}
            stack.callback(sys.modules.update, hidden)
            sys.modules.update(self._modules)
            stack.callback(self._take_out)
            sys.meta_path.insert(0, self)  # type: ignore[arg-type]
            stack.callback(sys.meta_path.remove, self)
            stack.enter_context(redirect_stdout(sys.stderr))  # stdout may be one JSON document
            stack.enter_context(self._at_its_directory())
            stack.callback(self._change_defaults, *_defaults())
            self._change_defaults(*self._defaults)
            stack.callback(setattr, sys, "dont_write_bytecode", sys.dont_write_bytecode)
            sys.dont_write_bytecode = True  # write no files into another project's folder
            if self._on_cpu:
                from harness.interpreter.cuda_on_cpu import cuda_on_cpu

                stack.enter_context(cuda_on_cpu())
            yield

    def module(self, name: str) -> Any:
        """Return the module; it is imported at its first use. Only within the scope. Raises what the import raises."""
        return importlib.import_module(name)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: types.ModuleType | None = None
    ) -> ModuleSpec | None:
        """Part of the interface of an entry of sys.meta_path."""
        return importlib.util.spec_from_file_location(name, self._files[name]) if name in self._files else None

    @contextmanager
    def _at_its_directory(self) -> Iterator[None]:
        """Change to the current directory that the modules have chosen, if any, and back: runs are stored by relative
        paths."""
        before = os.open(".", getattr(os, "O_PATH", os.O_RDONLY))
        try:
            if self._directory is not None:
                os.chdir(self._directory)
            yield
        finally:
            with suppress(OSError):  # the directory may have been removed
                if not os.path.samestat(os.stat("."), os.fstat(before)):
                    self._directory = os.getcwd()
            os.fchdir(before)
            os.close(before)

    def _change_defaults(self, dtype: torch.dtype, device: torch.device | None) -> None:
        """Set these defaults, and keep those that were set."""
        self._defaults = _defaults()
        if self._defaults != (dtype, device):
            torch.set_default_dtype(dtype)
            torch.set_default_device(device)

    def _take_out(self) -> None:
        self._modules = {name: sys.modules.pop(name) for name in self._files if name in sys.modules}


def _defaults() -> tuple[torch.dtype, torch.device | None]:
    """torch's default dtype, and its default device unless that is the CPU."""
    device = torch.get_default_device()
    return torch.get_default_dtype(), None if device.type == "cpu" else device
