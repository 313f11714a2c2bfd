"""What an emulated submission executes, as tables: by kernel and class, and by source line."""

from __future__ import annotations

from harness.profiling.counting import Counts
from harness.render.document import Part, Table

CLASSES = ("matrix", "vector", "scalar", "LDS", "global")
LINES_SHOWN = 12


def parts(found: Counts) -> list[Part]:
    """As `profile` shows it."""
    title = f"{found.submission} on {found.problem}: {found.case.label}\n"
    title += f"one call, emulated {found.target}: counts, no times"
    if not found.kernels:
        return [title, "It launched no kernel of its own."]
    rows = [
        [
            one.kernel,
            f"{one.launches:,}",
            *(f"{one.instructions.get(name, 0):,}" for name in CLASSES),
            _conflicts(one.lds),
        ]
        for one in found.kernels
    ]
    shown: list[Part] = [title, Table(["kernel", "launches", *CLASSES, "LDS passes"], rows, [])]
    for one in found.kernels:
        total, cells = sum(one.instructions.values()), []
        for line, count in sorted(one.lines.items(), key=lambda item: -item[1])[:LINES_SHOWN]:
            passes = _conflicts({line: one.lds[line]} if line in one.lds else {})
            cells.append([line, f"{count:,}", f"{100 * count / total:.1f}", passes])
        shown.append(Table([f"line of {one.kernel}", "instructions", "%", "LDS passes"], cells, []))
    return [
        *shown,
        "LDS passes: how often the banks are asked, by addresses, and in brackets how often without conflicts.",
    ]


def _conflicts(lds: dict[str, tuple[int, int]]) -> str:
    taken, least = (sum(one[place] for one in lds.values()) for place in (0, 1))
    return f"{taken:,} ({least:,})" if least else ""
