"""kv_decode: the reference is its definition, the inputs show a kernel that reads a key too many or too few, the cost
is what has to move; and `attention_with_kv_cache` of the Triton submission is the same attention, step after step."""

import functools
import gc
import importlib.util
import math
import sys
from itertools import combinations, product
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.catalog import load_problem
from harness.chips.targets import TARGETS, occupancy
from harness.hip import NoDevice, compilers
from reference.attention import attention
from tests.test_interpreter_process import interpreted

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "problems" / "kv_decode"
SUBMISSIONS = ROOT / "submissions" / "kv_decode"


def imported(path):
    spec = importlib.util.spec_from_file_location(f"kv_decode_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


reference = imported(FOLDER / "reference.py")

SMALL = {
    "batch_size": 2,
    "num_q_heads": 4,
    "num_kv_heads": 2,
    "q_seq_len": 3,
    "head_dim": 8,
    "cache_max_len": 20,
    "seq_lens": [0, 11],
    "dtype": "float32",
    "is_causal": True,
    "update_cache": True,
}


def generate(seed=0, **changes):
    return reference.generate_input(**(SMALL | changes), seed=seed, device="cpu")


def copied(data):
    return tuple(member.clone() if isinstance(member, torch.Tensor) else member for member in data)


def same_bits(a, b):
    return torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))


def rel_l2(out, expected):
    return float((out.double() - expected.double()).norm() / expected.double().norm())


def naive_attention(data):
    """The definition in Python floats, one query at a time: `[B, Hq, Sq, D]` in float64, and the pairs it looked at."""
    q, k_new, v_new, k_cache, v_cache, seq_lens, config = data
    batch, q_heads, q_len, dim = q.shape
    out, pairs = torch.zeros(q.shape, dtype=torch.float64), 0
    for b in range(batch):
        length = int(seq_lens[b])
        for h in range(q_heads):
            kv = h // (q_heads // k_new.shape[1])
            keys = k_cache[b, kv, :length].tolist() + k_new[b, kv].tolist()
            values = v_cache[b, kv, :length].tolist() + v_new[b, kv].tolist()
            for i in range(q_len):
                count = length + i + 1 if config["is_causal"] else length + q_len
                query = q[b, h, i].tolist()
                scores = [sum(x * y for x, y in zip(query, key)) / math.sqrt(dim) for key in keys[:count]]
                weights = [math.exp(score - max(scores)) for score in scores]
                for d in range(dim):
                    out[b, h, i, d] = sum(w * v[d] for w, v in zip(weights, values)) / sum(weights)
                pairs += count
    return out, pairs


def naive_append(data):
    """Caches and lengths as they must be afterwards, one slot at a time."""
    _, k_new, v_new, k_cache, v_cache, seq_lens, config = copied(data)
    if config["update_cache"]:
        for b in range(k_new.shape[0]):
            for i in range(k_new.shape[2]):
                k_cache[b, :, int(seq_lens[b])] = k_new[b, :, i]
                v_cache[b, :, int(seq_lens[b])] = v_new[b, :, i]
                seq_lens[b] += 1
    return k_cache, v_cache, seq_lens


@st.composite
def cases(draw):
    batch, kv_heads, q_len = draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.integers(1, 4))
    slots = draw(st.integers(q_len, 12))
    update_cache = draw(st.booleans())
    longest = slots - q_len if update_cache else slots
    return {
        "batch_size": batch,
        "num_q_heads": kv_heads * draw(st.integers(1, 3)),
        "num_kv_heads": kv_heads,
        "q_seq_len": q_len,
        "head_dim": draw(st.sampled_from([1, 3, 8, 13])),
        "cache_max_len": slots,
        "seq_lens": draw(st.lists(st.integers(0, longest), min_size=batch, max_size=batch)),
        "dtype": draw(st.sampled_from(list(reference.DTYPES))),
        "is_causal": draw(st.booleans()),
        "update_cache": update_cache,
    }


@settings(max_examples=100, deadline=None)
@given(case=cases(), seed=st.integers(0, 2**63 - 1), share=st.sampled_from([1 << 20, 4, 1]))
def test_the_reference_is_its_definition(case, seed, share):
    data = generate(seed, **case)
    given_data = copied(data)
    expected, _ = naive_attention(data)
    state = naive_append(data)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reference, "_WORKSPACE_SHARE", share)
        out = reference.ref_kernel(data)
    # Rounded once, so at most half a unit in the last place off; float64 orders of summation add next to nothing.
    bound = 0.51 * torch.finfo(out.dtype).eps * expected.abs() + 1e-7
    assert out.dtype == reference.DTYPES[case["dtype"]] and out.is_contiguous()
    assert ((out.double() - expected).abs() <= bound).all()
    assert all(map(same_bits, data[3:6], state))
    assert all(map(same_bits, data[:3], given_data[:3]))


@settings(max_examples=30, deadline=None)
@given(case=cases(), seed=st.integers(0, 2**63 - 1))
def test_the_cost_is_what_moves_and_what_is_multiplied(case, seed):
    q, k_new, v_new, k_cache, v_cache, seq_lens, config = data = generate(seed, **case)
    live = [cache[b, :, :length] for cache in (k_cache, v_cache) for b, length in enumerate(seq_lens.tolist())]
    out = torch.empty_like(q)
    moved = [q, k_new, v_new, *live, out, *([k_new, v_new] if config["update_cache"] else [])]
    _, pairs = naive_attention(data)
    assert reference.cost(**case) == {
        case["dtype"]: {
            "bytes": sum(tensor.numel() * tensor.itemsize for tensor in moved),
            "flops": {case["dtype"]: 4 * case["head_dim"] * pairs},
        }
    }


def test_the_cost_of_the_seeds_case_is_537_megabytes():
    (case,) = [c for c in load_problem(ROOT, "kv_decode").cases.benchmark if c.parameters["num_kv_heads"] == 32]
    assert reference.cost(**case.parameters)["bfloat16"]["bytes"] == 537_657_344


def test_the_same_seed_gives_the_same_bits_and_another_seed_others():
    first, again, other = generate(7), generate(7), generate(8)
    assert all(map(same_bits, first[:6], again[:6]))
    assert not any(map(same_bits, first[:5], other[:5]))
    ours, theirs = reference.next_input(first, seed=3), reference.next_input(again, seed=3)
    assert all(map(same_bits, ours[:6], theirs[:6]))
    assert same_bits(reference.ref_kernel(ours), reference.ref_kernel(theirs))
    assert not any(map(same_bits, ours[:3], reference.next_input(first, seed=4)[:3]))


@pytest.mark.parametrize("dtype", list(reference.DTYPES))
def test_free_slots_hold_nan_infinite_enormous_and_plausible_numbers(dtype):
    _, _, _, *caches, seq_lens, _ = generate(dtype=dtype, cache_max_len=100)
    for cache in caches:
        for b, length in enumerate(seq_lens.tolist()):
            live, free = cache[b, :, :length], cache[b, :, length:]
            assert live.isfinite().all() and not live.eq(0).all(dim=-1).any()
            is_nan = free.isnan().all(dim=-1)
            is_infinite = free.isinf().all(dim=-1)
            is_huge = (free.abs().amax(dim=-1) > torch.finfo(cache.dtype).max / 100) & ~is_infinite
            is_plausible = free.abs().amax(dim=-1) < 10
            assert (is_nan.int() + is_infinite.int() + is_huge.int() + is_plausible.int() == 1).all()
            assert is_nan.any() and is_infinite.any() and is_huge.any() and is_plausible.any()


def without_key(data, slot):
    """The output of a kernel that leaves out one cached key of every sequence."""
    q, k_new, v_new, k_cache, v_cache, seq_lens, config = data
    keep = [i for i in range(k_cache.shape[2]) if i != slot]
    shorter = (q, k_new, v_new, k_cache[:, :, keep], v_cache[:, :, keep], seq_lens - 1, config)
    return reference.ref_kernel(shorter)


@pytest.mark.parametrize("slot", [0, 999])
def test_one_key_of_a_thousand_left_out_shows(slot):
    case = {"seq_lens": 1000, "cache_max_len": 1010, "num_q_heads": 32, "num_kv_heads": 4, "q_seq_len": 1}
    data = generate(head_dim=64, update_cache=False, **case)
    out, expected = without_key(data, slot), reference.ref_kernel(data)
    assert rel_l2(out, expected) > 0.1


def test_no_key_takes_all_the_weight():
    """A pulled query still depends on the others: what is left to them is a third, give or take the noise of scores."""
    data = generate(seq_lens=1000, cache_max_len=1010, num_q_heads=64, num_kv_heads=4, q_seq_len=1, head_dim=64)
    q, k_new, _, k_cache, *_ = data
    keys = torch.cat([k_cache[:, :, :1000], k_new], dim=2).repeat_interleave(16, dim=1)
    heaviest = (q @ keys.mT / 8).softmax(dim=-1).amax(dim=-1)
    pulled = heaviest > 0.1
    assert 0.4 < pulled.float().mean() < 0.8
    assert 0.4 < heaviest[pulled].mean() < 0.9


def test_the_next_step_finds_one_live_slot_of_each_sequence_written_anew_and_all_else_as_it_was():
    data = generate(batch_size=3, num_q_heads=8, seq_lens=[0, 1, 9], q_seq_len=2, cache_max_len=40, steps=15)
    written = set()
    for step in range(1, 15):
        reference.ref_kernel(data)
        before = [cache.clone() for cache in data[3:5]]
        data = reference.next_input(data, seed=step)
        changed = [now.view(torch.int32) != then.view(torch.int32) for now, then in zip(data[3:5], before)]
        assert all(torch.equal(each.any(-1).sum(-1), torch.ones(each.shape[:2])) for each in changed)
        slots = changed[0].any(-1).any(1).nonzero()
        assert torch.equal(slots, changed[1].any(-1).any(1).nonzero())
        assert bool((slots[:, 1] < data[5]).all()) and slots[:, 0].tolist() == [0, 1, 2]
        written |= set(slots[:, 1].tolist())
    assert len(written) > 5
    data[5].zero_()
    untouched = data[3].clone()
    assert same_bits(reference.next_input(data, seed=0)[3], untouched)


def test_a_loop_of_steps_is_one_causal_attention_over_all_of_its_keys(monkeypatch):
    data = generate(batch_size=2, seq_lens=[0, 9], q_seq_len=2, cache_max_len=40, steps=15)
    _, _, _, k_cache, v_cache, seq_lens, _ = data
    starts, caches = seq_lens.clone(), (k_cache, v_cache)
    queries, outputs = [], []
    monkeypatch.setattr(reference, "_write_anew", lambda *_: None)
    monkeypatch.setattr(reference, "_take_back", lambda *_: None)
    for step in range(15):
        if step:
            data = reference.next_input(data, seed=step)
        queries.append(data[0])
        outputs.append(reference.ref_kernel(data))
    assert seq_lens.tolist() == [30, 39] and data[3] is caches[0] and data[4] is caches[1]
    whole = attention(torch.cat(queries, dim=2), k_cache, v_cache, causal=True, causal_offset=starts, kv_lens=seq_lens)
    torch.testing.assert_close(torch.cat(outputs, dim=2).double(), whole, rtol=1e-6, atol=1e-6)


def test_a_full_cache_can_be_attended_to_but_not_appended_to():
    data = generate(seq_lens=[20, 18], update_cache=False)
    expected, _ = naive_attention(data)
    torch.testing.assert_close(reference.ref_kernel(data).double(), expected, rtol=1e-6, atol=1e-6)
    before = copied(data)
    with pytest.raises(ValueError, match="the cache of sequence 0 overflows: it holds 20 keys, 3 are to be appended"):
        reference.ref_kernel((*data[:6], {"is_causal": True, "update_cache": True}))
    assert all(map(same_bits, data[:6], before[:6]))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seq_lens": [0, 18]}, "sequence 1 overflows: it holds 18 keys, 3 are to be appended, and it has room for 20"),
        ({"seq_lens": 8, "steps": 5}, "sequence 0 overflows: it holds 8 keys, 15 are to be appended"),
        ({"seq_lens": [0, 21], "update_cache": False}, "sequence 1 overflows"),
        ({"seq_lens": [0, -1]}, "sequence 1 has the length -1"),
        ({"seq_lens": [1, 2, 3]}, "3 lengths for 2 sequences"),
        ({"num_q_heads": 5}, "5 query heads cannot share 2 KV heads evenly"),
        ({"q_seq_len": 0}, "q_seq_len is 0"),
        ({"steps": 0}, "steps is 0"),
        ({"dtype": "float64"}, "dtype is 'float64'"),
        ({"scores": "huge"}, "scores is 'huge'"),
        ({"values": "huge"}, "values is 'huge'"),
        ({"lengths": "huge"}, "lengths is 'huge'"),
        ({"scores": "large", "steps": 2}, "large scores cannot be kept up over 2 steps"),
    ],
)
def test_parameters_outside_the_contract_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        generate(**change)


def scores_of(data):
    """What each query scores the keys of its sequence, the new ones last: a list of `[Hq, Sq, L + Sq]` in float64."""
    q, k_new, _, k_cache, _, seq_lens, _ = data
    group = q.shape[1] // k_new.shape[1]
    keys = [torch.cat([k_cache[b, :, :n], k_new[b]], 1) for b, n in enumerate(seq_lens.tolist())]
    return [q[b].double() @ k.repeat_interleave(group, 0).double().mT / q.shape[3] ** 0.5 for b, k in enumerate(keys)]


MOVED = {"head_dim": 64, "cache_max_len": 700, "seq_lens": [600, 70]}


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_large_scores_are_moved_past_what_exp_takes_in_either_direction(dtype):
    """In 16 bits further than what a kernel may take for minus infinity, in every other KV head: there are two."""
    for sequence, scores in enumerate(scores_of(generate(**MOVED, dtype=dtype, scores="large"))):
        middle = scores.mean(-1)
        for kv_head, part in enumerate(middle.chunk(2)):
            moved = 300 if dtype != "float32" and (sequence + kv_head) % 2 else 112
            assert bool(((part.abs() - moved).abs() < 8).all())
            assert bool((part > 0).any()) and bool((part < 0).any())
        assert 0.7 < float((scores - middle[..., None]).std()) < 2


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_rising_scores_rise_from_tile_to_tile_up_to_the_new_keys(dtype):
    for scores in scores_of(generate(**MOVED, dtype=dtype, scores="rising")):
        tops = torch.stack([tile.amax(-1) for tile in scores.split(reference.RISE_TILE, dim=-1)], -1)
        assert bool((tops.diff(dim=-1) > 10).all())
        assert float(scores[..., 0].max()) < -100 and float(scores[..., -1].min()) > 100


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_shuffled_scores_have_neither_end_of_the_keys_within_reach_of_the_maximum(dtype):
    orders = set()
    for seed in range(3):
        for scores in scores_of(generate(seed, **MOVED, dtype=dtype, scores="shuffled")):
            top = scores.amax(-1)
            assert bool((top > 100).all())
            assert bool((top - scores[..., 0] > 89).all()) and bool((top[..., None] - scores[..., -3:] > 89).all())
            places = torch.arange(scores.shape[-1]) * 5 // scores.shape[-1]
            means = torch.stack([scores[:, 0, places == level].mean(-1) for level in range(5)], -1)
            orders |= {tuple(order) for order in means.argsort(dim=-1).tolist()}
    assert len(orders) >= 6


@pytest.mark.parametrize("scores", ["large", "rising", "shuffled"])
def test_neither_queries_nor_keys_alone_tell_that_scores_are_moved(scores):
    """What the heads hold at most, which is 4 to 5.5 of plain ones: of some it is that, of queries and of keys."""
    largest = {"q": [], "k": []}
    for seed in range(10):
        q, _, _, k_cache, _, seq_lens, _ = generate(seed, **MOVED, q_seq_len=1, scores=scores)
        largest["q"] += q.unflatten(1, (2, 2)).abs().amax((2, 3, 4)).flatten().tolist()
        largest["k"] += [float(k[:, :n].abs().max()) for k, n in zip(k_cache, seq_lens.tolist())]
        largest["k"] += k_cache[0, :, :600].abs().amax((1, 2)).tolist()
    assert min(largest["q"]) < 4.5 and max(largest["q"]) > 10
    assert min(largest["k"]) < 6.5 and max(largest["k"]) > 10


@pytest.mark.parametrize("scores", ["large", "rising", "shuffled"])
def test_half_of_the_dims_hold_what_moves_the_scores_and_queries_may_be_rounded_there(scores):
    """bfloat16 has 8 bits: a score of 112 that is off by its 512th part would be off by 0.2."""
    data = generate(**MOVED, update_cache=False, scores=scores)
    rounded = ((data[0] / 3).bfloat16().float() * 3, *data[1:])
    assert rel_l2(reference.ref_kernel(rounded), reference.ref_kernel(data)) < 6e-3
    keys = data[3][0, 0, :600]
    few = [len(keys[:, dim].unique()) <= 11 for dim in range(keys.shape[1])]
    assert sum(few) == 32


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_outliers_are_the_values_of_one_key_of_each_head_cached_or_new(dtype):
    where = set()
    for seed in range(8):
        _, _, v_new, _, v_cache, seq_lens, _ = generate(seed, dtype=dtype, seq_lens=[3, 0], values="outliers")
        for b, length in enumerate(seq_lens.tolist()):
            values = torch.cat([v_cache[b, :, :length], v_new[b]], 1)
            large = (values.float().norm(dim=-1) > 30 * values.shape[-1] ** 0.5).nonzero()
            assert large[:, 0].tolist() == list(range(len(values)))
            where |= {"cached" if key < length else "new" for key in large[:, 1].tolist()}
    assert where == {"cached", "new"}


def test_biased_values_have_a_vector_in_common_that_is_each_kv_heads_own():
    data = generate(seq_lens=[400, 300], cache_max_len=500, head_dim=64, values="biased")
    plain = generate(seq_lens=[400, 300], cache_max_len=500, head_dim=64)
    assert all(map(same_bits, [*data[:2], data[3]], [*plain[:2], plain[3]]))
    biases = []
    for b, length in enumerate(data[5].tolist()):
        assert same_bits(data[4][b, :, length:], plain[4][b, :, length:])
        added = torch.cat([data[4][b, :, :length] - plain[4][b, :, :length], (data[2] - plain[2])[b]], dim=1)
        assert float(added.std(1).max()) < 1e-6 and 0.5 < float(added.std(-1).mean()) < 1.5
        biases += list(added[:, 0])
    assert all(float((one - other).abs().max()) > 1 for one, other in combinations(biases, 2))


@pytest.mark.parametrize(("values", "shows"), [("normal", False), ("biased", True)])
def test_a_third_of_the_weight_left_out_shows_where_values_are_biased(values, shows):
    """Of a query that is pulled to one key the others hold a third: too little each to show where values cancel out."""
    case = {"seq_lens": 8192, "cache_max_len": 8200, "num_q_heads": 8, "num_kv_heads": 1, "q_seq_len": 1}
    data = generate(
        head_dim=64, batch_size=1, dtype="bfloat16", update_cache=False, is_causal=True, values=values, **case
    )
    q, k_new, v_new, k_cache, v_cache, *_ = (each.double() if isinstance(each, torch.Tensor) else each for each in data)
    keys, value = (torch.cat([old[:, :, :8192], new], 2) for old, new in ((k_cache, k_new), (v_cache, v_new)))
    weights = (q @ keys.mT / 8).softmax(dim=-1)
    heaviest = weights.amax(-1, keepdim=True)
    weights[(heaviest > 0.4) & (weights < heaviest)] = 0.0
    assert (rel_l2(weights @ value, reference.ref_kernel(data)) > 0.1) == shows


def test_a_quarter_of_the_sequences_lose_their_last_key_between_two_steps():
    data = generate(batch_size=400, seq_lens=[0, 7] * 200)
    before = data[5].clone()
    lost = before - reference.next_input(data, seed=3)[5]
    assert set(lost.tolist()) == {0, 1} and lost[::2].sum() == 0 and 30 < int(lost.sum()) < 70


def test_shorter_lengths_are_drawn_up_to_the_given_ones_and_what_lies_behind_them_is_garbage():
    seen = set()
    for seed in range(40):
        _, _, _, k_cache, _, seq_lens, _ = generate(seed, seq_lens=[3, 0], lengths="shorter")
        first, second = seq_lens.tolist()
        assert second == 0 and not k_cache[0, :, :first].isnan().any()
        assert seq_lens.dtype == torch.int32
        seen.add(first)
    assert seen == {0, 1, 2, 3}


def test_garbage_that_looks_like_keys_is_moved_as_the_last_ones_are():
    q, _, _, k_cache, *_ = generate(**MOVED, scores="rising")
    free = k_cache[0, 0, 600:]
    plausible = free[free.abs().amax(-1) < 100]
    scores = q[0, 0] @ plausible.mT / 8
    assert len(plausible) > 20 and bool((scores > 100).all())
    assert bool(free.isnan().all(-1).any()) and bool((free.abs().amax(-1) > 1e30).any())


def test_moving_scores_leaves_garbage_and_values_alone():
    plain, moved = (generate(**MOVED, scores=scores) for scores in ("plain", "rising"))
    assert same_bits(plain[2], moved[2]) and same_bits(plain[4], moved[4])
    assert bool(moved[3][0, :, 600:].isnan().any())


def test_groups_dims_and_query_counts_span_what_the_readme_states():
    for cases in (load_problem(ROOT, "kv_decode").cases, load_problem(ROOT, "kv_decode").cpu):
        stated = [case.parameters for case in cases.test]
        assert {p["num_q_heads"] // p["num_kv_heads"] for p in stated} >= {1, 2, 3, 4, 5, 7, 8, 32}
        assert {p["batch_size"] for p in (*stated, *(case.parameters for case in cases.benchmark))} >= {
            1,
            2,
            *range(4, 9),
        }
        appended = [p for p in stated if p["is_causal"] and p["update_cache"]]
        assert {p["head_dim"] for p in appended} == {64, 80, 96, 128, 192}
        assert any(8 < p["q_seq_len"] < 16 for p in stated)
        assert {p["head_dim"] for p in stated} == {64, 80, 96, 128, 192}
        assert {p["q_seq_len"] for p in stated} >= {1, 3, 5, 7, 16}
        assert {p["head_dim"] for p in stated if "scores" in p} == {64, 80, 96, 128, 192}
        assert {(p["dtype"], p["scores"]) for p in stated if "scores" in p} >= {
            *((dtype, "rising") for dtype in ("float32", "bfloat16")),
            *((dtype, "large") for dtype in ("float32", "float16")),
            *((dtype, "shuffled") for dtype in ("float32", "float16", "bfloat16")),
        }


def test_every_dtype_is_tested_with_every_dim_without_the_mask_and_without_the_append():
    for cases in (load_problem(ROOT, "kv_decode").cases, load_problem(ROOT, "kv_decode").cpu):
        stated = [case.parameters for case in cases.test]
        dtypes = ("float32", "float16", "bfloat16")
        assert {(p["dtype"], p["head_dim"]) for p in stated} == set(product(dtypes, (64, 80, 96, 128, 192)))
        assert {p["dtype"] for p in stated if not p["is_causal"] and p["q_seq_len"] > 1} == set(dtypes)
        assert {p["dtype"] for p in stated if not p["update_cache"]} == set(dtypes)


def forms(p):
    """What a kernel may have forms of its own for; a group shows itself only where there are several KV heads."""
    group = p["num_q_heads"] // p["num_kv_heads"]
    return {
        "dtype": p["dtype"],
        "dim": p["head_dim"],
        "queries": 1 if p["q_seq_len"] == 1 else "causal" if p["is_causal"] else "not causal",
        "append": p["update_cache"],
        "group": "one KV head" if p["num_kv_heads"] == 1 else "odd" if group % 2 and group > 1 else group == 1,
        "inputs": p.get("values", p.get("scores", "plain")),
        "empty": p["seq_lens"] == 0 or (isinstance(p["seq_lens"], list) and 0 in p["seq_lens"]),
    }


@pytest.mark.parametrize("where", ["cases", "cpu"])
def test_what_a_kernel_may_have_forms_of_its_own_for_meets_in_every_pair(where):
    stated = [forms(case.parameters) for case in getattr(load_problem(ROOT, "kv_decode"), where).test]
    values = {
        "dtype": ["float32", "float16", "bfloat16"],
        "dim": [64, 80, 96, 128, 192],
        "queries": [1, "causal", "not causal"],
        "append": [False, True],
        "group": ["one KV head", True, False, "odd"],
        "inputs": ["plain", "large", "rising", "shuffled", "outliers"],
        "empty": [True],
    }
    for first, second in combinations(values, 2):
        pairs = set(product(values[first], values[second]))
        assert pairs <= {(form[first], form[second]) for form in stated}, (first, second)


def test_every_case_in_the_problem_file_is_within_the_contract():
    problem = load_problem(ROOT, "kv_decode")
    for cases in (problem.cases, problem.cpu):
        for case in (*cases.test, *cases.benchmark):
            p = case.parameters
            lengths = reference._lengths(p["seq_lens"], p["batch_size"])
            appended = p["q_seq_len"] * p.get("steps", 1) if p["update_cache"] else 0
            reference._check_room(lengths, appended, p["cache_max_len"])
            assert reference.cost(**p)[p["dtype"]]["bytes"] > 0
    assert all("steps" not in case.parameters for case in (*problem.cases.benchmark, *problem.cpu.benchmark))


def resident_bytes():
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * 4096


def growth(step, warm_up, steps):
    """What `steps` calls of `step` leave behind: blocks of Python's memory, tensors, and resident bytes (0 off Linux).

    Python does not see what torch allocates. A tensor kept alive is a block of Python's, and the memory behind it shows
    in the resident set, to within what allocators keep back.
    """
    resident = resident_bytes if sys.platform == "linux" else (lambda: 0)
    for _ in range(warm_up):
        step()
    gc.collect()
    blocks, tensors, resident_before = sys.getallocatedblocks(), live_tensors(), resident()
    for _ in range(steps):
        step()
    gc.collect()
    return sys.getallocatedblocks() - blocks, live_tensors() - tensors, resident() - resident_before


def live_tensors():
    return sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects())


@pytest.mark.parametrize("name", [pytest.param("ref_kernel", marks=pytest.mark.slow), "torch_sdpa"])
def test_a_thousand_steps_leave_no_memory_behind(name):
    """Each draws 32 KiB of queries, keys and values: 32 MB if they were kept."""
    kernel = reference.ref_kernel if name == "ref_kernel" else imported(SUBMISSIONS / "torch_sdpa.py").custom_kernel
    data = generate(head_dim=512, num_q_heads=4, q_seq_len=1, cache_max_len=16, seq_lens=[0, 5])

    def step():
        if data[5][1] == 15:
            data[5].copy_(torch.tensor([0, 5]))
        kernel(reference.next_input(data, seed=0))

    blocks, tensors, resident = growth(step, 100, 1000)
    assert blocks < 500 and tensors == 0 and resident < 16 << 20, (blocks, tensors, resident)


# The Hopper submission, which no processor runs: its choices, its way out, and what its kernel compiles to.


@functools.cache
def cuda_cluster():
    return imported(SUBMISSIONS / "cuda_cluster.py")


H200 = 132  # multiprocessors


def test_the_hopper_submission_refuses_a_processor_whatever_it_is_given():
    for changes in ({}, {"q_seq_len": 1, "head_dim": 128}, {"q_seq_len": 1, "head_dim": 128, "dtype": "bfloat16"}):
        with pytest.raises(NoDevice, match=r"^cuda_cluster needs a Hopper GPU \(sm_90\)"):
            cuda_cluster().custom_kernel(generate(**changes))


def test_a_cluster_is_as_large_as_was_fastest_on_an_h200():
    fastest = {8: 8, 16: 6, 32: 3, 64: 2, 128: 2, 256: 1, 512: 1, 1024: 1}
    assert {pairs: cuda_cluster().choose_cluster(pairs, H200) for pairs in fastest} == fastest


@given(pairs=st.integers(1, 65535), multiprocessors=st.integers(1, 200))
def test_a_cluster_is_portable_and_has_places_on_the_device(pairs, multiprocessors):
    cluster = cuda_cluster().choose_cluster(pairs, multiprocessors)
    assert 1 <= cluster <= 8
    if cluster > 2:  # a multiprocessor for every program, of those that clusters can use
        assert pairs * cluster <= 8 * multiprocessors // 11
    elif cluster == 2:  # two programs fit a multiprocessor
        assert pairs * cluster <= 2 * multiprocessors


def test_the_keys_of_few_pairs_are_scattered_if_there_are_many():
    def scattered(pairs, slots=33024, heads=4):
        return cuda_cluster().choose_scattered(pairs, heads, slots, H200)

    assert [scattered(pairs) for pairs in (1, 2, 4, 8, 9)] == [64, 64, 33, 16, 0]
    assert (scattered(8, slots=24576), scattered(8, slots=24575)) == (16, 0)
    assert (scattered(1, slots=5462), scattered(1, slots=5461)) == (64, 0)


def test_many_heads_are_not_scattered_over_more_programs_than_one_merges_soon():
    scattered = cuda_cluster().choose_scattered
    assert [scattered(1, heads, 33024, H200) for heads in (4, 8, 16, 17, 32)] == [64, 32, 16, 0, 0]


def test_three_stages_are_for_programs_that_are_alone_on_a_multiprocessor():
    stages = cuda_cluster().choose_stages
    assert (stages(16, H200, H200), stages(16, H200 + 1, H200), stages(32, 10 * H200, H200)) == (3, 2, 3)


def test_only_one_new_token_of_128_dims_in_16_bits_goes_to_the_hopper_kernel():
    def supports(heads=32, pairs=65535, **changes):
        q = generate(**({"q_seq_len": 1, "head_dim": 128, "dtype": "bfloat16"} | changes))[0]
        return cuda_cluster().supports(q, heads, pairs)

    assert supports() and supports(dtype="float16", heads=1)
    for changes in ({"dtype": "float32"}, {"q_seq_len": 2}, {"head_dim": 64}, {"heads": 33}, {"pairs": 65536}):
        assert not supports(**changes), changes


def test_what_the_hopper_kernel_does_not_support_goes_to_torch_and_is_the_reference():
    for changes in (
        {"dtype": "float32"},
        {"is_causal": False, "update_cache": False, "seq_lens": [20, 18]},
        {"num_q_heads": 2, "q_seq_len": 1, "seq_lens": [0, 19]},
    ):
        data = generate(**changes)
        ours = copied(data)
        expected = reference.ref_kernel(data)
        out = cuda_cluster().attend_by_torch(ours)
        assert rel_l2(out, expected) < 1e-6, changes
        assert out.shape == expected.shape and all(map(same_bits, data[:6], ours[:6])), changes


@pytest.mark.slow
def test_every_kernel_that_a_hopper_gpu_is_given_spills_nothing_and_fits_as_often_as_it_says():
    """Its static assertion holds the host's count of shared memory against the struct."""
    if compilers.missing("sm_90") is not None:
        pytest.skip(f"no compiler for sm_90 here: {compilers.missing('sm_90')}")
    submission, chosen = cuda_cluster(), set()
    for rows in (16, 32):
        for pairs in range(1, 2 * H200):
            cluster = submission.choose_cluster(pairs, H200)
            chosen.add((rows, cluster, submission.choose_stages(rows, pairs * cluster, H200), False))
            scattered = submission.choose_scattered(pairs, rows, 1 << 20, H200)
            if scattered:
                chosen.add((rows, 1, submission.choose_stages(rows, pairs * scattered, H200), True))
    assert {cluster for _, cluster, *_ in chosen} == set(range(1, 9)) and any(scattered for *_, scattered in chosen)
    for rows, cluster, stages, scattered in sorted(chosen):
        dtype = torch.float16 if cluster % 2 else torch.bfloat16
        module = submission.kernel(dtype, rows, cluster, stages, scattered)._module
        (kernel,) = compilers.compile(module.source, "sm_90", module.defines).kernels
        assert (kernel.spills, kernel.scratch_bytes, kernel.threads) == (0, 0, submission.THREADS), kernel
        limit, resident = TARGETS["sm_90"], module.defines["RESIDENT"]
        held = occupancy(
            "sm_90", registers=kernel.registers, sgprs=0, threads=kernel.threads,
            lds_bytes=submission.shared_bytes(rows, cluster, stages),
        )  # fmt: skip
        assert held.waves_per_simd * limit.simds >= resident * kernel.threads // 32, kernel


# From here on: the Triton submission, interpreted in a process of its own.


@functools.cache
def triton_split_kv():
    return imported(SUBMISSIONS / "triton_split_kv.py")


def caches_and_lengths(seq_lens, slots=20, kv_heads=2, dim=8):
    """Caches full of NaN but for their first slots."""
    generator = torch.Generator().manual_seed(5)
    caches = []
    for _ in range(2):
        cache = torch.randn(len(seq_lens), kv_heads, slots, dim, generator=generator)
        for b, length in enumerate(seq_lens):
            cache[b, :, length:] = torch.nan
        caches.append(cache)
    return tuple(caches), torch.tensor(seq_lens, dtype=torch.int32)


def new_tokens(batch, q_len, q_heads=4, kv_heads=2, dim=8, seed=9):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(batch, heads, q_len, dim, generator=generator) for heads in (q_heads, kv_heads, kv_heads)]


@pytest.mark.slow
@interpreted
def test_the_triton_kernel_is_the_reference():
    for changes in (
        {"seq_lens": [0, 1, 63, 64, 65, 128], "head_dim": 16},
        {"seq_lens": [0, 1, 63, 64, 65, 131], "head_dim": 7, "is_causal": False, "update_cache": False},
        {"seq_lens": [0, 1, 63, 64, 65, 100], "num_q_heads": 10, "q_seq_len": 17},  # more than one tile of rows
        {"seq_lens": [0, 1, 50, 61, 59, 60], "q_seq_len": 70, "num_q_heads": 2},  # more than one block of new keys
    ):
        data = generate(batch_size=6, cache_max_len=131, **changes)
        ours = copied(data)
        expected = reference.ref_kernel(data)
        out = triton_split_kv().custom_kernel(ours)
        assert rel_l2(out, expected) < 1e-6, changes
        assert all(map(same_bits, data[:6], ours[:6])), changes


@pytest.mark.slow
@interpreted
def test_any_number_of_splits_gives_the_same_attention():
    for splits in (1, 2, 5, 13):
        data = generate(seq_lens=[0, 190], cache_max_len=200)
        ours = copied(data)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(triton_split_kv(), "choose_splits", lambda *_, splits=splits: splits)
            out = triton_split_kv().custom_kernel(ours)
        assert rel_l2(out, reference.ref_kernel(data)) < 1e-6, splits
        assert all(map(same_bits, data[:6], ours[:6])), splits


@interpreted
def test_an_interpreted_merge_fits_into_the_lds_of_an_emulated_chip():
    """Emulated kernels are launched with the choices for a CPU, as machine code. Their reductions go through LDS."""
    lds = 65536
    for rows, splits, block_d in product((1, 16, 100, 512), (1, 2, 13), (16, 64, 128, 256)):
        merged = triton_split_kv().choose_merge(torch.device("cpu"), splits, rows, block_d)
        assert 4 * math.prod(merged.values()) <= lds, merged
        assert merged["BLOCK_S"] >= splits and merged["BLOCK_D"] >= block_d


@pytest.mark.slow(ci=True)
@interpreted
def test_a_model_can_prefill_and_decode_from_an_empty_cache():
    attend = triton_split_kv().attention_with_kv_cache
    seq_lens, cache, steps = torch.zeros(2, dtype=torch.int32), None, []
    for step, q_len in enumerate([5, 1, 1, 2]):
        q, k, v = new_tokens(2, q_len, seed=step)
        out, given_back = attend(q, k, v, cache, seq_lens, cache_max_len=9, is_causal=True)
        assert cache is None or (given_back[0] is cache[0] and given_back[1] is cache[1])
        cache = given_back
        steps.append((q, k, v, out))
    q, k, v, out = (torch.cat(tensors, dim=2) for tensors in zip(*steps))
    assert cache[0].shape == (2, 2, 9, 8) and seq_lens.tolist() == [9, 9]
    assert torch.equal(cache[0], k) and torch.equal(cache[1], v)
    torch.testing.assert_close(out.double(), attention(q, k, v, causal=True), rtol=1e-5, atol=1e-5)


@pytest.mark.slow(ci=True)
@interpreted
def test_agrees_with_sdpa_to_1e_4():
    """The acceptance criterion of the specification, on a cache of ragged lengths."""
    (k_cache, v_cache), seq_lens = caches_and_lengths([3, 100], slots=128, dim=64)
    q, k, v = new_tokens(2, 1, dim=64)
    lengths = seq_lens.tolist()
    out, _ = triton_split_kv().attention_with_kv_cache(q, k, v, (k_cache, v_cache), seq_lens)
    for b, length in enumerate(lengths):
        keys, values = k_cache[b, :, : length + 1], v_cache[b, :, : length + 1]
        expected = torch.nn.functional.scaled_dot_product_attention(q[b], keys, values, enable_gqa=True)
        assert (out[b] - expected).abs().max() < 1e-4


@interpreted
def test_without_update_nothing_is_written_and_no_cache_comes_back():
    attend = triton_split_kv().attention_with_kv_cache
    cache, seq_lens = caches_and_lengths([4, 20])
    before = [tensor.clone() for tensor in (*cache, seq_lens)]
    q, k, v = new_tokens(2, 3)
    out, nothing = attend(q, k, v, cache, seq_lens, update_cache=False, is_causal=True)
    expected, _ = naive_attention((q, k, v, *cache, seq_lens, {"is_causal": True}))
    torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=1e-5)
    assert nothing is None and all(map(same_bits, (*cache, seq_lens), before))


@interpreted
def test_without_cache_and_update_it_is_attention_among_the_new_tokens():
    q, k, v = new_tokens(2, 6)
    for causal in (False, True):
        out, nothing = triton_split_kv().attention_with_kv_cache(q, k, v, update_cache=False, is_causal=causal)
        assert nothing is None
        torch.testing.assert_close(out.double(), attention(q, k, v, causal=causal), rtol=1e-5, atol=1e-5)


@interpreted
def test_without_lengths_a_cache_that_is_given_counts_as_full():
    attend = triton_split_kv().attention_with_kv_cache
    cache, full = caches_and_lengths([20, 20])
    q, k, v = new_tokens(2, 1)
    out, _ = attend(q, k, v, cache, update_cache=False)
    same, _ = attend(q, k, v, cache, full, update_cache=False)
    assert torch.equal(out, same)
    with pytest.raises(ValueError, match=r"the KV cache overflows: a sequence holds 20 keys, 1 .* room for 20"):
        attend(q, k, v, cache)


@interpreted
def test_an_overflow_is_refused_before_anything_is_written():
    attend = triton_split_kv().attention_with_kv_cache
    cache, seq_lens = caches_and_lengths([4, 18])
    before = [tensor.clone() for tensor in (*cache, seq_lens)]
    with pytest.raises(ValueError, match=r"a sequence holds 18 keys, 3 are to be appended, and there is room for 20"):
        attend(*new_tokens(2, 3), cache, seq_lens)
    assert all(map(same_bits, (*cache, seq_lens), before))
    with pytest.raises(ValueError, match=r"holds 0 keys, 3 are to be appended, and there is room for 2"):
        attend(*new_tokens(2, 3), cache_max_len=2)


@interpreted
def test_lengths_may_be_int64_and_queries_transposed():
    cache, seq_lens = caches_and_lengths([4, 17])
    q, k, v = new_tokens(2, 3)
    by_token = q.transpose(1, 2).contiguous().transpose(1, 2)
    wide = seq_lens.long()
    data = (q, k, v, *(tensor.clone() for tensor in cache), seq_lens.clone(), {"is_causal": False})
    out, _ = triton_split_kv().attention_with_kv_cache(by_token, k, v, cache, wide, num_query_heads=4, num_kv_heads=2)
    torch.testing.assert_close(out.double(), naive_attention(data)[0], rtol=1e-5, atol=1e-5)
    assert wide.tolist() == [7, 20] and torch.equal(cache[0][0, :, 4:7], k[0])


@interpreted
def test_tensors_that_do_not_fit_are_refused():
    cache, seq_lens = caches_and_lengths([4, 10])
    q, k, v = new_tokens(2, 3)
    wrong = [
        ((q, k, v[:, :1], cache, seq_lens), {}, "do not fit each other"),
        ((q[:, :3], k, v, cache, seq_lens), {}, "do not fit each other"),
        ((q, k, v, cache, seq_lens[:1]), {}, "seq_lens must be"),
        ((q, k, v, cache, seq_lens), {"num_query_heads": 8}, "num_query_heads is 8, but the tensors have 4"),
        ((q, k, v, cache, seq_lens), {"num_kv_heads": 4}, "num_kv_heads is 4, but the tensors have 2"),
        ((q, k, v, (cache[0].half(), cache[1]), seq_lens), {}, "does not fit keys"),
        ((q, k, v, (cache[0][:, :, ::2], cache[1][:, :, ::2]), seq_lens), {}, "must be contiguous"),
    ]
    for arguments, named, message in wrong:
        with pytest.raises(ValueError, match=message):
            triton_split_kv().attention_with_kv_cache(*arguments, **named)


@pytest.mark.slow
@interpreted
def test_a_thousand_interpreted_steps_leave_no_memory_behind():
    """A small cache, filled over and over: so a step is two programs."""
    attend = triton_split_kv().attention_with_kv_cache
    seq_lens = torch.zeros(1, dtype=torch.int32)
    cache = tuple(torch.full((1, 1, 40, 16), torch.nan) for _ in range(2))
    q, k, v = new_tokens(1, 1, q_heads=2, kv_heads=1, dim=16)

    def step():
        if seq_lens[0] == 40:
            seq_lens.zero_()
        attend(q, k, v, cache, seq_lens, is_causal=True)

    blocks, tensors, resident = growth(step, 50, 1000)
    assert seq_lens.tolist() == [(1050 - 1) % 40 + 1]
    assert blocks < 5000 and tensors == 0 and resident < 16 << 20, (blocks, tensors, resident)


if __name__ == "__main__":
    from harness.interpreter.installation import install
    from tests.test_interpreter_process import run_claims

    install()
    run_claims()
