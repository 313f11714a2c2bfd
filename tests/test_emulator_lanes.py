"""Values that go between lanes, registers and halves in the emulator, and pairs of instructions that RDNA3 joins."""

import numpy as np
import pytest

pytest.importorskip("tinygrad")
pytest.importorskip("elftools")
pytest.importorskip("triton")

from tests.one_instruction import LANES, Row, hold, of_chip
from tests.test_emulator_conversions import small_numbers, summed, summed_bfloat
from tests.test_emulator_floats import fused, larger, smaller, zero_wins
from tests.test_emulator_sweeps import ran as swept

F, H = np.float32, np.float16
WAVE = {"gfx942": 64, "gfx950": 64, "gfx1100": 32}


def by_wave(a, chip):
    """[lanes] ─► [waves, lane]."""
    return np.asarray(a).reshape(-1, WAVE[chip])


def of_lane(a, lane, chip):
    """Each lane is given a's value in one lane of its wave."""
    return np.repeat(by_wave(a, chip)[:, lane], WAVE[chip])


def written(a, old, lane, chip):
    found = by_wave(old, chip).copy()
    found[:, lane] = by_wave(a, chip)[:, 0]
    return found.reshape(-1)


def counted(mask, add, chip, high):
    """v_mbcnt: ones of the mask below the lane, in its lower or upper 32."""
    lane = np.arange(LANES) % WAVE[chip]
    below = np.clip(lane - 32, 0, 32) if high else np.minimum(lane, 32)
    kept = np.array([int(word) & (1 << int(n)) - 1 for word, n in zip(mask, below)])
    return np.bitwise_count(kept).astype(np.int64) + add.astype(np.int64)


def swapped(a, b, width):
    """v_permlane16_swap, v_permlane32_swap: the odd groups of the first for the even ones of the second."""
    first, second = (one.reshape(-1, 2, width).copy() for one in (a, b))
    first[:, 1], second[:, 0] = second[:, 0].copy(), first[:, 1].copy()
    return np.stack([first.reshape(-1), second.reshape(-1)], axis=1).astype(np.uint32)


def permuted(a, old, other, low, high):
    """v_permlane16: lane n of a row of 16 is given that lane of the own row, or of the other one, that 4 bits name."""
    choice = [(low | high << 32) >> 4 * n & 15 for n in range(16)]
    lane = np.arange(LANES)
    return a[(lane // 16 ^ other) * 16 + np.array(choice)[lane % 16]]


def lane_rows(chip):
    exec_ = "s_mov_b32 exec_lo" if chip == "gfx1100" else "s_mov_b64 exec"
    rows = [
        Row("v_readlane_b32", "u>u", lambda a: of_lane(a, 5, chip), "{name} s20, {a[0]}, 5\nv_mov_b32_e32 {d}, s20"),
        Row("v_readlane_b32", "u>u", lambda a: of_lane(a, 9, chip),
            f"s_movk_i32 s21, {WAVE[chip] + 9}\n{{name}} s20, {{a[0]}}, s21\nv_mov_b32_e32 {{d}}, s20"),
        Row("v_readfirstlane_b32", "u>u", lambda a: of_lane(a, 4, chip),
            f"{exec_}, 0x00f0\n{{name}} s20, {{a[0]}}\n{exec_}, -1\nv_mov_b32_e32 {{d}}, s20"),
        Row("v_writelane_b32", "uu+u>u", lambda a, b, old: written(a, old, 7, chip),
            f"v_readlane_b32 s20, v2, 0\n{exec_}, 0\n{{name}} {{d}}, s20, 7\n{exec_}, -1"),
        Row("v_swap_b32", "uu+U>U", lambda a, b, old: (a.astype(np.uint64) | (old & 0xFFFFFFFF) << np.uint64(32)),
            "v_mov_b32_e32 v11, v2\n{name} v10, v11"),
        *(Row(f"v_accvgpr_{word}_b32", "u>u", lambda a: a,
              "v_accvgpr_write_b32 a1, {a[0]}\nv_accvgpr_mov_b32 a5, a1\nv_accvgpr_read_b32 {d}, a5")
          for word in ("read", "write", "mov")),
        Row("v_mbcnt_lo_u32_b32", "uu>u", lambda a, b: counted(a, b, chip, False)),
        Row("v_mbcnt_hi_u32_b32", "uu>u", lambda a, b: counted(a, b, chip, True)),
        Row("v_permlane16_swap_b32", "uu>U", lambda a, b: swapped(a, b, 16).view(np.uint64)[:, 0],
            "v_mov_b32_e32 v10, v2\nv_mov_b32_e32 v11, v4\n{name} v10, v11"),
        Row("v_permlane32_swap_b32", "uu>U", lambda a, b: swapped(a, b, 32).view(np.uint64)[:, 0],
            "v_mov_b32_e32 v10, v2\nv_mov_b32_e32 v11, v4\n{name} v10, v11"),
        *(Row(f"v_permlane{x}16_b32", "u>u", lambda a, o=other: permuted(a, None, o, 0x01234567, 0xFEDC5A5A),
              "s_mov_b32 s20, 0x01234567\ns_mov_b32 s21, 0xfedc5a5a\n{name} {d}, {a[0]}, s20, s21")
          for x, other in (("", 0), ("x", 1))),
    ]  # fmt: skip
    return [Row(**{**vars(row), "arrays": True}) for row in rows]


@pytest.mark.parametrize("chip", WAVE)
def test_every_instruction_that_reads_other_lanes_is_given_their_values(chip):
    hold(of_chip(lane_rows(chip), chip), chip)


def three(table, a, b, c):
    """v_bitop3: the bit of the table that three bits name, a's the highest."""
    return sum((a if n & 4 else ~a) & (b if n & 2 else ~b) & (c if n & 1 else ~c) for n in range(8) if table >> n & 1)


def mixed(*given, half):
    found = fused(*(np.ascontiguousarray(one).astype(F) for one in given))
    return found.astype(H) if half else found


MIXED = [
    Row("v_fma_mix_f32", "fff>f", lambda a, b, c: mixed(a, b, -np.abs(c), half=False), "{name} {d}, v2, v4, -|v6|"),
    Row("v_fma_mix_f32", "Hff>f", lambda a, b, c: mixed(a[:, 1], -b, c, half=False),
        "{name} {d}, v2, -v4, v6 op_sel:[1,0,0] op_sel_hi:[1,0,0]"),
    Row("v_fma_mixlo_f16", "ffH>h", lambda a, b, c: mixed(a, b, c[:, 0], half=True),
        "{name} {d}, {s} op_sel_hi:[0,0,1]"),
    Row("v_fma_mixhi_f16", "ff+H>H", lambda a, b, c: np.stack([c[:, 0], mixed(a, b, c[:, 1], half=True)], axis=1),
        "{name} {d}, v2, v4, v6 op_sel:[0,0,1] op_sel_hi:[0,0,1]"),
    *(Row("v_bitop3_b32", "uuu>u", lambda a, b, c, t=table: three(t, a, b, c),
          f"{{name}} {{d}}, {{s}} bitop3:0x{table:x}")
      for table in (0x96, 0xE8, 0x01, 0xCA)),
    Row("v_bitop3_b16", "www>w", lambda a, b, c: three(0x5B, a, b, c), "{name} {d}, {s} bitop3:0x5b"),
]  # fmt: skip


@pytest.mark.parametrize("chip", WAVE)
def test_every_instruction_with_mixed_operands_is_numpys(chip):
    hold(of_chip(MIXED, chip), chip)


# Dual instructions: the first takes the lower words, the second the upper ones

PI = F(3.14159274)
EITHER = {
    "fmac_f32": fused, "mul_f32": lambda a, b, c: a * b, "add_f32": lambda a, b, c: a + b,
    "sub_f32": lambda a, b, c: a - b, "subrev_f32": lambda a, b, c: b - a,
    "mul_dx9_zero_f32": lambda a, b, c: zero_wins(a, b, a * b), "mov_b32": lambda a, b, c: a,
    "max_f32": lambda a, b, c: larger(a, b), "min_f32": lambda a, b, c: smaller(a, b),
    "fmaak_f32": lambda a, b, c: fused(a, b, np.full_like(a, PI)),
    "fmamk_f32": lambda a, b, c: fused(a, np.full_like(a, PI), b),
}  # fmt: skip
SECOND = {
    "add_nc_u32": lambda a, b: a + b,
    "lshlrev_b32": lambda a, b: b << (a & np.uint32(31)),
    "and_b32": lambda a, b: a & b,
}
OPERANDS = {"mov_b32": "{0}", "fmaak_f32": "{0}, {1}, 0x40490fdb", "fmamk_f32": "{0}, 0x40490fdb, {1}"}


def joined(first, second):
    """The text of a pair; the registers are of different banks, as it must be."""
    halves = [
        f"v_dual_{name} v{10 + n}, " + OPERANDS.get(name, "{0}, {1}").format(f"v{2 + n}", f"v{4 + n}")
        for n, name in enumerate((first, second))
    ]
    return " :: ".join(halves)


def dual_rows():
    rows = []
    for name in EITHER:
        for other in ("mul_f32", "mov_b32"):
            for first, second in ((name, other), (other, name)):
                models = EITHER[first], EITHER[second]
                rows.append(Row(
                    f"v_dual_{name}", "FF+F>F",
                    lambda a, b, c, m=models: np.stack([m[n](a[:, n], b[:, n], c[:, n]) for n in (0, 1)], axis=1),
                    joined(first, second)))  # fmt: skip
    for name, function in SECOND.items():
        rows.append(Row(
            f"v_dual_{name}", "FF+F>F",
            lambda a, b, c, f=function: np.stack([a[:, 0] * b[:, 0], f(*(np.ascontiguousarray(one[:, 1]).view(np.uint32)
                                                  for one in (a, b))).view(F)], axis=1),
            joined("mul_f32", name)))  # fmt: skip
    return rows


def chosen(first, second):
    """v_dual_cndmask beside another: by VCC, which neither changes."""
    return Row(
        "v_dual_cndmask_b32", "FF>F",
        lambda a, b, on: np.stack([np.where(on, b[:, 0], a[:, 0]) if first == "cndmask_b32" else a[:, 0],
                                   np.where(on, b[:, 1], a[:, 1]) if second == "cndmask_b32" else a[:, 1]], axis=1),
        joined(first, second), "in")  # fmt: skip


def test_every_dual_instruction_does_both_its_halves():
    hold(dual_rows(), "gfx1100")
    hold([chosen("cndmask_b32", "mov_b32"), chosen("mov_b32", "cndmask_b32")], "gfx1100")


def test_a_dual_instruction_reads_before_either_half_writes():
    text = "v_mov_b32_e32 v10, v2\nv_mov_b32_e32 v11, v3\nv_dual_mov_b32 v10, v11 :: v_dual_mov_b32 v11, v10"
    hold([Row("v_dual_mov_b32", "F>F", lambda a: a[:, ::-1], text)], "gfx1100")


def test_a_dual_sum_of_small_products_is_exact():
    for kind, plain, model in (("f16", "H", summed), ("bf16", "P", summed_bfloat)):
        name = f"v_dual_dot2acc_f32_{kind}"
        text = f"{name} v10, v2, v4 :: v_dual_mov_b32 v11, v3"
        row = Row(
            name, f"{plain}{plain}+f>f", model, text + "\nv_mov_b32_e32 v11, v7", given=small_numbers(kind), arrays=True
        )
        hold(of_chip([row], "gfx1100"), "gfx1100")


# Shared memory: two places at once, and other lanes

SHARED = "v_lshlrev_b32_e32 v63, 2, v0\nds_write_b128 v62, v[2:5]\ns_waitcnt lgkmcnt(0)\ns_barrier\n"
BACK = "s_waitcnt lgkmcnt(0)\ns_barrier\nds_read_b128 v[16:19], v62\ns_waitcnt lgkmcnt(0)\n"
BACK += "global_store_dwordx4 v62, v[16:19], s[8:9]\nglobal_store_dwordx4 v62, v[8:11], s[10:11]\n"
PAIRS = {"b32": (1, "v63", "v59"), "b64": (2, "v59", "v62")}
"""Words; the register whose addresses leave room for a second place 64 times as far on, and for one beside."""


def spelt(kind, chip, stride, size):
    if chip != "gfx1100":
        return f"ds_{kind}2{'st64' if stride else ''}_{size}"
    return f"ds_{dict(read='load', write='store')[kind]}_2addr_{'stride64_' if stride else ''}{size}"


@pytest.mark.parametrize("chip", ["gfx942", "gfx1100"])
@pytest.mark.parametrize("size", PAIRS)
@pytest.mark.parametrize("stride", [False, True])
def test_two_places_of_shared_memory_are_read_and_written_at_once(stride, size, chip):
    generator = np.random.default_rng(3)
    a, b, c, out = (generator.integers(0, 2**32, (64, 4), np.uint32) for _ in range(4))
    count, far, near = PAIRS[size]
    address, words = (far, count) if stride else (near, 2 * count)
    places = [np.arange(64)[:, None] * words + n * (64 * count if stride else count) + np.arange(count) for n in (0, 1)]
    held, result = c.copy(), out.copy()
    target = f"v[8:{7 + 2 * count}]"
    body = f"{spelt('read', chip, stride, size)} {target}, {address} offset0:0 offset1:1\n"
    swept(SHARED + body + BACK, [a.reshape(-1), b.reshape(-1), held.reshape(-1), result.reshape(-1)], chip)
    np.testing.assert_array_equal(held, a)
    np.testing.assert_array_equal(result[:, : 2 * count], a.reshape(-1)[np.concatenate(places, axis=1)])
    held, result = c.copy(), out.copy()
    first, second = ("v8", "v9") if count == 1 else ("v[8:9]", "v[10:11]")
    body = f"{spelt('write', chip, stride, size)} {address}, {first}, {second} offset0:0 offset1:1\n"
    swept(SHARED + body + BACK, [a.reshape(-1), b.reshape(-1), held.reshape(-1), result.reshape(-1)], chip)
    expected = a.reshape(-1).copy()
    for n, place in enumerate(places):
        expected[place] = b[:, n * count : n * count + count]
    np.testing.assert_array_equal(held.reshape(-1), expected)


def sent(a, b, chip):
    """ds_permute: each lane sends to another; the highest wins, and who is sent nothing has 0."""
    found = np.zeros_like(a)
    for wave in range(0, LANES, WAVE[chip]):
        for lane in range(wave, wave + WAVE[chip]):
            found[wave + (int(a[lane]) >> 2) % WAVE[chip]] = b[lane]
    return found


def fetched(a, b, chip):
    """ds_bpermute."""
    lane = np.arange(LANES)
    return b[lane // WAVE[chip] * WAVE[chip] + (a >> np.uint32(2)) % WAVE[chip]]


@pytest.mark.parametrize("chip", WAVE)
def test_every_way_through_shared_memorys_lanes_is_taken(chip):
    lane = np.arange(LANES)
    swapped_halves = lambda a: a[lane // 32 * 32 + ((lane % 32 & 0x1B | 4) ^ 0x12)]  # noqa: E731
    wait = "\ns_waitcnt lgkmcnt(0)"
    rows = [
        Row("ds_permute_b32", "uu>u", lambda a, b: sent(a, b, chip), "{name} {d}, {s}" + wait, arrays=True),
        Row("ds_bpermute_b32", "uu>u", lambda a, b: fetched(a, b, chip), "{name} {d}, {s}" + wait, arrays=True),
        Row("ds_swizzle_b32", "u>u", swapped_halves, "{name} {d}, {s} offset:0x489b" + wait, arrays=True),
        Row("ds_swizzle_b32", "u>u", lambda a: a[lane // 4 * 4 + np.array([2, 0, 3, 1])[lane % 4]],
            "{name} {d}, {s} offset:0x8072" + wait, arrays=True),
    ]  # fmt: skip
    hold(of_chip(rows, chip), chip)


@pytest.mark.parametrize("size", [2, 1])
def test_a_transposed_read_gives_each_lane_a_column(size):
    """16 lanes read a tile of 16 columns, a row of which lies in 2 or 4 lanes' 8 bytes (CDNA4 ISA guide)."""
    generator = np.random.default_rng(8)
    a, b, c, out = (generator.integers(0, 2**32, (64, 4), np.uint32) for _ in range(4))
    held = c.copy()
    text = f"ds_write_b64 v59, v[2:3]\ns_waitcnt lgkmcnt(0)\nds_read_b64_tr_b{8 * size} v[8:9], v59\n"
    text += "s_waitcnt lgkmcnt(0)\n"
    text += "global_store_dwordx4 v62, v[8:11], s[10:11]\n"
    swept(text, [a.reshape(-1), b.reshape(-1), held.reshape(-1), out.reshape(-1)], "gfx950")
    tiles = np.ascontiguousarray(a[:, :2]).view(f"u{size}").reshape(4, -1, 16)  # [group of lanes, row, column]
    columns = np.ascontiguousarray(tiles.swapaxes(1, 2)).view(np.uint32).reshape(64, 2)
    np.testing.assert_array_equal(out[:, :2], columns)


def test_a_load_of_three_words_to_shared_memory_puts_the_lanes_side_by_side():
    generator = np.random.default_rng(8)
    a, b, c, out = (generator.integers(0, 2**32, (64, 4), np.uint32) for _ in range(4))
    text = "v_mul_u32_u24_e32 v59, 12, v0\ns_movk_i32 m0, 0x60\nglobal_load_lds_dwordx3 v62, s[4:5] offset:4\n"
    text += "s_waitcnt vmcnt(0)\nds_read_b96 v[8:10], v59 offset:100\ns_waitcnt lgkmcnt(0)\n"
    text += "global_store_dwordx4 v62, v[8:11], s[10:11]\n"  # the offset counts on both sides
    given = [np.ascontiguousarray(one).reshape(-1) for one in (a, b, c, out)]
    swept("s_mov_b64 exec, 0x7fffffff\n" + text, given, "gfx950")
    np.testing.assert_array_equal(out[:31, :3], a[:31, 1:])
