"""Feeds random and mutated inputs to the two surfaces that read untrusted bytes (tests/untrusted.py), a million each.

    python bench/fuzz.py [--inputs 1000000] [--surface protocol|results] [--seed N]

Prints the outcomes and the time for each surface, and one line of JSON. An input that breaks a surface is written to
the current directory, with its traceback on stderr. The exit status is then 1.
"""

from __future__ import annotations

import argparse
import json
import random
import secrets
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from untrusted import ProtocolSurface, ResultsSurface  # noqa: E402

BATCH = 200
"""So many runs that load are put on one board: making a board of each would take most of the time."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=1_000_000)
    parser.add_argument("--surface", choices=("protocol", "results"))
    parser.add_argument("--seed", type=int, default=secrets.randbits(32))
    options = parser.parse_args()
    torch.set_num_threads(1)
    memory = Path("/dev/shm")  # a million files are written
    with tempfile.TemporaryDirectory(prefix="podium-fuzz-", dir=memory if memory.is_dir() else None) as folder:
        surfaces = [ProtocolSurface(), ResultsSurface(Path(folder), BATCH)]
        chosen = [surface for surface in surfaces if options.surface in (None, surface.name)]
        results = [_fuzz(surface, options.inputs, options.seed) for surface in chosen]
    print(json.dumps({"seed": options.seed, "surfaces": results}))
    return 1 if any(result["broken"] for result in results) else 0


def _fuzz(surface: ProtocolSurface | ResultsSurface, inputs: int, seed: int) -> dict[str, object]:
    rng = random.Random(seed)
    outcomes: Counter[str] = Counter()
    broken = 0
    started = time.monotonic()
    for number in range(inputs):
        tried = surface.make(rng)
        try:
            outcomes[surface.take(tried)] += 1
        except Exception:
            broken += 1
            name = Path(f"fuzz-{surface.name}-{seed}-{number}")
            name.write_bytes(tried if isinstance(tried, bytes) else b"".join(tried))
            print(f"{name}:\n{traceback.format_exc()}", file=sys.stderr)
    elapsed_s = time.monotonic() - started
    print(f"{surface.name}: {inputs:,} inputs in {elapsed_s:,.0f} s, {broken} broke it")
    for outcome, count in outcomes.most_common():
        print(f"  {count:>9,}  {outcome}")
    return {"surface": surface.name, "inputs": inputs, "s": round(elapsed_s, 1), "broken": broken, **outcomes}


if __name__ == "__main__":
    sys.exit(main())
