"""Cache lines of global memory that a wave's access touches, by its lanes' addresses.

    touched(addresses, size, chosen, 128) ─► the number of lines, and the fewest lines for as many bytes

gfx942's L2 has lines of 128 bytes (AMD, "CDNA 3 Architecture" white paper, 2023). Other chips are not counted. Lanes
that access the same line share it. The count does not show whether a line is cached already, or how long it takes.
"""

from __future__ import annotations

import numpy as np

from harness.emulator.arithmetic import U64, Array

LINE_BYTES = {"gfx942": 128}


def touched(addresses: Array, size: int, chosen: Array, line_bytes: int) -> tuple[int, int]:
    """addresses: uint64 [active lanes], in the order of chosen, bool [wave, lane]. size: bytes per lane, at most those
    of a line.

    Returns the number of lines that each wave touches, summed over waves, and the number if each wave's bytes were
    contiguous.
    """
    wave, _ = np.nonzero(chosen)
    ends = np.concatenate([addresses, addresses + U64(size - 1)]) // U64(line_bytes)
    lines = np.unique(np.stack([np.tile(wave, 2).astype(U64), ends], axis=1), axis=0)
    wanted = np.unique(np.stack([wave.astype(U64), addresses], axis=1), axis=0)
    counts = np.unique(wanted[:, 0], return_counts=True)[1]
    return len(lines), int((-(-counts * size // line_bytes)).sum())
