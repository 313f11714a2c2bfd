"""Compile the Triton kernels of a submission several at a time, before its host code asks for them one by one.

    fork ─► follow the host code, compiling nothing ─► its requests, each once ─► a fork for each, `at_once` at a time
                                                                                    └─► outcomes ─► TritonCompiler

Following calls the host code, which may keep things from call to call. So this happens in a fork, whose state is lost.
Host code that looks at a compiled kernel stops there. What it would have launched afterwards is compiled later, as is
what was not compiled in time.
"""

from __future__ import annotations

import functools
import os
import select
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from typing import Any

from harness.compile import telling
from harness.compile.apart import Fork, ForkedCall, apart
from harness.compile.triton_compiler import KERNEL_CPU_S, CompileRequest, NoCompiler, TritonCompiler

WALL_S = 600.0
"""The time for all of it. On a busy machine that is too little, and what has come is used."""

MOST_AT_ONCE = 8
"""With more, a kernel's part of the time for all of them would be less than a kernel may take."""

FOLLOWING_CPU_S = 120
"""The processor time for following the host code. It takes a second or two."""


def outcomes(compiler: TritonCompiler, follow: Callable[[TritonCompiler], None], at_once: int) -> dict[str, ForkedCall]:
    """Return what came of each request that `follow` makes of a compiler, by its key. Those that took too long are left
    out. `compiler`: compiles the requests, and its time for all kernels is the limit."""
    stderr = os.dup(2)  # a fork's own is a file

    def compile_all() -> dict[str, Any]:
        os.dup2(stderr, 2)
        gatherer = Gatherer(compiler.target, compiler.file)
        follow(gatherer)
        return {key: asdict(outcome) for key, outcome in side_by_side(compiler, gatherer.requests, at_once)}

    try:
        found = apart(compile_all, FOLLOWING_CPU_S, WALL_S).returned
    finally:
        os.close(stderr)
    return {key: ForkedCall(**outcome) for key, outcome in (found or {}).items()}


class Gatherer(NoCompiler):
    """Keeps what it is asked to compile. `requests`: each request once, by its key."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.requests: dict[str, CompileRequest] = {}

    def compile(self, src: Any, target: Any = None, options: dict[str, Any] | None = None, **named: Any) -> Any:
        request = CompileRequest(src, target, options, named)
        self.requests.setdefault(request.key, request)
        return super().compile(src, target, options, **named)


def side_by_side(
    compiler: TritonCompiler, requests: Mapping[str, CompileRequest], at_once: int
) -> Iterator[tuple[str, ForkedCall]]:
    """Compile `requests`, and yield what came of each that ended by itself, as they end. No kernel gets more than its
    part of the time that is left for all of them, so that those which never end cannot use more than that."""
    end, at_once = time.monotonic() + 0.9 * WALL_S, min(at_once, MOST_AT_ONCE)
    waiting, running = list(requests.items()), dict[int, tuple[str, Fork]]()
    while waiting or running:
        cpu_s = int(min(KERNEL_CPU_S, compiler.left_s() / at_once))
        if cpu_s < 1 or time.monotonic() > end:
            break
        while waiting and len(running) < at_once:
            key, request = waiting.pop(0)
            compiler.get_ready(request)
            fork = Fork(functools.partial(compiler.compile_to_cache, request), cpu_s)
            running[fork.reading] = key, fork
        for reading in select.select(list(running), [], [], 1.0)[0]:
            key, fork = running.pop(reading)
            outcome = fork.finish(end - time.monotonic())
            if outcome.status is not None:
                yield key, outcome
            telling.tell(f"{len(waiting) + len(running)} of {len(requests)} kernels left")
    for _, fork in running.values():
        fork.finish(0.0)
