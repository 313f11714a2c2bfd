"""Secret seeds for the inputs of each call, and independent ones for the rows that are checked.

A phase is any text. Each user of seeds has its own: "test" and "pilot" (entrant), "process N" (trial), "pair N" (duel),
"null" (calibration), "profile" (profiled), "precompilation" (precompilation).
"""

from __future__ import annotations

import hashlib
import secrets

from harness.model import Case


class Seeds:
    """The seeds of one case's calls in one phase of a run: for inputs, and independent ones for the rows checked."""

    def __init__(self, master_seed: str, phase: str, case: Case) -> None:
        self._master_seed, self._label = master_seed, f"{phase}/{case.key}"

    def of_inputs(self, call: int) -> int:
        return derive_seed(self._master_seed, f"{self._label}/{call}")

    def of_rows(self, call: int) -> int:
        return derive_seed(self._master_seed, f"{self._label}/{call}/rows")

    def of_probe(self, of: str) -> int:
        return derive_seed(self._master_seed, f"{self._label}/probe/{of}")


class OneSeed(Seeds):
    """The first call has the inputs of one given seed, to look at a mismatch again. Seeds of later calls follow from
    it, so that an answer kept from the first call is found. The rows to check depend on the same seeds."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def of_inputs(self, call: int) -> int:
        return derive_seed("00", f"after {self._seed}/{call}") if call else self._seed

    def of_rows(self, call: int) -> int:
        return self.of_inputs(call)


def new_master_seed() -> str:
    """128 secret bits from the system, in hexadecimal. Stored with the run once it has its verdict."""
    return secrets.token_hex(16)


def derive_seed(master_seed: str, label: str) -> int:
    """A seed for torch.Generator, in [0, 2^63). It is a keyed hash, so no seed reveals another."""
    digest = hashlib.blake2b(label.encode(), key=bytes.fromhex(master_seed), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1
