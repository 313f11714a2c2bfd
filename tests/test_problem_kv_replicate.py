"""kv_replicate: the reference is its definition, the inputs show a copy that is none, the cost is what has to move."""

import ast
import importlib.util
import itertools
import math
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.catalog import load_problem

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "problems" / "kv_replicate"
INTEGERS = {2: torch.int16, 4: torch.int32}


def imported(path):
    spec = importlib.util.spec_from_file_location(f"kv_replicate_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


reference = imported(FOLDER / "reference.py")


def generate(seed=0, **case):
    return reference.generate_input(**case, seed=seed, device="cpu")


def bits(tensor):
    return tensor.view(INTEGERS[tensor.itemsize])


def naive_replicate(source, group):
    """The definition, one head of one token at a time, on integers."""
    batch, length, kv_heads, dim = source.shape
    out = torch.zeros(batch, length, kv_heads * group, dim, dtype=INTEGERS[source.itemsize])
    for b in range(batch):
        for s in range(length):
            for h in range(kv_heads * group):
                for d in range(dim):
                    out[b, s, h, d] = bits(source)[b, s, h // group, d]
    return out


@st.composite
def cases(draw):
    kv_heads = draw(st.integers(1, 4))
    return {
        "batch_size": draw(st.integers(1, 3)),
        "seq_len": draw(st.integers(1, 5)),
        "num_kv_heads": kv_heads,
        "num_q_heads": kv_heads * draw(st.sampled_from([1, 2, 3, 7])),
        "head_dim": draw(st.sampled_from([1, 2, 3, 7, 16])),
        "dtype": draw(st.sampled_from(list(reference.DTYPES))),
    }


ONE = {"batch_size": 3, "seq_len": 40, "num_kv_heads": 2, "num_q_heads": 6, "head_dim": 127, "dtype": "bfloat16"}


@settings(max_examples=40, deadline=None)
@given(case=cases(), seed=st.integers(0, 2**63 - 1))
def test_the_reference_is_its_definition_bit_for_bit(case, seed):
    data = generate(seed, **case)
    k, v, k_out, v_out, config = data
    before = bits(k).clone(), bits(v).clone()
    returned = reference.ref_kernel(data)
    group = config["num_q_heads"] // config["num_kv_heads"]
    for source, unchanged, target, output in zip((k, v), before, (k_out, v_out), returned):
        assert torch.equal(bits(target), naive_replicate(source, group))
        assert output.data_ptr() == target.data_ptr() and output.shape == target.shape
        assert torch.equal(bits(source), unchanged)


@settings(max_examples=40, deadline=None)
@given(case=cases(), seed=st.integers(0, 2**63 - 1))
def test_cost_is_the_bytes_of_the_tensors(case, seed):
    tensors = generate(seed, **case)[:4]
    ((dtype, cost),) = reference.cost(**case).items()
    assert cost == {"bytes": sum(tensor.numel() * tensor.itemsize for tensor in tensors), "flops": {}}
    assert dtype == case["dtype"]


@settings(max_examples=20, deadline=None)
@given(case=cases())
def test_the_tensors_are_what_the_contract_says(case):
    k, v, k_out, v_out, config = generate(0, **case)
    rows, dim = (case["batch_size"], case["seq_len"]), case["head_dim"]
    assert k.shape == v.shape == (*rows, case["num_kv_heads"], dim)
    assert k_out.shape == v_out.shape == (*rows, case["num_q_heads"], dim)
    assert {str(tensor.dtype) for tensor in (k, v, k_out, v_out)} == {f"torch.{case['dtype']}"}
    assert all(tensor.is_contiguous() for tensor in (k, v, k_out, v_out))
    assert config == {name: value for name, value in case.items() if name != "dtype"}


def test_the_same_seed_gives_the_same_bits_and_another_seed_others():
    first, again, other = (generate(seed, **ONE)[:4] for seed in (5, 5, 6))
    assert all(torch.equal(bits(a), bits(b)) for a, b in zip(first, again))
    for a, b in zip(first, other):
        assert (bits(a) == bits(b)).float().mean() < 0.05


def test_k_v_and_the_buffers_are_drawn_apart():
    k, v, k_out, v_out, _ = generate(**ONE)
    assert (bits(k) == bits(v)).float().mean() < 0.05
    assert (bits(k_out) == bits(v_out)).float().mean() < 0.05


@pytest.mark.parametrize("dtype", reference.DTYPES)
def test_the_inputs_hold_every_kind_of_bit_pattern(dtype):
    k = generate(**{**ONE, "dtype": dtype})[0]
    exponent = reference._EXPONENT[k.dtype]
    quiet = (exponent & -exponent) >> 1
    sign = bits(k) < 0
    normal = k.isfinite() & (k.abs() >= torch.finfo(k.dtype).tiny)
    kinds = {
        "quiet NaN": k.isnan() & (bits(k) & quiet != 0),
        "signalling NaN": k.isnan() & (bits(k) & quiet == 0),
        "infinity": k.isinf(),
        "zero": k == 0,
        "subnormal": (k != 0) & (k.abs() < torch.finfo(k.dtype).tiny),
        "number": normal,
    }
    for name, kind in kinds.items():
        for has_sign in (sign, ~sign):
            assert (kind & has_sign).float().mean() > 0.001, name
    assert normal.float().mean() > 0.5
    assert bits(k)[k.isnan()].unique().numel() > 100


def test_the_buffers_come_full_of_garbage():
    k_out, v_out = generate(**ONE)[2:4]
    for tensor in (k_out, v_out):
        assert bits(tensor).unique().numel() > 30000
        assert 0.49 < (bits(tensor) < 0).float().mean() < 0.51


def test_slices_change_neither_shapes_nor_completeness(monkeypatch):
    monkeypatch.setattr(reference, "_SLICE", 1000)
    k, v, k_out, v_out, _ = generate(**ONE)
    for tensor in (k, v, k_out, v_out):
        for piece in bits(tensor).flatten().split(500):
            assert piece.unique().numel() > min(200, piece.numel() // 2)


@pytest.mark.parametrize(
    "wrong",
    [
        {"num_kv_heads": 4, "num_q_heads": 6},
        {"num_kv_heads": 4, "num_q_heads": 2},
        {"num_kv_heads": 0},
        {"seq_len": 0},
        {"head_dim": -1},
        {"dtype": "float64"},
    ],
)
def test_parameters_outside_the_contract_are_refused_in_one_line(wrong):
    with pytest.raises(ValueError) as refusal:
        generate(**{**ONE, **wrong})
    assert "\n" not in str(refusal.value)
    assert any(name in str(refusal.value) for name in wrong)


def test_the_template_and_the_bundled_torch_submissions_are_right():
    bundled = ROOT / "submissions" / "kv_replicate"
    for path in (FOLDER / "template.py", bundled / "torch_repeat_interleave.py", bundled / "torch_expand_copy.py"):
        kernel = imported(path).custom_kernel
        for case in load_problem(ROOT, "kv_replicate").cpu.test:
            data, expected = (generate(7, **case.parameters) for _ in range(2))
            for got, want in zip(kernel(data), reference.ref_kernel(expected)):
                assert torch.equal(bits(got), bits(want)), (path.name, case.label)


@pytest.mark.parametrize("where", ["cases", "cpu"])
def test_every_width_of_words_comes_with_each_size_of_elements_and_each_kind_of_group(where):
    """A row of a copy is a number of words of 16, 8, 4 or 2 bytes, and a kernel may have forms of its own for each."""
    elements, words, groups = set(), set(), set()
    for case in getattr(load_problem(ROOT, "kv_replicate"), where).test:
        p = case.parameters
        size, group = reference.DTYPES[p["dtype"]].itemsize, p["num_q_heads"] // p["num_kv_heads"]
        word = math.gcd(p["head_dim"] * size, 16)
        kind = "one" if group == 1 else "odd" if group % 2 else "even"
        elements.add((size, word))
        words.add((word, kind))
        groups |= {(size, kind), (p["dtype"], p["head_dim"] % 2 == 1)}
    kinds = ("one", "odd", "even")
    assert elements == {(2, 16), (2, 8), (2, 4), (2, 2), (4, 16), (4, 8), (4, 4)}
    assert words == set(itertools.product((16, 8, 4, 2), kinds))
    assert groups == {*itertools.product((2, 4), kinds), *itertools.product(reference.DTYPES, (False, True))}


def test_a_gpu_case_passes_2_to_the_31_elements_and_the_cpu_ones_stay_small():
    problem = load_problem(ROOT, "kv_replicate")

    def elements(case):
        p = case.parameters
        return p["batch_size"] * p["seq_len"] * p["num_q_heads"] * p["head_dim"]

    assert max(elements(case) for case in problem.cases.test) > 2**31
    assert max(elements(case) for case in problem.cpu.test) < 2**17
    assert all(elements(case) < 2**31 for case in problem.cases.benchmark)


def test_every_control_says_in_one_line_what_it_is():
    for path in FOLDER.glob("controls/*/*.py"):
        docstring = ast.get_docstring(ast.parse(path.read_text()))
        assert docstring and "\n" not in docstring, path


@pytest.mark.parametrize("length", [1, 2, 99, 127, 128, 198, 256])
@pytest.mark.parametrize("itemsize", [2, 4])
def test_the_fused_kernel_asks_for_bursts_that_begin_at_16_byte_words(length, itemsize):
    fused = imported(ROOT / "submissions" / "kv_replicate" / "triton_fused.py")
    for rows_per_program in (1, 2, 4, 8, 16, 64, 512):
        programs = fused.programs_of_a_burst(fused.BURST_BYTES, rows_per_program, length * itemsize)
        assert programs * rows_per_program % fused.BURST_ROWS.value == 0
        assert programs * rows_per_program * length * itemsize % 16 == 0
