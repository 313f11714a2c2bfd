"""The attention oracle agrees with the definition written out in Python loops, whatever the shape, mask or chunking."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import reference.attention
from reference.attention import attention, ragged_decode_attention

EXACT = {"rtol": 1e-12, "atol": 1e-12}


def naive_row(q, keys, values, sm_scale):
    """One query over the keys it sees, in Python floats, as a float64 tensor."""
    scores = [sm_scale * sum(a * b for a, b in zip(q, key)) for key in keys]
    peak = max(scores, default=0.0)
    weights = [math.exp(score - peak) for score in scores]
    total = sum(weights) or 1.0
    row = [sum(w * value[d] for w, value in zip(weights, values)) / total for d in range(len(values[0]))]
    return torch.tensor(row, dtype=torch.float64)


def naive_attention(q, k, v, sm_scale, visible):
    """[B, H, S, D] by loops; visible(b, i) is how many keys query i of batch b sees."""
    out = torch.zeros(*q.shape[:3], v.shape[3], dtype=torch.float64)
    group = q.shape[1] // k.shape[1]
    for b in range(q.shape[0]):
        for h in range(q.shape[1]):
            for i in range(q.shape[2]):
                count = max(0, min(visible(b, i), k.shape[2]))
                if count:
                    keys, values = k[b, h // group, :count].tolist(), v[b, h // group, :count].tolist()
                    out[b, h, i] = naive_row(q[b, h, i].tolist(), keys, values, sm_scale)
    return out


def random_qkv(batch, q_heads, kv_heads, q_len, k_len, head_dim, v_dim, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shapes = [(batch, q_heads, q_len, head_dim), (batch, kv_heads, k_len, head_dim), (batch, kv_heads, k_len, v_dim)]
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]


shapes = st.tuples(
    st.integers(1, 3),  # batch
    st.integers(1, 3),  # KV heads
    st.integers(1, 4),  # query heads a KV head
    st.integers(1, 5),  # queries
    st.integers(1, 9),  # keys
    st.sampled_from([1, 3, 7, 8]),  # D
    st.sampled_from([1, 5, 8]),  # Dv
)


@settings(max_examples=60, deadline=None)
@given(shape=shapes, data=st.data())
def test_attention_is_its_definition(shape, data):
    batch, kv_heads, group, q_len, k_len, head_dim, v_dim = shape
    q, k, v = random_qkv(batch, kv_heads * group, kv_heads, q_len, k_len, head_dim, v_dim)
    causal = data.draw(st.booleans(), label="causal")
    offsets = data.draw(st.lists(st.integers(-3, k_len), min_size=batch, max_size=batch), label="offsets")
    lens = data.draw(st.lists(st.integers(0, k_len), min_size=batch, max_size=batch), label="lens")
    row_bytes = 8 * k_len
    budget = data.draw(st.sampled_from([row_bytes, 3 * row_bytes, 20 * row_bytes, 1 << 20]), label="max_score_bytes")

    def visible(b, i):
        return min(lens[b], offsets[b] + i + 1) if causal else lens[b]

    out = attention(
        q,
        k,
        v,
        sm_scale=0.7,
        causal=causal,
        causal_offset=torch.tensor(offsets),
        kv_lens=torch.tensor(lens, dtype=torch.int32),
        max_score_bytes=budget,
    )
    torch.testing.assert_close(out, naive_attention(q, k, v, 0.7, visible), **EXACT)


@pytest.mark.parametrize("causal", [False, True])
def test_both_layouts_give_the_same_numbers(causal):
    q, k, v = random_qkv(2, 6, 2, 5, 5, 4, 3)
    expected = attention(q, k, v, causal=causal)
    by_token = attention(*(t.transpose(1, 2).contiguous() for t in (q, k, v)), causal=causal, layout="bshd")
    assert by_token.shape == (2, 5, 6, 3)
    torch.testing.assert_close(by_token.transpose(1, 2), expected, **EXACT)


def test_the_default_scale_is_one_over_sqrt_head_dim():
    q, k, v = random_qkv(1, 2, 1, 3, 4, 9, 2)
    torch.testing.assert_close(attention(q, k, v), naive_attention(q, k, v, 1 / 3, lambda b, i: 4), **EXACT)


@settings(max_examples=30, deadline=None)
@given(rows=st.lists(st.integers(0, 11), max_size=15), layout=st.sampled_from(["bhsd", "bshd"]))
def test_selected_rows_are_those_rows_of_the_whole(rows, layout):
    q, k, v = random_qkv(2, 4, 2, 12, 12, 5, 3)
    if layout == "bshd":
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    whole = attention(q, k, v, causal=True, layout=layout)
    picked = attention(
        q, k, v, causal=True, layout=layout, rows=torch.tensor(rows, dtype=torch.int64), max_score_bytes=500
    )
    torch.testing.assert_close(picked, whole.index_select(2 if layout == "bhsd" else 1, torch.tensor(rows).long()))


def test_agrees_with_torch_sdpa_on_a_larger_causal_gqa_case():
    q, k, v = random_qkv(2, 8, 2, 70, 70, 32, 16)
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    torch.testing.assert_close(attention(q, k, v, causal=True, max_score_bytes=70 * 8 * 100), expected, **EXACT)


def test_keys_past_the_end_of_a_sequence_do_not_count_even_if_they_are_nan():
    q, k, v = random_qkv(2, 2, 1, 3, 8, 4, 4)
    lens = torch.tensor([5, 0])
    expected = attention(q, k, v, kv_lens=lens)
    for poison in (torch.nan, torch.inf):
        for t in (k, v):
            t[0, :, 5:] = poison
            t[1] = poison
        torch.testing.assert_close(attention(q, k, v, kv_lens=lens), expected, **EXACT)
    assert expected[1].eq(0).all()
    assert expected[0].ne(0).all()


def test_keys_after_the_last_causal_query_do_not_count_even_if_they_are_nan():
    q, k, v = random_qkv(2, 1, 1, 2, 8, 4, 4)
    offset = torch.tensor([3, 1])
    expected = attention(q, k, v, causal=True, causal_offset=offset)
    k[0, :, 5:], v[0, :, 5:], k[1, :, 3:], v[1, :, 3:] = torch.nan, torch.nan, torch.nan, torch.nan
    torch.testing.assert_close(attention(q, k, v, causal=True, causal_offset=offset), expected, **EXACT)


def test_large_scores_do_not_overflow():
    q, k, v = random_qkv(1, 1, 1, 2, 3, 4, 4)
    out = attention(1e4 * q, 1e4 * k, v)
    best = (q @ k.mT)[0, 0].argmax(dim=-1)
    torch.testing.assert_close(out[0, 0], v[0, 0, best], **EXACT)


def test_no_keys_at_all_gives_zeros():
    q, k, v = random_qkv(1, 2, 1, 3, 0, 4, 5)
    assert torch.equal(attention(q, k, v), torch.zeros(1, 2, 3, 5, dtype=torch.float64))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_dtype_argument_is_the_arithmetic_and_the_result(dtype):
    q, k, v = (t.bfloat16() for t in random_qkv(1, 4, 2, 6, 64, 32, 32))
    out = attention(q, k, v, dtype=dtype)
    exact = attention(q.double(), k.double(), v.double())
    error = ((out.double() - exact).norm() / exact.norm()).item()
    assert out.dtype == dtype
    assert error < 4 * torch.finfo(dtype).eps


@settings(max_examples=40, deadline=None)
@given(shape=shapes, rows_allowed=st.integers(1, 40))
def test_no_more_scores_than_allowed_exist_at_once(shape, rows_allowed):
    batch, kv_heads, group, q_len, k_len, head_dim, v_dim = shape
    q, k, v = random_qkv(batch, kv_heads * group, kv_heads, q_len, k_len, head_dim, v_dim)
    limit = 8 * k_len * rows_allowed
    seen = []

    def recording(q, k, *rest):
        seen.append(8 * q.shape[0] * q.shape[1] * q.shape[2] * k.shape[2])
        return attend(q, k, *rest)

    attend = reference.attention._attend
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reference.attention, "_attend", recording)
        attention(q, k, v, max_score_bytes=limit)
    assert seen and max(seen) <= limit
    assert sum(seen) == 8 * batch * kv_heads * group * q_len * k_len


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"k": torch.zeros(1, 3, 4, 8), "v": torch.zeros(1, 3, 4, 8)}, "4 query heads are not a multiple of 3"),
        ({"v": torch.zeros(1, 2, 5, 8)}, "do not fit"),
        ({"k": torch.zeros(1, 2, 4, 7)}, "do not fit"),
        ({"kv_lens": torch.tensor([5])}, "kv_lens"),
        ({"kv_lens": torch.tensor([-1])}, "kv_lens"),
        ({"kv_lens": torch.tensor([1, 1])}, "kv_lens"),
        ({"causal": True, "causal_offset": torch.tensor([1, 1])}, "causal_offset"),
        ({"rows": torch.tensor([2])}, "rows"),
        ({"rows": torch.tensor([-1])}, "rows"),
        ({"layout": "sbhd"}, "layout"),
        ({"max_score_bytes": 31}, "max_score_bytes"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(change, message):
    arguments = {"q": torch.zeros(1, 4, 2, 8), "k": torch.zeros(1, 2, 4, 8), "v": torch.zeros(1, 2, 4, 8)} | change
    with pytest.raises(ValueError, match=message):
        attention(**arguments)


def indptr(lengths):
    return torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32)


@settings(max_examples=50, deadline=None)
@given(
    lengths=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9)), min_size=1, max_size=5),
    heads=st.integers(1, 4),
    dims=st.sampled_from([(9, 5), (8, 8), (6, 1)]),
    causal=st.booleans(),
)
def test_ragged_decode_is_its_definition(lengths, heads, dims, causal):
    q_lens, kv_lens = zip(*lengths)
    generator = torch.Generator().manual_seed(1)
    q = torch.randn(sum(q_lens), heads, dims[0], generator=generator, dtype=torch.float64)
    kv = torch.randn(sum(kv_lens), dims[0], generator=generator, dtype=torch.float64)
    out = ragged_decode_attention(
        q, kv, indptr(q_lens), indptr(kv_lens), sm_scale=0.4, v_dim=dims[1], causal=causal, max_score_bytes=200
    )
    expected = torch.zeros_like(out)
    row = start = 0
    for q_len, kv_len in lengths:
        for i in range(q_len):
            stop = start + (max(0, kv_len - q_len + i + 1) if causal else kv_len)
            for h in range(heads if stop > start else 0):
                keys = kv[start:stop].tolist()
                expected[row, h] = naive_row(q[row, h].tolist(), keys, [x[: dims[1]] for x in keys], 0.4)
            row += 1
        start += kv_len
    torch.testing.assert_close(out, expected, **EXACT)


def test_mla_sized_ragged_decode_with_an_empty_sequence():
    q = torch.randn(4, 16, 576, dtype=torch.bfloat16)
    kv = torch.randn(108, 576, dtype=torch.bfloat16)
    kv_lens = [0, 1, 37, 70]
    out = ragged_decode_attention(q, kv, indptr([1] * 4), indptr(kv_lens), sm_scale=576**-0.5, v_dim=512)
    assert out.shape == (4, 16, 512) and out.dtype == torch.float64
    assert out[0].eq(0).all()
    torch.testing.assert_close(out[1], kv[:1, :512].double().expand(16, 512), **EXACT)
    last = kv[38:].double()
    weights = torch.softmax(q[3].double() @ last.T / 24, dim=-1)
    torch.testing.assert_close(out[3], weights @ last[:, :512], **EXACT)


def test_fp8_operands_need_no_dequantized_copy():
    generator = torch.Generator().manual_seed(2)
    q = torch.randn(2, 3, 8, generator=generator).to(torch.float8_e4m3fn)
    kv = torch.randn(9, 8, generator=generator).to(torch.float8_e4m3fn)
    pointers = (indptr([1, 1]), indptr([4, 5]))
    q_scale, kv_scale = 0.3, 0.011
    folded = ragged_decode_attention(q, kv, *pointers, sm_scale=0.5 * q_scale * kv_scale, v_dim=6) * kv_scale
    copies = (q.double() * q_scale, kv.double() * kv_scale)
    torch.testing.assert_close(folded, ragged_decode_attention(*copies, *pointers, sm_scale=0.5, v_dim=6), **EXACT)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kv_indptr": torch.tensor([0, 3, 5])}, "kv_indptr must rise from 0 to 6"),
        ({"kv_indptr": torch.tensor([0, 7, 6])}, "kv_indptr must rise"),
        ({"qo_indptr": torch.tensor([1, 1, 2])}, "qo_indptr must rise"),
        ({"kv_indptr": torch.tensor([0, 6])}, "2 sequences and kv_indptr 1"),
        ({"kv": torch.zeros(6, 1, 8)}, "expected q"),
        ({"v_dim": 9}, "v_dim 9"),
    ],
)
def test_ragged_inputs_that_do_not_fit_are_refused(change, message):
    arguments = {
        "q": torch.zeros(2, 4, 8),
        "kv": torch.zeros(6, 8),
        "qo_indptr": torch.tensor([0, 1, 2]),
        "kv_indptr": torch.tensor([0, 2, 6]),
        "sm_scale": 1.0,
        "v_dim": 4,
    } | change
    with pytest.raises(ValueError, match=message):
        ragged_decode_attention(**arguments)
