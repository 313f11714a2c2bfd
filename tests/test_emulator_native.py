"""The emulator's inner loops in C against numpy: the same bits, the same findings, and only where they were built."""

import random

import numpy as np
import pytest

pytest.importorskip("tinygrad")
pytest.importorskip("elftools")
pytest.importorskip("triton")

from harness.emulator import arithmetic, matrix, native
from harness.emulator.handwritten import WRITTEN
from harness.judge.emulation import Emulation
from harness.model import Limits
from tests.assembled import BEGIN, launched
from tests.test_emulator_instructions import patterns, same_floats

LANES, WAVES, GROUPS = 64, 2, 3
REGISTERS = range(2, 34)
"""What the random programs load and store; v60 holds byte offsets."""

needs_library = pytest.mark.skipif(native.build() is None, reason="nothing here compiles C")


@pytest.fixture
def by_numpy(monkeypatch):
    """A function that calls another without the library."""

    def call(function, *args, **named):
        with monkeypatch.context() as patch:
            patch.setattr(native, "library", lambda: None)
            return function(*args, **named)

    return call


@needs_library
def test_a_fused_multiply_add_is_that_of_numpy_however_it_is_broadcast(by_numpy):
    assert native.library() is not None
    shapes = [(16, 64), (16, 1), (1, 64), (1, 1)]
    for seed in range(64):
        a, b, c = (
            np.resize(patterns(seed * 3 + n), shapes[seed >> 2 * n & 3]).view(np.float32).copy() for n in range(3)
        )
        with np.errstate(all="ignore"):
            same_floats(arithmetic.fma(a, b, c).view(np.uint32), by_numpy(arithmetic.fma, a, b, c))


@needs_library
@pytest.mark.parametrize("kind", [np.float32, np.int32])
def test_a_product_of_matrices_is_that_of_numpy(by_numpy, kind):
    for seed in range(24):
        a = patterns(seed)[: 2 * 16 * 8].reshape(2, 16, 8).view(kind)
        b = patterns(seed + 99)[: 2 * 8 * 32].reshape(2, 32, 8).swapaxes(1, 2).view(kind)
        c = patterns(seed + 199)[: 2 * 16 * 32].reshape(2, 16, 32).view(kind)
        with np.errstate(all="ignore"):
            mine, theirs = matrix.product(a, b, c), by_numpy(matrix.product, a, b, c)
        if kind is np.float32:
            same_floats(mine.view(np.uint32), theirs)
        else:
            np.testing.assert_array_equal(mine, theirs)


@needs_library
def test_a_permutation_of_bytes_is_that_of_numpy(by_numpy):
    perm = WRITTEN["v_perm_b32"][2]
    a, b = patterns(5).reshape(16, 64), patterns(6).reshape(16, 64)
    selector = np.random.default_rng(1).integers(0, 16, (16, 64, 4), np.uint8).view(np.uint32)[..., 0]
    for chosen in (selector, selector[:, :1], patterns(7).reshape(16, 64)):
        np.testing.assert_array_equal(perm(a, b, chosen)["D0"], by_numpy(perm, a, b, chosen)["D0"])


LOADS = {"u8": 1, "i8": 1, "u16": 1, "i16": 1, "u16_d16": 1, "u16_d16_hi": 1, "u8_d16_hi": 1, "i8_d16": 1}
LOADS |= {"b32": 1, "b64": 2, "b96": 3, "b128": 4}
STORES = {"b8": 1, "b16": 1, "b8_d16_hi": 1, "b16_d16_hi": 1, "b32": 1, "b64": 2, "b96": 3, "b128": 4}
GLOBAL = {"ubyte": 1, "sbyte": 1, "ushort": 1, "sshort": 1, "short_d16": 1, "short_d16_hi": 1, "sbyte_d16_hi": 1}
GLOBAL |= {"dword": 1, "dwordx2": 2, "dwordx3": 3, "dwordx4": 4}
GLOBAL_STORES = {"byte": 1, "short": 1, "byte_d16_hi": 1, "short_d16_hi": 1, "dword": 1, "dwordx2": 2, "dwordx4": 4}


def program(seed):
    """Forty random accesses to LDS, scratch and global memory under random masks, some of them outside or racing."""
    pick = random.Random(seed)
    lines = ["s_mov_b32 s12, s10", "s_and_b32 s13, s11, 0xffff", f"s_movk_i32 s14, {pick.randrange(3000)}"]
    lines += ["s_mov_b32 s15, 0x27000", "v_lshlrev_b32_e32 v61, 2, v0"]
    lines += [f"v_mul_u32_u24_e32 v{one}, {one * 7919}, v{2 + one % 3}" for one in range(5, 34)]
    reach = pick.choice([0x3F0, 0x1FC, 0x3FF])

    def registers(count):
        first = pick.randrange(2, 34 - count, 1 if count == 1 else 2)  # tuples begin at even registers
        return f"v{first}" if count == 1 else f"v[{first}:{first + count - 1}]"

    for _ in range(40):
        mask = pick.choice(["-1", "-1", "-1", str(pick.getrandbits(31)), "0"])
        lines.append(f"s_mov_b64 exec, {mask}")
        own = pick.random() < 0.6  # each wave and lane its own bytes, or any lane any
        lines.append("v_lshlrev_b32_e32 v60, 4, v0" if own else f"v_and_b32_e32 v60, 0x{reach:x}, {registers(1)}")
        where, offset = (
            pick.choice(["ds", "ds", "ds2", "global", "buffer", "scratch", "barrier"]),
            pick.randrange(4) * 4,
        )
        loads = pick.random() < 0.6
        if where == "barrier":
            lines += ["s_mov_b64 exec, -1", "s_barrier"]
        elif where == "ds2":
            wide, stride = pick.choice([("b32", 1), ("b64", 2)]), pick.choice(["", "st64"])
            places = f"offset0:{pick.randrange(2)} offset1:{pick.randrange(2)}"
            if loads:
                lines.append(f"ds_read2{stride}_{wide[0]} {registers(2 * wide[1])}, v60 {places}")
            else:
                lines.append(f"ds_write2{stride}_{wide[0]} v60, {registers(wide[1])}, {registers(wide[1])} {places}")
        elif where == "ds":
            name = pick.choice(list(LOADS if loads else STORES))
            if loads:
                lines.append(f"ds_read_{name} {registers(LOADS[name])}, v60 offset:{offset}")
            else:
                lines.append(f"ds_write_{name} v60, {registers(STORES[name])} offset:{offset}")
        else:
            name = pick.choice(list(GLOBAL if loads else GLOBAL_STORES))
            data = registers((GLOBAL if loads else GLOBAL_STORES)[name])
            if where == "global":
                ends = f"v60, {data}, s[10:11]" if not loads else f"{data}, v60, s[10:11]"
            elif where == "buffer":
                ends = f"{data}, v60, s[12:15], 0 offen"
            else:
                lines.append("v_and_b32_e32 v60, 0x7f, v60")
                ends = f"{data}, v60, off" if loads else f"v60, {data}, off"
            lines.append(f"{where}_{'load' if loads else 'store'}_{name} {ends} offset:{offset}")
    lines.append("s_mov_b64 exec, -1")
    for one in REGISTERS:
        lines += [f"v_add_u32_e32 v1, {4 * LANES * WAVES * GROUPS}, v1", f"global_store_dword v1, v{one}, s[10:11]"]
    return BEGIN.replace("s_lshl_b32 s2, s2, 6", "s_lshl_b32 s2, s2, 7") + "\n    ".join(["", *lines, "s_endpgm", ""])


def outcome_of(seed):
    """What a random program leaves, and what was found."""
    count = LANES * WAVES * GROUPS
    arrays = [np.resize(patterns(seed + n), count) for n in range(3)]
    out = np.zeros(count * (len(REGISTERS) + 1), np.uint32)
    lds = 2100 + seed % 3 * 8000
    found = launched(
        program(seed), [*arrays, out], grid=GROUPS, block=LANES * WAVES, lds=lds, scratch=132 + seed % 2 * 64
    )
    assert found.not_emulated is None, found
    return out, [str(one) for one in found.findings]


@needs_library
@pytest.mark.parametrize("first", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in range(12, 120, 12))])
def test_random_accesses_leave_the_same_bits_and_findings_as_in_numpy(by_numpy, first):
    clean = raced = outside = 0
    for seed in range(first, first + 12):
        mine, theirs = outcome_of(seed), by_numpy(outcome_of, seed)
        np.testing.assert_array_equal(mine[0], theirs[0], err_msg=f"seed {seed}")
        assert mine[1] == theirs[1], seed
        clean += not mine[1]
        raced += any("race" in one for one in mine[1])
        outside += any("out-of-range" in one or "out of range" in one for one in mine[1])
    assert clean + raced + outside >= 12 and raced, (clean, raced, outside)


@needs_library
def test_waves_that_store_one_value_in_one_step_do_not_race(by_numpy):
    """The library meets the second wave's store half way, takes its marks back, and leaves the step to numpy."""
    body = BEGIN + "v_mov_b32_e32 v60, 0\nv_mov_b32_e32 v5, 77\nds_write_b32 v60, v5 offset:8\ns_endpgm\n"
    arrays = [patterns(n)[:128] for n in range(4)]
    for call in (launched, lambda *args, **named: by_numpy(launched, *args, **named)):
        assert call(body, arrays, block=LANES * WAVES, lds=64).clean


def test_a_byte_that_two_waves_read_makes_no_race_of_the_bytes_beside_it(by_numpy):
    """Wave 0 reads bytes 0 to 3 and wave 1 bytes 3 to 6, in one step; then wave 0 changes byte 0."""
    body = "v_cmp_gt_u32_e32 vcc, 64, v0\nv_cndmask_b32_e64 v60, 3, 0, vcc\nds_read_b32 v5, v60\n"
    body += "s_mov_b64 exec, vcc\nv_add_u32_e32 v5, 1, v5\nds_write_b8 v60, v5\ns_endpgm\n"
    arrays = [patterns(n)[:128] for n in range(4)]
    for call in (launched, lambda *args, **named: by_numpy(launched, *args, **named)):
        assert not call(BEGIN + body, arrays, block=LANES * WAVES, lds=64).findings


def test_without_the_library_numpy_does_it_all(by_numpy):
    out, _ = by_numpy(outcome_of, 2)
    assert out.any()


def test_the_judge_has_it_compiled_for_what_is_emulated_and_for_nothing_else(monkeypatch):
    built = []
    monkeypatch.setattr(native, "build", lambda: built.append(1))
    for emulation, source, times in [
        (Emulation(), "import torch", 0),
        (Emulation(), "import triton", 0),
        (Emulation(None), "from harness.hip import Module", 0),
        (Emulation(), "from harness.hip import Module", 1),
        (Emulation("gfx950", triton=True), "import triton", 1),
    ]:
        built.clear()
        emulation.prepare(source)
        assert len(built) == times, (emulation, source)


def test_a_call_that_compiles_tritons_kernels_may_take_longer_and_no_other():
    limits = Limits(load_s=60, call_s=60, evaluation_s=200)
    assert Emulation().limits(limits).call_s == 60
    assert Emulation("gfx942", triton=True).limits(limits).call_s == 200
    assert Emulation("gfx942", triton=True).limits(Limits()).call_s == 300


def test_a_library_is_taken_for_its_own_source_only(tmp_path, monkeypatch):
    monkeypatch.setattr(native, "folder", lambda: tmp_path)
    before = native.path()
    changed = tmp_path / "native.c"
    changed.write_text(native.SOURCE.read_text() + "\n")
    monkeypatch.setattr(native, "SOURCE", changed)
    assert native.path() != before


def test_where_nothing_compiles_there_is_no_library_and_nothing_is_left(tmp_path, monkeypatch):
    monkeypatch.setattr(native, "folder", lambda: tmp_path)
    monkeypatch.setattr(native, "_compilers", lambda: [["false"], ["/nowhere/cc"]])
    assert native.build() is None
    assert not list(tmp_path.iterdir())
