"""A problem's own mistakes.py: a wrong answer that is just what a known mistake gives is called that, and no other."""

import functools
import importlib.util
from contextlib import ExitStack, closing
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from test_judging import judge

from harness import catalog
from harness.catalog.config import load_config
from harness.judge import mistakes
from harness.judge.difference import Difference
from harness.judge.evaluate import replay
from harness.judge.mismatch import HINT
from harness.judge.mistakes import FILE, MOST_BYTES, Mistakes, sides, wrong_scales
from harness.judge.reference import members, open_reference
from harness.judge.seeds import OneSeed
from harness.machine.device import detect
from harness.model import Verdict
from reference.attention import ragged_decode_attention

ROOT = Path(__file__).resolve().parents[1]
BUNDLED = sorted(path.parent.name for path in (ROOT / "problems").glob(f"*/{FILE}"))
SEED = 5


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """A busy machine finds what another does."""
    monkeypatch.setattr(mistakes, "MOST_S", 600.0)
    monkeypatch.setattr(mistakes, "MOST_VAIN", 100)


def kernel_of(problem, control):
    path = ROOT / "problems" / problem / "controls" / f"{control}.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.custom_kernel


@pytest.fixture(scope="module")
def dealt():
    """By problem, one call of each of its CPU test cases, with what is expected of it."""
    with ExitStack() as open_until_the_end:

        @functools.cache
        def calls_of(name):
            problem, found = catalog.load_problem(ROOT, name), []
            reference = open_reference(problem, detect(ROOT, "cpu"))
            for case in problem.cpu.test:
                dealer = open_until_the_end.enter_context(closing(reference.dealer(case, OneSeed(SEED))))
                call = dealer.deal(everything=True)
                if dealer.steps == 1:
                    found.append((case, call))
            return problem, reference, found

        yield calls_of


@pytest.fixture
def recognised(dealt):
    """By label, what each CPU test case of one call that `kernel` answers is taken for; without what is None."""

    def of(name, kernel):
        problem, reference, calls = dealt(name)
        known, found = Mistakes(problem), {}
        for case, call in calls:
            got = members(kernel(reference.generate(case, SEED)))
            pairs = zip(call.expectation.outputs.items(), got, strict=True)
            outputs = [Difference(name, want, actual=each, elements=want.numel()) for (name, want), each in pairs]
            found[case.label] = known.recognised(call, outputs, problem.tolerances_for(case))
        return {label: said for label, said in found.items() if said is not None}

    return of


OWN_HIDDEN = "as if the causal mask hid each query's own key"
NEW_LEFT_OUT = "as if the new keys and values were left out"

KNOWN = {
    ("prefill", "causal_off_by_one"): "as if the causal mask showed one key too many",
    ("prefill", "own_key_hidden"): "as if the causal mask hid each query's own key: < where <= is due",
    ("prefill", "non_causal"): "as if there were no causal mask",
    ("prefill", "missing_scale"): "as if the scores were not scaled",
    ("prefill", "wrong_kv_head"): "as if query head h read KV head h % Hkv, not h // (Hq // Hkv)",
    ("fmha", "last_key_dropped"): "as if the last key were left out",
    ("fmha", "mean_of_values"): "as if every key weighed alike: the output is the mean of the values",
    ("fmha", "padding_counted"): "as if keys beyond the end, up to 16, counted with the score 0",
    ("kv_decode", "seed_kernel"): "counted with the score 0",
    ("kv_decode", "causal_without_self"): OWN_HIDDEN,
    ("kv_decode", "ignores_new_keys"): NEW_LEFT_OUT,
    ("kv_decode", "drops_partial_block"): "as if the last, partial block of",
    ("kv_decode", "causal_sees_next"): "as if the causal mask showed one key too many",
    ("kv_decode", "no_scale"): "as if the scores were not scaled",
    ("mla", "rope_ignored"): "as if the rope dims were left out of the scores",
    ("mla", "values_from_dim_64"): "as if values began at dim 64 and not at dim 0",
    ("mla", "unscaled_fp8"): "as if the scale of the fp8 cache were left out",
    ("mla", "every_second_token"): "as if every second key of a sequence were left out",
    ("mla", "nibbles_swapped"): "as if the high nibble of a byte of the mxfp4 cache held the even dim",
    ("prefill", "maximum_never_below_zero"): "as if the row's maximum began at 0 and not at -inf",
    ("kv_decode", "maximum_never_below_zero"): "as if the row's maximum began at 0 and not at -inf",
    ("kv_decode", "minus_150_for_minus_infinity"): "counted with the score -150 or so",
    ("mla", "maximum_never_below_zero"): "as if the row's maximum began at 0 and not at -inf",
    ("mla", "no_maximum_subtracted"): "as if the row's maximum were not subtracted: exp overflows",
}


ONE_EACH = {problem: (problem, control) for problem, control in reversed(KNOWN)}
KNOWN_SLOW = [pytest.param(*key, marks=pytest.mark.slow(ci=key == ONE_EACH[key[0]])) for key in KNOWN]


@pytest.mark.parametrize(("problem", "control"), KNOWN_SLOW, ids=map("/".join, KNOWN))
def test_a_wrong_control_is_called_by_its_mistake_and_besides_by_what_gives_the_same(recognised, problem, control):
    found = recognised(problem, kernel_of(problem, f"wrong_answer/{control}"))
    assert found and all(KNOWN[problem, control] in said for said in found.values()), found
    if control == "seed_kernel":  # where all scores are far below 0, a maximum that begins there gives the same
        others = [said for label, said in found.items() if "scores=large" not in label]
        assert others and all("as if keys beyond the end, up to a multiple of" in said for said in others)
    if control == "causal_without_self":  # of one query its own key is all that is new
        of_one = {said for label, said in found.items() if "q_seq_len=1 " in label}
        of_several = {said for label, said in found.items() if "q_seq_len=1 " not in label}
        assert of_several == {OWN_HIDDEN} and of_one and all(NEW_LEFT_OUT in said for said in of_one)


OTHERS = [
    ("prefill", "wrong_answer/one_tile_skipped"),
    ("fmha", "wrong_answer/light_values_not_read"),
    ("kv_decode", "wrong_answer/every_second_key"),
    ("mla", "wrong_answer/first_seven_eighths"),
    ("mla", "wrong_answer/splits_averaged"),
    ("mla", "wrong_answer/rope_scale_constant"),
    *(("mla", f"accepted/{path.stem}") for path in sorted((ROOT / "problems/mla/controls/accepted").glob("*.py"))),
]
SLOW_OTHERS = [pytest.param(*other, marks=pytest.mark.slow) for other in OTHERS[4:]]


@pytest.mark.slow(ci=True)
@pytest.mark.parametrize(("problem", "control"), [*OTHERS[:4], *SLOW_OTHERS], ids=map("/".join, OTHERS))
def test_what_is_wrong_otherwise_is_called_nothing(recognised, problem, control):
    assert recognised(problem, kernel_of(problem, control)) == {}


@pytest.mark.slow(ci=True)
@pytest.mark.parametrize("problem", BUNDLED)
def test_each_mistake_has_outputs_of_the_due_shapes_and_what_is_right_is_none(recognised, dealt, problem, monkeypatch):
    seen = set()
    compared = mistakes._is_it

    def shapes_too(outputs, given, tolerances):
        assert [each.shape for each in given] == [each.expected.shape for each in outputs]
        seen.add(given[0].dtype)
        return compared(outputs, given, tolerances)

    monkeypatch.setattr(mistakes, "_is_it", shapes_too)
    _, reference, _ = dealt(problem)
    assert recognised(problem, lambda data: reference.expect(data, None)) == {} and seen


MISTAKES = """
def mistakes(data):
    {what}
    yield "rows were added", 2 * data[0] + 1
"""
ADDS_ONE = "def custom_kernel(data):\n    return data[0] * 2 + 1\n"


def with_mistakes(root, what):
    (root / "problems" / "double" / FILE).write_text(MISTAKES.format(what=what))


def test_the_hint_is_in_the_report_and_the_file_is_no_part_of_the_problem_s_hash(toy_root):
    before = catalog.load_problem(toy_root, "double").sha256
    with_mistakes(toy_root, "yield 'columns were added', 2 * data[0] + 3")
    run = judge(toy_root, ADDS_ONE, timed=False)
    assert "  hint    as if rows were added" in run.ending.detail.splitlines()
    assert run.problem_sha256 == before


def test_a_mistake_that_fails_itself_costs_no_verdict(toy_root):
    with_mistakes(toy_root, "raise KeyError('x')")
    run = judge(toy_root, ADDS_ONE, timed=False)
    path = toy_root / "problems" / "double" / FILE
    assert run.ending.verdict is Verdict.WRONG_ANSWER
    assert f"  hint    none: {path} failed: KeyError: 'x'" in run.ending.detail.splitlines()


def test_where_a_mistake_gives_nan_anything_may_stand_and_of_nothing_else_it_tells_nothing(toy_root):
    with_mistakes(toy_root, "y = 2 * data[0] + 1; y[1] = float('nan'); yield 'but for a row', y; return")
    said = judge(toy_root, "def custom_kernel(d):\n    y = d[0] * 2 + 1\n    y[1] = 99\n    return y\n", timed=False)
    assert "as if but for a row" in said.ending.detail
    with_mistakes(toy_root, "yield 'anything', data[0] * float('nan'); return")
    assert "as if" not in judge(toy_root, ADDS_ONE, timed=False).ending.detail


def test_where_a_mistake_gives_inf_nan_or_inf_must_stand_and_nowhere_else(toy_root):
    with_mistakes(toy_root, "y = 2 * data[0] + 1; y[1] = float('inf'); yield 'a row overflowed', y; return")

    def said(change):
        source = f"def custom_kernel(d):\n    y = d[0] * 2 + 1\n    nan = float('nan')\n    {change}\n    return y\n"
        return judge(toy_root, source, timed=False).ending.detail

    assert "hint    as if a row overflowed" in said("y[1] = nan") and "as if" not in said("y[1] = 99")
    assert "as if" in said("y[1, ::2] = nan; y[1, 1::2] = -1 / torch.zeros(1)".replace("torch", "__import__('torch')"))
    assert "as if" not in said("y[1] = nan; y[2] = nan") and "as if" not in said("y[1] = nan; y[2] = 99")


def test_a_mistake_that_gives_the_output_is_told_in_place_of_a_guess_and_beside_one_where_all_is_nan(toy_root):
    zeros = "def custom_kernel(d):\n    return d[0] * 0\n"
    guess = "all elements are zero: perhaps it was never written"
    with_mistakes(toy_root, "yield 'nothing were added up', 0 * data[0]; return")
    assert hints_in(judge(toy_root, zeros, timed=False)) == ["as if nothing were added up"]
    with_mistakes(toy_root, "raise KeyError('x')")
    assert hints_in(judge(toy_root, zeros, timed=False)) == [guess]
    with_mistakes(toy_root, "yield 'it overflowed', data[0] / 0; return")
    nan = "def custom_kernel(d):\n    return d[0] * float('nan')\n"
    assert hints_in(judge(toy_root, nan, timed=False)) == [
        "as if it overflowed, or never written: all elements are NaN or Inf"
    ]


def hints_in(run):
    return [line.removeprefix(HINT) for line in run.ending.detail.splitlines() if line.startswith(HINT)]


def test_a_large_call_is_not_tried(toy_root, monkeypatch):
    with_mistakes(toy_root, "")
    assert "as if" in judge(toy_root, ADDS_ONE, timed=False).ending.detail
    monkeypatch.setattr(mistakes, "MOST_BYTES", 4 * 4 * 8 - 1)
    run = judge(toy_root, ADDS_ONE, timed=False)
    assert MOST_BYTES > 1 << 20
    assert ["as if" in check.report for check in run.checks] == [False, True]


def test_after_some_calls_in_vain_no_further_one_is_tried(toy_root, monkeypatch):
    monkeypatch.setattr(mistakes, "MOST_VAIN", 1)
    with_mistakes(toy_root, "if len(data[0]) == 4: return")
    run = judge(toy_root, ADDS_ONE, timed=False)
    assert ["as if" in check.report for check in run.checks] == [False, False]
    monkeypatch.setattr(mistakes, "MOST_VAIN", 2)
    assert "as if" in judge(toy_root, ADDS_ONE, timed=False).checks[1].report


def test_a_scale_that_is_right_is_none_of_the_wrong_ones():
    assert 1.0 not in [scale for _, scale in wrong_scales(1.0, 64)]
    assert len(list(wrong_scales(64**-0.5, 64))) == 6 + 8


@pytest.mark.slow(ci=True)
def test_a_softmax_scale_that_is_off_by_two_per_cent_is_called_so(recognised):
    def kernel(data):
        return right((data[0] * 1.02, *data[1:]))

    right = kernel_of("kv_decode", "accepted/explicit_softmax")
    found = {label: said for label, said in recognised("kv_decode", kernel).items() if "float32" in label}
    assert found and all("the softmax scale were 2 % too large" in said for said in found.values()), found


@pytest.mark.slow
@pytest.mark.parametrize("dims", [64, 128])
def test_an_mla_scale_of_other_dims_is_called_by_them(recognised, dims):
    def kernel(data):
        q, kv_data, qo_indptr, kv_indptr, config = data
        return right((q, kv_data, qo_indptr, kv_indptr, {**config, "sm_scale": dims**-0.5}))

    right = kernel_of("mla", "accepted/bf16_float32")
    found = recognised("mla", kernel)
    words = f"as if the softmax scale were 1 / sqrt({dims})"
    assert found and all(said.startswith(words) for said in found.values()), found


@pytest.mark.slow
@pytest.mark.parametrize(
    "reading",
    ["mxfp4_keys_and_queries", "fp8_a8w8", "mxfp4_keys"],
)
@pytest.mark.parametrize(
    ("kept", "words"),
    [
        (lambda keys: keys[:-1], "each sequence's last key"),
        (lambda keys: keys[::2], "every second key of a sequence"),
        (lambda keys: keys[len(keys) // 2 :], "the first half of each sequence's keys"),
        (lambda keys: keys[: (len(keys) + 1) // 2], "the last half of each sequence's keys"),
    ],
    ids=["last key", "every second key", "first half", "last half"],
)
def test_keys_that_are_left_out_of_an_mla_cache_are_named_whichever_cache_is_read(recognised, reading, kept, words):
    def kernel(data):
        q, kv_data, qo_indptr, kv_indptr, config = data
        starts = kv_indptr.tolist()
        chosen = [kept(torch.arange(start, end)) for start, end in pairwise(starts)]
        places = torch.cat(chosen)
        fewer = torch.tensor([0, *torch.tensor([len(each) for each in chosen]).cumsum(0).tolist()], dtype=torch.int32)
        fp8, scale = kv_data["fp8"]
        packed, e8m0 = kv_data["mxfp4"]
        scales = e8m0.view(torch.uint8)[places].view(e8m0.dtype)
        caches = {"fp8": (fp8.view(torch.uint8)[places].view(fp8.dtype), scale), "mxfp4": (packed[places], scales)}
        return right((q, caches, qo_indptr, fewer, config))

    right = kernel_of("mla", f"accepted/{reading}")
    found = set(recognised("mla", kernel).values())
    assert f"as if {words} were left out" in found and all(words in said for said in found), found


MISREAD = {
    "the high nibble of a byte of the mxfp4 cache held the even dim": lambda codes, scales: (
        codes.unflatten(1, (-1, 2)).flip(2).flatten(1),
        scales,
    ),
    "the blocks of the mxfp4 cache had 64 dims": lambda codes, scales: (codes, scales[:, torch.arange(18) // 2]),
    "the scale of an mxfp4 key's first block were that of all its blocks": lambda codes, scales: (
        codes,
        scales[:, :1].expand(-1, 18),
    ),
    "the bias of the mxfp4 cache's scales were 128": lambda codes, scales: (codes, scales / 2),
    "code 1 of the mxfp4 cache were 0": lambda codes, scales: (torch.where(codes % 8 == 1, 0, codes), scales),
}


@pytest.mark.slow
@pytest.mark.parametrize("rope_too", [True, False], ids=["all dims", "latent dims"])
@pytest.mark.parametrize("words", MISREAD)
def test_an_mxfp4_cache_that_is_decoded_wrongly_is_told_how(recognised, words, rope_too):
    table = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])

    def kernel(data):
        q, kv_data, qo_indptr, kv_indptr, config = data
        (packed, e8m0), scale = kv_data["mxfp4"], config["sm_scale"]
        codes, scales = torch.stack([packed[:, 0] & 15, packed[:, 0] >> 4], dim=-1).flatten(1).long(), e8m0.float()
        right, wrong = (
            table[read] * by.repeat_interleave(32, dim=1)
            for read, by in ((codes, scales), MISREAD[words](codes, scales))
        )
        keys = wrong if rope_too else torch.cat([wrong[:, :512], right[:, 512:]], dim=1)
        out = ragged_decode_attention(q, keys, qo_indptr, kv_indptr, sm_scale=scale, v_dim=512, dtype=torch.float32)
        return out.bfloat16()

    found = recognised("mla", kernel)
    assert found or words.startswith("code 1"), found  # of that one each case may be right by itself
    assert all(f"as if {words}" in said for said in found.values()), found


@pytest.mark.slow(ci=True)
def test_a_maximum_that_is_not_subtracted_is_named_in_each_case_with_large_scores(recognised):
    found = recognised("kv_decode", kernel_of("kv_decode", "wrong_answer/no_maximum_subtracted"))
    words = "as if the row's maximum were not subtracted: exp overflows at scores above 88"
    assert all(said.startswith(words) for said in found.values()) and words in found.values(), found
    # Where all is NaN, that of a free slot would explain it too.
    assert all("slots behind seq_lens" in said for said in found.values() if said != words), found
    assert {label.partition("scores=")[2] for label in found} >= {"large", "rising", "shuffled"}
    assert all("scores=" in label for label in found)


@pytest.mark.parametrize("causal", [False, True])
def test_a_row_of_kv_decode_overflows_by_the_keys_that_it_sees_alone(causal):
    """Of two queries the first sees no key of a large score if the mask is causal."""
    spec = importlib.util.spec_from_file_location("kv_decode_mistakes", ROOT / "problems" / "kv_decode" / FILE)
    known = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(known)
    q, k_new, cache = torch.ones(1, 2, 2, 64), torch.zeros(1, 1, 2, 64), torch.zeros(1, 1, 5, 64)
    k_new[:, :, 1] = 20.0  # a score of 160
    cache[:, :, 3:] = 90.0  # behind the sequence's three keys
    given = dict(known.mistakes((q, k_new, k_new, cache, cache, torch.tensor([3]), {"is_causal": causal})))
    (overflowed,) = (out for words, out in given.items() if "maximum were not subtracted" in words)
    assert overflowed.isinf().all(dim=-1)[0].tolist() == [[not causal, True]] * 2
    assert not overflowed[0, :, 0].isnan().any()


@pytest.mark.parametrize("problem", BUNDLED)
def test_a_problem_says_of_its_own_figures_alone_what_moves_them(problem):
    task = catalog.load_problem(ROOT, problem)
    limited = {name for options in task.tolerances.values() for tolerance in options for name in tolerance.bands}
    assert set(sides(task)) <= limited
    assert problem != "mla" or set(sides(task)) >= {"row_gain", "lighter_half", "rope"}


def test_of_each_figure_of_mla_it_is_said_that_an_output_of_the_wrong_size_moves_it_as_well():
    for figure, (below, above) in sides(catalog.load_problem(ROOT, "mla")).items():
        assert "output" in below and "too small" in below, figure
        assert "output" in above and "too large" in above, figure


@pytest.mark.parametrize("wrong", ["SIDES = 3", "SIDES = {'gain': 'small'}", "raise SystemExit(1)"])
def test_what_is_no_table_of_figures_counts_as_unsaid(toy_root, wrong):
    path = toy_root / "problems" / "double" / FILE
    path.write_text(wrong)
    assert sides(catalog.load_problem(toy_root, "double")) == {}
    path.write_text("SIDES = {'gain': ('too small', 'too large')}")
    assert sides(catalog.load_problem(toy_root, "double")) == {"gain": ("too small", "too large")}


def hinted(root, *mistakes):
    """The hint for an answer of 2 x + 1 where these, as words and what they give, are known."""
    lines = [f"yield {words!r}, {given}" for words, given in mistakes]
    with_mistakes(root, "; ".join([*lines, "return"]))
    report = judge(root, ADDS_ONE, timed=False).ending.detail
    return next((line.removeprefix("  hint    ") for line in report.splitlines() if "hint" in line), None)


def test_of_mistakes_that_give_the_same_all_are_named_and_none_that_is_merely_within_the_tolerance(toy_root):
    ones, near = ("ones were added", "2 * data[0] + 1"), ("nearly ones were added", "(2 * data[0] + 1) * (1 + 4e-6)")
    same = ("halves were added twice", "2 * (data[0] + 0.5)")
    assert hinted(toy_root, ones, near) == "as if ones were added"
    assert hinted(toy_root, near) == "as if nearly ones were added"
    assert hinted(toy_root, near, ones, same) == "as if ones were added, or as if halves were added twice"
    assert hinted(toy_root, *[(f"it were {n}", "2 * data[0] + 1") for n in range(5)]).endswith(
        "as if it were 2; 2 more mistakes give the same"
    )


def test_a_mistake_that_fails_behind_one_that_fits_costs_no_hint(toy_root):
    assert hinted(toy_root, ("ones were added", "2 * data[0] + 1"), ("nothing", "1 / 0")) == "as if ones were added"


# An online softmax, block by block


def online(scores, values, blocks, keeps=(), until=0):
    """Attention over `scores` [rows, keys], block by block. What `keeps` names is not rescaled, but in the last `until`
    blocks. Returns [rows, dims]."""
    top = torch.full((len(scores), 1), -torch.inf, dtype=scores.dtype)
    accumulator, total = torch.zeros(len(scores), values.shape[-1], dtype=scores.dtype), torch.zeros_like(top)
    for number, (start, end) in enumerate(blocks):
        new = torch.maximum(top, scores[:, start:end].amax(dim=-1, keepdim=True))
        weights, factor = (scores[:, start:end] - new).exp().nan_to_num(0.0), (top - new).exp().nan_to_num(0.0)
        rescales = number >= len(blocks) - until
        accumulator *= 1.0 if "accumulator" in keeps and not rescales else factor
        total *= 1.0 if "sum" in keeps and not rescales else factor
        accumulator, total, top = accumulator + weights @ values[start:end], total + weights.sum(-1, True), new
    return accumulator / total


def cut(count, block):
    return [(start, min(start + block, count)) for start in range(0, count, block)]


KEEPS = {
    ("accumulator",): "as if the accumulator were not rescaled when a block of 64 keys raised the maximum",
    ("sum",): "as if the sum of exponentials were not rescaled when a block of 64 keys raised the maximum",
    ("accumulator", "sum"): "as if neither the accumulator nor the sum were rescaled when a block of 64 keys",
}


@pytest.mark.slow
@pytest.mark.parametrize("keeps", KEEPS, ids=" and ".join)
def test_what_prefill_does_not_rescale_when_the_maximum_rises_is_named(recognised, keeps):
    def kernel(data):
        q, k, v, config = data
        out, group = torch.empty_like(q), q.shape[2] // k.shape[2]
        for b in range(q.shape[0]):
            for h in range(q.shape[2]):
                keys, values = (x[b, :, h // group].double() for x in (k, v))
                scores = q[b, :, h].double() @ keys.T * config["sm_scale"]
                if config["causal"]:
                    scores = scores.masked_fill(torch.ones_like(scores).triu(1).bool(), -torch.inf)
                out[b, :, h] = online(scores, values, cut(len(keys), 64), keeps).to(q.dtype)
        return out

    found = recognised("prefill", kernel)
    assert len(found) > 8 and all(KEEPS[keeps] in said for said in found.values()), found


@pytest.mark.slow
@pytest.mark.parametrize(
    "form",
    ["new ones apart", "in one go", "new ones apart and right"],
)
@pytest.mark.parametrize("keeps", KEEPS, ids=" and ".join)
def test_what_kv_decode_does_not_rescale_is_named_however_the_new_keys_are_taken(recognised, keeps, form):
    def kernel(data):
        q, k_new, v_new, k_cache, v_cache, seq_lens, config = data
        out, group, queries = torch.empty_like(q), q.shape[1] // k_new.shape[1], q.shape[2]
        for b, length in enumerate(seq_lens.tolist()):
            whole = cut(length + queries, 64)
            blocks = whole if form == "in one go" else [*cut(length, 64), (length, length + queries)]
            for h in range(q.shape[1]):
                of = [(k_cache, k_new), (v_cache, v_new)]
                keys, values = (torch.cat([c[b, h // group, :length], n[b, h // group]]).double() for c, n in of)
                scores = q[b, h].double() @ keys.T * q.shape[-1] ** -0.5
                if config["is_causal"]:
                    scores = scores.masked_fill(torch.ones_like(scores).triu(length + 1).bool(), -torch.inf)
                out[b, h] = online(scores, values, blocks, keeps, until=form.endswith("right")).to(q.dtype)
        return out

    found = recognised("kv_decode", kernel)
    assert len(found) > 8 and all(KEEPS[keeps] in said for said in found.values()), found


def test_a_softmax_that_rescales_both_is_called_nothing():
    scores, values = torch.arange(256.0, dtype=torch.float64).reshape(2, 128), torch.randn(128, 8).double()
    ends = torch.tensor([63] * 64 + [127] * 64)
    found = dict(mistakes.not_rescaled(scores, values, ends, "a block"))
    right = scores.softmax(-1) @ values
    assert torch.allclose(online(scores, values, cut(128, 64)), right)
    assert len(found) == 3 and not any(torch.allclose(wrong, right) for wrong in found.values())
    assert not list(mistakes.not_rescaled(scores.flip(-1), values, ends, "a block"))  # the maximum never rises


# Slots behind a sequence's end


def reading_behind(data, more, masked_scores):
    """kv_decode over up to `more` slots of the cache behind each end; their scores may be masked."""
    q, k_new, v_new, k_cache, v_cache, seq_lens, config = data
    out, group = torch.empty_like(q), q.shape[1] // k_new.shape[1]
    for b, length in enumerate(seq_lens.tolist()):
        taken = min(more(length), k_cache.shape[2])
        for h in range(q.shape[1]):
            of = [(k_cache, k_new), (v_cache, v_new)]
            keys, values = (torch.cat([c[b, h // group, :taken], n[b, h // group]]).double() for c, n in of)
            scores = q[b, h].double() @ keys.T * q.shape[-1] ** -0.5
            if config["is_causal"]:
                scores = scores.masked_fill(torch.ones_like(scores).triu(taken + 1).bool(), -torch.inf)
            if masked_scores:
                scores[:, length:taken] = -torch.inf
            out[b, h] = (scores.softmax(-1) @ values).to(q.dtype)
    return out


@pytest.mark.slow
def test_a_slot_too_many_and_slots_without_a_mask_are_named(recognised):
    one = recognised("kv_decode", lambda data: reading_behind(data, lambda n: n + (n % 64 > 0), masked_scores=False))
    assert sum("one slot behind seq_lens counted as a key" in said for said in one.values()) > 2, one
    whole = recognised("kv_decode", lambda data: reading_behind(data, lambda n: -(-n // 64) * 64, masked_scores=True))
    words = "slots behind seq_lens were not masked"
    assert sum(words in said for said in whole.values()) > 2, whole
    assert all("behind seq_lens" in said for said in (*one.values(), *whole.values())), (one, whole)


# Memory that must stay as it was


@pytest.mark.slow(ci=True)
def test_a_cache_that_is_written_though_it_must_not_be_says_why(tmp_path):
    problem = catalog.load_problem(ROOT, "kv_decode")
    source = (ROOT / "problems" / "kv_decode" / "controls" / "accepted" / "explicit_softmax.py").read_text()
    path = tmp_path / "mine.py"
    path.write_text(source + ALWAYS_APPENDS)
    case = problem.case_called(next(c.label for c in problem.cpu.test if "update_cache=False" in c.label))
    roomy = case.model_copy(update={"parameters": {**case.parameters, "cache_max_len": 144}})
    submission = catalog.load_submission(problem, path)
    check = replay(problem, submission, detect(ROOT, "cpu"), load_config(ROOT), roomy, 3)
    hints = [line for line in check.report.splitlines() if line.startswith(HINT)]
    assert f"{HINT}it must stay as it was before this call: update_cache is False" in hints


ALWAYS_APPENDS = """

right = custom_kernel


def custom_kernel(data):
    *tensors, config = data
    out = right(data)
    return out if config["update_cache"] else right((*tensors, {**config, "update_cache": True}))
"""


def test_where_a_call_may_change_its_memory_nothing_is_said_of_staying():
    assert mistakes.unchanged(catalog.load_problem(ROOT, "kv_decode")) == "update_cache is False"
    assert mistakes.unchanged(catalog.load_problem(ROOT, "prefill")) is None
