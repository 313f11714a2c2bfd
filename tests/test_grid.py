"""Grids that a device refuses are found before there is a device."""

import pytest

from harness.compile.grid import refusal


@pytest.mark.parametrize(
    ("grid", "threads", "vendor", "said"),
    [
        ((2**31 - 1, 65535, 65535), 1, "amd", ""),
        ((1, 65536, 1), 64, "nvidia", "a grid of (1, 65536, 1) is larger than"),
        ((2**31 - 1, 1, 1), 1024, "nvidia", ""),
        ((2**24 - 1, 1, 1), 256, "amd", ""),
        ((2**24, 1, 1), 256, "amd", "16,777,216 blocks of 256 threads are more than the 4,294,967,295 threads"),
        ((2**24, 4, 1), 64, "amd", ""),
    ],
)
def test_a_grid_is_held_against_the_limits_of_the_chip_s_vendor(grid, threads, vendor, said):
    assert refusal(grid, threads, vendor).startswith(said) and bool(refusal(grid, threads, vendor)) == bool(said)
