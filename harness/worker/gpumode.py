"""The modules that files written for GPU MODE's competitions import, and which of them exist here.

    task         input_t, output_t, TestSpec    here: for annotations, as in the templates
    utils        set_seed, make_match_reference, verbose_allclose, ...    not here: a submission is one file
    reference    ref_kernel, generate_input, check_implementation         not here: the judge has it

The templates import only task, except one that calls reference.ref_kernel: gpu-mode/reference-kernels, problems/, 2025
and 2026. The other modules belong to eval.py, which seeds, compares and times there. Here the judge does that.
"""

from __future__ import annotations

import types
from typing import Any

NAMES: dict[str, Any] = {"input_t": Any, "output_t": Any, "TestSpec": dict}
"""`TestSpec` is the type that eval.py falls back to."""

_ONE_FILE = "a submission is one file, and of GPU MODE's modules only task is here"
_HINTS = {
    "utils": f"{_ONE_FILE}: copy what it uses of utils into it; seeding and comparing are the judge's work",
    "reference": f"{_ONE_FILE}: the reference is the judge's; custom_kernel computes the answer itself",
    "eval": f"{_ONE_FILE}: leave eval out; the judge calls custom_kernel",
    "task": f"task has {', '.join(NAMES)} here: write Any in the place of other types",
}


def task_module() -> types.ModuleType:
    module = types.ModuleType("task")
    module.__dict__.update(NAMES)
    return module


def hint(error: BaseException) -> str:
    """Advice for an import of a contest module that is not here; else ""."""
    if not isinstance(error, ImportError) or not isinstance(error.name, str):
        return ""
    missing = isinstance(error, ModuleNotFoundError) != (error.name == "task")
    return _HINTS.get(error.name.partition(".")[0], "") if missing else ""
