"""What the emulator finds wrong with a kernel, each beside a clean twin; and hostile code objects."""

import re

import numpy as np
import pytest

pytest.importorskip("tinygrad")
pytest.importorskip("elftools")
pytest.importorskip("triton")

from harness.emulator import findings, of_array, run
from harness.emulator.order import Shuffled
from harness.emulator.witness import Witness
from tests.assembled import BEGIN, END, code_object, launched


def arrays(size: int = 256) -> list[np.ndarray]:
    return [np.arange(size, dtype=np.uint32) + number * 1000 for number in range(3)] + [np.zeros(size, np.uint32)]


def found(body: str, kind: str, given: list[np.ndarray] | None = None, **options: object) -> findings.KernelFinding:
    outcome = launched(body, given or arrays(), **options)
    assert [one.kind for one in outcome.findings] == [kind], outcome
    return outcome.findings[0]


COPY = BEGIN + "v_mov_b32_e32 v5, v2" + END


def test_a_store_past_the_end_names_the_tensor_the_instruction_and_the_lane():
    given = arrays(64)
    given[3] = np.zeros(60, np.uint32)
    finding = found(COPY, findings.OUT_OF_RANGE, given)
    assert "after the end of out" in finding.message and "0 bytes" in finding.message
    assert (finding.instruction, finding.lane, finding.wave) == ("global_store_dword", 60, 0)
    assert launched(COPY, arrays(64)).clean


def test_a_store_across_the_end_is_outside():
    given = arrays(64)
    given[3] = np.zeros(127, np.uint16)
    finding = found(COPY, findings.OUT_OF_RANGE, given)
    assert "across the end of out" in finding.message and finding.lane == 63


def test_a_load_before_the_beginning_is_found():
    body = BEGIN.replace("global_load_dword v4, v1, s[8:9]", "global_load_dword v4, v1, s[8:9] offset:-4")
    memory = np.zeros(300, np.uint32)
    given = [*arrays(64)[:2], memory, arrays(64)[3]]
    finding = found(body + "v_mov_b32_e32 v5, v4" + END, findings.OUT_OF_RANGE, given)
    assert "4 bytes before c" in finding.message and finding.lane == 0


EXCHANGE = """
    v_lshlrev_b32_e32 v6, 2, v0
    ds_write_b32 v6, v2
    s_waitcnt lgkmcnt(0)
    {barrier}
    v_xor_b32_e32 v7, 0x100, v6
    ds_read_b32 v5, v7
    s_waitcnt lgkmcnt(0)
"""
"""Two waves: each reads what the other wrote."""


def test_a_missing_barrier_is_a_race_and_its_twin_is_right():
    finding = found(BEGIN + EXCHANGE.format(barrier="s_nop 0") + END, findings.RACE, arrays(128), block=128, lds=512)
    assert finding.instruction == "ds_read_b32" and "no barrier, flag or atomic between" in finding.message
    given = arrays(128)
    outcome = launched(BEGIN + EXCHANGE.format(barrier="s_barrier") + END, given, block=128, lds=512)
    assert outcome.clean, outcome
    np.testing.assert_array_equal(given[3], np.concatenate([given[0][64:128], given[0][:64]]))


def test_waves_that_store_one_value_to_one_place_do_not_race():
    body = BEGIN + "v_mov_b32_e32 v6, 0\n v_mov_b32_e32 v7, {value}\n ds_write_b32 v6, v7\n v_mov_b32_e32 v5, v2" + END
    assert launched(body.format(value=7), arrays(128), block=128, lds=64).clean
    wave = body.replace("v_mov_b32_e32 v7, {value}", "v_lshrrev_b32_e32 v7, 6, v0")
    assert found(wave, findings.RACE, arrays(128), block=128, lds=64).instruction == "ds_write_b32"


def test_a_barrier_that_a_wave_leaves_out_is_found():
    body = """
    v_readfirstlane_b32 s20, v0
    s_cmp_lg_u32 s20, 0
    s_cbranch_scc1 .Lend
    s_barrier
.Lend:
    s_endpgm
"""
    finding = found(body, findings.BARRIER, block=128)
    assert "wave 1 ended without it" in finding.message and finding.instruction == "s_barrier"
    assert launched("s_barrier\n s_endpgm", arrays(), block=128).clean


def test_an_endless_loop_ends_as_a_finding():
    finding = found(".Lagain:\n s_nop 0\n s_branch .Lagain", findings.ENDLESS, limit=1000)
    assert "1,000 instructions" in finding.message


def uninitialised(body: str, lds: int = 0) -> findings.KernelFinding | None:
    image, _ = code_object(body, lds)
    given = arrays(64)
    memory = [of_array(array, "abco"[number]) for number, array in enumerate(given)]
    pointers = [array.ctypes.data.to_bytes(8, "little") for array in given]
    first = Witness()
    second = Witness(first)
    for fill, witness in ((1, first), (2, second)):
        outcome = run(image, "probe", (1, 1, 1), (64, 1, 1), pointers, memory, fill=fill, witness=witness)
        assert outcome.clean, outcome
    third = second.once_more()
    assert run(image, "probe", (1, 1, 1), (64, 1, 1), pointers, memory, fill=1, witness=third).clean
    return second.named(third)


READS_LDS = "v_lshlrev_b32_e32 v6, 2, v0\n {write}\n ds_read_b32 v5, v6\n s_waitcnt lgkmcnt(0)"


def test_shared_memory_that_nobody_wrote_is_found_when_it_is_stored():
    finding = uninitialised(BEGIN + READS_LDS.format(write="") + END, 256)
    assert finding is not None and finding.instruction == "global_store_dword"
    assert uninitialised(BEGIN + READS_LDS.format(write="ds_write_b32 v6, v2") + END, 256) is None


def test_a_register_that_nobody_wrote_matters_only_where_it_reaches_something():
    assert uninitialised(BEGIN + "v_add_u32_e32 v9, v40, v41\n v_mov_b32_e32 v5, v2" + END) is None
    finding = uninitialised(BEGIN + "v_mov_b32_e32 v5, v40" + END)
    assert finding is not None and finding.kind == findings.UNINITIALISED
    assert (finding.workgroup, finding.wave, finding.lane) == ((0, 0, 0), 0, 0)
    some = "v_mov_b32_e32 v5, v2\n v_cmp_lt_u32_e32 vcc, 40, v0\n v_cndmask_b32_e32 v5, v2, v40, vcc"
    finding = uninitialised(BEGIN + some + END)
    assert finding is not None and (finding.wave, finding.lane) == (0, 41)
    branch = BEGIN + "v_mov_b32_e32 v5, v2\n s_bitcmp1_b32 s35, {bit}\n s_cbranch_scc1 .Lout\n s_nop 0\n.Lout:" + END
    reached = [uninitialised(branch.format(bit=bit)) for bit in range(8)]  # a bit may happen to be the same twice
    assert {one.instruction for one in reached if one} == {"s_cbranch_scc1"}
    assert {(one.wave, one.lane) for one in reached if one} == {(0, None)}  # a wave branches, and no lane


def test_the_order_of_waves_is_random_by_seed_and_the_same_for_the_same_seed():
    body = BEGIN + "v_mov_b32_e32 v6, 0\n global_atomic_swap v5, v6, v1, s[10:11] sc0\n s_waitcnt vmcnt(0)"
    body += "\n global_store_dword v1, v5, s[4:5]\n s_endpgm"
    seen = {}
    for seed in (None, 1, 2, 3, 1):
        given = arrays(64 * 8)
        order = None if seed is None else Shuffled(seed)
        assert launched(body, given, grid=8, order=order).clean
        seen.setdefault(seed, []).append(given[3][0])
    assert seen[1][0] == seen[1][1]
    assert len({values[0] for values in seen.values()}) > 1


def test_what_is_not_emulated_is_named_with_its_place():
    outcome = launched("s_trap 2\n s_endpgm", arrays())
    assert outcome.not_emulated == "s_trap is not emulated, at 0x0 of the kernel"


def test_an_assembly_that_says_otherwise_is_refused():
    image, assembly = code_object(COPY)
    given = arrays(64)
    pointers = [array.ctypes.data.to_bytes(8, "little") for array in given]
    lie = assembly.replace("v_mov_b32_e32 v5, v2", "v_not_b32_e32 v5, v2")
    memory = [of_array(array, "x") for array in given]
    outcome = run(image, "probe", (1, 1, 1), (64, 1, 1), pointers, memory, assembly=lie)
    assert "is v_mov_b32 as decoded and v_not_b32 to the compiler" in outcome.not_emulated


def test_code_cannot_be_written_and_jumps_stay_inside():
    body = "s_getpc_b64 s[20:21]\n v_mov_b32_e32 v6, 0\n v_mov_b32_e32 v5, 0\n"
    body += " global_store_dword v6, v5, s[20:21]\n s_endpgm"
    assert "must not be written" in found(body, findings.OUT_OF_RANGE).message
    assert found("s_branch 0x700\n s_endpgm", findings.BAD_JUMP)
    second = "v_readfirstlane_b32 s22, v0\n s_cmp_lg_u32 s22, 0\n s_cbranch_scc1 .Lout\n s_endpgm\n.Lout:\n"
    jump = found(second + "s_mov_b64 s[20:21], 64\n s_setpc_b64 s[20:21]\n s_endpgm", findings.BAD_JUMP, block=128)
    assert (jump.instruction, jump.workgroup, jump.wave, jump.lane) == ("s_setpc_b64", (0, 0, 0), 1, None)


@pytest.mark.parametrize("seed", range(40))
def test_random_bytes_end_as_an_outcome(seed):
    image, _ = code_object(COPY)
    generator = np.random.default_rng(seed)
    hostile = bytearray(image)
    if seed % 2:  # random instructions
        at = image.index(code_bytes(image))
        size = len(code_bytes(image))
        hostile[at : at + size] = generator.bytes(size)
    else:  # random damage anywhere
        for place in generator.integers(0, len(hostile), 60):
            hostile[place] = generator.integers(0, 256)
    given = arrays(64)
    pointers = [array.ctypes.data.to_bytes(8, "little") for array in given]
    memory = [of_array(array, "x") for array in given]
    outcome = run(bytes(hostile), "probe", (1, 1, 1), (64, 1, 1), pointers, memory, limit=2000)
    assert outcome.clean or outcome.findings or outcome.not_emulated


def code_bytes(image: bytes) -> bytes:
    from harness.emulator.code_object import CodeObject

    return CodeObject(image).kernel("probe").code


@pytest.mark.parametrize("length", [0, 3, 64, 500, 2000])
def test_a_code_object_cut_short_is_malformed(length):
    image, _ = code_object(COPY)
    outcome = run(image[:length], "probe", (1, 1, 1), (64, 1, 1), [bytes(8)] * 4, [])
    assert outcome.not_emulated and not outcome.findings


def test_a_launch_that_the_kernel_was_not_compiled_for_is_refused():
    image, _ = code_object(COPY)
    outcome = run(image, "probe", (1, 1, 1), (64, 1, 1), [bytes(8)], [])
    assert outcome.not_emulated == "probe takes 4 arguments, not 1"
    outcome = run(image, "other", (1, 1, 1), (64, 1, 1), [], [])
    assert re.search("no kernel other", outcome.not_emulated)
    outcome = run(image, "probe", (1, 1, 1), (2048, 1, 1), [bytes(8)] * 4, [])
    assert outcome.refused and not outcome.clean


def test_a_grid_that_is_too_large_is_named():
    image, _ = code_object(COPY)
    outcome = run(image, "probe", (2**31 - 1, 65535, 65535), (64, 1, 1), [bytes(8)] * 4, [])
    assert outcome.refused.startswith("probe: the grid (2147483647, 65535, 65535) of blocks (64, 1, 1) is too")
    outcome = run(image, "probe", (1 << 20, 1 << 5, 1), (64, 1, 1), [bytes(8)] * 4, [])
    assert "(1048576, 32, 1) is too large: 33,554,432 blocks; the emulator runs 16,777,216" in outcome.not_emulated


def test_a_buffer_out_of_its_range_reads_zero_and_keeps_memory():
    body = BEGIN + """
    s_mov_b32 s12, s6
    s_and_b32 s13, s7, 0xffff
    s_mov_b32 s14, 64
    s_mov_b32 s15, 0x00027000
    buffer_load_dword v5, v1, s[12:15], 0 offen
    s_waitcnt vmcnt(0)
    buffer_store_dword v2, v1, s[12:15], 0 offen
""" + END  # fmt: skip
    given = arrays(64)
    before = given[1].copy()
    outcome = launched(body, given)
    assert outcome.clean, outcome
    np.testing.assert_array_equal(given[3], np.where(np.arange(64) < 16, before, 0))
    np.testing.assert_array_equal(given[1], np.where(np.arange(64) < 16, given[0], before))


@pytest.mark.parametrize(
    ("stride", "size", "taken", "least"),
    [
        (4, 4, 2, 2),  # neighbours: two halves of a wave, a bank a lane
        (0, 4, 2, 2),  # one dword for all
        (128, 4, 64, 2),  # a column of a matrix of 32 dwords a row: all in one bank
        (132, 4, 2, 2),  # the same padded by one
        (8, 4, 4, 2),
        (16, 16, 8, 8),
        (128, 16, 64, 8),
    ],
)
def test_bank_conflicts_follow_from_the_addresses(stride, size, taken, least):
    from harness.emulator.banks import passes

    assert passes(np.arange(64) * stride, size, np.ones((1, 64), np.bool_), 32) == (taken, least)
    two = np.concatenate([np.arange(64) * stride] * 2)
    assert passes(two, size, np.ones((2, 64), np.bool_), 32) == (2 * taken, 2 * least)


def test_the_passes_of_lds_are_counted_by_line():
    body = (
        BEGIN
        + "v_lshlrev_b32_e32 v6, {shift}, v0\n ds_write_b32 v6, v2\n ds_read_b32 v5, v6\n s_waitcnt lgkmcnt(0)"
        + END
    )
    for shift, taken in ((2, 4), (7, 128)):
        outcome = launched(body.format(shift=shift), arrays(64), lds=64 * 128, conflicts=True)
        assert outcome.clean and sum(one[0] for one in outcome.lds.values()) == taken
        assert sum(one[1] for one in outcome.lds.values()) == 4


@pytest.mark.parametrize(
    ("stride", "size", "taken", "least"),
    [
        (4, 4, 2, 2),  # neighbours: 256 bytes
        (0, 4, 1, 1),  # one dword for all
        (128, 4, 64, 2),  # a line a lane
        (16, 16, 8, 8),
        (20, 16, 10, 8),  # rows padded by 4 bytes
    ],
)
def test_cache_lines_follow_from_the_addresses(stride, size, taken, least):
    from harness.emulator.cache_lines import touched

    places, each = np.arange(64, dtype=np.uint64) * np.uint64(stride), np.ones((1, 64), np.bool_)
    assert touched(places, size, each, 128) == (taken, least)
    assert touched(places[:1] + np.uint64(2**47 - 2), 4, each[:, :1], 128) == (2, 1)  # across the end of a line
    assert touched(np.tile(places, 2), size, np.ones((2, 64), np.bool_), 128) == (2 * taken, 2 * least)
    assert touched(places[::2], size, np.tile([True, False], 32)[None], 128)[1] == -(-least // 2)


@pytest.mark.parametrize("moved", [0, 16])
def test_the_cache_lines_of_each_access_are_counted_wherever_the_tensor_lies(moved):
    lies = np.zeros(64 * 32 + 16, np.uint32)[moved:]
    load = "v_lshlrev_b32_e32 v6, {shift}, v0\n global_load_dword v5, v6, s[8:9]\n s_waitcnt vmcnt(0)"
    sums = []
    for between in (load.format(shift=2), load.format(shift=7), "v_mov_b32_e32 v5, v2"):
        given = arrays(64)
        outcome = launched(BEGIN + between + END, [*given[:2], lies, given[3]], conflicts=True)
        assert outcome.clean
        sums.append(sum(one[0] for one in outcome.cached.values()))
    assert (sums[0] - sums[2], sums[1] - sums[2]) == (2, 64)


def test_integers_saturate_with_the_clamp_bit():
    from tests.assembled import computed

    generator = np.random.default_rng(11)
    a, b, c = (generator.integers(0, 2**32, 1024, np.uint32) for _ in range(3))
    wide = a.astype(np.int64), b.astype(np.int64)
    np.testing.assert_array_equal(computed("v_add_u32_e64 v5, v2, v3 clamp", a, b), np.minimum(sum(wide), 2**32 - 1))
    np.testing.assert_array_equal(computed("v_sub_u32_e64 v5, v2, v3 clamp", a, b), np.maximum(wide[0] - wide[1], 0))
    signed = a.view(np.int32).astype(np.int64) + b.view(np.int32)
    np.testing.assert_array_equal(
        computed("v_add_i32 v5, v2, v3 clamp", a, b).view(np.int32), np.clip(signed, -(2**31), 2**31 - 1)
    )
    halves = (a & 0xFFFF).astype(np.int64) * (b & 0xFFFF) + (c & 0xFFFF)
    np.testing.assert_array_equal(
        computed("v_mad_u16 v5, v2, v3, v4 clamp", a, b, c) & 0xFFFF, np.minimum(halves, 0xFFFF)
    )
    packed = [np.minimum((a >> s & 0xFFFF) + (b >> s & 0xFFFF), 0xFFFF) for s in (0, 16)]
    np.testing.assert_array_equal(computed("v_pk_add_u16 v5, v2, v3 clamp", a, b), packed[0] | packed[1] << 16)
