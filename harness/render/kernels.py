"""The resources of each kernel of a submission, as compilers report them: a table for a terminal.

Rows with the same content are merged. Only those parameters of a configuration and types of arguments are shown that
differ among a kernel's rows. A case is shown whole, so that it can be given to --case.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from typing import Any

from harness.compile.compilation import Compilation, CompiledKernel, OccupancyDocument
from harness.render import document
from harness.render.document import Part, Table

DEFAULT_WIDTH = 100
KERNEL_WIDTHS = (20, 16)  # the preferred width and the least width
MATRIX_WIDTHS = (20, 15)
WAVES_WIDTH = 10
VALUES_SHOWN = 4
HEADERS = ("target", "kernel", "registers", "spills", "LDS KiB", "matrix", "waves")
KERNEL, SPILLS = HEADERS.index("kernel"), HEADERS.index("spills")
LEGEND = (
    "registers: per thread, on AMD VGPR/AGPR/SGPR; LDS: shared memory per block, of the maximum",
    "waves: resident on a SIMD (sm_90: warps on a multiprocessor), of the maximum, and their limit",
)
IN = "in "
"""Stands before the case that tells a row from others with the same configuration."""
IN_A_CASE = (
    "in: among rows with the same configuration, the first case that launches it, and how many more do;",
    "  Triton compiles a kernel again if a size is 1, or if 16 divides it in one case and not in another",
)


def table(compilations: Sequence[Compilation], width: int = DEFAULT_WIDTH) -> str:
    """Return the resources of each compiled kernel by target, or "" if there is none."""
    return document.text([part(compilations, width)])


def part(compilations: Sequence[Compilation], width: int) -> Part:
    """Return the same as a part of a document, at most `width` columns wide where words allow."""
    for matrix_width in MATRIX_WIDTHS:
        rows = _rows(compilations, matrix_width)
        # If no kernel spills or uses scratch, leave out that column.
        clean = all(row[SPILLS] in ("", "0") for row in rows)
        shown = [
            column
            for column in range(len(HEADERS))
            if any(row[column] for row in rows) and not (clean and column == SPILLS)
        ]
        others = [max(_width(HEADERS[i]), *(_width(row[i]) for row in rows)) for i in shown if i != KERNEL]
        room = width - sum(others) - 3 * len(shown) - 1
        if room >= KERNEL_WIDTHS[0]:
            break
    if not rows:
        return ""
    told_by_case = any(line.startswith(IN) for row in rows for line in row[KERNEL].splitlines())
    room, notes = max(room, KERNEL_WIDTHS[1]), dict[str, int]()
    for row in rows:
        lines = [_noted(line, room, notes) for line in row[KERNEL].splitlines()]
        row[KERNEL] = "\n".join(_wrapped(line, room) for line in lines)
    cells = [[row[i] for i in shown] for row in rows]
    note = (
        "no spills, no scratch"
        if clean
        else "!: spilled registers (sm_90: bytes), and below them bytes of scratch per thread; both cost time"
    )
    cases = [f"  [{number}] {case}" for case, number in notes.items()]
    below = [note, *LEGEND, *(IN_A_CASE if told_by_case else ()), *cases]
    return Table([HEADERS[i] for i in shown], cells, below=below)


def _rows(compilations: Sequence[Compilation], matrix_width: int) -> list[list[str]]:
    """Return a row for each kernel and each group of its configurations, with the columns of HEADERS."""
    rows: list[list[str]] = []
    for one in compilations:
        compiled = [kernel for kernel in one.kernels if kernel.fault is None]
        names = list(dict.fromkeys(kernel.kernel for kernel in compiled))
        first = len(rows)
        for name in names:
            every = [kernel for kernel in compiled if kernel.kernel == name]
            alike: dict[tuple[str, ...], list[CompiledKernel]] = {}
            for kernel in every:
                alike.setdefault((_registers([kernel], sgprs=False), *_needs(kernel, matrix_width)), []).append(kernel)
            for (_, *needs), kernels in alike.items():
                rows.append(["", "\n".join([name, *_apart(kernels, every)]), _registers(kernels), *needs])
        if len(rows) > first:
            rows[first][0] = one.target
    return rows


def _registers(kernels: Sequence[CompiledKernel], sgprs: bool = True) -> str:
    """Return the registers of kernels that differ at most in their SGPRs. These seldom limit anything and become a
    range."""
    one = kernels[0]
    if one.vgprs is None:
        return str(one.registers or "")
    counts = sorted({kernel.sgprs or 0 for kernel in kernels}) if sgprs else [0]
    return f"{one.vgprs}/{one.agprs or 0}/" + "-".join(map(str, dict.fromkeys([counts[0], counts[-1]])))


def _needs(kernel: CompiledKernel, matrix_width: int) -> list[str]:
    """Return the columns after the registers."""
    matrix = [_wrapped(f"{count} {_instruction(name)}", matrix_width) for name, count in _by_kind(kernel)]
    return [
        _spills(kernel),
        "" if kernel.lds_bytes is None else f"{_kib(kernel.lds_bytes)}/{_kib(kernel.lds_limit or 0)}",
        "\n".join(matrix),
        "" if kernel.occupancy is None else _waves(kernel.occupancy),
    ]


def _waves(occupancy: OccupancyDocument) -> str:
    share = f"{occupancy.waves_per_simd:g}/{occupancy.of:g}"
    full = occupancy.waves_per_simd >= occupancy.of
    return share if full else _wrapped(f"{share} {occupancy.limited_by}", WAVES_WIDTH)


def _apart(kernels: Sequence[CompiledKernel], every: Sequence[CompiledKernel]) -> list[str]:
    """Return the lines that tell `kernels`, which share a row, from `every` kernel of that name on the target:
    parameters, types, or else cases."""
    types = [line for line in [_types(kernels, every)] if line]
    if len(kernels) == len(every):
        variants = len({str(kernel.configuration) for kernel in kernels})
        return [f"all {variants} configurations"] * (variants > 1) + types
    keys = dict.fromkeys(key for kernel in every for key in kernel.configuration)
    differing = [key for key in keys if len({str(kernel.configuration.get(key)) for kernel in every}) > 1]
    lines = [" ".join(f"{key}={_values(kernels, key)}" for key in differing)] if differing else []
    lines += types
    names = _differing_types(every)
    mine = {_identity(kernel, names) for kernel in kernels}
    if any(_identity(kernel, names) in mine for kernel in every if kernel not in kernels):
        lines.append(_cases(kernels))
    return lines


def _identity(kernel: CompiledKernel, names: Sequence[str]) -> tuple[str, ...]:
    return (str(kernel.configuration), *(_type(kernel, name) for name in names))


def _types(kernels: Sequence[CompiledKernel], every: Sequence[CompiledKernel]) -> str:
    """Return the types of the arguments in which `every` differ. If each kernel has a single type for all of them,
    return only the type, such as `*fp32`, else `q=*bf16 scale=*fp32`."""
    names = _differing_types(every)
    rows = list(dict.fromkeys(tuple(_type(kernel, name) for name in names) for kernel in kernels))
    alike = all(len({_type(kernel, name) for name in names}) <= 1 for kernel in every)
    told = [row[0] if alike else " ".join(map("=".join, zip(names, row))) for row in rows] if names else []
    return _shortened(told)


def _differing_types(every: Sequence[CompiledKernel]) -> list[str]:
    names = dict.fromkeys(name for kernel in every for name in kernel.arguments)
    return [name for name in names if len({_type(kernel, name) for kernel in every}) > 1]


def _type(kernel: CompiledKernel, name: str) -> str:
    """Return an argument's type without the facts about its value, of a tuple the type of each member. A constant 1,
    which Triton compiles in, counts as an integer."""
    kind = re.sub(r", [^;()]*", "", kernel.arguments.get(name, ""))
    return re.sub(r"(?<![\w*.-])(1|[iu](8|16|32|64))(?![\w.])", "integer", kind)


def _cases(kernels: Sequence[CompiledKernel]) -> str:
    """Return the first case that launches `kernels`, and the number of other cases."""
    cases = list(dict.fromkeys(case for kernel in kernels for case in kernel.cases))
    if not cases:
        return "not launched"
    return f"{IN}{cases[0]}" + (f" and {len(cases) - 1} more" if len(cases) > 1 else "")


def _noted(line: str, room: int, notes: dict[str, int]) -> str:
    """Return a line of the kernel's column. The case in it, if it does not fit, stands once below the table, by its
    number in `notes`: in a narrow column a case of ten parameters would take ten lines of every row."""
    if not line.startswith(IN) or len(line) <= room:
        return line
    case, *more = line.removeprefix(IN).partition(" and ")
    return f"{IN}[{notes.setdefault(case, len(notes) + 1)}]" + "".join(more)


def _values(kernels: Sequence[CompiledKernel], key: str) -> str:
    return _shortened(list(dict.fromkeys(str(kernel.configuration.get(key, "")) for kernel in kernels)))


def _shortened(values: Sequence[str]) -> str:
    return ",".join(values[:VALUES_SHOWN]) + (",…" if len(values) > VALUES_SHOWN else "")


def _by_kind(kernel: CompiledKernel) -> list[tuple[str, int]]:
    return sorted(kernel.matrix_instructions.items(), key=lambda item: -item[1])


def _instruction(name: str) -> str:
    """Shorten the name of an instruction: `v_mfma_f32_32x32x8_bf16` becomes `mfma 32x32x8 bf16`, and
    `wgmma.mma_async...m64n64k16.f32.bf16.bf16` becomes `wgmma m64n64k16 bf16`. The accumulator, usually float32, is
    left out."""
    kind, *rest = re.split(r"[_.]", name.removeprefix("v_"))
    shape = next((number for number, part in enumerate(rest) if re.fullmatch(r"m?\d+[xn]\d+[xk]\d+.*", part)), 0)
    types = [part for part in rest[shape + 1 :] if part not in ("row", "col", "f32", "1k")]
    return " ".join([kind, *rest[shape : shape + 1], *dict.fromkeys(types)])


def _kib(count: int) -> str:
    return f"{count / 1024:.3g}"


def _spills(kernel: CompiledKernel) -> str:
    """Return the spills, and below them the bytes of scratch. Values other than 0 are marked."""
    if kernel.spills is None:
        return ""
    spills = f"{kernel.spills} !" if kernel.spills else "0"
    return spills + (f"\n{kernel.scratch_bytes} B !" if kernel.scratch_bytes else "")


def _wrapped(line: str, width: int) -> str:
    """Wrap `line` to at most `width`, after spaces, commas and underscores if possible."""
    lines = [""]
    for word in re.findall(r"[^ ,_]*[ ,_]|[^ ,_]+", line):
        for piece in textwrap.wrap(word, width, drop_whitespace=False):
            if len(lines[-1] + piece.rstrip()) > width:
                lines.append("")
            lines[-1] += piece
    return "\n".join(part.rstrip() for part in lines)


def _width(cell: Any) -> int:
    return max(map(len, str(cell).splitlines()), default=0)
