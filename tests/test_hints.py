"""A wrong output that is close to a known mistake is called that; one that is close to none is called nothing."""

import math

import pytest
import torch
from test_judging import judge

from harness.judge.hints import SAMPLED, hints, is_guess, kept, sampled
from harness.model import Verdict

AXES = ("token", "head", "dim")


def normal(*shape, seed=0, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


WANT = normal(12, 8, 16)


def noisy(got):
    """As a kernel gives it, in fewer bits."""
    return (got + 0.02 * normal(*got.shape, seed=9)).bfloat16().to(got.dtype)


def moved(axis, sources):
    return WANT.index_select(axis, torch.tensor(sources))


def shifted(by):
    got = WANT.roll(-by, 0)
    (got[-by:] if by > 0 else got[:-by]).zero_()
    return got


def holed(value, dtype=torch.float32, heads=slice(5, 6)):
    """Noisy, and right but for one head."""
    got = noisy(WANT).to(dtype)
    got[:, heads] = value
    if value != value:
        got.view({2: torch.int16, 4: torch.int32}[got.itemsize])[:, heads] = -1
    return got


SOME = [0, 1, 2, 3, 4, 4, 6, 7]
KNOWN = {
    "scaled up": (1.01 * WANT, "it is 1.01 x the expected"),
    "scaled by little": (1.004 * WANT, "it is 1.004 x the expected"),
    "halved": (0.5 * WANT, "it is 0.5 x the expected"),
    "negated": (-WANT, "it is -1 x the expected"),
    "pairs of heads": (noisy(moved(1, [1, 0, 3, 2, 5, 4, 7, 6])), "head h holds head h^1"),
    "heads reversed": (moved(1, list(range(7, -1, -1))), "head h holds head 7-h"),
    "one head for all": (moved(1, [0] * 8), "head h holds head 0"),
    "heads grouped": (moved(1, [0, 0, 1, 1, 2, 2, 3, 3]), "head h holds head h//2"),
    "one head": (noisy(moved(1, SOME)), "head 5 holds head 4"),
    "a permutation": (
        moved(1, [5, 2, 7, 0, 1, 3, 4, 6]),
        "head 0 holds head 5, head 1 holds head 2, head 2 holds head 7",
    ),
    "shifted on": (noisy(shifted(1)), "token t holds token t+1: shifted by one"),
    "shifted back": (noisy(shifted(-1)), "token t holds token t-1: shifted by one"),
    "laid out": (
        WANT.transpose(0, 1).reshape(WANT.shape),
        "it is laid out as [head, token, dim], not as [token, head, dim]",
    ),
    "zeros": (torch.zeros_like(WANT), "all elements are zero: perhaps it was never written"),
    "one head zero": (holed(0), "192 of 1,536 elements are zero, and the others right: perhaps never written"),
    "one head fresh": (
        holed(math.nan, torch.bfloat16),
        "192 of 1,536 elements are NaN, and the others right: computed so (0 / 0, inf - inf, inf / inf), or never "
        "written",
    ),
    "nothing but NaN": (torch.full_like(WANT, math.nan), "all elements are NaN or Inf: computed so (0 / 0, inf - inf"),
    "NaN and Inf": (torch.where(WANT > 0, math.inf, math.nan), "all elements are NaN or Inf: computed so"),
    "never written": (
        torch.full_like(WANT, math.nan).view(torch.int32).fill_(-1).view(torch.float32),
        "all elements hold the bytes 0xFF",
    ),
}


@pytest.mark.parametrize("name", KNOWN)
def test_a_known_mistake_is_called_by_its_name(name):
    got, said = KNOWN[name]
    (hint,) = hints(AXES, WANT.to(got.dtype), got)
    assert hint.startswith(said), hint


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("spread", [False, True], ids=["values", "any bits"])
def test_what_was_scaled_is_known_also_where_every_bit_counts(dtype, spread):
    want = WANT.to(dtype)
    if spread:
        whole = torch.randint(-(2**31), 2**31, (12, 8, 16), generator=torch.Generator().manual_seed(1))
        want = whole.to(torch.int32).view(dtype).reshape(-1)[: WANT.numel()].view(WANT.shape)
    assert hints(AXES, want, (1.01 * want.float()).to(dtype), near=1e-6) == ["it is 1.01 x the expected"]
    assert hints(AXES, want, want + 0.01 * normal(*WANT.shape, seed=1).to(dtype), near=1e-6) == []


UNKNOWN = {
    "right": WANT,
    "noise": WANT + 0.3 * normal(*WANT.shape, seed=1),
    "another answer": normal(*WANT.shape, seed=2),
    "one head zero and one wrong": torch.cat([holed(0)[:, :7], normal(12, 1, 16, seed=4)], dim=1),
    "some rows wrong": torch.cat([WANT[:9], normal(3, 8, 16, seed=3)]),
    "one head moved and one wrong": torch.cat([moved(1, SOME)[:, :7], normal(12, 1, 16, seed=4)], dim=1),
}


def test_what_is_only_like_a_mistake_is_told_as_a_guess():
    guesses = {name for name, (got, _) in KNOWN.items() if is_guess(*hints(AXES, WANT.to(got.dtype), got))}
    assert guesses == {"zeros", "one head zero", "one head fresh", "nothing but NaN", "NaN and Inf"}


def test_zeros_are_all_that_is_wrong_only_if_the_others_are_within_every_limit():
    got = holed(0)
    assert hints(AXES, WANT, got, right=lambda rest: bool((rest[:, 5] == WANT[:, 5]).all()))
    assert hints(AXES, WANT, got, right=lambda rest: False) == []


@pytest.mark.parametrize(
    "where", [(slice(None), slice(None), slice(12, None)), (2,)], ids=["dims", "a row due as zero"]
)
def test_nan_beside_what_is_right_is_told_however_coarse_the_right_is(where):
    want, rough = WANT.clone(), WANT + 0.2 * WANT.std() * normal(*WANT.shape, seed=9)
    want[2] = rough[2] = 0  # as a sequence without keys
    rough[where] = math.nan
    (hint,) = hints(AXES, want, rough, near=0.3)
    assert f"{int(rough.isnan().sum()):,} of {want.numel():,} elements are NaN, and the others right" in hint
    assert "0 / 0" in hint and "never written" in hint
    assert hints(AXES, want, rough, near=0.1) == [] == hints(AXES, want, rough, near=0.3, right=lambda rest: False)


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_looks_like_nothing_known_gets_no_hint(name):
    assert hints(AXES, WANT, UNKNOWN[name]) == []


def test_the_previous_calls_output_is_known_again():
    before = normal(12, 8, 16, seed=5)
    assert hints(AXES, WANT, noisy(before), sampled(before)) == ["it is the previous call's output"]
    assert hints(AXES, WANT, noisy(before), sampled(normal(12, 8, 16, seed=6))) == []


def test_of_two_slices_that_name_is_told_that_explains_both():
    two = WANT[:, :2]
    assert hints(AXES, two, two[:, [1, 0]]) == ["head h holds head h^1"]
    assert hints(AXES, two, two[:, [0, 0]]) == ["head h holds head 0"]
    assert hints(AXES, two, torch.cat([two[:, 1:], 0 * two[:, :1]], dim=1)) == ["head h holds head h+1: shifted by one"]


def test_moves_along_two_axes_that_give_the_same_are_both_told():
    one, other = normal(2, 16)
    want = torch.stack([torch.stack([one, other]), torch.stack([other, one])])
    assert hints(AXES, want, want[:, [1, 0]]) == ["token t holds token t^1, or head h holds head h^1"]


def test_along_sampled_rows_nothing_is_called_shifted():
    assert hints(AXES, WANT, shifted(1), sampled_axis=0) == []
    assert hints(AXES, WANT, moved(1, SOME), sampled_axis=0) == ["head 5 holds head 4"]


def test_nan_infinities_and_huge_numbers_in_the_answer_hide_no_mistake():
    want = WANT.clone()
    want[::3, :, 5], want[1, 2], want[4, :, 0], want[5, 1, 3] = math.nan, math.inf, -math.inf, 1e38
    assert hints(AXES, want, want.flip(1)) == ["head h holds head 7-h"]
    assert hints(AXES, want, noisy(want)) == []
    want[0, 0, 0] = torch.tensor(-1, dtype=torch.int32).view(torch.float32)
    assert "never written" not in str(hints(AXES, want, want.flip(1)))


def test_what_is_near_by_chance_is_not_taken_for_another_slice():
    base = normal(12, 1, 16, seed=5)
    alike = torch.cat([base + 0.04 * normal(12, 4, 16, seed=6), WANT[:, 4:]], dim=1)
    got = alike.clone()
    got[:, 5:6] = base
    assert hints(AXES, alike, got) == []  # as near to one of four heads as to another
    got[:, 5] = alike[:, 2]
    assert hints(AXES, alike, got) == ["head 5 holds head 2"]
    pairs = WANT[:, [0, 0, 2, 2, 4, 4, 6, 6]]
    swapped = pairs[:, [0, 4, 2, 3, 4, 5, 6, 7]]
    assert hints(AXES, pairs, swapped) == ["head 1 holds head 4"]  # head 0 is right, though it is also what head 1 is
    tiny = normal(1, 8, 4)
    assert hints(AXES, tiny, tiny[:, SOME]) == []


def test_how_near_is_near_is_the_problem_s_to_say():
    rough = moved(1, SOME) + 0.03 * normal(*WANT.shape, seed=7)
    assert hints(AXES, WANT, rough, near=0.1) == ["head 5 holds head 4"]
    assert hints(AXES, WANT, rough, near=0.001) == []
    assert hints(AXES, WANT, moved(1, SOME), near=1e-6) == ["head 5 holds head 4"]


@pytest.mark.parametrize(("dtype", "said"), [(torch.float32, True), (torch.bfloat16, False)])
def test_nan_that_a_processor_makes_is_not_taken_for_what_was_never_written(dtype, said):
    want = WANT.to(dtype)
    fresh = torch.full_like(want, math.nan)
    fresh.view(torch.uint8).fill_(255)
    assert any("0xFF" in hint for hint in hints(AXES, want, fresh)) == said
    assert "0xFF" not in str(hints(AXES, want, (WANT * math.nan).to(dtype)))


def test_a_long_output_is_compared_at_some_positions():
    want = normal(600, 4, 128)
    assert want.numel() > SAMPLED and sampled(want).numel() == SAMPLED
    assert hints(AXES, want, want.roll(-1, 0)) == ["token t holds token t+1: shifted by one"]
    assert hints(AXES, want, 3 * want) == ["it is 3 x the expected"]


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float16, torch.float64], ids=str)
def test_any_float_has_hints_and_integers_and_scalars_have_none(dtype):
    assert hints(AXES, WANT.to(dtype), moved(1, SOME).to(dtype)) == ["head 5 holds head 4"]
    assert hints(AXES, WANT.int(), 2 * WANT.int()) == hints((), torch.tensor(1.0), torch.tensor(2.0)) == []


def test_memory_that_was_supplied_and_is_as_before_is_known():
    want, before = normal(12, 8, 16, seed=1), normal(12, 8, 16, seed=2)
    got = want.clone()
    got[:, 5] = before[:, 5]
    assert kept(want, got, before) == "192 elements hold what was there before the call: never written"
    assert kept(want, want + 1, before) == kept(want, want, before) == ""
    got[:3] += 1
    assert kept(want, got, before) == ""  # more is wrong than that
    assert kept(torch.tensor([7]), torch.tensor([6]), torch.tensor([6])).startswith("1 element holds what was there")


def test_the_report_has_the_hint_and_the_verdict_is_the_same(toy_root):
    stale = """
        import torch
        kept = {}
        def custom_kernel(data):
            x = data[0]
            before = kept.get(x.shape, 2 * x)
            kept[x.shape] = 2 * x
            return before
    """
    for source, hint in (
        ("def custom_kernel(data):\n    return data[0] * 2.02\n", "it is 1.01 x the expected"),
        (stale, "it is the previous call's output"),
        ("def custom_kernel(data):\n    return (data[0] * 2).roll(1, 0)\n", "row r holds row r-1"),
    ):
        run = judge(toy_root, source, timed=False)
        assert run.ending.verdict is Verdict.WRONG_ANSWER
        assert any(line.startswith(f"  hint    {hint}") for line in run.ending.detail.splitlines()), run.ending.detail


def test_an_output_that_holds_what_another_should_names_that_one(toy_root):
    folder = toy_root / "problems" / "double"
    text = (folder / "problem.yml").read_text()
    (folder / "problem.yml").write_text(
        text.replace("outputs: [y]", "outputs: [y, z]").replace("  y: [row, col]", "  y: [row, col]\n  z: [row, col]")
    )
    source = (folder / "reference.py").read_text()
    (folder / "reference.py").write_text(
        source + "\n\nonly = ref_kernel\n\n\ndef ref_kernel(data):\n    return only(data), data[0] * 3\n"
    )
    run = judge(toy_root, "def custom_kernel(data):\n    return data[0] * 3, data[0] * 2\n", timed=False)
    assert run.ending.verdict is Verdict.WRONG_ANSWER
    found = [line.strip() for line in run.ending.detail.splitlines() if "hint" in line]
    assert found == ["hint    it holds what z should hold", "hint    it holds what y should hold"]


def test_the_size_of_tf32s_error_is_named_in_float32_alone():
    def cut(values):
        return (values.view(torch.int32) & ~0x1FFF).view(torch.float32)

    left, right = normal(64, 128), normal(128, 64, seed=1)
    want, got = left @ right, cut(left) @ cut(right)
    (hint,) = hints(("row", "dim"), want, got)
    assert "TF32" in hint and "ieee" in hint
    assert not hints(("row", "dim"), want, want + 1e-2 * normal(64, 64, seed=2) * want.abs().mean())
    assert not hints(("row", "dim"), want, want + 1e-5 * normal(64, 64, seed=2) * want.abs().mean())
    assert not hints(("row", "dim"), want.double(), got.double())
    in_a_row = want.clone()
    in_a_row[7] += 5e-3 * normal(64, seed=3) * want.abs().mean()
    assert not hints(("row", "dim"), want, in_a_row), "as far off as TF32, but right almost everywhere"
