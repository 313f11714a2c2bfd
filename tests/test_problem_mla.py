"""MLA: the reference agrees with the contract written out in loops, and the inputs are what they claim to be."""

import importlib.util
import json
import math
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from harness import catalog
from harness.compile import described
from harness.hip import compilers
from harness.hip.runtime import CompilationError, LaunchError
from reference.quantization import dequantize_fp8, dequantize_mxfp4, quantize_fp8, quantize_mxfp4

ROOT = Path(__file__).resolve().parents[1]
HEADS, DIM, V_DIM = 16, 576, 512


def load(path, name):
    spec = importlib.util.spec_from_file_location(name, ROOT / path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


mla = load("problems/mla/reference.py", "problem_mla_reference")


def generate(kv_seq_len, batch_size=None, seed=0, scores="plain"):
    batch_size = batch_size or len(kv_seq_len)
    return mla.generate_input(
        batch_size=batch_size, q_seq_len=1, kv_seq_len=kv_seq_len, scores=scores, seed=seed, device="cpu"
    )


def scores_of(data, cache="bf16"):
    """Those of one sequence, (16, L), in float64."""
    q, kv_data, _, _, config = data
    keys = {
        "bf16": lambda: kv_data["bf16"],
        "fp8": lambda: kv_data["fp8"][0].float() * kv_data["fp8"][1],
        "mxfp4": lambda: dequantize_mxfp4(*kv_data["mxfp4"]),
    }[cache]()
    return config["sm_scale"] * q[0].double() @ keys[:, 0].double().T


def members(data):
    q, kv_data, qo_indptr, kv_indptr, _ = data
    return [q, kv_data["bf16"], *kv_data["fp8"], *kv_data["mxfp4"], qo_indptr, kv_indptr]


seeds = st.integers(0, 2**63 - 1)
ragged = st.lists(st.integers(0, 40), min_size=1, max_size=4)

# --- the contract, written out -----------------------------------------------------------------------------------


def naive_decode(queries, keys, kv_indptr, sm_scale):
    """Attention by the README: one query, one head and one token at a time, in float64."""
    out = torch.zeros(queries.shape[0], HEADS, V_DIM, dtype=torch.float64)
    for sequence in range(queries.shape[0]):
        tokens = range(int(kv_indptr[sequence]), int(kv_indptr[sequence + 1]))
        for head in range(HEADS):
            query = queries[sequence, head].double()
            weights = [math.exp(sm_scale * float(query @ keys[token].double())) for token in tokens]
            for token, weight in zip(tokens, weights):
                out[sequence, head] += weight / sum(weights) * keys[token, :V_DIM].double()
    return out


def naive_fp8(x):
    """x rounded to e4m3fn by one scale for the whole tensor, and back."""
    scale = float(x.abs().max()) / 448
    return (x.float() / scale).to(torch.float8_e4m3fn).double() * scale


@settings(max_examples=15, deadline=None)
@given(lengths=ragged, seed=seeds)
def test_the_oracle_is_attention_over_the_bf16_cache(lengths, seed):
    data = generate(lengths, seed=seed)
    expected = naive_decode(data[0], data[1]["bf16"][:, 0], data[3], 1 / 24)
    torch.testing.assert_close(mla.oracle(data), expected, rtol=1e-10, atol=1e-10)


@settings(max_examples=15, deadline=None)
@given(lengths=ragged, seed=seeds)
def test_the_reference_is_attention_over_fp8_queries_and_the_fp8_cache(lengths, seed):
    data = generate(lengths, seed=seed)
    cache, scale = data[1]["fp8"]
    keys = cache[:, 0].double() * scale.double()
    out = mla.ref_kernel(data)
    assert out.shape == (len(lengths), HEADS, V_DIM) and out.dtype == torch.bfloat16
    expected = naive_decode(naive_fp8(data[0]), keys, data[3], 1 / 24)
    torch.testing.assert_close(out.double(), expected, rtol=2**-8, atol=1e-4)  # bf16 keeps 8 bits


def test_the_reference_computes_on_the_operands_that_its_globals_name(monkeypatch):
    data = generate([33, 0, 70], seed=5)
    cache, scale = data[1]["fp8"]
    rounded = cache[:, 0].double() * scale.double()
    for q_dtype, kv_dtype, keys in (("bf16", "fp8", rounded), ("bf16", "bf16", data[1]["bf16"][:, 0])):
        monkeypatch.setattr(mla, "Q_DTYPE", q_dtype)
        monkeypatch.setattr(mla, "KV_DTYPE", kv_dtype)
        expected = naive_decode(data[0], keys, data[3], 1 / 24)
        torch.testing.assert_close(mla.ref_kernel(data).double(), expected, rtol=2**-8, atol=1e-4)


def test_fp8_queries_on_the_bf16_cache_are_refused(monkeypatch):
    monkeypatch.setattr(mla, "KV_DTYPE", "bf16")
    with pytest.raises(ValueError, match=r"no kernel takes fp8 queries on a bf16 cache"):
        mla.ref_kernel(generate([3]))


def test_a_sequence_without_tokens_gives_zeros():
    for lengths in ([0], [0, 5, 0], [0, 0]):
        data = generate(lengths)
        for out in (mla.ref_kernel(data), mla.oracle(data)):
            assert [not row.any() for row in out] == [length == 0 for length in lengths]


# --- the inputs --------------------------------------------------------------------------------------------------


def test_data_is_as_the_readme_says():
    q, kv_data, qo_indptr, kv_indptr, config = generate([3, 0, 5])
    assert q.shape == (3, 16, 576) and q.dtype == torch.bfloat16
    assert kv_data["bf16"].shape == (8, 1, 576) and kv_data["bf16"].dtype == torch.bfloat16
    cache, scale = kv_data["fp8"]
    assert cache.shape == (8, 1, 576) and cache.dtype == torch.float8_e4m3fn
    assert scale.numel() == 1 and scale.dtype == torch.float32
    packed, e8m0 = kv_data["mxfp4"]
    assert packed.shape == (8, 1, 288) and packed.dtype == torch.uint8
    assert e8m0.shape == (8, 18) and e8m0.dtype == torch.float8_e8m0fnu
    assert qo_indptr.tolist() == [0, 1, 2, 3] and kv_indptr.tolist() == [0, 3, 3, 8]
    assert qo_indptr.dtype == kv_indptr.dtype == torch.int32
    assert all(tensor.is_contiguous() for tensor in members((q, kv_data, qo_indptr, kv_indptr, config)))
    assert config == {
        "batch_size": 3,
        "num_heads": 16,
        "num_kv_heads": 1,
        "qk_head_dim": 576,
        "kv_lora_rank": 512,
        "qk_rope_head_dim": 64,
        "v_head_dim": 512,
        "q_seq_len": 1,
        "kv_seq_len": 5,
        "sm_scale": 1 / 24,
    }


@settings(max_examples=10, deadline=None)
@given(lengths=ragged, seed=st.integers(0, 2**31))
def test_a_seed_gives_the_same_data_and_another_seed_other_data(lengths, seed):
    first, again, other = (members(generate(lengths, seed=s)) for s in (seed, seed, seed + 1))
    assert all(torch.equal(a.view(torch.uint8), b.view(torch.uint8)) for a, b in zip(first, again))
    assert not torch.equal(first[0], other[0])
    assert sum(lengths) == 0 or not torch.equal(first[1], other[1])


def test_one_length_stands_for_a_list_of_it():
    for a, b in zip(members(generate(7, batch_size=3)), members(generate([7, 7, 7]))):
        assert torch.equal(a.view(torch.uint8), b.view(torch.uint8))


def moves_of(data, sequence=0):
    """By how much the rope dims move the scores of one sequence, (16, L)."""
    q, kv_data, _, kv_indptr, config = data
    keys = kv_data["bf16"][int(kv_indptr[sequence]) : int(kv_indptr[sequence + 1]), 0, 512:]
    return config["sm_scale"] * q[sequence, :, 512:].double() @ keys.double().T


@given(length=st.integers(1, 300), seed=seeds)
@settings(max_examples=20, deadline=None)
def test_large_scores_are_moved_past_what_exp_takes_and_weigh_the_same(length, seed):
    moved = scores_of(generate([length], seed=seed, scores="large"))
    middle = moved.mean(-1)
    assert bool(((middle.abs() > 104) & (middle.abs() < 120)).all()) and bool((moved.amax(-1).abs() > 90).all())
    if length > 20:
        assert 0.7 < float((moved - middle[:, None]).std()) < 1.8  # unit normal ones, and needles


def test_large_scores_have_either_sign():
    signs = [scores_of(generate([64], seed=seed, scores="large")).mean(-1).sign() for seed in range(4)]
    assert all(-16 < float(each.sum()) < 16 for each in signs)


@pytest.mark.parametrize("cache", ["bf16", "fp8", "mxfp4"])
@pytest.mark.parametrize("length", [1, 7, 11, 64, 1037])
def test_rising_scores_rise_to_the_last_key_whatever_cache_is_read(length, cache):
    data = generate([length], scores="rising")
    levels = moves_of(data)
    assert bool((levels.diff() > -2.5).all()) and bool(((levels[:, -1] - 112).abs() < 4).all())
    top = torch.arange(length) >= length - length // 11
    if length > 100:
        assert bool(((levels[:, 0] + 112).abs() < 4).all()) and int((levels.diff() > 4).sum()) > 0.75 * 160
        assert bool((scores_of(data, cache).softmax(-1)[:, top].sum(-1) > 1 - 1e-9).all())


@pytest.mark.parametrize("scores", ["large", "rising"])
@pytest.mark.parametrize("seed", range(4))
def test_moving_scores_costs_no_format_its_precision(scores, seed):
    """The rope dims of keys are exact in mxfp4, and in fp8 all sizes that differ by powers of two are rounded alike."""
    data = generate([1037], scores=scores, seed=seed)
    packed, e8m0 = data[1]["mxfp4"]
    keys = dequantize_mxfp4(packed, e8m0)[:, 0, 512:]
    assert torch.equal(keys, data[1]["bf16"][:, 0, 512:].float())
    rounded = data[1]["fp8"][0][:, 0, 512:].float() * data[1]["fp8"][1] / keys
    ones = torch.frexp(keys.abs())[0] == 0.5
    assert float(rounded[ones].max() - rounded[ones].min()) < 1e-6


def sizes(rope):
    """The largest element of each sequence's: (..., B)."""
    return rope.float().abs().amax(dim=-1)


def test_keys_alone_do_not_tell_that_scores_are_moved():
    moved, plain = generate([4] * 400, scores="large", seed=1), generate([4] * 400, scores="plain", seed=1)
    usual = [sequence for sequence in range(400) if moves_of(plain, sequence).abs().max() < 30]
    keys, of_plain = (sizes(data[1]["bf16"][::4, 0, 512:]) for data in (moved, plain))
    assert 0.3 < float((keys < of_plain[usual].max()).double().mean()) < 0.8


@pytest.mark.parametrize("scores", ["plain", "large", "rising"])
def test_scales_of_mxfp4_blocks_stay_where_codes_times_two_to_the_fourteen_fit_fp16(scores):
    e8m0 = generate([300] * 20, scores=scores, seed=1)[1]["mxfp4"][1].float()
    assert float(e8m0.min()) >= 2**-13 and float(e8m0.max()) <= 2


def test_scores_of_half_of_the_sequences_of_plain_inputs_are_moved():
    plain = generate([8] * 200, seed=2)
    moved = sum(bool((moves_of(plain, sequence).abs() > 100).all()) for sequence in range(200))
    assert 70 < moved < 130
    assert all(bool((moves_of(plain, sequence).abs() > 100).all() or (moves_of(plain, sequence).abs() < 12).all())
               for sequence in range(200))  # fmt: skip


def test_keys_of_moved_scores_differ_in_their_rope_dims_by_what_rope_dims_bring():
    for scores in ("plain", "large"):
        data = generate([600] * 8, scores=scores, seed=3)
        for sequence in range(8):
            assert 0.2 < float(moves_of(data, sequence).std(dim=-1).mean()) < 0.6


def test_the_codes_of_a_block_do_not_tell_its_scale():
    packed, e8m0 = generate([4000], seed=4)[1]["mxfp4"]
    table = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6] * 2)
    codes = torch.stack([table[(packed[:, 0] & 15).long()], table[(packed[:, 0] >> 4).long()]], -1).flatten(1)
    size = codes.unflatten(1, (-1, 32))[:, :16].square().mean(-1).flatten()
    scale = e8m0.view(torch.uint8)[:, :16].float().flatten()
    counts = scale.unique(return_counts=True)[1].sort(descending=True).values / scale.numel()
    assert float(counts[:2].sum()) > 0.85 and float(counts[1]) > 0.35
    for alike in size.argsort().split(6400):  # whatever the codes come to, either of two scales is likely
        assert float(scale[alike].unique(return_counts=True)[1].max()) < 0.65 * len(alike)


@pytest.mark.parametrize("scores", ["rising", "shuffled"])
def test_the_highest_level_takes_all_of_the_weight_though_needles_lie_in_others(scores):
    data = generate([220] * 60, scores=scores, seed=3)
    starts = data[3].tolist()
    for sequence in range(60):
        keys = data[1]["bf16"][starts[sequence] : starts[sequence + 1], 0].float()
        weights = (data[0][sequence].float() @ keys.T / 24).softmax(-1)
        moves = moves_of(data, sequence)
        below = moves < moves.amax(dim=-1, keepdim=True) - 30
        assert bool(below.any(dim=-1).all()) and float((weights * below).sum(-1).max()) < 1e-9


def test_unknown_scores_are_refused():
    with pytest.raises(ValueError, match="scores is 'huge'"):
        generate([3], scores="huge")


def test_the_three_caches_hold_the_same_keys():
    kv_data = generate([200], seed=2)[1]
    keys = kv_data["bf16"][:, 0].float()
    cache, scale = kv_data["fp8"]
    # e4m3 keeps 4 bits, and below 2^-6 of its own steps of 2^-9.
    torch.testing.assert_close(cache[:, 0].float() * scale, keys, rtol=2**-4, atol=float(scale) * 2**-10)
    packed, e8m0 = kv_data["mxfp4"]
    table = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
    even, odd = table[(packed[:, 0] & 15).long()], table[(packed[:, 0] >> 4).long()]
    block = e8m0.to(torch.float32).repeat_interleave(32, dim=1)  # as a file of the contest writes it
    assert torch.equal(block, torch.exp2(e8m0.view(torch.uint8).float() - 127).repeat_interleave(32, dim=1))
    rounded = torch.stack([even, odd], dim=-1).flatten(1) * block
    # Half the widest step of E2M1, and 7 saturating at 6.
    assert bool(((rounded - keys).abs() <= block).all())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"batch_size": 0, "kv_seq_len": []}, "batch_size is 0"),
        ({"q_seq_len": 2}, "q_seq_len is 2"),
        ({"kv_seq_len": [1, 2, 3]}, "lists 3 lengths for a batch of 2"),
        ({"kv_seq_len": [4, -1]}, "negative length -1"),
        ({"kv_seq_len": -1}, "negative length -1"),
        ({"kv_seq_len": 2**30}, "more than kv_indptr's int32"),
    ],
)
def test_parameters_outside_the_contract_are_refused(change, message):
    parameters = {"batch_size": 2, "q_seq_len": 1, "kv_seq_len": 4, "seed": 0, "device": "cpu"} | change
    with pytest.raises(ValueError, match=message):
        mla.generate_input(**parameters)


# --- the needles -------------------------------------------------------------------------------------------------


def needles(data, sequence):
    """Indices, within the sequence, of the keys that take more than a third of some head's softmax, one a head."""
    q, kv_data, _, kv_indptr, _ = data
    keys = kv_data["bf16"][int(kv_indptr[sequence]) : int(kv_indptr[sequence + 1]), 0].float()
    mass, index = torch.softmax(q[sequence].float() @ keys.T / 24, dim=-1).max(dim=-1)
    return index[mass > 1 / 3].tolist()


@settings(max_examples=8, deadline=None)
@given(lengths=st.lists(st.integers(200, 1500), min_size=1, max_size=3), seed=seeds)
def test_half_of_the_heads_have_a_needle_and_the_others_none(lengths, seed):
    data = generate(lengths, seed=seed)
    for sequence in range(len(lengths)):
        assert 6 <= len(needles(data, sequence)) <= 9  # two needles may fall on one key and weaken each other


@settings(max_examples=25, deadline=None)
@given(length=st.integers(100, 1500), seed=seeds)
def test_needles_lie_in_each_quarter_and_in_the_last_percent(length, seed):
    where = torch.rand(4, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    for position in mla._needle_positions(where, torch.full((4,), length)).tolist():
        assert all(0 <= index < length for index in position)
        for quarter, index in enumerate(position[:4]):
            assert quarter * length < (index + 1) * 4 and index * 4 < (quarter + 1) * length
        assert max(position) >= length - length // 100


def test_needles_lie_anywhere_and_densely_at_both_ends():
    where = torch.rand(4000, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    position = mla._needle_positions(where, torch.full((4000,), 8192))
    for low in range(0, 8192, 256):
        assert ((position >= low) & (position < low + 256)).any(dim=1).double().mean() > 0.1
    for end in (position == 0, position == 8191):
        assert end.any(dim=1).double().mean() > 0.05


@pytest.mark.parametrize("length", [100, 333, 1024])
def test_dropping_the_last_percent_breaks_a_row_of_every_sequence(length):
    data = generate([length] * 6, seed=length)
    q, kv_data, _, kv_indptr, _ = data
    exact = mla.oracle(data)
    for sequence in range(6):
        keys = kv_data["bf16"][int(kv_indptr[sequence]) : int(kv_indptr[sequence + 1]), 0].double()
        keys = keys[: length - length // 100]
        out = torch.softmax(q[sequence].double() @ keys.T / 24, dim=-1) @ keys[:, :V_DIM]
        error = (out - exact[sequence]).norm(dim=-1) / exact[sequence].norm(dim=-1)
        assert error.max() > 0.7


def test_neither_norm_nor_size_gives_a_needle_away():
    data = generate([2048] * 4, seed=11)
    keys = data[1]["bf16"][:, 0].float()
    rows = [2048 * sequence + index for sequence in range(4) for index in needles(data, sequence)]
    assert len(rows) >= 24
    for part in (keys, keys[:, V_DIM:]):
        norm = part.norm(dim=1)
        outside = [row for row in rows if not norm.quantile(0.0005) <= norm[row] <= norm.quantile(0.9995)]
        assert len(outside) <= 2
    latent = keys[:, :V_DIM]
    assert latent.mean().abs() < 0.01 and abs(latent.std() - 1) < 0.01


# --- parts -------------------------------------------------------------------------------------------------------


def test_the_lighter_half_of_the_keys_and_the_heavier_one_are_the_reference():
    data = generate([300, 0, 64], seed=5)
    q, kv_data, _, kv_indptr, _ = data
    keys = kv_data["fp8"][0][:, 0].float() * kv_data["fp8"][1]
    queries = dequantize_fp8(*quantize_fp8(q))
    lighter, out = mla.parts(data)["lighter_half"], mla.ref_kernel(data).float()
    for sequence in (0, 2):
        own = keys[int(kv_indptr[sequence]) : int(kv_indptr[sequence + 1])]
        weights = torch.softmax(queries[sequence] @ own.T / 24, dim=-1)
        heavier = torch.where(weights >= weights.median(dim=-1, keepdim=True).values, weights, 0.0) @ own[:, :V_DIM]
        query = torch.nn.functional.normalize(queries[sequence, :, :V_DIM], dim=-1)
        rest = out[sequence] - heavier
        rest -= (rest * query).sum(dim=-1, keepdim=True) * query
        torch.testing.assert_close(lighter[sequence], rest, rtol=1e-2, atol=2e-2)
        assert (lighter[sequence] * query).sum(dim=-1).abs().max() < 1e-4
        assert 0.01 < lighter[sequence].norm() / out[sequence].norm() < 0.5
    assert not lighter[1].any()


def test_the_rope_part_is_what_moves_first_as_rope_dims_are_forgotten_and_not_as_outputs_are_scaled():
    data = generate([1024] * 4, seed=6)
    q, kv_data, _, _, _ = data
    still = torch.tensor([bool(moves_of(data, sequence).abs().max() < 30) for sequence in range(4)])
    assert 0 < int(still.sum()) < 4
    keys = (kv_data["fp8"][0][:, 0].float() * kv_data["fp8"][1]).view(4, 1024, DIM)
    queries = dequantize_fp8(*quantize_fp8(q)).float()
    rope, moved_rope = mla.parts(data)["rope"], mla.parts(data)["moved_rope"]
    assert not rope[~still].any() and not moved_rope[still].any()

    def attend(share):
        scaled = torch.cat([queries[..., :V_DIM], share * queries[..., V_DIM:]], dim=-1)
        weights = torch.softmax(scaled @ keys.mT / 24, dim=-1)
        return weights, weights @ keys[..., :V_DIM]

    def along(change):
        return float((change * rope).sum() / rope.square().sum())

    (weights, out), (_, less) = attend(1.0), attend(0.9)
    assert along(less - out) == pytest.approx(-0.1, abs=0.02)
    assert along(0.1 * out) == pytest.approx(0, abs=0.02)
    even = weights.amax(dim=-1) < mla.EVEN_ROW
    assert 24 <= int(even.sum()) <= 40 and not rope[~even].any() and not moved_rope[~even].any()
    assert rope[still][even[still]].any(dim=-1).all() and moved_rope[~still][even[~still]].any(dim=-1).all()


@pytest.mark.parametrize(
    ("block", "other"), [(17, 16), (16, 17), (17, None), (7, 6), (7, None), (0, 15)], ids=lambda each: str(each)
)
def test_the_part_of_a_scale_is_missing_if_another_one_is_read_in_the_scores_and_the_others_are_there(block, other):
    data = generate([1024] * 8, seed=9)
    q, kv_data, _, _, _ = data
    keys = (kv_data["fp8"][0][:, 0].float() * kv_data["fp8"][1]).view(8, 1024, DIM)
    scales, parts = kv_data["mxfp4"][1].float().view(8, 1024, 18), mla.parts(data)
    read = torch.full_like(scales[..., 0], 0.5) if other is None else scales[..., other]
    wrong = keys.clone()
    wrong[..., 32 * block : 32 * block + 32] *= (read / scales[..., block])[..., None]
    queries = dequantize_fp8(*quantize_fp8(q)).float()
    right, changed = (torch.softmax(queries @ each.mT / 24, dim=-1) @ keys[..., :V_DIM] for each in (keys, wrong))
    names = [*(f"latent_scale.{number}" for number in range(16)), "rope_scale.0", "rope_scale.1"]
    there = torch.tensor(
        [1 + float(((changed - right) * part).sum() / part.square().sum()) for part in (parts[name] for name in names)]
    )
    assert there[block] < 0.5
    assert (there[torch.arange(18) != block] - 1).abs().max() < 0.25


def along_no_query(weights, keys, query):
    """What keys of such weights add to a row, but for what lies along its query."""
    unit = query[:V_DIM] / query[:V_DIM].norm()
    row = weights @ keys[:, :V_DIM]
    return row - (row @ unit) * unit


def told_by(scales):
    """1 less one scale for all keys over each key's own. That one: with it the block's scores add up to as much, if
    they are as large as the scales."""
    return 1 - scales.square().sum() / scales.sum() / scales


def places_of_parts(length):
    """The keys of each part that is defined by places within a tile and at the end."""
    places = torch.arange(length)
    found = {"tile_end.0": places % 64 == 0, "tile_end.1": places % 64 == 63, "end_key.0": places == 0}
    found["end_key.1"] = places == length - 1
    for number, tile in enumerate((16, 32, 64, 128)):
        whole, early = places < length // tile * tile, places >= length - tile
        found[f"overlap.{number}"] = whole & early & (length >= 4 * tile) & (length % tile > 0)
    return {name: mask.nonzero()[:, 0] for name, mask in found.items()}


def plain_parts(data):
    """The parts of each row with keys by their definition, in float64, every slice of every head."""
    q, kv_data, _, kv_indptr, config = data
    queries, cache = dequantize_fp8(*quantize_fp8(q)).double(), kv_data["fp8"][0][:, 0].float() * kv_data["fp8"][1]
    dims = torch.arange(V_DIM, DIM).view(8, 8)
    for sequence, (start, end) in enumerate(pairwise(kv_indptr.tolist())):
        for head in range(HEADS if end > start else 0):
            query, keys = queries[sequence, head], cache[start:end].double()
            weights = torch.softmax(keys @ query * config["sm_scale"], dim=0)
            every = torch.softmax(queries[sequence] @ keys.T * config["sm_scale"], dim=1)
            ranked = weights.sort().values
            found = {"moved_rope": torch.zeros(V_DIM)}
            for name, share in (("lighter_half", 0.5), ("lightest_tenth", 0.1)):
                found[name] = along_no_query(weights * (weights < ranked[int(share * (end - start - 1))]), keys, query)
            for number, places in enumerate(torch.arange(end - start).tensor_split(8)):
                of_place = torch.zeros_like(weights).index_fill(0, places, float(weights.max() < 0.2))
                found[f"stretch.{number}"] = along_no_query(weights * of_place, keys, query)
            for name, places in places_of_parts(end - start).items():
                counts = weights.max() < 0.2 and (name[:3] != "end" or weights[places] < 4 / (end - start))
                of_place = torch.zeros_like(weights).index_fill(0, places, float(counts))
                found[name] = along_no_query(weights * of_place, keys, query)
            whole = keys[:, V_DIM:] @ query[V_DIM:] * config["sm_scale"]
            counts = weights.max() < 0.2 and whole.max() - whole.min() < 8
            light = weights * (weights < 4 / (end - start)) * counts
            families = {"rope": dims.flatten()}
            families |= {f"rope_slice.{number}": own for number, own in enumerate([*dims, *dims.T])}
            owed = {name: torch.ones(end - start) for name in families}
            for block in range(DIM // 32):
                scale = kv_data["mxfp4"][1][start:end, block].double()
                name = f"latent_scale.{block}" if block < 16 else f"rope_scale.{block - 16}"
                families[name], owed[name] = torch.arange(32 * block, 32 * block + 32), told_by(scale)
            for name, own in families.items():
                scores = keys[:, own] @ query[own] * owed[name] * config["sm_scale"]
                mean = (light.square() @ scores) / light.square().sum().clamp(min=1e-30)
                found[name] = along_no_query(light * (scores - mean), keys, query)
            if whole.mean().abs() > 30:
                found["moved_rope"] = found["rope"]
                found |= {name: torch.zeros(V_DIM) for name in families}
            elif every.amax(dim=1).argmin() != head or end - start < 1000:
                found |= {name: torch.zeros(V_DIM) for name in families if name.startswith("latent")}
            yield sequence, head, found


@pytest.mark.parametrize(
    ("lengths", "scores"), [([300, 0, 64, 300, 1, 520, 1000], "plain"), ([200, 200], "large"), ([90], "rising")]
)
def test_parts_are_what_their_definition_gives(lengths, scores):
    data = generate(lengths, seed=8, scores=scores)  # of 300 keys, the scores of one sequence are moved
    parts, seen = mla.parts(data), set()
    for sequence, head, found in plain_parts(data):
        assert found.keys() == parts.keys()
        for name, part in found.items():
            got = parts[name][sequence, head].double()
            assert (got - part).norm() <= 1e-3 * part.norm() + 1e-9, (name, sequence, head)
            if part.norm() > 1e-3:
                seen.add(name)
    assert all(not part[torch.tensor(lengths) == 0].any() for part in parts.values())
    of_places = {f"stretch.{number}" for number in range(8)} | {"tile_end.0", "tile_end.1"}
    of_places |= {"end_key.0", "end_key.1", "overlap.0", "overlap.1"}
    of_these = {
        "plain": parts.keys(),
        "large": {"lighter_half", "lightest_tenth", "moved_rope"} | of_places,
        "rising": set(),
    }
    assert seen == of_these[scores]


def test_a_tile_that_is_whole_or_one_of_few_overlaps_none():
    overlapped = {100: {"overlap.0"}, 140: {"overlap.0", "overlap.1"}}
    for length in (32, 100, 128, 140, 512, 1024):
        names = {name for name, part in mla.parts(generate([length])).items() if part.any()}
        assert {name for name in names if name.startswith("overlap.")} == overlapped.get(length, set()), length


def test_one_key_of_more_than_2048_is_no_part():
    for length, there in ((2048, True), (2049, False)):
        parts = mla.parts(generate([length]))
        assert [bool(parts[f"end_key.{number}"].any()) for number in range(2)] == [there] * 2


def test_parts_of_some_rows_are_those_rows_of_the_parts():
    data = generate([40, 0, 70, 5], seed=7)
    some = mla.parts(data, torch.tensor([0, 1, 3]))
    for name, part in mla.parts(data).items():
        assert torch.equal(some[name], part[[0, 1, 3]])


# --- the same bits at less cost ------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e4m3fnuz])
def test_bytes_looked_up_are_what_torch_makes_of_them(dtype):
    values, scale = torch.arange(256, dtype=torch.uint8).view(dtype), torch.tensor([0.37])
    every = values.view(torch.uint8).repeat(2).view(dtype).view(2, 256)
    for got, want in ((mla._widened(every), every.float()), (mla._widened(every, scale), every.float() * scale)):
        torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("quantize", [mla._quantize_mxfp4, mla._mxfp4_by_bounds], ids=["of a CPU", "of a GPU"])
@pytest.mark.parametrize("largest", [2.0**-125, 2.0**-114, 1.3e-3, 0.99, 1.75, 1.742, 6.0, 3e38])
def test_mxfp4_of_every_value_is_as_reference_quantization_states_it(quantize, largest):
    """In blocks whose greatest magnitude is `largest`: those at either end are left to `reference`."""
    every = torch.arange(1 << 16).to(torch.int16).view(torch.bfloat16)
    fitting = every[every.float().abs() <= largest]
    rest = torch.cat([fitting, fitting[: -fitting.numel() % (31 * 18)]]).view(-1, 31)
    kv = torch.cat([torch.full((rest.shape[0], 1), largest).bfloat16(), rest], dim=1).view(-1, 1, DIM)
    packed, scales = quantize(kv)
    want, e8m0 = quantize_mxfp4(kv)
    assert torch.equal(packed, want) and torch.equal(scales.view(torch.uint8), e8m0.view(scales.shape))


@pytest.mark.parametrize("quantize", [mla._quantize_mxfp4, mla._mxfp4_by_bounds], ids=["of a CPU", "of a GPU"])
def test_mxfp4_of_a_cache_without_a_key_is_empty(quantize):
    packed, scales = quantize(torch.empty(0, 1, DIM, dtype=torch.bfloat16))
    assert packed.shape == (0, 1, DIM // 2) and scales.shape == (0, DIM // 32)
    assert (packed.dtype, scales.dtype) == (torch.uint8, torch.float8_e8m0fnu)


def test_mxfp4_of_a_cache_is_as_reference_quantization_states_it():
    kv_data = generate([300, 0, 64, 1100], seed=4)[1]
    want, e8m0 = quantize_mxfp4(kv_data["bf16"])
    assert torch.equal(kv_data["mxfp4"][0], want)
    assert torch.equal(kv_data["mxfp4"][1].view(torch.uint8), e8m0.view(-1, 18))


# --- cost --------------------------------------------------------------------------------------------------------


@settings(max_examples=8, deadline=None)
@given(lengths=ragged)
def test_cost_counts_the_bytes_of_the_tensors(lengths):
    data = generate(lengths)
    q, kv_data = data[:2]
    out = mla.ref_kernel(data)
    caches = {"bf16": [kv_data["bf16"]], "fp8": [kv_data["fp8"][0]], "mxfp4": kv_data["mxfp4"]}
    cost = mla.cost(batch_size=len(lengths), q_seq_len=1, kv_seq_len=lengths)
    assert cost.keys() == caches.keys()
    for name, tensors in caches.items():
        assert cost[name]["bytes"] == sum(tensor.nbytes for tensor in (q, out, *tensors))
        assert sum(cost[name]["flops"].values()) == sum(lengths) * 16 * 2 * (576 + 512)


# --- the bundled submissions -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path", ["problems/mla/template.py", "submissions/mla/torch_bf16.py", "submissions/mla/torch_fp8.py"]
)
def test_a_torch_submission_agrees_with_the_oracle(path):
    data = generate([0, 1, 37, 300], seed=3)
    out = load(path, "submission").custom_kernel(data)
    exact = mla.oracle(data)
    assert out.shape == exact.shape and out.dtype == torch.bfloat16 and out.is_contiguous()
    assert (out.double() - exact).norm() / exact.norm() < (0.01 if "template" in path else 0.06)
    assert not out[0].any()


TRITON = """
import json, sys
import torch
sys.path.insert(0, {root!r})
from harness.interpreter import installation
installation.install()
from tests.test_problem_mla import generate, load, mla
from reference.quantization import dequantize_mxfp4, quantize_fp8, quantize_mxfp4

def error(out, data, keys, queries):
    exact = mla.oracle((queries, {{"bf16": keys.unsqueeze(1)}}, *data[2:]))
    return float((out.double() - exact).norm() / exact.norm().clamp(min=1e-9))

errors = {{}}
for lengths in ([0, 1, 37, 70], [0, 0], [129]):
    data = generate(lengths, seed=4)
    cache, scale = data[1]["fp8"]
    fnuz = quantize_fp8(data[1]["bf16"], torch.float8_e4m3fnuz)
    variants = {{
        "bf16": (data, data[1]["bf16"][:, 0]),
        "fp8": (data, cache[:, 0].double() * scale),
        "fp8 fnuz": ((data[0], {{"fp8": fnuz}}, *data[2:]), fnuz[0][:, 0].double() * fnuz[1]),
        "fp8 rdna": (data, cache[:, 0].double() * scale),
        "mxfp4": (data, dequantize_mxfp4(*data[1]["mxfp4"])[:, 0]),
        "mxfp4_dot_scaled": (data, dequantize_mxfp4(*data[1]["mxfp4"])[:, 0]),
    }}
    for name, (inputs, keys) in variants.items():
        submission = load(f"submissions/mla/triton_{{name.split()[0]}}.py", "submission")
        if "rdna" in name:
            submission.is_rdna = lambda q: True
        queries = dequantize_mxfp4(*quantize_mxfp4(data[0])) if "dot_scaled" in name else data[0]
        with installation.cuda_on_cpu():
            out = submission.custom_kernel(inputs)
        errors[f"{{name}} {{lengths}}"] = error(out, data, keys, queries)
        if "dot_scaled" in name:  # what the board's tolerance `mxfp4` is held against
            assert error(out, data, data[1]["bf16"][:, 0], data[0]) < 0.2
print(json.dumps(errors))
"""


@pytest.mark.slow(ci=True)
def test_the_triton_submissions_compute_attention_over_the_cache_they_read():
    """Interpreted, in a process of its own: Triton must be told before it is imported."""
    process = subprocess.run(
        [sys.executable, "-c", TRITON.format(root=str(ROOT))],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={"PATH": "/usr/bin:/bin", "TRITON_INTERPRET": "1", "HOME": "/tmp"},
        timeout=300,
    )
    assert process.returncode == 0, process.stderr[-2000:]
    errors = json.loads(process.stdout.splitlines()[-1])
    assert len(errors) == 18
    # Against the same arithmetic, but for fp8, which rounds its queries to fp8 where the chip multiplies fp8.
    limit = {name: 0.015 if name.startswith("fp8") and "rdna" not in name else 0.004 for name in errors}
    assert {name: error for name, error in errors.items() if not error <= limit[name]} == {}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "programs"), [("gluon_bf16", 2), ("gluon_fp8", 2), ("gluon_mxfp4", None)])
def test_the_programs_that_a_gluon_submission_wants_fit_a_multiprocessor_and_spill_nothing(name, programs, tmp_path):
    described.on_targets(catalog.load_problem(ROOT, "mla"), ["sm_90"], tmp_path)
    words = ["--target=sm_90", f"--inputs={tmp_path / 'sm_90'}", f"--file=submissions/mla/{name}.py"]
    compiled = subprocess.run(
        [sys.executable, "-m", "harness.compile.cross_compile", *words],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=300,
    )
    assert compiled.returncode == 0, compiled.stderr[-2000:]
    kernels = json.loads(compiled.stdout)["kernels"]
    assert {kernel["kernel"] for kernel in kernels} == {"attend"}
    assert {kernel["configuration"]["ONE_SPLIT"] for kernel in kernels} == {False, True}
    for kernel in kernels:
        configuration = kernel["configuration"]
        waits = configuration.get("WAITS", not configuration["ONE_SPLIT"])  # for each other: none may lack a place
        assert bool(configuration.get("launch_cooperative_grid")) == waits
        assert kernel["fault"] is None and kernel["spills"] == 0
        together = programs or {1: 2, 2: 1, 3: 1}[configuration["DECODERS"]]
        assert kernel["occupancy"]["waves_per_simd"] == together * kernel["threads"] // 32
        assert all(".m64n16k" in matrix for matrix in kernel["matrix_instructions"])


@pytest.mark.parametrize("name", ["gluon_fp8", "gluon_bf16", "gluon_mxfp4"])
def test_a_device_that_refuses_clusters_of_16_is_asked_once_and_served_by_the_other_kernel(name, monkeypatch):
    submission = load(f"submissions/mla/{name}.py", name)
    asked = []

    def refuse(*arguments, grid, **options):
        asked.append((arguments, grid))
        raise LaunchError("the launch failed: cluster misconfiguration (912)")

    here, other = torch.device("cuda", 0), torch.device("cuda", 1)
    monkeypatch.setattr(submission, "attend_short", lambda: refuse)
    assert [submission.launch_short(here, "kv", batch=3) for _ in range(2)] == [False, False]
    assert asked == [(("kv",), (16, 3))]
    monkeypatch.setattr(submission, "attend_short", lambda: lambda *arguments, **options: None)
    assert submission.launch_short(other, "kv", batch=3) and not submission.launch_short(here, "kv", batch=3)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gluon_fp8", "gluon_bf16", "gluon_mxfp4"])
def test_the_kernel_for_short_caches_compiles_spills_nothing_and_has_the_shared_memory_that_is_asked_for(name):
    if hint := compilers.missing("sm_90"):
        pytest.skip(hint)
    submission = load(f"submissions/mla/{name}.py", name)
    # The source holds SHARED_BYTES to the size of what it lays out there.
    report = compilers.compile(submission.SHORT, "sm_90", {"SHARED_BYTES": submission.SHORT_SHARED_BYTES})
    assert [(kernel.name, kernel.spills) for kernel in report.kernels] == [("attend_short", 0)]
    with pytest.raises(CompilationError, match="as much as is asked for"):
        compilers.compile(submission.SHORT, "sm_90", {"SHARED_BYTES": submission.SHORT_SHARED_BYTES - 128})


def test_no_place_of_shuffled_scores_is_known_to_hold_the_largest():
    data = generate([1100] * 40, scores="shuffled")
    q, kv_data, _, kv_indptr, config = data
    starts, tops, off = kv_indptr.tolist(), set(), 0
    for sequence in range(40):
        keys = kv_data["bf16"][starts[sequence] : starts[sequence + 1], 0].float()
        scores = q[sequence, 0].float() @ keys.T * config["sm_scale"]
        levels = scores.view(5, 220).mean(dim=1)
        tops.add(int(levels.argmax()))
        off += bool(scores.max() - scores[-1] > 88.8) + bool(scores.max() - scores[0] > 88.8)
        assert 200 < levels.max() - levels.min() < 250
    assert tops == set(range(5)) and off > 20


@pytest.mark.parametrize("scores", ["large", "rising", "shuffled"])
def test_where_rope_dims_move_scores_no_row_has_a_part_of_theirs_but_one_of_its_own(scores):
    parts = mla.parts(generate([1100, 64], scores=scores))
    assert all(not part.any() for name, part in parts.items() if name.startswith("rope"))
    assert bool(parts["moved_rope"].any()) == (scores == "large")
    plain = mla.parts(generate([1100, 64]))
    assert all(plain[name].any() for name in ("rope_slice.15", "rope_scale.1"))
    assert not any(part.any() for name, part in parts.items() if name.startswith("latent"))
    assert all(plain[f"latent_scale.{block}"].any() for block in range(16))


def test_slices_of_the_rope_dims_add_up_to_all_of_them_in_both_ways():
    parts = mla.parts(generate([300, 200], seed=3))
    for first in (0, 8):
        summed = sum(parts[f"rope_slice.{number}"] for number in range(first, first + 8))
        torch.testing.assert_close(summed, parts["rope"], rtol=1e-4, atol=1e-5)
