"""The errors for Triton kernels that cannot be interpreted correctly.

    CannotInterpret    this kernel uses something for which no right result can be computed here
    InterpreterUnfit   this installation of Triton cannot be corrected; nothing may be judged with it

A refusal is an acceptable answer; a wrong number is not.
"""

from __future__ import annotations


class CannotInterpret(RuntimeError):
    """A kernel uses something that the interpreter cannot compute correctly. The message starts with "cannot be
    interpreted: "."""

    def __init__(self, why: str) -> None:
        super().__init__(f"cannot be interpreted: {why}")


class InterpreterUnfit(RuntimeError):
    """The interpreter of this Triton version gives wrong results that could not be corrected."""

    def __init__(self, version: str, what_failed: str) -> None:
        super().__init__(f"the interpreter of triton {version} is unfit to judge with: {what_failed}")
