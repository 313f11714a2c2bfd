"""The switches of torch that make its products less exact on a GPU. A CPU ignores them, so a verdict names them."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

SETTERS = (
    *("_set_cublas_allow_tf32", "_set_float32_matmul_precision", "_set_fp32_precision_setter"),
    "_set_cublas_allow_fp16_accumulation",
)
"""The functions of torch._C behind the switches."""

LESS_EXACT: dict[str, Callable[[Any], bool]] = {
    "TF32 in torch's float32 products": lambda torch: torch.backends.cuda.matmul.fp32_precision == "tf32",
    "float16 accumulation in torch's products": lambda torch: torch.backends.cuda.matmul.allow_fp16_accumulation,
}
"""The switches in words, and whether each is set."""

_were_set: set[str] = set()


def inexact_on_a_gpu() -> list[str]:
    """The switches of torch that make its matrix products less exact on a GPU: those that are set now, and those that
    were set since the last question. A CPU ignores them. And what the interpreter computed more exactly than a chip."""
    arithmetic = sys.modules.get("harness.interpreter.arithmetic")
    found = sorted({*_set_now(), *_were_set, *(arithmetic.less_exact if arithmetic else ())})
    forget()
    return found


def forget() -> None:
    """Forget what was set and is set no longer."""
    _were_set.clear()


def _set_now() -> list[str]:
    torch = sys.modules.get("torch")
    if torch is None:
        return []
    return [words for words, is_set in LESS_EXACT.items() if _holds(is_set, torch)]


def watch() -> None:
    """Note what is set when it is set: a call may reset it before it ends."""
    binding = getattr(sys.modules.get("torch"), "_C", None)
    for name in SETTERS:
        setter = getattr(binding, name, None)
        if setter is None or hasattr(setter, "__wrapped__"):
            continue

        @functools.wraps(setter)
        def noted(*args: Any, _setter: Callable[..., Any] = setter, **named: Any) -> Any:
            returned = _setter(*args, **named)
            _were_set.update(_set_now())
            return returned

        setattr(binding, name, noted)


def _holds(is_set: Callable[[Any], bool], torch: Any) -> bool:
    try:
        return bool(is_set(torch))
    except Exception:  # a submission can replace any of torch
        return False
