"""What outputs come to together, and what that finds that no single call shows."""

import math
import statistics

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from harness.judge.difference import Difference, read
from harness.judge.tally import Heads, Tally, total
from harness.judge.wrong_together import meaning, words
from harness.model import Tolerance
from harness.model.tolerance import BANDS, OF_EACH_CALL, OF_MANY_CALLS

BAND = Tolerance(rel_l2=0.5, gain=(0.9, 1.1), row_gain=(0.95, 1.05), dim_rel_l2=0.4)


def rows(seed, count=200, width=16):
    return torch.randn(count, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def tally(want, got):
    found = Tally()
    found.add(want, got)
    return found


def test_an_answer_that_is_the_reference_has_a_gain_of_one_and_no_error():
    found = tally(rows(0), rows(0))
    assert (found.gain, found.row_gain, found.dim_rel_l2) == (pytest.approx(1), pytest.approx(1), 0)
    assert found.excess(BAND).ratio < 1e-9


@given(factor=st.floats(0.1, 10))
def test_a_gain_is_by_how_much_all_is_too_large(factor):
    found = tally(rows(1), factor * rows(1))
    assert found.gain == pytest.approx(factor) and found.row_gain == pytest.approx(factor)
    assert float(found.ratios("row_gain").error) == pytest.approx(0, abs=1e-6)
    if min(abs(factor - limit) for limit in BAND.row_gain) > 1e-6:  # at a limit itself the last bit decides
        assert (found.excess(BAND).ratio > 1) == (not 0.95 < factor < 1.05)


def test_noise_of_a_fifth_hides_a_gain_of_six_per_cent_in_a_call_and_not_in_thirty():
    def noisy(seed):
        return 1.06 * rows(seed, 4) + 0.2 * rows(seed + 1000, 4)

    each = [tally(rows(seed, 4), noisy(seed)) for seed in range(30)]
    assert sum(one.excess(Tolerance(rel_l2=1, row_gain=(0.95, 1.05))).ratio > 1 for one in each) <= 3
    assert sum(each, Tally()).excess(Tolerance(rel_l2=1, row_gain=(0.99, 1.01))).limit == "row_gain"
    assert sum(each, Tally()).excess(Tolerance(rel_l2=1, row_gain=(0.99, 1.01))).ratio > 1


def test_a_dim_that_is_never_written_shows_whatever_the_others_are():
    got = rows(2).clone()
    got[:, 5] = 0
    found = tally(rows(2), got)
    assert found.dim_rel_l2 == pytest.approx(1) and found.excess(BAND).limit == "dim_rel_l2"
    assert (rows(2) - got).norm() / rows(2).norm() < 0.3


def test_the_largest_rows_rule_the_gain_and_all_alike_the_row_gain():
    want = rows(3)
    want[:100] *= 100
    got = want.clone()
    got[100:] *= 1.5
    found = tally(want, got)
    assert found.gain == pytest.approx(1, abs=1e-3) and found.row_gain == pytest.approx(1.25)


@given(cut=st.integers(0, 200))
def test_it_does_not_matter_how_rows_are_shared_out_among_calls(cut):
    want, got = rows(4), rows(4) + 0.1 * rows(5)
    whole, parts = tally(want, got), tally(want[:cut], got[:cut]) + tally(want[cut:], got[cut:])
    for name in ("rows", "gain", "row_gain", "dim_rel_l2"):
        assert getattr(parts, name) == pytest.approx(getattr(whole, name))
    for name in ("gain", "row_gain", "dim_gain"):
        for figure in ("value", "error", "spread"):
            mine, its = getattr(parts.ratios(name), figure), getattr(whole.ratios(name), figure)
            assert torch.allclose(mine, its, atol=1e-9), (name, figure)


def test_rows_of_zeros_and_elements_that_are_not_finite_count_for_nothing():
    want, got = rows(6), rows(6).clone()
    want[:50] = 0
    got[60, 3] = math.nan
    found = tally(want, got)
    assert found.rows == 150 and math.isfinite(found.gain) and math.isfinite(found.dim_rel_l2)


def test_outputs_of_different_widths_have_gains_and_no_worst_dim():
    both = tally(rows(7), rows(7)) + tally(rows(8, width=4), rows(8, width=4))
    assert both.row_gain == pytest.approx(1) and both.dim_rel_l2 is None
    assert both.excess(Tolerance(rel_l2=1, dim_rel_l2=0.1)) is None


def test_few_rows_refuse_nobody_for_their_scatter():
    noisy = rows(9, 4) + 0.5 * rows(10, 4)
    found = Tally()
    found.add(rows(9, 4), noisy, {"tail": rows(17, 4)})
    band = (0.999, 1.001)
    for value, narrow in [
        (found.row_gain, Tolerance(rel_l2=1, row_gain=band)),
        (found.gain, Tolerance(rel_l2=1, gain=band)),
        (found.parts["tail"], Tolerance(rel_l2=1, parts={"tail": band})),
    ]:
        assert abs(value - 1) > 0.001 and found.excess(narrow).ratio <= 1


def test_the_standard_errors_are_the_spread_of_the_figures():
    """Of 400 answers whose rows differ in size and in what they lack."""
    generator = torch.Generator().manual_seed(18)

    def answered():
        size = torch.rand(60, 1, generator=generator, dtype=torch.float64) + 0.1
        want, part = (size * torch.randn(60, 8, generator=generator, dtype=torch.float64) for _ in range(2))
        lost = torch.rand(60, 1, generator=generator, dtype=torch.float64)
        found = Tally()
        found.add(want, want * (1 + 0.2 * lost) - lost * part, {"tail": part})
        return found

    many = [answered() for _ in range(400)]
    for name, figure in [
        ("gain", lambda each: each.gain),
        ("row_gain", lambda each: each.row_gain),
        ("tail", lambda each: each.parts["tail"]),
    ]:
        spread = statistics.stdev(figure(each) for each in many)
        errors = [float(each.ratios(name).error) for each in many]
        assert statistics.mean(errors) == pytest.approx(spread, rel=0.15), name


def test_a_record_has_the_strictest_tolerance_met_and_says_what_is_wrong():
    found = tally(rows(11), 1.2 * rows(11))
    strict = {"strict": Tolerance(rel_l2=1, gain=(0.9, 1.1)), "loose": Tolerance(rel_l2=1, gain=(0.5, 1.5))}
    assert total("all test cases", found, strict).tolerance == "loose"
    wrong = total("all test cases", found, {"strict": strict["strict"]})
    assert wrong.tolerance is None
    assert words("all test cases", found, {"strict": strict["strict"]}) == (
        "gain of all test cases together is 1.2; allowed: 0.9 to 1.1; tolerance strict"
    )
    assert "; allowed: 0.9 to 1.012;" in words("all", found, {"close": Tolerance(rel_l2=1, gain=(0.9, 1.0124))})
    assert total("all", found, {"none": Tolerance(rel_l2=1)}) is None
    assert total("all", Tally(), strict) is None


def test_a_band_must_be_one():
    for band in ((1.1, 0.9), (0, 1), (1, math.inf)):
        with pytest.raises(ValueError, match="band"):
            Tolerance(rel_l2=1, gain=band)
    with pytest.raises(ValueError, match="bitwise"):
        Tolerance(bitwise=True, gain=(0.9, 1.1))


def test_a_part_that_is_left_out_shows_along_itself_and_hardly_in_the_norm():
    part = 0.1 * rows(12)
    noise = 0.15 * rows(13)
    there, missing = Tally(), Tally()
    there.add(rows(14), rows(14) + noise, {"tail": part})
    missing.add(rows(14), rows(14) - part + noise, {"tail": part})
    assert there.parts["tail"] == pytest.approx(1, abs=0.1) and missing.parts["tail"] == pytest.approx(0, abs=0.1)
    limit = Tolerance(rel_l2=1, parts={"tail": (0.7, 1.3)})
    assert there.excess(limit).ratio <= 1 < missing.excess(limit).ratio
    assert abs(there.gain - missing.gain) < 0.02
    said = words("all test cases", missing, {"close": limit})
    room = 3 * float(missing.ratios("tail").error)
    assert room > 0.05 and said.startswith("tail of all test cases together is ")
    assert said.endswith(f"; allowed: {0.7 - room:.4g} to {1.3 + room:.4g}; tolerance close")


def test_parts_add_up_over_calls_and_one_of_zeros_says_nothing():
    part = rows(15)
    whole, halves = Tally(), [Tally(), Tally()]
    whole.add(rows(16), 1.1 * rows(16), {"a": part, "none": 0 * part})
    for half, rest in zip(halves, (slice(0, 90), slice(90, None)), strict=True):
        half.add(rows(16)[rest], 1.1 * rows(16)[rest], {"a": part[rest], "none": 0 * part[rest]})
    assert (halves[0] + halves[1]).parts["a"] == pytest.approx(whole.parts["a"]) and "none" not in whole.parts


HEADS = Heads(torch.arange(200) % 4, 4)


def headed(want, got):
    found = Tally()
    found.add(want, got, heads=HEADS)
    return found


def test_opposite_errors_of_heads_cancel_in_the_mean_and_not_in_each_head():
    signs = torch.where(HEADS.numbers % 2 == 0, 1.1, 0.9)[:, None]
    found = headed(rows(20), signs * rows(20))
    assert found.row_gain == pytest.approx(1) and found.excess(BAND).ratio <= 1
    by_head = Tolerance(rel_l2=1, head_gain=(0.95, 1.05))
    assert found.excess(by_head).limit == "head_gain" and found.excess(by_head).ratio == pytest.approx(2)
    assert headed(rows(20), 1.04 * rows(20)).excess(by_head).ratio <= 1
    assert tally(rows(20), signs * rows(20)).excess(by_head) is None


def test_one_head_that_is_noisy_shows_whatever_the_others_are():
    noise = torch.where(HEADS.numbers == 2, 0.5, 0.1)[:, None] * rows(21)[:, torch.randperm(rows(21).shape[1])]
    found, whole = headed(rows(21), rows(21) + noise), Tolerance(rel_l2=1, row_rms=0.3)
    assert found.excess(whole).ratio < 1
    worst = found.worst(Tolerance(rel_l2=1, head_rms=0.3))
    assert (worst.limit, worst.value) == ("head_rms", pytest.approx(0.5, rel=0.02)) and worst.ratio > 1
    assert worst.high == pytest.approx(0.3 * (1 + 3 / math.sqrt(2 * 50)))  # of the 50 rows of a head
    assert headed(rows(21), rows(21) + noise * 0.2).excess(Tolerance(rel_l2=1, head_rms=0.3)).ratio < 1
    assert tally(rows(21), rows(21) + noise).excess(Tolerance(rel_l2=1, head_rms=0.3)) is None


def test_opposite_errors_of_dims_cancel_in_the_mean_and_not_in_each_dim():
    factors = torch.where(torch.arange(16) % 2 == 0, 1.2, 0.8)
    found = tally(rows(21), factors * rows(21))
    by_dim = Tolerance(rel_l2=1, row_gain=(0.95, 1.05), dim_gain=(0.85, 1.15))
    assert found.row_gain == pytest.approx(1, abs=0.05) and found.excess(by_dim).limit == "dim_gain"
    assert tally(rows(21), 1.04 * rows(21)).excess(by_dim).ratio <= 1


CELLS = Heads(torch.arange(200) % 4, 4, cells=True)


def celled(want, got, heads=CELLS):
    found = Tally()
    found.add(want, got, heads=heads)
    return found


def test_a_dim_of_one_head_that_is_never_written_shows_as_a_cell_and_hardly_in_its_head_or_dim():
    got = rows(60) + 0.2 * rows(61)
    got[CELLS.numbers == 1, 5] = 0
    found = celled(rows(60), got)
    others = Tolerance(rel_l2=1, head_gain=(0.9, 1.1), dim_gain=(0.7, 1.3), dim_rel_l2=0.6, row_gain=(0.9, 1.1))
    by_cell = Tolerance(rel_l2=1, cell_gain=(0.5, 1.5))
    assert found.excess(others).ratio <= 1
    assert found.excess(by_cell).limit == "cell_gain" and found.excess(by_cell).ratio > 1.3
    assert float(found.cells.value[1, 5]) == 0
    assert words("all", found, {"a": by_cell}).startswith("cell_gain of all together is 0; allowed: 0.2")
    assert "cell_gain is the size of the outputs over the expected size: they are too small (head 1, dim 5)" in meaning(
        found, {"a": by_cell}, {}
    )
    assert celled(rows(60), 1.04 * rows(60)).excess(by_cell).ratio <= 1
    assert headed(rows(60), got).excess(by_cell) is None and tally(rows(60), got).excess(by_cell) is None


def test_of_many_cells_with_few_rows_none_is_refused_for_its_noise():
    """Of 8,192 cells with two rows each, in some of which the reference is next to zero."""
    heads, by_cell = Heads(torch.arange(32) % 16, 16, cells=True), Tolerance(rel_l2=1, cell_gain=(0.7, 1.3))
    for seed in range(70, 80):
        want = rows(seed, 32, 512)
        found = celled(want, want + 0.2 * rows(seed + 100, 32, 512), heads)
        assert (found.cells.value - 1).abs().max() > 2, "otherwise this test shows nothing"
        assert found.excess(by_cell).ratio < 0.7


def test_cells_add_up_over_calls_and_are_none_where_outputs_differ_in_width():
    whole = celled(rows(62), 1.1 * rows(63))
    both = [celled(rows(62)[part], 1.1 * rows(63)[part], CELLS.of(part)) for part in (slice(0, 80), slice(80, None))]
    for figure in ("value", "room"):
        assert torch.allclose(getattr(sum(both, Tally()).cells, figure), getattr(whole.cells, figure))
    wider = celled(rows(64, width=32), rows(64, width=32))
    assert (whole + wider).cells is None
    assert (whole + wider).excess(Tolerance(rel_l2=1, cell_gain=(0.9, 1.1))) is None


def test_rows_of_zeros_count_for_no_cell():
    want = rows(65)
    want[CELLS.numbers == 2] = 0
    found = celled(want, want + 0.01)
    assert found.cells.value[2].isnan().all()
    assert found.excess(Tolerance(rel_l2=1, cell_gain=(0.5, 1.5))).ratio < 1
    nothing = celled(0 * want, want)
    assert nothing.excess(Tolerance(rel_l2=1, cell_gain=(0.5, 1.5))) is None


def test_opposite_errors_of_rows_cancel_in_the_mean_and_not_in_the_spread():
    signs = torch.where(torch.rand(200, 1, generator=torch.Generator().manual_seed(22)) < 0.5, 1.165, 0.835)
    found = tally(rows(22), signs * rows(22))
    limit = Tolerance(rel_l2=1, row_gain=(0.95, 1.05), spreads={"row_gain": 0.1})
    assert found.excess(limit) == found.excess(limit).model_copy(update={"limit": "row_gain_spread"})
    most = 0.1 * (1 + 3 / 20)  # of 200 rows
    assert found.excess(limit).ratio == pytest.approx(0.165 / most, abs=0.02)
    assert words("all", found, {"close": limit}).startswith("row_gain_spread of all together is 0.16")
    assert "allowed: at most 0.115;" in words("all", found, {"close": limit})


def test_few_rows_may_scatter_a_little_more_by_chance():
    signs = torch.tensor([1.12, 0.88] * 4)[:, None]
    limit = Tolerance(rel_l2=1, row_gain=(0.8, 1.2), spreads={"row_gain": 0.1})
    assert tally(rows(25, 8), signs * rows(25, 8)).excess(limit).ratio <= 1
    many = torch.tensor([1.2, 0.8] * 100)[:, None]
    assert tally(rows(25), many * rows(25)).excess(limit).ratio > 1


def test_few_rows_that_hold_most_of_a_part_may_scatter_as_few_rows_may():
    """Of 200 answers with as much noise as is allowed, of 400 rows of which some 20 hold nearly all of the part. As
    rows alone are counted, a sixth of them would be refused."""
    generator = torch.Generator().manual_seed(26)
    limit = Tolerance(rel_l2=1, parts={"tail": (0.5, 1.5)}, spreads={"tail": 0.2})

    def answered(noise):
        def normal(*shape):
            return torch.randn(shape, generator=generator, dtype=torch.float64)

        share = torch.where(torch.rand(400, 1, generator=generator) < 0.05, 1.0, 0.2)
        want, part = normal(400, 8), share * normal(400, 8)
        found = Tally()
        found.add(want, want + noise * normal(400, 1) * part, {"tail": part})
        return found

    honest = [answered(0.2) for _ in range(200)]
    rows_count = [float(each.ratios("tail").spread) > 0.2 * (1 + 3 / math.sqrt(2 * 400)) for each in honest]
    assert sum(rows_count) > 200 / 10, "otherwise this test shows nothing"
    assert sum(each.excess(limit).ratio > 1 for each in honest) <= 2
    assert sum(answered(0.6).excess(limit).ratio > 1 for _ in range(20)) == 20


def test_noise_buys_no_more_room_than_the_noise_that_is_allowed():
    signs = torch.where(torch.rand(200, 1, generator=torch.Generator().manual_seed(23)) < 0.5, 1.5, 0.5)
    found = tally(rows(23), 1.08 * signs * rows(23))
    free, bounded = Tolerance(rel_l2=1, row_gain=(0.98, 1.02)), {"spreads": {"row_gain": 0.1}}
    assert abs(found.row_gain - 1) > 0.03 and found.excess(free).ratio <= 1
    within = {each.limit: each for each in found.figures(free.model_copy(update=bounded))}
    assert within["row_gain"].ratio > 1 and within["row_gain"].high < 1.05


def test_a_part_that_one_row_holds_is_not_compared():
    """Its noise is then the figure's, and no second row tells by how much it may be off."""
    limit = Tolerance(rel_l2=1, parts={"tail": (0.9, 1.1)}, spreads={"tail": 0.1})
    for heavy, refused in ((1, False), (4, True)):
        tail = 0.1 * rows(31)
        tail[heavy:] *= 1e-3
        found = Tally()
        found.add(rows(24), rows(24) - 0.6 * tail, {"tail": tail})
        assert found.parts["tail"] == pytest.approx(0.4, abs=0.02)
        assert (found.excess(limit).ratio > 1) == refused


def test_a_band_of_a_family_holds_for_each_of_its_parts():
    parts = {f"slice.{number}": 0.1 * rows(30 + number) for number in range(3)}
    found = Tally()
    found.add(rows(24), rows(24) - 0.5 * parts["slice.1"] + 0.5 * parts["slice.2"], parts)
    limit = Tolerance(rel_l2=1, parts={"slice": (0.8, 1.2)})
    assert found.excess(limit).ratio > 1 and words("all", found, {"a": limit}).startswith("slice of all together is ")
    assert found.parts == {"slice": pytest.approx(1.5, abs=0.1)} or found.parts == {
        "slice": pytest.approx(0.5, abs=0.1)
    }
    sound = Tally()
    sound.add(rows(24), rows(24) + 0.01 * rows(40), parts)
    assert sound.excess(limit).ratio <= 1


def test_a_spread_is_limited_of_what_has_a_band():
    with pytest.raises(ValueError, match="spreads limits gains, which has no band"):
        Tolerance(rel_l2=1, gain=(0.9, 1.1), spreads={"gains": 0.1})
    with pytest.raises(ValueError, match="a cell has too few rows"):
        Tolerance(rel_l2=1, cell_gain=(0.9, 1.1), spreads={"cell_gain": 0.1})


def test_in_the_root_mean_square_of_rows_each_counts_alike_however_small():
    want = rows(50)
    want[:20] *= 100
    got = want.clone()
    got[20:] += 0.3 * rows(51)[20:]
    found = tally(want, got)
    assert (got - want).norm() / want.norm() < 0.02 and found.dim_rel_l2 < 0.02
    assert found.row_rms == pytest.approx(0.3 * math.sqrt(0.9), rel=0.1)
    limit = Tolerance(rel_l2=1, row_rms=0.2)
    assert found.excess(limit).limit == "row_rms" and found.excess(limit).ratio > 1
    assert tally(want, want + 0.1 * (got - want)).excess(limit).ratio <= 1
    assert "allowed: at most 0.23;" in words("all", found, {"close": limit})


def test_where_all_is_wrong_together_each_figure_has_its_noise_and_what_moves_it_to_its_side():
    part, noise = 0.3 * rows(21), 0.05 * rows(22)
    found = Tally()
    found.add(rows(23), 1.1 * rows(23) - part + noise, {"tail": part, "head": 0.3 * rows(24)})
    known = {"tail": ("the tail is left out", "the tail counts twice")}
    told = meaning(found, {"close": Tolerance(rel_l2=1, gain=(0.95, 1.02))}, known).splitlines()
    by_name = {line.split()[0]: line for line in told if "\N{PLUS-MINUS SIGN}" in line}
    assert list(by_name) == ["gain", "row_gain", "tail", "head"]
    assert by_name["tail"].endswith("the tail is left out") and "too large" in by_name["gain"]
    assert by_name["head"].endswith("no further from 1 than noise")
    by_part = meaning(found, {"close": Tolerance(rel_l2=1, parts={"tail": (0.9, 1.1)})}, known)
    assert "tail is the share of a part of the expected outputs that is there: too little" in by_part


NOT_LIMITS = {"rtol", "atol", "bitwise", "when"}
BROKEN_BY_TWICE_THE_ANSWER = {name: 0.25 for name in (*OF_EACH_CALL, *OF_MANY_CALLS)} | {
    **dict.fromkeys(BANDS, (0.9, 1.1)),
    "parts": {"tail": (0.9, 1.1)},
    "spreads": {"row_gain": 0.01},
}


@pytest.mark.parametrize("limit", sorted(Tolerance.model_fields.keys() - NOT_LIMITS))
def test_each_limit_that_a_problem_may_state_is_one_that_an_answer_can_break(limit):
    """A field that the validator takes and nothing judges by would let anything pass."""
    want = rows(20, 8)
    got, broken = 2 * want, {limit: BROKEN_BY_TWICE_THE_ANSWER[limit]}
    if limit == "spreads":
        got[:4], broken = 0, broken | {"row_gain": (0.5, 2.0)}
    if limit == "cell_gain":  # the error of whole rows is noise to it
        got = torch.where(torch.arange(16) == 5, 0.0, want)
    if limit in OF_EACH_CALL:
        stated = {"t": Tolerance(**broken)}
        found = Difference("y", want, actual=got, elements=want.numel(), mismatches={"t": 0})
        read([found], stated, keep=False)
        excess = found.excess("t", stated["t"])
    else:
        found = Tally()
        found.add(want, got, {"tail": want}, Heads(torch.arange(8) % 2, 2, cells=True))
        excess = found.excess(Tolerance(rel_l2=9, **broken))
    named = {"parts": "tail", "spreads": "row_gain_spread"}.get(limit, limit)
    assert excess.limit == named and excess.ratio > 1


def test_parts_may_be_of_several_types_and_each_counts_by_its_own_values():
    want, whole = rows(8), torch.full((200, 16), 2**40 + 1)
    parts = {"fp8": want.to(torch.float8_e4m3fn), "bf16": want.bfloat16(), "fp32": want.float(), "integers": whole}
    together = Tally()
    together.add(want, want * 1.5, parts)
    for name, part in parts.items():
        alone = Tally()
        alone.add(want, want * 1.5, {name: part.double()})
        assert together.parts[name] == pytest.approx(alone.parts[name], rel=1e-14)
