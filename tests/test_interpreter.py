"""Interpreting a submission: what the fixes to Triton's interpreter promise beyond number formats; what is refused."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from triton.compiler.errors import CompilationError
from triton.language.extra import libdevice

from tests.test_interpreter_process import ROOT, interpreted

UNTIL_3_8 = tuple(map(int, triton.__version__.split(".")[:2])) < (3, 8)


@triton.jit
def masked(x, out, n, low, N: tl.constexpr):
    i = tl.arange(0, N)
    mask = (i < n) and (i >= low)
    tl.store(out + i, tl.load(x + i, mask=mask, other=-1.0))
    tl.store(out + N + i, tl.where((i < low) or (i >= n), 1.0, 0.0))
    tl.store(out + 2 * N + i, tl.where(not (i < low), 1.0, 0.0))


@triton.jit
def short_circuit(x, out, N: tl.constexpr, FLAG: tl.constexpr):
    i = tl.arange(0, N)
    if FLAG and tl.load(x) > 0:
        tl.store(out + i, 1.0)
    if tl.load(x) > 100 or FLAG:
        tl.store(out + i, 2.0)


@triton.jit
def builtin_extremes(x, y, out, N: tl.constexpr):
    i = tl.arange(0, N)
    a, b = tl.load(x + i), tl.load(y + i)
    tl.store(out + i, min(a, b))
    tl.store(out + N + i, max(a, b, 0.5))
    tl.store(out + 2 * N + i, min(N, 3) + max(tl.program_id(0), 2))


@triton.jit
def loop(x, out, n):
    total = 0.0
    for i in range(0, n, 2):
        total += tl.load(x + i)
    for j in tl.range(1, n):
        total += j // 2
    for k in tl.static_range(2):
        total += k
    tl.store(out, total)


@triton.jit
def loop_index_times_bf16(x, out, N: tl.constexpr):
    i = tl.arange(0, N)
    a = tl.load(x + i)
    for step in range(3, 4):
        tl.store(out + i, a * step)


@triton.jit
def assigned_floats_times_bf16(x, out, N: tl.constexpr):
    i = tl.arange(0, N)
    a = tl.load(x + i)
    plain = 1 / 3
    annotated: tl.float32 = 1 / 3
    first, _ = 1 / 3, a
    literal: tl.constexpr = 1 / 3
    tl.store(out + i, a * plain)
    tl.store(out + N + i, a * annotated)
    tl.store(out + 2 * N + i, a * first)
    tl.store(out + 3 * N + i, a * literal)


@triton.jit
def integers(x, out, N: tl.constexpr):
    i = tl.arange(0, N)
    a = tl.load(x + i)
    tl.store(out + i, tl.umulhi(a, a - 7))
    tl.store(out + N + i, a >> 3)
    tl.store(out + 2 * N + i, ~a)
    tl.store(out + 3 * N + i, a * a)


@triton.jit
def invert(x, out, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, ~tl.load(x + i))


@triton.jit
def one_bit(out, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, ((i > 0) + (i > 1)).to(tl.int32))


@triton.jit
def bins(x, out, N: tl.constexpr, BINS: tl.constexpr):
    tl.store(out + tl.arange(0, BINS), tl.histogram(tl.load(x + tl.arange(0, N)), BINS))


@triton.jit
def fused(x, y, z, out, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, tl.fma(tl.load(x + i), tl.load(y + i), tl.load(z + i)))


@triton.jit
def half_sum(x, out, N: tl.constexpr):
    tl.store(out, tl.sum(tl.load(x + tl.arange(0, N)), 0))


@triton.jit
def argmax_of_nan(x, out, N: tl.constexpr):
    tl.store(out, tl.argmax(tl.load(x + tl.arange(0, N)), 0))
    tl.store(out + 1, tl.argmin(tl.load(x + tl.arange(0, N)), 0, tie_break_left=False))


@triton.jit
def flag_argument(out, flag, scale):
    if flag:
        tl.store(out, scale)


@triton.jit
def assembly(x, N: tl.constexpr):
    i = tl.arange(0, N)
    r = tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [tl.load(x + i)], dtype=tl.float32, is_pure=True, pack=1)
    tl.store(x + i, r)


@triton.jit
def external(x, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(x + i, libdevice.tanh(tl.load(x + i)))


@triton.jit
def through_a_device_function(x, N: tl.constexpr):
    external(x, N)


def adding(number: tl.constexpr) -> Any:
    import triton.language as language

    @triton.jit
    def added(x):
        return x + number

    @triton.jit
    def kernel(out, N: language.constexpr = 4):
        language.store(out + language.arange(0, N), added(language.arange(0, N)) + number)

    return kernel


@triton.jit
def spelled_out(out, N: triton.language.constexpr):
    tl.store(out + tl.arange(0, N), 1.0)


@triton.jit
def exchanged(x, out, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, tl.atomic_xchg(x + i, i + 0.5, mask=i > 0))


@triton.jit
def promising(out, start, N: tl.constexpr):
    i = tl.multiple_of(start, 4) + tl.arange(0, N)
    rows = tl.max_contiguous(tl.multiple_of((i % 8)[:, None] + tl.zeros([N, 1], tl.int32), (4, 1)), (4, 1))
    tl.store(tl.multiple_of(out, 16) + rows, 1.0)


@triton.jit
def in_any_order(x, out, N: tl.constexpr):
    i = tl.arange(0, N)
    a = tl.load(x + i)
    two = tl.join(a, a + N)
    tl.store(out + tl.arange(0, 2 * N), tl.cat(a, a + N, can_reorder=True))
    tl.store(out + 2 * N + tl.arange(0, 2 * N), tl.reshape(two, (2 * N,), can_reorder=True))
    tl.store(out + 4 * N + tl.arange(0, 2 * N), tl.reshape(two, (2 * N,)))
    tl.store(out + 6 * N + tl.arange(0, N), tl.sum(tl.reshape(two, (2 * N,), can_reorder=True)))
    tl.store(out + 7 * N + tl.arange(0, N), tl.reshape(tl.reshape(a, (N, 1), can_reorder=True), (N,)))


@triton.jit
def changes_type(a, b):
    return a / b


@triton.jit
def reduce_to_another_type(x, out, N: tl.constexpr):
    tl.store(out, tl.reduce(tl.load(x + tl.arange(0, N)), 0, changes_type))


@triton.autotune(
    [triton.Config({"BLOCK": b}, num_warps=w) for b, w in ((24, 4), (64, 8), (128, 4))],
    key=["n"],
    reset_to_zero=["out"],
)
@triton.heuristics({"EVEN": lambda args: args["n"] % args["BLOCK"] == 0})
@triton.jit
def tuned(out, n, BLOCK: tl.constexpr, EVEN: tl.constexpr):
    tl.static_assert(BLOCK % 32 == 0)
    tl.atomic_add(out, BLOCK + EVEN)


def only_large(configs: list[Any], named: dict[str, Any], **kwargs: Any) -> list[Any]:
    return [config for config in configs if config.kwargs["BLOCK"] > 100]


@triton.autotune(
    [triton.Config({"BLOCK": b}) for b in (32, 64, 128, 256)],
    key=[],
    prune_configs_by={"early_config_prune": only_large},
)
@triton.jit
def pruned(out, BLOCK: tl.constexpr):
    tl.store(out, BLOCK)


@pytest.mark.slow(ci=True)
@interpreted
def test_and_or_and_not_of_blocks_are_elementwise() -> None:
    x, out = torch.arange(8.0), torch.empty(24)
    masked[(1,)](x, out, 6, 2, 8)
    assert out[:8].tolist() == [-1, -1, 2, 3, 4, 5, -1, -1]
    assert out[8:16].tolist() == [1, 1, 0, 0, 0, 0, 1, 1]
    assert out[16:].tolist() == [0, 0, 1, 1, 1, 1, 1, 1]


@pytest.mark.slow(ci=True)
@interpreted
def test_and_and_or_of_scalars_still_short_circuit() -> None:
    for flag, expected in ((True, 2.0), (False, 0.0)):
        out = torch.zeros(4)
        short_circuit[(1,)](torch.ones(1), out, 4, flag)
        assert out.tolist() == [expected] * 4


@pytest.mark.slow(ci=True)
@interpreted
def test_builtin_min_and_max_of_blocks_are_elementwise() -> None:
    x, y = torch.tensor([1.0, -2.0, float("nan"), 4.0]), torch.tensor([0.0, 3.0, 1.0, float("nan")])
    out = torch.empty(12)
    builtin_extremes[(1,)](x, y, out, 4)
    assert out.tolist() == [0, -2, 1, 4, 1, 3, 1, 4, 5, 5, 5, 5]


@pytest.mark.slow(ci=True)
@interpreted
def test_loop_bounds_may_be_known_at_run_time_only() -> None:
    x, out = torch.arange(8.0), torch.empty(1)
    loop[(1,)](x, out, 7)
    assert out.item() == (0 + 2 + 4 + 6) + (0 + 1 + 1 + 2 + 2 + 3) + 1


@interpreted
def test_a_loop_index_promotes_as_the_int32_it_is() -> None:
    x, out = torch.full((4,), 1 + 2.0**-7).bfloat16(), torch.empty(4)
    loop_index_times_bf16[(1,)](x, out, 4)
    assert out.tolist() == [3 * (1 + 2.0**-7)] * 4  # bf16 would have rounded it


@interpreted
def test_an_assigned_float_is_fp32_and_a_constexpr_takes_the_blocks_type() -> None:
    x, out = torch.full((4,), 1 + 2.0**-7).bfloat16(), torch.empty(16)
    assigned_floats_times_bf16[(1,)](x, out, 4)
    assert torch.equal(out[:12], (x.float() * (1 / 3)).repeat(3))
    assert torch.equal(out[12:], (x * torch.tensor(1 / 3).bfloat16()).float())


@interpreted
def test_integer_arithmetic_is_that_of_int32() -> None:
    x = torch.tensor([-(2**31), -5, 0, 2**31 - 1, 123456789, -987654321, 7, 1], dtype=torch.int32)
    out = torch.empty(32, dtype=torch.int32)
    integers[(1,)](x, out, 8)
    unsigned = [(int(v) % 2**32) * ((int(v) - 7) % 2**32) >> 32 for v in x]
    assert [v % 2**32 for v in out[:8].tolist()] == unsigned
    assert torch.equal(out[8:16], x >> 3) and torch.equal(out[16:24], ~x) and torch.equal(out[24:], x * x)


@interpreted
def test_unsigned_integers_can_be_inverted() -> None:
    x = torch.tensor([0, 1, 255, 128], dtype=torch.uint8)
    out = torch.empty_like(x)
    invert[(1,)](x, out, 4)
    assert out.tolist() == [255, 254, 0, 127]


@interpreted
def test_one_bit_integers_wrap() -> None:
    out = torch.empty(4, dtype=torch.int32)
    one_bit[(1,)](out, 4)
    assert out.tolist() == [0, 1, 0, 0]


@interpreted
def test_a_histogram_drops_what_lies_beyond_its_bins() -> None:
    x = torch.tensor([0, 1, 1, 3, 4, 5, -1, 3], dtype=torch.int32)
    out = torch.empty(4, dtype=torch.int32)
    bins[(1,)](x, out, 8, 4)
    assert out.tolist() == [1, 2, 0, 2]


@interpreted
def test_fp32_fma_keeps_what_the_product_alone_would_lose() -> None:
    x = torch.tensor([1 + 2.0**-12] * 4)
    out = torch.empty(4)
    fused[(1,)](x, x, -(x * x), out, 4)
    assert torch.equal(out.double(), x.double() ** 2 - (x * x).double()) and (out != 0).all()


@interpreted
def test_fp64_fma_is_refused_where_it_would_round_twice() -> None:
    x, out = torch.full((4,), 1 + 2.0**-30, dtype=torch.float64), torch.empty(4, dtype=torch.float64)
    if UNTIL_3_8:
        with pytest.raises(RuntimeError, match=r"^cannot be interpreted: tl.fma of float64"):
            fused[(1,)](x, x, -(x * x), out, 4)
    else:
        fused[(1,)](x, x, -(x * x), out, 4)
        assert out.tolist() == [2.0**-60] * 4


@interpreted
def test_fp16_fma_rounds_once() -> None:
    generator = torch.Generator().manual_seed(0)
    x, y, z = (torch.randn(256, generator=generator).half() for _ in range(3))
    out = torch.empty(256).half()
    fused[(1,)](x, y, z, out, 256)
    assert torch.equal(out, (x.double() * y.double() + z.double()).half())


@interpreted
def test_fp16_sums_round_after_every_addition() -> None:
    x = torch.tensor([2048.0, 1, 1, 1]).half()
    out = torch.empty(1).half()
    half_sum[(1,)](x, out, 4)
    assert out.item() == 2050  # (2048 + 1 = 2048) + (1 + 1); in one piece it would be 2052


@interpreted
def test_argmax_and_argmin_pass_over_nan_and_take_the_first_of_equals() -> None:
    nan = float("nan")
    for values, expected in (([nan, 2.0, 3.0, 3.0], [2, 1]), ([nan] * 4, [0, 0]), ([1.0, 1.0, 0.0, 0.0], [0, 2])):
        out = torch.empty(2, dtype=torch.int32)
        argmax_of_nan[(1,)](torch.tensor(values), out, 4)
        assert out.tolist() == expected


@interpreted
def test_a_kernel_that_a_function_defines_sees_the_names_of_that_function() -> None:
    for number in (1, 3):
        out = torch.empty(4, dtype=torch.int32)
        adding(tl.constexpr(number))[(1,)](out)
        assert out.tolist() == [i + 2 * number for i in range(4)]


@interpreted
def test_any_annotation_that_says_constexpr_makes_one() -> None:
    out = torch.zeros(4)
    spelled_out[(1,)](out, 4)
    assert out.tolist() == [1, 1, 1, 1]


@interpreted
def test_floats_can_be_exchanged_atomically() -> None:
    for kind in (torch.float32, torch.float64):
        x, out = torch.tensor([-0.0, 1.5, float("nan"), -2.0], dtype=kind), torch.zeros(4, dtype=kind)
        before = x.clone()
        exchanged[(1,)](x, out, 4)
        assert x.tolist() == [0, 1.5, 2.5, 3.5] and torch.equal(out[1:].nan_to_num(7), before[1:].nan_to_num(7))


@interpreted
def test_a_false_promise_to_the_compiler_is_an_error_and_a_true_one_is_not() -> None:
    from harness.interpreter.promises import FalsePromise

    out = torch.zeros(9)
    promising[(1,)](out, 4, 4)
    assert out.tolist() == [0, 0, 0, 0, 1, 1, 1, 1, 0]
    with pytest.raises(FalsePromise, match=r"^tl.multiple_of says 4, and the number is 6$"):
        promising[(1,)](out, 6, 4)
    with pytest.raises(FalsePromise, match="says 16, and the address is"):
        promising[(1,)](out[1:], 4, 4)


@interpreted
def test_elements_that_the_compiler_may_reorder_are_reordered() -> None:
    x, out = torch.arange(4.0), torch.empty(32)
    in_any_order[(1,)](x, out, 4)
    cat, reshaped, kept, total, one_axis = out.split([8, 8, 8, 4, 4])
    for reordered in (cat, reshaped):
        assert not torch.equal(reordered, torch.arange(8.0)) and reordered.sort().values.tolist() == list(range(8))
    assert kept.tolist() == [0, 4, 1, 5, 2, 6, 3, 7] and not torch.equal(reshaped, kept)
    assert set(total.tolist()) == {28.0} and torch.equal(one_axis, x)


@interpreted
def test_bool_and_float_arguments_become_scalars() -> None:
    out = torch.zeros(1, dtype=torch.float64)
    flag_argument[(1,)](out, False, 0.1)
    assert out.item() == 0
    flag_argument[(1,)](out, True, 0.1)
    assert out.item() == torch.tensor(0.1).item()  # a float argument is fp32 on a device


@interpreted
def test_what_exists_as_device_code_only_is_refused_by_name() -> None:
    from harness.interpreter.installation import CannotInterpret

    x = torch.ones(4)
    with pytest.raises(CannotInterpret, match=r"^cannot be interpreted: inline assembly: mov.b32"):
        assembly[(1,)](x, 4)
    for kernel in (external, through_a_device_function):
        with pytest.raises(CannotInterpret, match=r"^cannot be interpreted: the external function .*libdevice.tanh"):
            kernel[(1,)](x, 4)
    with pytest.raises(CompilationError, match=r"^reduce_to_another_type, line \d+: "):
        reduce_to_another_type[(1,)](x.bfloat16(), torch.empty(1).bfloat16(), 4)
    with pytest.raises(CannotInterpret, match=r"^cannot be interpreted: no_such_operation, which the interpreter of"):
        triton.runtime.interpreter.interpreter_builder.create_no_such_operation()


@interpreted
def test_a_grid_may_be_a_list_as_on_a_device() -> None:
    for grid in ([1], lambda arguments: [1]):
        out = torch.zeros(1, dtype=torch.float64)
        flag_argument[grid](out, True, 0.5)
        assert out.item() == 0.5


@interpreted
def test_what_a_launch_says_of_the_compiled_kernel_is_refused_and_is_no_fault_of_its_author() -> None:
    from harness.interpreter.installation import CannotInterpret

    out = torch.zeros(1, dtype=torch.float64)
    for made in (flag_argument[(1,)](out, True, 0.5), flag_argument.warmup(out, True, 0.5, grid=(1,))):
        assert made is not None and not hasattr(made, "__array_interface__")
        with pytest.raises(CannotInterpret, match=r"^cannot be interpreted: n_regs of a compiled kernel"):
            _ = made.n_regs


@interpreted
def test_a_kernel_whose_source_cannot_be_read_is_refused() -> None:
    names = {"triton": triton, "tl": tl}
    exec("@triton.jit\ndef unreadable(x):\n    tl.store(x, 1.0)\n", names)
    with pytest.raises(RuntimeError, match=r"^cannot be interpreted: the source of kernel unreadable"):
        names["unreadable"][(1,)](torch.ones(1))


@interpreted
def test_autotune_takes_the_first_valid_configuration_and_launches_it_once() -> None:
    out = torch.zeros(1, dtype=torch.int32)
    tuned[(1,)](out, 128)
    assert out.item() == 64 + 1 and tuned.best_config.kwargs == {"BLOCK": 64}
    tuned[(1,)](out, 128)
    assert out.item() == 2 * 65  # the choice is cached by key, so nothing is reset to zero again
    tuned[(1,)](out, 96)
    assert out.item() == 64


@interpreted
def test_autotune_prunes_as_the_kernel_asks() -> None:
    out = torch.zeros(1, dtype=torch.int32)
    pruned[(1,)](out)
    assert out.item() == 128


@interpreted
def test_host_code_can_ask_tritons_driver() -> None:
    active = triton.runtime.driver.active
    assert active.get_current_target().backend == "cuda"
    assert active.utils.get_device_properties(active.get_current_device())["multiprocessor_count"] > 0


@interpreted
def test_launches_are_counted_and_those_of_the_self_check_are_not() -> None:
    from harness.interpreter.installation import install, launches, self_check

    before = launches()
    one_bit[(3,)](torch.empty(4, dtype=torch.int32), 4)
    assert launches() == before + 1
    install()
    assert self_check() is None and launches() == before + 1


@interpreted
def test_host_code_that_says_cuda_runs_on_the_cpu() -> None:
    from harness.interpreter.installation import cuda_on_cpu

    with cuda_on_cpu():
        x = torch.empty(4, device="cuda").fill_(1.0)
        y = torch.zeros((4,), device=torch.device("cuda", 0), pin_memory=False) + torch.ones(4, device=0)
        z = torch.randn_like(x, device="cuda:0").to("cuda", torch.bfloat16).to(device="cuda").cuda().pin_memory()
        assert {t.device.type for t in (x, y, z, x.new_zeros(2, device="cuda"))} == {"cpu"}
        assert z.dtype == torch.bfloat16 and x.is_cuda and x.to(torch.float64).dtype == torch.float64
        assert torch.nn.Linear(2, 2).cuda().weight.device.type == "cpu"
        torch.cuda.synchronize()
        with torch.cuda.device(x.device), torch.cuda.stream(torch.cuda.Stream()), torch.device("cuda"):
            assert torch.arange(3).device.type == "cpu"
            generator = torch.Generator(device="cuda").manual_seed(1)
            assert torch.rand(2, generator=generator).device.type == "cpu" and isinstance(generator, torch.Generator)
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        end.record(torch.cuda.current_stream())
        assert start.elapsed_time(end) >= 0 and torch.cuda.current_stream().cuda_stream == 0
        assert torch.cuda.is_available() and torch.cuda.device_count() == 1
        assert torch.cuda.get_device_capability() == (9, 0)
        assert torch.cuda.get_device_properties("cuda").multi_processor_count == 132
        flag_argument[(1,)](x, True, 2.0)
    assert x.tolist() == [2, 1, 1, 1]


@interpreted
def test_a_card_beside_the_one_that_a_worker_sees_is_an_error_as_on_a_gpu() -> None:
    from harness.interpreter.installation import cuda_on_cpu

    x = torch.ones(1)
    with cuda_on_cpu():
        for ask in (
            lambda: torch.empty(1, device="cuda:1"),
            lambda: torch.zeros_like(x, device=torch.device("cuda", 2)),
            lambda: x.to("cuda:1"),
            lambda: x.to(device=1),
            lambda: x.cuda(1),
            lambda: torch.cuda.set_device(1),
            lambda: torch.cuda.device("cuda:1"),
            lambda: torch.cuda.Stream(device=3),
            lambda: torch.cuda.get_device_properties(1),
        ):
            with pytest.raises(RuntimeError, match=r"^CUDA error: invalid device ordinal: [123]"):
                ask()
        torch.cuda.set_device(x.device)
        assert torch.cuda.get_device_properties(0) is torch.cuda.get_device_properties()


@interpreted
def test_host_code_that_measures_marks_or_asks_about_streams_runs_on_the_cpu() -> None:
    from harness.interpreter.installation import cuda_on_cpu

    calls = []
    with cuda_on_cpu():
        assert triton.testing.do_bench(lambda: calls.append(1), warmup=1, rep=1) >= 0 and calls
        torch.cuda.nvtx.range_push("attention")
        torch.cuda.nvtx.range_pop()
        torch.ones(1, device="cuda").record_stream(torch.cuda.current_stream())
        assert torch.cuda.is_current_stream_capturing() is False


@interpreted
def test_a_cuda_graph_is_refused_and_is_no_fault_of_its_author() -> None:
    from harness.interpreter.installation import CannotInterpret, cuda_on_cpu

    with cuda_on_cpu(), pytest.raises(CannotInterpret, match="a CUDA graph"):
        torch.cuda.CUDAGraph()
    with cuda_on_cpu(), pytest.raises(CannotInterpret, match="a CUDA graph"):
        torch.cuda.make_graphed_callables(torch.nn.Identity(), (torch.ones(1),))


@interpreted
def test_torch_compile_works_within_cuda_on_cpu() -> None:
    from harness.interpreter.installation import cuda_on_cpu

    with cuda_on_cpu():
        doubled = torch.compile(lambda x: x + x, backend="eager")(torch.ones(2, device="cuda"))
    assert doubled.tolist() == [2, 2]


@interpreted
def test_leaving_cuda_on_cpu_puts_torch_back_even_when_nested_or_after_an_error() -> None:
    from harness.interpreter.installation import cuda_on_cpu

    def state() -> list[Any]:
        attributes = (torch.empty, torch.Tensor.to, torch.Tensor.cuda, torch.cuda.synchronize, torch.Generator)
        return [*attributes, "to" in vars(torch.Tensor), torch.ones(1).is_cuda, torch.cuda.is_available()]

    before = state()
    with pytest.raises(ZeroDivisionError), cuda_on_cpu():
        with cuda_on_cpu():
            pass
        assert torch.empty(1, device="cuda").is_cuda
        raise ZeroDivisionError
    assert state() == before


@interpreted
def test_the_self_check_fails_when_any_of_these_fixes_is_taken_away() -> None:
    from triton.runtime import interpreter as upstream

    from harness.interpreter.installation import self_check

    builder, autotuner = upstream.InterpreterBuilder, triton.runtime.autotuner.Autotuner
    wrong_everywhere = [
        *((builder, name) for name in ("binary_op", "cast_impl", "create_dot", "create_fma", "create_fp_to_fp")),
        *((builder, name) for name in ("create_atomic_rmw", "create_descriptor_load", "create_cat", "create_reshape")),
        *((upstream.ReduceOps, "apply_impl"), (upstream.ScanOps, "apply_impl"), (upstream, "_implicit_cvt")),
        *((upstream.FunctionRewriter, "ast_transformer"), (upstream, "_patch_lang_core")),
        *((autotuner, "_bench"), (autotuner, "run")),
    ]
    wrong_until_3_8 = [
        (builder, name)
        for name in (
            "get_bf16",
            "create_maxnumf",
            "create_minnumf",
            "create_clampf",
            "create_umulhi",
            "create_histogram",
        )
    ]
    negation = [] if UNTIL_3_8 else [(builder, "unary_op")]  # until then 0 - x
    for owner, name in wrong_everywhere + negation + (wrong_until_3_8 if UNTIL_3_8 else []):
        fix = vars(owner)[name]
        put_back(owner, name, UPSTREAM[owner, name])
        try:
            assert self_check() is not None, f"nothing notices that {name} is upstream's again"
        finally:
            put_back(owner, name, fix)
    assert self_check() is None


@pytest.mark.slow(ci=True)
def test_install_without_triton_interpret_says_what_to_do() -> None:
    ended = python("from harness.interpreter.installation import install; install()", TRITON_INTERPRET="0")
    assert "InterpreterUnfit" in ended.stderr and "TRITON_INTERPRET=1 is not set" in ended.stderr


@pytest.mark.slow(ci=True)
def test_install_after_triton_was_imported_uninterpreted_says_so() -> None:
    program = (
        "import triton, os; os.environ['TRITON_INTERPRET'] = '1'; "
        "from harness.interpreter.installation import install; install()"
    )
    ended = python(program, TRITON_INTERPRET="0")
    assert f"triton {triton.__version__} is unfit" in ended.stderr and "imported before" in ended.stderr


@pytest.mark.slow(ci=True)
def test_install_raises_interpreter_unfit_when_a_fix_does_not_hold() -> None:
    program = (
        "from harness.interpreter import arithmetic, installation; "
        "arithmetic.Arithmetic.create_dot = arithmetic.upstream_dot; installation.install()"
    )
    ended = python(program, TRITON_INTERPRET="1")
    assert f"triton {triton.__version__} is unfit" in ended.stderr and "a bf16 dot accumulates" in ended.stderr


def put_back(owner: Any, name: str, value: Any) -> None:
    if value is None:
        delattr(owner, name)
    else:
        setattr(owner, name, value)
    triton.runtime.interpreter.InterpretedFunction.rewritten_fn.clear()  # what ast_transformer has made so far


def python(program: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A Python process of its own running `program` from the root of the checkout."""
    return subprocess.run(
        [sys.executable, "-c", program],
        cwd=Path(ROOT),
        env={**os.environ, **environment, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )


if __name__ == "__main__":
    from harness.interpreter.installation import install, replacements
    from tests.test_interpreter_process import run_claims

    UPSTREAM = {(owner, name): vars(owner).get(name) for owner, name, _ in replacements() if hasattr(owner, "__dict__")}
    install()
    run_claims()
