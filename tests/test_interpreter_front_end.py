"""What Triton's front end refuses is refused where kernels are interpreted, in its words; and tl.map_elementwise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from triton.compiler.errors import CompilationError, CompileTimeAssertionFailure

from tests.test_interpreter_process import interpreted

SCALE = 2.0
SHARED = tl.constexpr(3.0)


@triton.jit
def carries_another_type(x, n):
    total = tl.zeros([16], tl.float32)
    for _ in range(n):
        total = (total + 1).to(tl.bfloat16)
    tl.store(x + tl.arange(0, 16), total)


@triton.jit
def dot(x, M: tl.constexpr, K: tl.constexpr):
    i = tl.arange(0, M)[:, None] * K + tl.arange(0, K)[None, :]
    a = tl.load(x + i)
    tl.store(x + tl.arange(0, M)[:, None] * M + tl.arange(0, M)[None, :], tl.dot(a, tl.trans(a)))


@triton.jit
def reads_a_global(x):
    tl.store(x, SCALE)


@triton.jit
def no_such_method(value):
    return value.no_such_method()


@triton.jit
def calls_a_function(x):
    tl.store(x, no_such_method(tl.load(x)))


@triton.jit
def asserts(x, N: tl.constexpr):
    tl.static_assert(N % 2 == 0, "N is odd")
    tl.store(x, N)


@triton.jit
def fraction(value, of):
    return value / of


@triton.jit
def third(value):
    return fraction(value, SHARED)


@triton.jit
def fnuz(x, out, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, tl.load(x + i).to(tl.float8e4b8).to(tl.float32))


@triton.jit
def total_of(value):
    return tl.sum(value)


@triton.jit
def all_sorts(x, out, n, COMBINE: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N)
    a = tl.load(x + i, mask=i < n, other=0.0)
    total = (
        tl.sum(a, 0) + a.max(0) + tl.reduce(a, 0, smaller) + COMBINE(a, total_of(a)) + tl.cdiv(n, 3) + third(a).sum()
    )
    for k in range(n):
        total += tl.softmax(a).sum(0) * k + tl.cumsum(a, 0).max(0)
    tl.store(out + i, tl.sort(a) + total)


@triton.jit
def smaller(a, b):
    return tl.minimum(a, b)


@triton.jit
def clipped(value, low):
    if value > low:
        return value
    else:
        return low


@triton.jit
def quotient_and_rest(value, by):
    return value // by, value % by


@triton.jit
def swapped(first, second):
    return second, first


@triton.jit
def mapped(x, out, N: tl.constexpr):
    i = tl.arange(0, N)
    a = tl.load(x + i)
    tl.store(out + i, tl.map_elementwise(clipped, a, tl.full([1], 2, tl.int32)))
    quotient, rest = tl.map_elementwise(quotient_and_rest, a, tl.full([N], 3, tl.int32))
    tl.store(out + N + i, quotient)
    tl.store(out + 2 * N + i, rest)
    tl.store(out + 3 * N + i, tl.map_elementwise(swapped, a, pack=2)[0])


@interpreted
def test_a_loop_that_carries_another_type_does_not_compile() -> None:
    with pytest.raises(CompilationError, match=r"^carries_another_type, line \d+: .*initial type.*for sm_90"):
        carries_another_type[(1,)](torch.empty(16), 3)


@interpreted
def test_a_dot_that_is_too_small_does_not_compile_and_the_same_kernel_does_with_larger_blocks() -> None:
    x = torch.ones(16 * 16)
    with pytest.raises(CompilationError, match=r"^dot, line \d+: .*K >= 16"):
        dot[(1,)](x, 4, 8)
    dot[(1,)](x, 16, 16)
    assert x[0] == 16


@interpreted
def test_a_block_of_more_threads_than_a_chip_has_does_not_compile() -> None:
    x, out = torch.ones(4), torch.empty(4)
    with pytest.raises(
        CompilationError, match=r"^dot, line \d+: 2,048 threads a block, 64 warps; .* 1,024 .*for sm_90"
    ):
        dot[(1,)](torch.ones(256), 16, 16, num_warps=64)
    dot[(1,)](torch.ones(256), 16, 16, num_warps=32)
    with pytest.raises(CompilationError, match=r"2,048 threads a block, 32 warps; .*for gfx942"):
        fnuz[(1,)](x, out, 4, num_warps=32)
    fnuz[(1,)](x, out, 4, num_warps=16)


@interpreted
def test_a_cluster_of_more_blocks_than_a_chip_takes_does_not_compile() -> None:
    with pytest.raises(CompilationError, match=r"^dot, line \d+: 32 blocks a cluster; there may be 16 .*for sm_90"):
        dot[(1,)](torch.ones(256), 16, 16, num_ctas=32)
    dot[(1,)](torch.ones(256), 16, 16, num_ctas=16)


@interpreted
def test_the_line_is_that_of_the_function_that_does_not_compile() -> None:
    line = next(
        number
        for number, text in enumerate(Path(__file__).read_text().splitlines(), start=1)
        if "return value.no_such_method()" in text
    )
    with pytest.raises(CompilationError, match=rf"^no_such_method, line {line}: .*no_such_method"):
        calls_a_function[(1,)](torch.ones(1))


@interpreted
def test_globals_that_are_no_constexpr_do_not_compile() -> None:
    with pytest.raises(CompilationError, match="Cannot access global variable SCALE"):
        reads_a_global[(1,)](torch.ones(1))


@interpreted
def test_a_static_assertion_fails_as_on_a_device() -> None:
    with pytest.raises(CompileTimeAssertionFailure, match="N is odd"):
        asserts[(1,)](torch.ones(1), 3)


@interpreted
def test_what_compiles_is_interpreted_and_compiled_once_a_specialisation() -> None:
    from harness.interpreter import front_end

    compiled: list[str] = []
    make = front_end.FrontEnd._do_compile

    def noting(self: Any, key: Any, *rest: Any) -> Any:
        compiled.append(self.fn.__name__)
        return make(self, key, *rest)

    front_end.FrontEnd._do_compile = noting  # type: ignore[method-assign]
    try:
        x, out = torch.tensor([1.0, 4.0, 2.0, 9.0]), torch.empty(4)
        for _ in range(2):
            all_sorts[(1,)](x, out, 3, smaller, 4)
        assert compiled == ["all_sorts"]
        all_sorts[(1,)](x, out, 16, smaller, 4)  # a multiple of 16 is a specialisation of its own
        all_sorts[(1,)](x.double(), out, 3, smaller, 4)
        assert compiled == ["all_sorts"] * 3
    finally:
        front_end.FrontEnd._do_compile = make  # type: ignore[method-assign]
    assert torch.isfinite(out).all()


@interpreted
def test_what_amd_alone_has_compiles_for_amd() -> None:
    x, out = torch.tensor([1.0, 1.0625, 2.0, 500.0]), torch.empty(4)
    fnuz[(1,)](x, out, 4)
    assert out.tolist() == [1.0, 1.0, 2.0, 240.0]
    fnuz[(1,)](x, out, 4, waves_per_eu=2)
    with pytest.raises(KeyError, match="no_such_option"):
        fnuz[(1,)](x, out, 4, no_such_option=2)


@interpreted
def test_compiling_leaves_triton_as_it_was() -> None:
    from harness.interpreter import front_end

    def state() -> list[Any]:
        owners = [tl, tl.core, tl.math, tl.standard, tl.tensor]
        return [{name: id(value) for name, value in vars(owner).items()} for owner in owners]

    before: list[Any] = state()
    with front_end.uninterpreted():
        assert state() != before and isinstance(tl.sum, triton.JITFunction)
    assert state() == before


@interpreted
def test_map_elementwise_calls_the_function_for_every_element() -> None:
    x, out = torch.tensor([0, 1, 5, 7], dtype=torch.int32), torch.empty(16, dtype=torch.int32)
    mapped[(1,)](x, out, 4)
    assert out.tolist() == [2, 2, 5, 7, 0, 0, 1, 2, 0, 1, 2, 1, 1, 0, 7, 5]


@interpreted
def test_a_function_that_the_interpreter_lacks_is_not_the_author_s_fault() -> None:
    from harness.interpreter.installation import CannotInterpret

    with pytest.raises(CannotInterpret, match="lacks new_block"):
        triton.runtime.interpreter.interpreter_builder.new_block()


if __name__ == "__main__":
    from harness.interpreter.installation import install
    from tests.test_interpreter_process import run_claims

    install()
    run_claims()
