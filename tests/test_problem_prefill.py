"""The prefill problem judges by attention's definition; its growing inputs grow; its costs are what a kernel pays."""

import importlib.util
import itertools
import math
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from harness import catalog
from harness.hip import NoDevice, compilers

ROOT = Path(__file__).resolve().parents[1]
PROBLEM = catalog.load_problem(ROOT, "prefill")


def import_file(path):
    spec = importlib.util.spec_from_file_location(f"prefill_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


reference = import_file(PROBLEM.folder / "reference.py")

shapes = st.fixed_dictionaries(
    {
        "batch_size": st.integers(1, 2),
        "seq_len": st.integers(1, 9),
        "group": st.sampled_from([1, 2, 3, 8]),
        "num_kv_heads": st.integers(1, 3),
        "head_dim": st.sampled_from([1, 3, 7, 16]),
        "causal": st.booleans(),
        "moved": st.sampled_from([{}, {"growth": 16.0}, *({"scores": kind} for kind in ("large", "shuffled", "sink"))]),
    }
).map(lambda case: {name: value for name, value in case.items() if name != "moved"} | case["moved"])
seeds = st.integers(0, 2**63 - 1)


@pytest.fixture(autouse=True)
def one_thread():
    """Tensors this small are slower on several threads, and much slower where other work keeps the cores busy."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def inputs(seed=0, **case):
    if "group" in case:
        case["num_q_heads"] = case.pop("group") * case["num_kv_heads"]
    return reference.generate_input(**case, seed=seed, device="cpu")


def naive(data):
    """The definition by loops, in Python floats: no rescaling, no chunks, each row on its own."""
    q, k, v, config = data
    batch, seq_len, q_heads, head_dim = q.shape
    group = q_heads // k.shape[2]
    out = torch.empty(q.shape, dtype=torch.float64)
    queries, keys, values = (tensor.double().tolist() for tensor in (q, k, v))
    for b in range(batch):
        for h in range(q_heads):
            for i in range(seq_len):
                seen = i + 1 if config["causal"] else seq_len
                pairs = [(keys[b][j][h // group], values[b][j][h // group]) for j in range(seen)]
                scores = [sum(x * y for x, y in zip(queries[b][i][h], key)) / math.sqrt(head_dim) for key, _ in pairs]
                weights = [math.exp(score - max(scores)) for score in scores]
                for d in range(head_dim):
                    out[b, i, h, d] = math.fsum(w * value[d] for w, (_, value) in zip(weights, pairs)) / sum(weights)
    return out


def assert_rounded(actual, exact):
    """`actual` is `exact` rounded to bf16, but for ties that float64's own noise decides."""
    assert actual.dtype == torch.bfloat16 and actual.is_contiguous()
    torch.testing.assert_close(actual.double(), exact, rtol=2**-8 * 1.0001, atol=1e-12)
    assert (actual == exact.bfloat16()).double().mean() > 0.99


@settings(max_examples=40, deadline=None)
@given(case=shapes, seed=seeds)
def test_the_reference_is_the_definition(case, seed):
    data = inputs(seed, **case)
    assert_rounded(reference.ref_kernel(data), naive(data))


@settings(max_examples=40, deadline=None)
@given(case=shapes, seed=seeds, draw=st.data())
def test_the_reference_on_some_rows_is_the_definition_on_those_rows(case, seed, draw):
    chosen = draw.draw(st.lists(st.integers(0, case["seq_len"] - 1), min_size=1, unique=True).map(sorted))
    data = inputs(seed, **case)
    rows = torch.tensor(chosen)
    assert_rounded(reference.ref_kernel(data, rows=rows), naive(data)[:, rows])


def test_chunks_do_not_show(monkeypatch):
    data = inputs(batch_size=2, seq_len=300, num_q_heads=6, num_kv_heads=2, head_dim=16, causal=True)
    whole = reference.ref_kernel(data)
    monkeypatch.setattr(reference, "_WORKSPACE_SHARE", 1 << 40)  # as few rows at a time as it ever takes
    in_rows = reference.ref_kernel(data)
    assert (whole != in_rows).double().mean() < 1e-3
    torch.testing.assert_close(whole, in_rows, rtol=2**-7, atol=0)


@pytest.mark.parametrize("causal", [False, True])
def test_sampled_rows_are_rows_of_the_whole(causal):
    data = inputs(batch_size=2, seq_len=200, num_q_heads=4, num_kv_heads=2, head_dim=64, causal=causal, growth=16)
    rows = torch.tensor([0, 1, 63, 64, 130, 199])
    some, whole = reference.ref_kernel(data, rows=rows), reference.ref_kernel(data)[:, rows]
    torch.testing.assert_close(some, whole, rtol=2**-7, atol=1e-6)


@settings(max_examples=30, deadline=None)
@given(case=shapes, seed=st.integers(0, 2**63 - 2))
def test_a_seed_decides_everything(case, seed):
    first, again, other = inputs(seed, **case), inputs(seed, **case), inputs(seed + 1, **case)
    assert all(torch.equal(a, b) for a, b in zip(first[:3], again[:3]))
    assert first[3] == again[3]
    elements = sum(tensor.numel() for tensor in first[:3])
    if elements > 30:  # fewer may agree by chance
        assert not all(torch.equal(a, b) for a, b in zip(first[:3], other[:3]))


@settings(max_examples=5, deadline=None)
@given(seed=seeds)
def test_inputs_are_unit_normal(seed):
    data = inputs(seed, batch_size=2, seq_len=300, num_q_heads=2, num_kv_heads=1, head_dim=64, causal=True)
    for tensor in data[:3]:
        values = tensor.double()
        assert tensor.dtype == torch.bfloat16 and tensor.is_contiguous()
        assert abs(values.mean()) < 0.03 and abs(values.std() - 1) < 0.03
        assert values.abs().max() > 3.5 and len(values.unique()) > 500


def tile_maxima(data):
    """The highest score of some 50 queries in every tile of 64 keys, in log2 units: `[B, Hq, ~50, tiles]`."""
    q, k, _, config = data
    q = q[:, :: max(q.shape[1] // 50, 1)]
    group = q.shape[2] // k.shape[2]
    keys = k.double().repeat_interleave(group, dim=2)
    scores = torch.einsum("bnhd,bmhd->bhnm", q.double(), keys) * (config["sm_scale"] * math.log2(math.e))
    return torch.stack([tile.amax(-1) for tile in scores.split(64, dim=-1)], dim=-1)


def test_a_benchmarks_length_grows_and_other_moved_scores_come_with_each_mask():
    for cases in (PROBLEM.cases, PROBLEM.cpu):
        stated = [case.parameters for case in cases.test]
        lengths = {case.parameters["seq_len"] for case in cases.benchmark}
        assert any(p["seq_len"] in lengths and p.get("growth", 0) > 0 for p in stated)
        for scores in ("large", "shuffled", "sink"):
            assert {p["causal"] for p in stated if p.get("scores") == scores} == {True, False}
    (shape, *_) = PROBLEM.cases.benchmark
    for moved in ({"scores": "large"}, {"scores": "shuffled"}, {"scores": "sink"}, {"values": "outliers"}):
        assert {**shape.parameters, **moved} in [case.parameters for case in PROBLEM.cases.test]


@pytest.mark.parametrize("cases", [PROBLEM.cases, PROBLEM.cpu], ids=["gpu", "cpu"])
def test_scores_that_are_not_moved_come_with_each_mask_and_each_head_dim(cases):
    plain = [case.parameters for case in cases.test if not {"growth", "scores"} & set(case.parameters)]
    assert {(p["causal"], p["head_dim"]) for p in plain if p["seq_len"] > 1} == set(
        itertools.product([False, True], [64, 128])
    )


@pytest.mark.parametrize("cases", [PROBLEM.cases, PROBLEM.cpu], ids=["gpu", "cpu"])
def test_scores_past_what_exp_takes_come_with_each_mask_and_each_head_dim(cases):
    stated = [case.parameters for case in cases.test]
    a_quarter_more = 1.25  # by so much do some queries' scores rise faster
    past = [p for p in stated if (p["seq_len"] - 1) // 64 * p.get("growth", 0) * a_quarter_more > 128]
    assert {(p["causal"], p["head_dim"]) for p in past} == set(itertools.product([False, True], [64, 128]))


@pytest.mark.parametrize("cases", [PROBLEM.cases, PROBLEM.cpu], ids=["gpu", "cpu"])
def test_several_sequences_come_with_each_mask_and_each_head_dim(cases):
    several = [case.parameters for case in cases.test if case.parameters["batch_size"] > 1]
    assert {(p["causal"], p["head_dim"]) for p in several} == set(itertools.product([False, True], [64, 128]))
    assert any(p["seq_len"] > 64 for p in several if not p["causal"])


GROUPS = [1, 3, 5, 7, 16, "another power of two", "one KV head"]


def forms(p):
    """What a kernel may have forms of its own for; a group shows itself only where there are several KV heads."""
    group = p["num_q_heads"] // p["num_kv_heads"]
    return {
        "causal": p["causal"],
        "dim": p["head_dim"],
        "group": "one KV head" if p["num_kv_heads"] == 1 else group if group in GROUPS else "another power of two",
        "odd": group % 2 == 1 and group > 1,
        "whole tiles": p["seq_len"] % 64 == 0,
        "moved": bool({"growth", "scores"} & set(p)),
        "several": p["batch_size"] > 1,
    }


@pytest.mark.parametrize("cases", [PROBLEM.cases, PROBLEM.cpu], ids=["gpu", "cpu"])
def test_what_a_kernel_may_have_forms_of_its_own_for_meets_in_every_pair(cases):
    stated = [forms(case.parameters) for case in cases.test if case.parameters["seq_len"] > 1]
    either = [False, True]
    values = {"causal": either, "dim": [64, 128], "moved": either, "whole tiles": either, "group": GROUPS}
    for first, second in itertools.combinations(values, 2):
        pairs = set(itertools.product(values[first], values[second]))
        if (first, second) == ("whole tiles", "group"):
            pairs = {(False, group) for group in GROUPS}
        assert pairs <= {(form[first], form[second]) for form in stated}, (first, second)
    of_several = [form for form in stated if form["several"]]
    for name in ("causal", "dim", "moved", "whole tiles", "odd"):
        assert {form[name] for form in of_several} == {form[name] for form in stated}, name


TESTED_GROUPS = {1, 2, 3, 4, 5, 7, 8, 16}
"""As the README states."""


@pytest.mark.parametrize("cases", [PROBLEM.cases, PROBLEM.cpu], ids=["gpu", "cpu"])
def test_each_tested_group_of_several_kv_heads_meets_each_mask_and_each_head_dim(cases):
    several = [case.parameters for case in cases.test if case.parameters["num_kv_heads"] > 1]
    met = {(p["num_q_heads"] // p["num_kv_heads"], p["causal"], p["head_dim"]) for p in several if p["seq_len"] > 1}
    assert {(group, causal) for group, causal, _ in met} >= set(itertools.product(TESTED_GROUPS, [False, True]))
    assert {(group, dim) for group, _, dim in met} >= set(itertools.product(TESTED_GROUPS, [64, 128]))
    if cases is PROBLEM.cases:
        assert met >= set(itertools.product(TESTED_GROUPS, [False, True], [64, 128]))


@pytest.mark.parametrize("cases", [PROBLEM.cases, PROBLEM.cpu], ids=["gpu", "cpu"])
def test_lengths_below_a_tile_are_stated_from_one_token_on(cases):
    lengths = {case.parameters["seq_len"] for case in cases.test}
    assert {1, 2, 5, 9, 14} <= lengths and len([length for length in lengths if 16 < length < 128]) >= 6


@pytest.mark.parametrize("cases", [PROBLEM.cases, PROBLEM.cpu], ids=["gpu", "cpu"])
def test_odd_groups_of_several_kv_heads_come_with_each_mask_and_each_head_dim(cases):
    stated = [forms(case.parameters) for case in cases.test if case.parameters["num_kv_heads"] > 1]
    odd = {(form["causal"], form["dim"]) for form in stated if form["odd"]}
    assert odd == set(itertools.product([False, True], [64, 128]))


GROWING = [
    case.parameters
    for case in (*PROBLEM.cases.test, *PROBLEM.cpu.test)
    if case.parameters.get("growth", 0) >= 16 and case.parameters["batch_size"] <= 2
]


@pytest.mark.parametrize("case", GROWING, ids=lambda case: f"{case['seq_len']}-{case['num_q_heads']}-{case['causal']}")
def test_growing_inputs_grow_by_more_than_the_threshold_of_lazy_rescaling_from_tile_to_tile(case):
    few_heads = {**case, "batch_size": 1, "num_q_heads": 2, "num_kv_heads": 2}
    for seed in range(3):
        maxima = tile_maxima(inputs(seed, **few_heads))
        assert maxima.diff(dim=-1).min() > 8


def test_the_widest_tiles_see_the_growth_too():
    maxima = tile_maxima(
        inputs(batch_size=1, seq_len=512, num_q_heads=2, num_kv_heads=1, head_dim=64, causal=True, growth=16)
    )
    of_256_keys = maxima.unflatten(-1, (2, 4)).amax(-1)
    assert of_256_keys.diff(dim=-1).min() > 4 * 8


def test_inputs_without_growth_stay_below_the_threshold():
    data = inputs(batch_size=1, seq_len=1000, num_q_heads=4, num_kv_heads=1, head_dim=128, causal=False)
    running = tile_maxima(data).cummax(-1).values
    assert running.diff(dim=-1).max() < 8


def test_slow_growth_passes_the_threshold_over_several_tiles_only():
    data = inputs(batch_size=1, seq_len=1000, num_q_heads=4, num_kv_heads=1, head_dim=64, causal=False, growth=5)
    rises = tile_maxima(data).cummax(-1).values.diff(dim=-1)
    assert rises.mean() < 8 < rises.unfold(-1, 4, 1).sum(-1).min()


SHORT = {"batch_size": 1, "seq_len": 70, "num_q_heads": 2, "num_kv_heads": 1, "head_dim": 64, "causal": True}


@pytest.mark.parametrize(
    "moved", [{"growth": 16}, {"scores": "large"}, {"scores": "shuffled"}, {"values": "outliers"}], ids=str
)
def test_a_submission_is_not_told_of_what_kind_its_inputs_are(moved):
    assert inputs(**SHORT, **moved)[3] == inputs(**SHORT)[3]


def scores_of(data):
    """In natural units, `[Hq, N, N]`, of the first sequence."""
    q, k, _, config = data
    keys = k[0].double().repeat_interleave(q.shape[2] // k.shape[2], dim=1)
    return torch.einsum("nhd,mhd->hnm", q[0].double(), keys) * config["sm_scale"]


@pytest.mark.parametrize(
    "case", [case for case in PROBLEM.cpu.test if case.parameters.get("scores") == "shuffled"], ids=str
)
def test_shuffled_scores_have_neither_end_of_the_keys_within_reach_of_the_maximum(case):
    orders = set()
    for seed in range(6):
        scores = scores_of(inputs(seed, **case.parameters))
        fifth = scores.shape[-1] // 5
        top = scores.amax(-1)
        assert bool((top > 100).all())
        assert bool((top[..., None] - scores[..., :fifth] > 89).all())
        assert bool((top[..., None] - scores[..., -fifth:] > 89).all())
        # Of a causal row the own key is the last one that it sees: it is out of reach in all rows of the last fifth.
        own = scores.diagonal(dim1=1, dim2=2)[:, -fifth:]
        seen = scores.tril() if case.parameters["causal"] else scores
        assert bool((seen.amax(-1)[:, -fifth:] - own > 89).all())
        orders |= {tuple(order) for order in scores[:, 0, fifth // 2 :: fifth][:, :5].argsort(dim=-1).tolist()}
    assert len(orders) >= 3


@pytest.mark.parametrize("causal", [True, False])
def test_large_scores_of_a_row_are_all_far_above_zero_or_all_far_below_it(causal):
    scores = scores_of(inputs(2, **{**SHORT, "causal": causal}, scores="large"))
    signs = scores.sign()
    assert bool((signs == signs[..., :1]).all()) and bool((scores.abs() > 89).all())
    assert 0.3 < (signs[..., 0] > 0).double().mean() < 0.7


def test_a_sink_leaves_the_other_keys_a_twentieth_of_a_row():
    weights = scores_of(inputs(3, **{**SHORT, "seq_len": 500, "causal": False}, scores="sink")).softmax(-1)
    top = weights.amax(-1)
    assert bool((weights.argmax(-1) == weights[0, 0].argmax()).all()) and int(weights[0, 0].argmax()) < 64
    assert 0.9 < top.mean() < 0.98 and bool((top < 0.999).all())


def test_the_values_of_one_key_of_each_kv_head_are_outliers():
    _, _, v, _ = inputs(4, **{**SHORT, "num_kv_heads": 2, "growth": 10, "values": "outliers"})
    is_large = v.float().abs().amax(-1) > 100
    assert is_large.sum(1).tolist() == [[1, 1]]
    assert is_large[0, :, 0].nonzero().item() < 35
    _, _, v, _ = inputs(4, **{**SHORT, "num_kv_heads": 2, "growth": -5, "values": "outliers"})
    assert (v.float().abs().amax(-1) > 100)[0, :, 0].nonzero().item() >= 35


@pytest.mark.parametrize("moved", [{"growth": 48}, {"scores": "large"}, {"scores": "shuffled"}], ids=str)
def test_neither_queries_nor_keys_alone_tell_that_scores_are_moved(moved):
    """What the heads hold at most, which is 3.5 to 5 of plain ones: of some it is that, of queries and of keys."""
    largest = {"q": [], "k": []}
    for seed in range(20):
        q, k, _, _ = inputs(seed, **{**SHORT, "seq_len": 140, "num_kv_heads": 2}, **moved)
        largest["q"] += q[0].abs().amax((0, 2)).tolist()
        largest["k"] += k[0].abs().amax((0, 2)).tolist()
    assert min(largest["q"]) < 5.5 and max(largest["q"]) > 10
    assert min(largest["k"]) < 5.5 and max(largest["k"]) > 10


@pytest.mark.parametrize("moved", [{"growth": 16}, {"scores": "large"}, {"scores": "shuffled"}], ids=str)
def test_queries_may_be_scaled_and_rounded_before_the_product_where_scores_are_moved(moved):
    q, k, v, config = data = inputs(1, **{**SHORT, "seq_len": 300}, **moved)
    rounded = ((q.float() / 3).bfloat16().float() * 3).double()
    expected = reference.ref_kernel(data).double()
    error = reference.ref_kernel((rounded, k.double(), v.double(), config)) - expected
    assert error.norm() < 4e-3 * expected.norm()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"seq_len": 0}, "seq_len is 0"),
        ({"num_q_heads": 6, "num_kv_heads": 4}, "num_q_heads must be a multiple of num_kv_heads"),
        ({"growth": math.nan}, "growth is nan"),
        ({"scores": "huge"}, "scores is 'huge'"),
        ({"values": "huge"}, "values is 'huge'"),
        ({"scores": "large", "growth": 5.0}, "large scores cannot grow"),
        ({"scores": "shuffled", "growth": 5.0}, "shuffled scores cannot grow"),
    ],
)
def test_parameters_outside_the_contract_are_refused_by_name(wrong, message):
    case = {"batch_size": 1, "seq_len": 4, "num_q_heads": 2, "num_kv_heads": 1, "head_dim": 8, "causal": True}
    with pytest.raises(ValueError, match=message):
        inputs(**{**case, **wrong})


@settings(max_examples=50, deadline=None)
@given(case=shapes)
def test_cost_counts_visible_pairs_and_the_four_tensors(case):
    case["num_q_heads"] = case.pop("group") * case["num_kv_heads"]
    (name, cost), *others = reference.cost(**case).items()
    q, k, v, _ = inputs(**case)
    n = case["seq_len"]
    pairs = sum(1 for i in range(n) for j in range(n) if j <= i or not case["causal"])
    assert (name, others) == ("bf16", [])
    assert cost["bytes"] == 2 * (2 * q.numel() + k.numel() + v.numel()) == reference.device_bytes(**case)
    assert cost["flops"] == {"bfloat16": pairs * case["batch_size"] * case["num_q_heads"] * 4 * case["head_dim"]}


def test_the_first_benchmark_takes_an_h200_at_its_peak_over_a_quarter_of_a_millisecond():
    (cost,) = reference.cost(**PROBLEM.cases.benchmark[0].parameters).values()
    assert cost["flops"]["bfloat16"] / 989e12 == pytest.approx(0.278e-3, rel=0.01)
    assert cost["bytes"] / 4.8e12 < cost["flops"]["bfloat16"] / 989e12


@pytest.mark.parametrize("path", ["problems/prefill/template.py", "submissions/prefill/torch_sdpa.py"])
def test_the_template_and_the_baseline_meet_the_tolerance(path):
    kernel = import_file(ROOT / path).custom_kernel
    for case in PROBLEM.cpu.test:
        tolerance = PROBLEM.tolerances_for(case)["bf16"]
        data = inputs(3, **case.parameters)
        out, expected = kernel(data), reference.ref_kernel(data).double()
        error = (out.double() - expected).abs()
        assert out.is_contiguous() and out.dtype == torch.bfloat16
        if tolerance.rel_l2 is not None:  # of outliers an element says nothing
            assert (error <= tolerance.atol + tolerance.rtol * expected.abs()).all()
            assert error.norm() <= tolerance.rel_l2 * expected.norm()
        assert (error.norm(dim=-1) <= tolerance.row_rel_l2 * expected.norm(dim=-1)).all()


def cuda_hopper():
    return import_file(ROOT / "submissions" / "prefill" / "cuda_hopper.py")


def test_the_hopper_kernel_says_where_it_runs():
    with pytest.raises(NoDevice, match=r"^cuda_hopper needs a Hopper GPU \(sm_90\)"):
        cuda_hopper().custom_kernel(inputs(batch_size=1, seq_len=3, group=2, num_kv_heads=1, head_dim=128, causal=True))


@pytest.mark.parametrize("causal", [True, False])
def test_what_the_hopper_kernel_is_not_made_for_goes_to_torch(causal):
    data = inputs(batch_size=2, seq_len=9, group=3, num_kv_heads=2, head_dim=80, causal=causal)
    out, expected = cuda_hopper().attend_by_torch(data), reference.ref_kernel(data)
    assert out.shape == expected.shape and out.is_contiguous()
    assert torch.allclose(out.float(), expected.float(), rtol=2e-2, atol=1e-2)


@pytest.mark.slow
@pytest.mark.skipif(compilers.missing("sm_90") is not None, reason="needs a compiler for sm_90")
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("head_dim", [64, 128])
def test_the_hopper_kernel_keeps_what_it_computes_in_registers(head_dim, causal):
    module = cuda_hopper().KERNELS[head_dim, causal]._module
    (compiled,) = compilers.compile(module.source, "sm_90", module.defines).kernels
    assert (compiled.spills, compiled.scratch_bytes, compiled.registers) == (0, 0, 65536 // 384 // 8 * 8)
    assert compiled.matrix_instructions["wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16"] >= 12
