"""The instructions that an emulated submission executes, as tables: by kernel and class, and by source line."""

from __future__ import annotations

from harness.profiling.counting import Counts
from harness.render.document import Part, Table

CLASSES = ("matrix", "vector", "scalar", "LDS", "global")
ACCESSES = ("LDS passes", "cache lines")
LINES_SHOWN = 12


def parts(found: Counts) -> list[Part]:
    """Return the parts that `profile` shows."""
    title = f"{found.submission} on {found.problem}: {found.case.label}\n"
    title += f"one call, emulated {found.target}: counts, no times"
    if not found.kernels:
        return [title, "It launched no kernel of its own."]
    rows = [
        [
            one.kernel,
            f"{one.launches:,}",
            *(f"{one.instructions.get(name, 0):,}" for name in CLASSES),
            _beside(one.lds),
            _beside(one.cached),
        ]
        for one in found.kernels
    ]
    shown: list[Part] = [title, Table(["kernel", "launches", *CLASSES, *ACCESSES], rows, [])]
    for one in found.kernels:
        total, cells = sum(one.instructions.values()), []
        for line, count in sorted(one.lines.items(), key=lambda item: -item[1])[:LINES_SHOWN]:
            of_line = (_beside({line: sums[line]} if line in sums else {}) for sums in (one.lds, one.cached))
            cells.append([line, f"{count:,}", f"{100 * count / total:.1f}", *of_line])
        shown.append(Table([f"line of {one.kernel}", "instructions", "%", *ACCESSES], cells, []))
    return [
        *shown,
        "LDS passes: how often the banks are asked, by addresses, and in brackets how often without conflicts.",
        "Cache lines: of 128 bytes, that a wave's accesses to global memory touch, and in brackets how few would do.",
    ]


def _beside(sums: dict[str, tuple[int, int]]) -> str:
    taken, least = (sum(one[place] for one in sums.values()) for place in (0, 1))
    return f"{taken:,} ({least:,})" if least else ""
