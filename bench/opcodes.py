"""Lists every opcode that the emulator has, and which tests and bundled kernels executed it.

    python -m bench.opcodes [--out FILE] [--kept FOLDER]

An opcode of tinygrad's tables counts as emulated if a step can be made for it with plain operands and a chip of the
table has it (`harness/emulator/chips.py`). gfx942 and gfx950 share a table. An opcode is covered by a source if waves
executed it there and its result was part of a comparison:

    families      random instructions against separate numpy statements (tests/test_emulator_families.py)
    instructions  single instructions and small programs in assembly, against numpy, torch or Python
    hip           kernels in inline HIP, against torch
    triton        Triton's machine code of kernels written for the tests, against torch
    bundled       the bundled submissions on their problems' CPU cases, which bench/emulated.py judges

A covered opcode may still be wrong in a form that was not executed (SDWA, DPP, literals, another size). Damaged code
objects and failures are left out. Each source is its own process; all together take about a quarter of an hour.

Prints, by table: opcodes, emulated, covered by each source, covered by none; then the latter by name. --out: everything
as JSON. --kept: a folder in which each process leaves its results; a process with results there is not run again.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import os
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tabulate import tabulate

from bench.emulated import ROOT, TARGETS, bundled, has_kernels
from harness.emulator import launch
from harness.emulator.chips import CHIPS
from harness.emulator.code_object import KernelCode
from harness.emulator.decoding import _formats, _placed, decode
from harness.emulator.findings import KernelFault, NotEmulated
from harness.emulator.program import DecodedProgram

TESTS = {
    "families": ["tests/test_emulator_families.py"],
    "instructions": [
        *(f"tests/test_emulator_{name}.py" for name in ("instructions", "places", "matrix", "sweeps", "scalars")),
        *(f"tests/test_emulator_{name}.py" for name in ("integers", "floats", "conversions", "lanes", "waves")),
    ],
    "hip": ["tests/test_emulator_hip.py", "tests/test_hip_mfma.py"],
}
ELSEWHERE = ("aiter_fp8", "cuda_", "gluon_")
"""Bundled files whose kernels are AMD's own or for NVIDIA only."""

NO_OPERATION = (0xBF800000).to_bytes(4, "little")
"""s_nop 0, on all three chips."""

Executed = dict[str, set[str]]
"""Mnemonics by table."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="where all of it goes as JSON")
    parser.add_argument("--kept", type=Path, help="a folder for what each process executed (default: a temporary one)")
    parser.add_argument("--record", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("words", nargs="*", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.record:
        recorded(options.record, *options.words)
        return
    with tempfile.TemporaryDirectory(prefix="podium-bench-") as folder:
        sources = executed(options.kept or Path(folder))
    rows, found = [], {}
    for table in sorted({chip.tables for chip in CHIPS.values()}):
        known = opcodes(table)
        emulated = {name for name, has in known.items() if has}
        covered = {source: emulated & by_table.get(table, set()) for source, by_table in sources.items()}
        none = emulated - set().union(*covered.values())
        shared = ", ".join(target for target, chip in CHIPS.items() if chip.tables == table)
        counts = {source: len(names) for source, names in covered.items()}
        rows.append({"chips": shared, "opcodes": len(known), "emulated": len(emulated), **counts, "none": len(none)})
        found[shared] = {
            name: [source for source in covered if name in covered[source]] if name in emulated else None
            for name in sorted(known)
        }
    print(tabulate(rows, headers="keys", tablefmt="simple_outline", intfmt=","))
    for chips, names in found.items():
        print(f"\n{chips}, emulated and executed by nothing:\n ", ", ".join(n for n, of in names.items() if of == []))
    if options.out:
        options.out.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps({"bench": "opcodes", "rows": rows}))


@functools.cache
def opcodes(table: str) -> dict[str, bool]:
    """Every mnemonic that a chip of a table has, and whether a step can be made for it."""
    found: dict[str, bool] = {}
    for target in (one for one, chip in CHIPS.items() if chip.tables == table):
        for name, emulated in of_target(target).items():
            found[name] = found.get(name, False) or emulated
    return found


@functools.cache
def of_target(target: str) -> dict[str, bool]:
    """`opcodes` for one chip."""
    table = CHIPS[target].tables
    found: dict[str, bool] = {}
    for code in encodings(table):
        wave_size = 32 if table == "rdna3" else 64
        kernel = KernelCode(
            "probe", target, 0, code + 4 * NO_OPERATION, wave_size, 0, 256, 64, 512, 2, frozenset(), (0, 0), 0, 0xF0,
            True, True, 256, (), 1024,
        )  # fmt: skip
        try:
            one = decode(kernel)[0]
        except NotEmulated:
            continue  # not of this chip, or an encoding that the tables' own decoder refuses
        names = [one.mnemonic, *filter(None, [one.mnemonic_y])]
        emulated = made(kernel)
        for name in names:
            found[name] = found.get(name, False) or emulated
    return found


def mnemonics_of(table: str) -> set[str]:
    """Every mnemonic of a table, whichever chips have it."""
    found: set[str] = set()
    for code in encodings(table):
        try:
            one = _placed(code + 4 * NO_OPERATION, 0, table, None)
        except Exception:  # as in `decode`
            continue
        found |= {one.mnemonic, *filter(None, [one.mnemonic_y])}
    return found


def made(kernel: KernelCode) -> bool:
    """True if the emulator can execute the kernel's first instruction."""
    try:
        program = DecodedProgram(kernel, 0)
        one = program.instructions[0]
        if program.steers(0):
            return one.mnemonic != "s_endpgm_saved"
        program.step(0)
    except (NotEmulated, KernelFault):
        return False
    return True


def encodings(table: str) -> Iterator[bytes]:
    """Each opcode in each encoding, with operands from v0 and again from s0. No literals, and no modifiers set."""
    plain = {"cdna": {"saddr": 0x7F}, "rdna3": {"saddr": 0x7C, "soffset": 0x7C}}[table]
    plain |= {"imm": 1, "row_mask": 15, "bank_mask": 15, "src0_sel": 6, "src1_sel": 6, "dst_sel": 6, "sve": 1}
    for layout, source in itertools.product((layout for _, _, layout in _formats(table)), (256, 0)):
        fields = dict(layout._fields)
        word, halves = 0, [name for name in ("op", "opx", "opy") if name in fields]
        for name, bits in fields.items():
            if hasattr(bits, "default") and type(bits).__name__ == "FixedBitField":
                word |= int(bits.default) << bits.lo
            elif type(bits).__name__ == "SrcField":
                word |= source << bits.lo
            elif name in plain:
                word |= (plain[name] & (1 << bits.hi - bits.lo + 1) - 1) << bits.lo
        known = {name: sorted(op.value for op in fields[name].allowed or fields[name]._enum) for name in halves}
        first = {name: values[0] << fields[name].lo for name, values in known.items()}
        for name, values in known.items():
            for op in values:
                chosen = {**first, name: op << fields[name].lo}
                yield (word | sum(chosen.values())).to_bytes(layout._base_size, "little")


def executed(kept: Path) -> dict[str, Executed]:
    """The mnemonics that each source executes."""
    from tests.emulated_triton import (
        FAULTS,
        KERNELS,
    )  # imported only here: a process that records must not import Triton first

    kept.mkdir(exist_ok=True)
    sources: dict[str, Executed] = {}
    jobs = [
        (name, name, ["pytest", "-q", "-p", "no:cacheprovider", "-k", "not damaged", *f], {})
        for name, f in TESTS.items()
    ]
    names = [*KERNELS, *(f"{name}, clean" for name in FAULTS)]
    jobs += [("triton", target, ["tests.emulated_triton", target, *names], {}) for target in TARGETS]
    jobs += [("triton", f"direct-{one}", ["tests.emulated_direct", one], {}) for one in ("gfx942", "gfx950")]
    for file in bundled():
        if has_kernels(file) and not file.stem.startswith(ELSEWHERE):
            for target in TARGETS:
                environment = {"PODIUM_EMULATE": target, "PODIUM_EMULATE_TRITON": "1"}
                name = f"bundled-{file.parent.name}-{file.stem}-{target}"
                jobs.append(("bundled", name, ["bench.opcodes:called", target, str(file)], environment))
    for source, name, words, environment in jobs:
        out = kept / f"{name}.json"
        if not out.exists():
            command = [sys.executable, "-m", "bench.opcodes", "--record", str(out), "--", *words]
            done = subprocess.run(command, cwd=ROOT, env=os.environ | environment, capture_output=True, text=True)
            said = (done.stdout if source in TESTS else done.stderr).strip().splitlines()[-1:]
            print(f"{name}: {done.returncode} {said}"[:200], file=sys.stderr, flush=True)
            if done.returncode:
                out.write_text("{}")
        for table, mnemonics in json.loads(out.read_text()).items():
            sources.setdefault(source, {}).setdefault(table, set()).update(mnemonics)
    return sources


def recorded(out: Path, module: str, *words: str) -> None:
    """Run a module, or `called`, in this process, and write the mnemonics that waves executed, by table."""
    names: Executed = {}
    tally = launch.tally

    def noted(program: DecodedProgram, counts: Any) -> Any:
        mine = names.setdefault(CHIPS[program.kernel.target].tables, set())
        for one, count in zip(program.instructions, counts):
            if count:
                mine.update(filter(None, (one.mnemonic, one.mnemonic_y)))
        return tally(program, counts)

    launch.tally = noted
    try:
        if module == "bench.opcodes:called":
            called(*words)
        else:
            sys.argv = [module, *words]
            runpy.run_module(module, run_name="__main__", alter_sys=True)
    finally:
        out.write_text(json.dumps({table: sorted(found) for table, found in names.items()}))


def called(target: str, file: str) -> None:
    """Run a bundled submission on each CPU test case of its problem, every launch once."""
    from harness import catalog
    from harness.emulated.launches import of_process
    from harness.judge.reference import open_reference
    from harness.machine.device import detect
    from harness.worker import load

    of_process(target).again = False
    problem = catalog.load_problem(ROOT, Path(file).parent.name)
    reference = open_reference(problem, detect(ROOT, "cpu"))
    submission = load.load(Path(file), interpreted=True)
    for number, case in enumerate(problem.cpu.test):
        with submission.around_call():
            submission.kernel(reference.generate(case, number))


if __name__ == "__main__":
    main()
