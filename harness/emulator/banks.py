"""Bank conflicts of LDS, by the addresses that the lanes of an access have.

    passes(bytes, size, wave_size) ─► how often the banks are asked, and how often they would be without a conflict

gfx942's LDS has 32 banks of 4 bytes: dword n is in bank n mod 32, and a bank gives one dword at a time (AMD,
"Avoiding LDS Bank Conflicts on AMD GPUs Using CK-Tile Framework", rocm.blogs.amd.com, 2025-07-25). Lanes that want one
dword share it. Other chips are not counted. A wave's access is done in groups of lanes that together want at most the
banks' width: of 4 bytes a lane as many lanes as banks, of 8 half of them, of 16 a quarter. Hardware groups lanes of
wide accesses in another sequence than here, where neighbours are grouped: counts of 8 and 16 bytes a lane are an
estimate, those of up to 4 are not.
"""

from __future__ import annotations

import numpy as np

from harness.emulator.arithmetic import Array

BANKS = {"gfx942": 32}


def passes(offsets: Array, size: int, chosen: Array, banks: int) -> tuple[int, int]:
    """offsets: int64 [active lanes], bytes in LDS, in the order of chosen, bool [wave, lane]. size: bytes of a lane.

    Returns the passes that the access takes, summed over waves and groups of lanes, and those without any conflict.
    """
    words = max(1, size // 4)
    together = max(1, banks // words)
    wave, lane = np.nonzero(chosen)
    group = wave * (chosen.shape[1] // min(together, chosen.shape[1]) + 1) + lane // together
    dwords = (offsets // 4)[:, None] + np.arange(words)
    keys = np.stack([np.repeat(group, words), dwords.reshape(-1)], axis=1)
    distinct = np.unique(keys, axis=0)  # lanes that want one dword share it
    slot = distinct[:, 0] * banks + distinct[:, 1] % banks
    slots, counts = np.unique(slot, return_counts=True)
    groups, first = np.unique(slots // banks, return_index=True)
    return int(np.maximum.reduceat(counts, first).sum()), int(groups.size)
