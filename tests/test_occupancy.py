"""Occupancy by hand: what fits on a multiprocessor, and what it is that keeps more out."""

import pytest

from harness.chips.targets import TARGETS, occupancy


def waves(target, **resources):
    found = occupancy(target, **{"lds_bytes": 0, "threads": 256, **resources})
    return found.waves_per_simd, found.limited_by


@pytest.mark.parametrize(
    ("registers", "expected"),
    [
        (64, (8, "waves")),  # 512 / 64
        (65, (7, "VGPRs")),  # by the 8: 512 / 72 = 7.1
        (128, (4, "VGPRs")),
        (129, (3, "VGPRs")),  # 512 / 136 = 3.8
        (168, (3, "VGPRs")),
        (256, (2, "VGPRs")),
        (282, (1, "VGPRs")),  # 256 architectural ones and 26 for accumulation
        (512, (1, "VGPRs")),
    ],
)
def test_cdna_shares_512_registers_a_lane_by_the_8(registers, expected):
    assert all(waves(target, registers=registers) == expected for target in ("gfx90a", "gfx942", "gfx950"))


@pytest.mark.parametrize(
    ("registers", "expected"),
    [(24, (10, "waves")), (25, (9, "VGPRs")), (52, (4, "VGPRs")), (88, (2, "VGPRs")), (256, (1, "VGPRs"))],
)
def test_the_first_cdna_has_256_registers_a_lane_by_the_4(registers, expected):
    assert waves("gfx908", registers=registers) == expected  # 25 -> 28: 256 / 28 = 9.1


@pytest.mark.parametrize(
    ("registers", "expected"),
    [(96, (16, "waves")), (97, (12, "VGPRs")), (120, (12, "VGPRs")), (192, (8, "VGPRs")), (256, (5, "VGPRs"))],
)
def test_rdna_shares_1536_registers_a_lane_by_the_24(registers, expected):
    assert waves("gfx1100", registers=registers, threads=128) == expected  # 97 -> 120, 256 -> 264: 1536 / 264 = 5.8


def test_a_block_is_resident_whole():
    # 256 registers leave room for 20 waves on four SIMDs: two blocks of eight, and four waves' room to spare.
    assert waves("gfx1100", registers=256, threads=256) == (4, "VGPRs")


def test_scalar_registers_count_on_cdna_alone():
    assert waves("gfx942", registers=32, sgprs=106) == (7, "SGPRs")  # 800 / 112 = 7.1
    assert waves("gfx942", registers=32, sgprs=96) == (8, "waves")
    assert waves("gfx1100", registers=32, sgprs=106) == (16, "waves")


def test_shared_memory_holds_whole_blocks():
    # 36864 bytes for a block of four waves: one fits into 64 KiB, four into 160 KiB, three into the 128 KiB of a WGP.
    assert waves("gfx942", registers=64, lds_bytes=36864) == (1, "LDS")
    assert waves("gfx950", registers=64, lds_bytes=36864) == (4, "LDS")
    assert waves("gfx1100", registers=64, lds_bytes=36864, threads=128) == (3, "LDS")


def test_gfx950_rounds_shared_memory_up_to_1280_bytes():
    # 160 KiB are 128 times 1280 bytes: 32 blocks of 5120, but 25 of 5121, which take 6400.
    assert waves("gfx950", registers=32, lds_bytes=5120, threads=64) == (8, "waves")
    assert waves("gfx950", registers=32, lds_bytes=5121, threads=64) == (25 / 4, "LDS")


def test_a_block_smaller_than_the_simds_leaves_a_fraction():
    assert waves("gfx942", registers=32, lds_bytes=40000, threads=64) == (0.25, "LDS")


@pytest.mark.parametrize(
    ("registers", "threads", "expected"),
    [
        (32, 128, (64, "waves")),
        (33, 128, (48, "registers")),  # 65536 / (40 * 32) = 51.2 warps, in fours
        (186, 128, (8, "registers")),  # 65536 / (192 * 32) = 10.7
        (255, 256, (8, "registers")),
        (32, 32, (32, "blocks")),  # of one warp
        (64, 1024, (32, "registers")),
    ],
)
def test_hopper_s_warps_are_counted_an_sm(registers, threads, expected):
    assert waves("sm_90", registers=registers, threads=threads) == expected


def test_hopper_keeps_a_kibibyte_of_every_block():
    # 228 KiB are three blocks of 75 + 1.
    assert waves("sm_90", registers=32, lds_bytes=75 << 10, threads=128) == (12, "shared memory")
    assert waves("sm_90", registers=32, lds_bytes=(75 << 10) + 1, threads=128) == (8, "shared memory")
    assert waves("sm_90", registers=32, lds_bytes=227 << 10, threads=128) == (4, "shared memory")


@pytest.mark.parametrize("target", TARGETS)
def test_nothing_but_the_chip_limits_a_small_kernel(target):
    found = occupancy(target, registers=16, lds_bytes=0, threads=256)
    assert (found.waves_per_simd, found.limited_by) == (found.of, "waves")


@pytest.mark.parametrize("target", TARGETS)
def test_more_than_a_block_may_have_does_not_fit(target):
    chip = TARGETS[target]
    assert occupancy(target, registers=16, lds_bytes=chip.lds_bytes, threads=256).waves_per_simd > 0
    assert chip.lds_bytes <= chip.lds_per_multiprocessor - chip.lds_reserved
