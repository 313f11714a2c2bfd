"""fmha: the reference is the definition, the inputs are what the contract says, the cost is what has to move."""

import ast
import functools
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
FOLDER = ROOT / "problems" / "fmha"


def imported(path):
    spec = importlib.util.spec_from_file_location(f"fmha_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


reference = imported(FOLDER / "reference.py")


def generate(seed=0, **case):
    return reference.generate_input(**case, seed=seed, device="cpu")


def naive_attention(q, k, v):
    """The definition in Python floats: [B, Hq, 1, D] float64."""
    batch, q_heads, _, dim = q.shape
    group = q_heads // k.shape[1]
    out = torch.zeros(q.shape, dtype=torch.float64)
    for b in range(batch):
        for h in range(q_heads):
            query = q[b, h, 0].tolist()
            keys, values = k[b, h // group].tolist(), v[b, h // group].tolist()
            scores = [sum(x * y for x, y in zip(query, key)) / math.sqrt(dim) for key in keys]
            weights = [math.exp(score - max(scores)) for score in scores]
            for d in range(dim):
                out[b, h, 0, d] = sum(w * value[d] for w, value in zip(weights, values)) / sum(weights)
    return out


@st.composite
def cases(draw):
    kv_heads = draw(st.integers(1, 3))
    return {
        "batch_size": draw(st.integers(1, 3)),
        "num_q_heads": kv_heads * draw(st.sampled_from([1, 2, 4, 8])),
        "num_kv_heads": kv_heads,
        "head_dim": draw(st.sampled_from([128, 256])),
        "kv_seq_len": draw(st.integers(1, 16)),
        "scores": draw(st.sampled_from(["mixed", "equal"])),
        "values": draw(st.sampled_from(["normal", "outliers"])),
    }


ONE = {"batch_size": 6, "num_q_heads": 8, "num_kv_heads": 2, "head_dim": 128, "kv_seq_len": 5}


@settings(max_examples=15, deadline=None)
@given(case=cases(), seed=st.integers(0, 2**63 - 1))
def test_the_reference_is_the_definition_rounded_once_to_float16(case, seed):
    data = generate(seed, **case)
    copies = [tensor.clone() for tensor in data[:3]]
    out = reference.ref_kernel(data)
    expected = naive_attention(*data[:3])
    assert out.dtype == torch.float16 and out.shape == data[0].shape and out.is_contiguous()
    # Half a unit in the last place, and a little for sums taken in another order just beside a rounding boundary.
    ulp = 2.0 ** (expected.abs().clamp(min=2.0**-14).log2().floor() - 10)
    assert bool(((out.double() - expected).abs() <= 0.5001 * ulp).all())
    assert all(torch.equal(tensor, copy) for tensor, copy in zip(data[:3], copies))


def test_the_reference_does_not_depend_on_how_the_batch_is_cut(monkeypatch):
    data = generate(**ONE)
    whole = reference.ref_kernel(data)
    monkeypatch.setattr(reference, "_WORKSPACE_SHARE", 1 << 40)  # one sequence at a time
    assert torch.equal(reference.ref_kernel(data), whole)


@settings(max_examples=30, deadline=None)
@given(case=cases(), seed=st.integers(0, 2**63 - 1))
def test_cost_is_the_bytes_of_the_tensors_or_of_v_and_the_output_at_one_key(case, seed):
    q, k, v, _ = generate(seed, **case)
    cost = reference.cost(**case)["bfloat16"]
    size = {name: tensor.numel() * tensor.itemsize for name, tensor in {"q": q, "k": k, "v": v}.items()}
    out_bytes = q.numel() * torch.float16.itemsize
    if case["kv_seq_len"] == 1:
        assert cost == {"bytes": size["v"] + out_bytes, "flops": {}}
        return
    assert cost["bytes"] == sum(size.values()) + out_bytes
    # A multiplication and an addition for each query head, key and dim, once for the scores and once for the output.
    assert cost["flops"] == {"bfloat16": 2 * 2 * q.numel() * case["kv_seq_len"]}


def test_at_one_key_the_output_is_v():
    data = generate(**{**ONE, "kv_seq_len": 1})
    assert torch.equal(reference.ref_kernel(data), data[2].repeat_interleave(4, dim=1).half())


@settings(max_examples=20, deadline=None)
@given(case=cases())
def test_the_tensors_are_what_the_contract_says(case):
    q, k, v, config = generate(0, **case)
    batch, dim = case["batch_size"], case["head_dim"]
    assert q.shape == (batch, case["num_q_heads"], 1, dim)
    assert k.shape == v.shape == (batch, case["num_kv_heads"], case["kv_seq_len"], dim)
    assert all(tensor.dtype == torch.bfloat16 and tensor.is_contiguous() for tensor in (q, k, v))
    assert config == {
        **{name: size for name, size in case.items() if name not in ("scores", "values")},
        "sm_scale": dim**-0.5,
    }


def test_the_same_seed_gives_the_same_inputs_and_another_seed_others():
    first, again, other = (generate(seed, **ONE)[:3] for seed in (5, 5, 6))
    assert all(torch.equal(a, b) for a, b in zip(first, again))
    assert all(((a == b) & (a != 0)).float().mean() < 0.05 for a, b in zip(first, other))


def test_k_and_v_are_drawn_apart_also_when_drawn_in_slices(monkeypatch):
    monkeypatch.setattr(reference, "_SLICE_ELEMENTS", 1000)
    _, k, v, _ = generate(**ONE)
    assert (k == v).float().mean() < 0.05
    for tensor in (k, v):
        pieces = tensor.flatten().float()[:7000].view(7, 1000)
        assert ((pieces.std(dim=1) - 1).abs() < 0.15).all()
        assert (pieces[:-1] == pieces[1:]).float().mean() < 0.05


def test_a_quarter_of_the_rows_has_each_sharpness_and_some_scores_overflow_exp():
    q, k, _, config = generate(**{**ONE, "batch_size": 50})
    spread = q.float().square().mean(-1).sqrt().flatten().log2().div(2).round().mul(2).exp2()
    assert sorted(spread.tolist()) == sorted(list(reference.SHARPNESS) * 100)
    scores = q.float() @ k.float().repeat_interleave(4, dim=1).mT * config["sm_scale"]
    assert scores.max() > 88.8


def test_equal_scores_make_every_weight_the_same_and_the_output_need_more_than_bfloat16():
    data = generate(**{**ONE, "kv_seq_len": 8}, scores="equal")
    q, k, v, _ = data
    assert q.std() > 1
    scores = (q.float().view(6, 2, 4, 128) @ k.float().mT).unique(dim=-1)
    assert scores.shape[-1] == 1  # to the last bit
    out = reference.ref_kernel(data)
    assert torch.equal(out, v.double().mean(2, keepdim=True).repeat_interleave(4, dim=1).half())
    assert (out != out.bfloat16().half()).float().mean() > 0.5


@pytest.mark.parametrize("keys", [4, 8, 16])
def test_opposed_values_of_two_keys_cancel_and_leave_the_mean_of_the_others(keys):
    shape = {**ONE, "batch_size": 40, "kv_seq_len": keys}
    data = generate(**shape, scores="opposed")
    q, k, v, _ = data
    assert (q.float().view(40, 2, 4, 128) @ k.float().mT).unique(dim=-1).shape[-1] == 1
    large = v.float().square().mean(-1).sqrt() > 16
    assert bool((large.sum(-1) == 2).all()) and large.sum((0, 1)).min() > 0
    others = torch.where(large[..., None], 0.0, v.double()).sum(2, keepdim=True) / keys
    assert torch.equal(reference.ref_kernel(data), others.repeat_interleave(4, dim=1).half())


@pytest.mark.parametrize("keys", [1, 2, 3])
def test_of_fewer_than_four_keys_none_are_opposed(keys):
    shape = {**ONE, "kv_seq_len": keys}
    opposed, equal = (generate(**shape, scores=scores) for scores in ("opposed", "equal"))
    assert all(map(torch.equal, opposed[:3], equal[:3]))


ADDITIONS = {
    "one after another": lambda terms: functools.reduce(lambda a, b: a + b, terms),
    "even keys and odd ones": lambda terms: (
        functools.reduce(lambda a, b: a + b, terms[::2]) + functools.reduce(lambda a, b: a + b, terms[1::2])
    ),
    "in pairs": lambda terms: (
        terms[0] if len(terms) == 1 else ADDITIONS["in pairs"]([a + b for a, b in zip(terms[::2], terms[1::2])])
    ),
}


@pytest.mark.parametrize("order", ADDITIONS)
def test_a_sum_of_values_in_float16_is_beyond_the_limit_in_any_order_and_one_in_float32_is_not(order):
    problem = load_problem(ROOT, "fmha")
    cases = [case for case in problem.cpu.test if case.parameters.get("scores") == "opposed"]
    for seed in range(10):
        errors = {torch.float16: 0.0, torch.float32: 0.0}  # the worst of a run's: in one the two may meet at once
        for case in cases:
            data = generate(seed, **case.parameters)
            expected, v = reference.ref_kernel(data).double()[:, :, 0], data[2]
            group, keys = case.parameters["num_q_heads"] // v.shape[1], v.shape[2]
            for dtype, worst in errors.items():
                terms = list((v.to(dtype) / keys).repeat_interleave(group, dim=1).unbind(2))
                error = (ADDITIONS[order](terms).half().double() - expected).norm() / expected.norm()
                errors[dtype] = max(worst, float(error) / problem.tolerances_for(case)["float16"].rel_l2)
        assert errors[torch.float16] > 3 and errors[torch.float32] < 0.1, (seed, errors)


@pytest.mark.parametrize("scores", ["mixed", "equal"])
def test_queries_are_zero_in_a_quarter_of_the_dims_and_keys_are_normal_and_differ_there(scores):
    q, k, _, _ = generate(**{**ONE, "batch_size": 40, "kv_seq_len": 2}, scores=scores)
    zero = (q.view(40, 2, 4, 128) == 0).all(dim=2)
    assert zero.double().mean() == pytest.approx(0.25, abs=0.02)
    assert abs(float(k.float().std()) - 1) < 0.02
    same = (k[:, :, 0] == k[:, :, 1]).double()
    assert same[zero].mean() < 0.05
    assert same[~zero].mean() == 1 if scores == "equal" else same[~zero].mean() < 0.05


def test_the_values_of_one_key_of_each_head_are_outliers():
    _, _, v, _ = generate(**{**ONE, "batch_size": 40}, values="outliers")
    large = v.float().square().mean(-1).sqrt() > 30
    assert bool((large.sum(-1) == 1).all()) and large.sum((0, 1)).min() > 4


@pytest.mark.parametrize(
    "wrong",
    [
        {"num_q_heads": 7},
        {"num_q_heads": 1},
        {"num_kv_heads": 0},
        {"batch_size": 0},
        {"kv_seq_len": 0},
        {"kv_seq_len": 17},
        {"head_dim": 64},
        {"scores": "high"},
        {"values": "high"},
    ],
)
def test_parameters_outside_the_contract_are_refused_in_one_line(wrong):
    with pytest.raises(ValueError) as refusal:
        generate(**{**ONE, **wrong})
    assert "\n" not in str(refusal.value)
    assert any(name in str(refusal.value) for name in wrong)


def test_the_benchmark_is_the_18_configurations_in_their_order():
    benchmark = [case.parameters for case in load_problem(ROOT, "fmha").cases.benchmark]
    assert len(benchmark) == 18
    assert {case["batch_size"] for case in benchmark} == {30720}
    assert all(case["num_q_heads"] == case["num_kv_heads"] for case in benchmark)
    pins = {0: (16, 128, 1), 4: (16, 128, 16), 9: (16, 256, 16), 17: (32, 256, 16)}
    for index, pin in pins.items():
        case = benchmark[index]
        assert (case["num_q_heads"], case["head_dim"], case["kv_seq_len"]) == pin


def test_a_gpu_case_passes_2_to_the_31_elements_and_the_cpu_ones_stay_small():
    problem = load_problem(ROOT, "fmha")

    def elements(case):
        p = case.parameters
        return p["batch_size"] * p["num_kv_heads"] * p["kv_seq_len"] * p["head_dim"]

    assert max(elements(case) for case in problem.cases.test) > 2**31
    assert max(elements(case) for case in problem.cpu.test) <= 2**18


@pytest.mark.parametrize("where", ["cases", "cpu"])
def test_every_ranked_length_comes_with_each_head_dim_and_scores_that_differ(where):
    problem = load_problem(ROOT, "fmha")
    cases = getattr(problem, where)
    checked = [case.parameters for case in (*cases.test, *cases.benchmark) if "scores" not in case.parameters]
    ranked = {case.parameters["kv_seq_len"] for case in problem.cases.benchmark}
    assert {(p["kv_seq_len"], p["head_dim"]) for p in checked} >= set(itertools.product(ranked, (128, 256)))


def forms(p):
    """What a kernel may have forms of its own for: keys by the power of two that they are padded to, among others."""
    group, keys = p["num_q_heads"] // p["num_kv_heads"], p["kv_seq_len"]
    padded = 1 << (keys - 1).bit_length()
    return {
        "dim": p["head_dim"],
        "keys": (padded, padded != keys),
        "softmax": "of one key" if keys == 1 else "padded" if padded != keys else "whole",
        "group": group if group in (1, 2, 4, 8) else "no power of two",
        "grouped": group > 1,
        "one KV head": p["num_kv_heads"] == 1,
        "kind": p.get("scores", p.get("values", "plain")),
    }


@pytest.mark.parametrize("where", ["cases", "cpu"])
@pytest.mark.parametrize(
    ("first", "second"),
    [
        *(("dim", other) for other in ("keys", "group", "one KV head", "kind")),
        ("softmax", "group"),
        ("softmax", "one KV head"),
        ("grouped", "kind"),
    ],
)
def test_what_a_kernel_may_have_forms_of_its_own_for_meets_in_every_pair(where, first, second):
    stated = [forms(case.parameters) for case in getattr(load_problem(ROOT, "fmha"), where).test]
    values = {
        "dim": [128, 256],
        "keys": [*((padded, False) for padded in (1, 2, 4, 8, 16)), *((padded, True) for padded in (4, 8, 16))],
        "softmax": ["of one key", "whole", "padded"],
        "group": [1, 2, 4, 8, "no power of two"],
        "grouped": [False, True],
        "one KV head": [False, True],
        "kind": ["plain", "equal", "opposed", "outliers"],
    }
    pairs = set(itertools.product(values[first], values[second]))
    assert pairs <= {(form[first], form[second]) for form in stated}


@pytest.mark.parametrize("where", ["cases", "cpu"])
def test_each_group_from_1_to_8_meets_each_head_dim_with_several_kv_heads_and_several_keys(where):
    stated = [case.parameters for case in getattr(load_problem(ROOT, "fmha"), where).test]
    several = [p for p in stated if p["num_kv_heads"] > 1 and p["kv_seq_len"] > 1]
    differing = [p for p in several if "scores" not in p]
    met = {(p["num_q_heads"] // p["num_kv_heads"], p["head_dim"]) for p in differing}
    assert met >= set(itertools.product(range(1, 9), (128, 256)))
    assert {p["kv_seq_len"] for p in stated} == set(range(1, 17))


def test_batches_of_a_cpu_lie_between_the_smallest_and_the_benchmarks_too():
    sizes = {case.parameters["batch_size"] for case in load_problem(ROOT, "fmha").cpu.test}
    assert sizes >= {1, 2, 3} and {size.bit_length() for size in sizes if 3 < size < 32} == {3, 4, 5}


def test_the_template_and_the_torch_submission_are_right():
    for path in (FOLDER / "template.py", ROOT / "submissions" / "fmha" / "torch_sdpa.py"):
        kernel = imported(path).custom_kernel
        for case in load_problem(ROOT, "fmha").cpu.test:
            data = generate(7, **case.parameters)
            expected = reference.ref_kernel(data).double()
            out = kernel(data)
            assert out.dtype == torch.float16 and out.is_contiguous(), (path.name, case.label)
            assert (out.double() - expected).norm() <= 5e-4 * expected.norm(), (path.name, case.label)


def test_every_control_says_in_one_line_what_it_is():
    for path in FOLDER.glob("controls/*/*.py"):
        docstring = ast.get_docstring(ast.parse(path.read_text()))
        assert docstring and "\n" not in docstring, path
