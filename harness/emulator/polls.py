"""Finds the loads of a kernel that poll: loads that repeat until their value lets the wave continue.

    polls(instructions, goals) ─► positions of such loads, and of loads that a compare-and-swap checks

Compiled code does not mark a load as atomic: it is `ds_read_b32`, as for any data. But compilers never leave an
ordinary load from a fixed address inside a loop without stores. So a load counts as polling if it is in a loop that
changes no memory and meets no barrier, its address is the same in each round, and a branch of the loop depends on its
value. LLVM puts a copy of the first round before such a loop: an identical load that decides whether the loop is
entered.

A loop around a compare-and-swap also begins with a load of LDS. Its value is the first guess, which the
compare-and-swap checks. Sources use such loops for operations that no atomic offers (a maximum of floats), and LLVM for
atomics that a chip lacks.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from harness.emulator.decoding import Instruction
from harness.emulator.state import EXEC, VCC

SCC = -1
BEFORE_THE_LOOP = 16
"""The copy of the first round begins at most this many instructions before the loop."""

FIRST_GUESS = 64
"""The load of a first guess is at most this many instructions before the compare-and-swap."""

_LOAD = re.compile(r"^(ds_(read|load)|flat_load|global_load|buffer_load)_(?!.*lds)")
_WIDE = ((("mfma", "wmma"), 32), (("96", "128", "x3", "x4", "read2", "2addr"), 4), (("64", "x2"), 2))
_FIRST_LOADS = ("ds_read_b32", "ds_read_b64", "ds_load_b32", "ds_load_b64")
_MEMORY = ("DS", "FLAT", "GLOBAL", "SCRATCH", "MUBUF", "VFLAT", "VGLOBAL", "VSCRATCH")
_CACHES = ("buffer_inv", "buffer_wbl2", "buffer_gl0_inv", "buffer_gl1_inv")
_SOURCES = ("src0", "src1", "src2", "vsrc0", "vsrc1", "ssrc0", "ssrc1", "srcx0", "srcy0", "vsrcx1", "vsrcy1")
_ADDRESS = ("addr", "vaddr", "saddr", "srsrc", "soffset")
_OFF = (124, 127)
"""The register numbers of RDNA3 and CDNA that mean no scalar register in an address."""

_RESULTS = ("vdst", "sdst", "vdstx", "vdsty")


def polls(instructions: Sequence[Instruction], goals: Mapping[int, int]) -> frozenset[int]:
    """The positions of polling loads. goals: the position that each branch goes to, by the branch's position."""
    found: set[int] = set()
    for end, start in goals.items():
        if start > end:
            continue
        body = range(start, end + 1)
        if any(_changes(instructions[at]) for at in body):
            continue
        for at in body:
            if _loads(instructions[at]) and _fixed(instructions, at, body) and _decides(instructions, at, body, body):
                found.add(at)
                first = _first_round(instructions, instructions[at], start)
                if first is not None:
                    found.add(first)
    return frozenset(found | _guesses(instructions, goals))


def _guesses(instructions: Sequence[Instruction], goals: Mapping[int, int]) -> set[int]:
    """Loads before a loop whose value the loop's compare-and-swap on LDS, at the same place, compares with."""
    found: set[int] = set()
    for end, start in goals.items():
        for at in range(start, end + 1):
            one = instructions[at]
            if not one.mnemonic.startswith(("ds_cmpst_rtn_b", "ds_cmpstore_rtn_b")):
                continue
            guess = one.fields["data0" if one.mnemonic.startswith("ds_cmpst_") else "data1"]
            held = {guess, guess + 1} if one.mnemonic.endswith("64") else {guess}
            for before in range(at - 1, max(at - FIRST_GUESS, 0) - 1, -1):
                load = instructions[before]
                alike = all(load.fields.get(n) == one.fields.get(n) for n in ("addr", "offset0", "offset1"))
                if load.mnemonic in _FIRST_LOADS and alike and load.fields["vdst"] == guess and before < start:
                    found.add(before)
                if _overwritten(load) & (held | {one.fields["addr"]}) or load.mnemonic in ("s_barrier", "s_endpgm"):
                    break
    return found


def _overwritten(one: Instruction) -> set[int]:
    """The registers that an instruction writes. Unlike `_written`, without the next register for 32-bit results."""
    count = next((number for words, number in _WIDE if any(word in one.mnemonic for word in words)), 1)
    written = {one.fields[name] for name in _RESULTS if name in one.fields}
    return {register + more for register in written for more in range(count)}


def _first_round(instructions: Sequence[Instruction], load: Instruction, start: int) -> int | None:
    """The position of the copy of `load` before the loop at `start`, or None."""
    for at in range(start - 1, max(start - BEFORE_THE_LOOP, 0) - 1, -1):
        one = instructions[at]
        if _changes(one):
            return None
        places = ("offset", "offset0", "offset1")
        alike = one.mnemonic == load.mnemonic and all(one.fields.get(n) == load.fields.get(n) for n in places)
        if alike and _decides(instructions, at, range(at, start), ()):
            return at
    return None


def _loads(one: Instruction) -> bool:
    return bool(_LOAD.match(one.mnemonic)) and not one.fields.get("lds")


def _changes(one: Instruction) -> bool:
    """True if the instruction changes memory, meets a barrier or ends the wave."""
    if one.mnemonic in ("s_barrier", "s_endpgm"):
        return True
    return one.encoding.startswith(_MEMORY) and not _loads(one) and one.mnemonic not in _CACHES


def _fixed(instructions: Sequence[Instruction], load: int, body: Iterable[int]) -> bool:
    """True if the load's address is the same in each round: nothing in the loop changes it."""
    one = instructions[load]
    names = ("addr",) if one.mnemonic.startswith("flat_") else _ADDRESS
    first = [one.fields[name] for name in names if name in one.fields and one.fields[name] not in _OFF]
    address = {register + more for register in first for more in (0, 1)}
    written = set().union(*(_written(instructions[at]) for at in body))
    return not any(
        _written(instructions[at]) & address and _read(instructions[at]) & written for at in body if at != load
    )


def _decides(instructions: Sequence[Instruction], load: int, body: Iterable[int], again: Iterable[int]) -> bool:
    """True if a branch or a lane mask depends on the load's value. again: the second round."""
    held = {instructions[load].fields["vdst" if "vdst" in instructions[load].fields else "vdata"]}
    for at in (*body, *again):
        one = instructions[at]
        if _condition(one) & held:
            return True
        if _read(one) & held:
            held |= _written(one)
    return False


def _condition(one: Instruction) -> set[int]:
    """The register that a conditional branch tests. EXEC counts too: changed lane masks decide as well."""
    for words, register in (("vcc", VCC), ("exec", EXEC), ("scc", SCC)):
        if one.mnemonic.startswith(f"s_cbranch_{words}"):
            return {register}
    return set()


def _read(one: Instruction) -> set[int]:
    found = {one.fields[name] for name in _SOURCES if name in one.fields}
    if "cndmask" in one.mnemonic:
        found.add(VCC)
    if one.mnemonic.startswith("s_cselect"):
        found.add(SCC)
    return found


def _written(one: Instruction) -> set[int]:
    first = {one.fields[name] for name in _RESULTS if name in one.fields}
    if one.encoding.startswith("VOPC"):
        first = {VCC}
    if one.mnemonic.startswith("v_cmpx") or "saveexec" in one.mnemonic:
        first.add(EXEC)
    sets_scc = one.encoding.startswith("SOP") and not one.encoding.startswith("SOPP")
    return first | {register + 1 for register in first} | ({SCC} if sets_scc else set())
