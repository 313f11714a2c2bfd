"""Cache lines of global memory that a wave's access touches, by the addresses that its lanes have.

    touched(addresses, size, chosen, 128) ─► how many lines, and how few would do for as many bytes

gfx942's L2 has lines of 128 bytes (AMD, "CDNA 3 Architecture" white paper, 2023). Other chips are not counted. Lanes
that want one line share it. Whether it is in a cache already, and how long it takes, no count can tell.
"""

from __future__ import annotations

import numpy as np

from harness.emulator.arithmetic import U64, Array

LINE_BYTES = {"gfx942": 128}


def touched(addresses: Array, size: int, chosen: Array, line_bytes: int) -> tuple[int, int]:
    """addresses: uint64 [active lanes], in the order of chosen, bool [wave, lane]. size: bytes of a lane, of a line at
    most.

    Returns the lines that each wave touches, summed over waves, and the sum if what its lanes want lay side by side.
    """
    wave, _ = np.nonzero(chosen)
    ends = np.concatenate([addresses, addresses + U64(size - 1)]) // U64(line_bytes)
    lines = np.unique(np.stack([np.tile(wave, 2).astype(U64), ends], axis=1), axis=0)
    wanted = np.unique(np.stack([wave.astype(U64), addresses], axis=1), axis=0)
    counts = np.unique(wanted[:, 0], return_counts=True)[1]
    return len(lines), int((-(-counts * size // line_bytes)).sum())
