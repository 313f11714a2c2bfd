"""Turns a Solution in FlashInfer's form into the source of a submission.

Its one source file stays unchanged. Code that calls it as its Definition says is appended.
"""

from __future__ import annotations

import json
import textwrap
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from harness.errors import UsageError
from harness.traces.forms import Form, of_problem

LANGUAGES = ("python", "triton")

_OWN_KERNEL = """

podium_own, podium_within = globals().get("custom_kernel"), []


def custom_kernel(data, *more, **named):
    if podium_within:  # called by the function above, which means the file's own
        return podium_own(data, *more, **named)
    podium_within.append(True)
    try:
        return podium_judged(data)
    finally:
        podium_within.clear()
"""
"""Appended to a file that defines `custom_kernel` itself, as the files that `export` writes do."""


class _Source(BaseModel):
    path: str
    content: str = Field(min_length=1)


class _Spec(BaseModel):
    language: str
    entry_point: str = Field(pattern=r"^[^:]+::[A-Za-z_][A-Za-z_0-9]*$")
    destination_passing_style: bool = True


class Solution(BaseModel):
    """The parts of a Solution that are read. The rest is ignored."""

    model_config = ConfigDict(extra="ignore")

    name: str
    definition: str
    spec: _Spec
    sources: list[_Source] = Field(min_length=1)


def source_of(problem: str, text: bytes, path: str) -> bytes:
    """The source of the submission in a Solution's JSON. Raises UsageError if it is not a Solution, or not for
    `problem`."""
    solution = _read(text, path)
    form = _form(problem, solution, path)
    file, _, function = solution.spec.entry_point.partition("::")
    if solution.spec.language not in LANGUAGES:
        raise UsageError(
            f"{path} is a Solution in {solution.spec.language}: those in {' and '.join(LANGUAGES)} are judged here",
            "kernels in HIP, CUDA or C++ go inline in a Python file",
        )
    if len(solution.sources) > 1:
        raise UsageError(f"{path} has {len(solution.sources)} source files: one is judged here", "put them into one")
    if solution.sources[0].path != file:
        raise UsageError(f"{path} has its entry point in {file}, which is not among its sources")
    content = solution.sources[0].content.rstrip("\n")
    return f"{content}\n{_appended(form, content, function, solution.spec.destination_passing_style)}".encode()


def _appended(form: Form, content: str, function: str, destination_passing: bool) -> str:
    if destination_passing:
        call = f"""
            outputs = [torch.empty_like(like) for like in likes]
            {function}(*arguments, *outputs)
            return outputs
        """
    else:
        names = list(form.outputs)
        call = f"""
            found = {function}(*arguments)
            if isinstance(found, dict):
                return [found[name] for name in {names!r}]
            return list(found) if isinstance(found, (tuple, list)) else [found]
        """
    body = textwrap.indent(textwrap.dedent(call).strip("\n"), "    ")
    outwards = form.outwards
    if "custom_kernel" in content:
        outwards = outwards.replace("def custom_kernel(", "def podium_judged(") + _OWN_KERNEL
    return (
        "\n\n# What follows is Podium's: it calls the above as its Definition says.\n"
        f"import torch\n\n\ndef podium_called(arguments, likes):\n{body}\n\n\n{outwards}"
    )


def _read(text: bytes, path: str) -> Solution:
    try:
        return Solution.model_validate(json.loads(text))
    except (ValueError, RecursionError) as error:
        if not isinstance(error, ValidationError):
            raise UsageError(f"{path} is not JSON: {error}") from None
        first = error.errors()[0]
        where: list[Any] = list(first["loc"])
        raise UsageError(
            f"{path} is not a Solution: {'.'.join(map(str, where)) or 'the whole'}: {first['msg'].lower()}",
            "a submission is a .py file, or a Solution in FlashInfer's form",
        ) from None


def _form(problem: str, solution: Solution, path: str) -> Form:
    forms = {form.name: form for form in of_problem(problem)}
    if not forms:
        raise UsageError(f"{problem} has no Definition, so no Solution can be judged on it", "submit a .py file")
    if solution.definition not in forms:
        raise UsageError(
            f"{path} solves {solution.definition}, and the Definition of {problem} is {' or '.join(forms)}",
            "export writes it",
        )
    return forms[solution.definition]


Language = Literal["python", "triton"]


def language_of(source: bytes) -> Language:
    """The language of a submission, as FlashInfer's form names it."""
    return "triton" if b"import triton" in source or b"from triton" in source else "python"
