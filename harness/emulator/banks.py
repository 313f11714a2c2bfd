"""Bank conflicts of LDS, by the addresses of an access's lanes.

    passes(bytes, size, wave_size) ─► passes over the banks, and the passes that it would take without a conflict

gfx942's LDS has 32 banks of 4 bytes. Dword n is in bank n mod 32, and a bank gives one dword at a time (AMD, "Avoiding
LDS Bank Conflicts on AMD GPUs Using CK-Tile Framework", rocm.blogs.amd.com, 2025-07-25). Lanes that access the same
dword share it. Other chips are not counted.

A wave's access is done in groups of lanes that together need at most the banks' width: as many lanes as banks at 4
bytes a lane, half at 8, a quarter at 16. Neighbouring lanes are grouped here. Hardware groups the lanes of wide
accesses in another order, so counts at 8 and 16 bytes a lane are estimates. Counts at up to 4 bytes are exact.
"""

from __future__ import annotations

import numpy as np

from harness.emulator.arithmetic import Array

BANKS = {"gfx942": 32}


def passes(offsets: Array, size: int, chosen: Array, banks: int) -> tuple[int, int]:
    """offsets: int64 [active lanes], bytes in LDS, in the order of chosen, bool [wave, lane]. size: bytes per lane.

    Returns the number of passes of the access, summed over waves and groups of lanes, and the number without any
    conflict.
    """
    words = max(1, size // 4)
    together = max(1, banks // words)
    wave, lane = np.nonzero(chosen)
    group = wave * (chosen.shape[1] // min(together, chosen.shape[1]) + 1) + lane // together
    dwords = (offsets // 4)[:, None] + np.arange(words)
    keys = np.stack([np.repeat(group, words), dwords.reshape(-1)], axis=1)
    distinct = np.unique(keys, axis=0)  # lanes that access the same dword share it
    slot = distinct[:, 0] * banks + distinct[:, 1] % banks
    slots, counts = np.unique(slot, return_counts=True)
    groups, first = np.unique(slots // banks, return_index=True)
    return int(np.maximum.reduceat(counts, first).sum()), int(groups.size)
