"""Decodes every instruction of the bundled Triton files' kernels and checks it against the compiler's assembly.

    python -m bench.decoded [--target gfx942 ..] [FILE ..]

Each file is compiled for all cases and all configurations of its autotuners, as `check` does. Nothing is run. Prints,
by target: files, kernels, instructions, distinct mnemonics, and disagreements.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tabulate import tabulate

from bench.emulated import ROOT, TARGETS, bundled
from harness import catalog
from harness.compile import described
from harness.emulator.code_object import CodeObject
from harness.emulator.decoding import decode, hold
from harness.emulator.findings import Malformed, NotEmulated


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", help="of the bundled submissions (default: all with Triton kernels)")
    parser.add_argument("--target", action="append", choices=TARGETS)
    options = parser.parse_args()
    files = [Path(file).resolve() for file in options.files] or [p for p in bundled() if p.stem.startswith("triton_")]
    rows = []
    for target in options.target or TARGETS:
        with tempfile.TemporaryDirectory(prefix="podium-bench-") as folder:
            rows.append(held(target, files, Path(folder)))
            print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    print(tabulate(rows, headers="keys", tablefmt="simple_outline", intfmt=","))
    print(json.dumps({"bench": "decoded", "rows": rows}))


def held(target: str, files: list[Path], folder: Path) -> dict[str, Any]:
    kernels = instructions = with_kernels = 0
    names: set[str] = set()
    wrong: list[str] = []
    for file in files:
        emitted = folder / file.parent.name / file.stem
        emitted.mkdir(parents=True)
        problem = catalog.load_problem(ROOT, file.parent.name)
        described.on_targets(problem, [target], emitted)
        words = [
            "--target",
            target,
            "--inputs",
            str(emitted / target),
            "--file",
            str(file),
            "--emit",
            str(emitted / "made"),
        ]
        command = [sys.executable, "-m", "harness.compile.cross_compile", *words]
        subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        assemblies = sorted((emitted / "made").rglob("*.amdgcn"))
        with_kernels += bool(assemblies)
        for path in assemblies:
            assembly = path.read_text()
            try:
                image = CodeObject(assembled(assembly, target, folder))
                for name in image.kernels:
                    kernel = image.kernel(name)
                    found = decode(kernel)
                    hold(found, assembly, kernel)
                    kernels, instructions = kernels + 1, instructions + len(found)
                    names |= {one.spelt for one in found}
            except (Malformed, NotEmulated) as reason:
                wrong.append(f"{file.stem}/{path.stem}: {reason}")
    return {
        "target": target,
        "files": with_kernels,
        "kernels": kernels,
        "instructions": instructions,
        "mnemonics": len(names),
        "wrong": "; ".join(wrong) or "none",
    }


def assembled(assembly: str, target: str, folder: Path) -> bytes:
    """The code object, by Triton's assembler and linker, as Triton makes it."""
    from triton._C.libtriton import amd, llvm

    llvm.init_targets()
    part, whole = folder / "part.o", folder / "whole.hsaco"
    features = "-real-true16" if target == "gfx1100" else ""  # as Triton has it
    part.write_bytes(amd.assemble_amdgcn(assembly, target, features))
    amd.link_hsaco(str(part), str(whole))
    return whole.read_bytes()


if __name__ == "__main__":
    main()
