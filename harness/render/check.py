"""A checkup for a terminal: what the judge saw, a table of what each kernel needs, what does not compile, a summary.

Rows that say the same are one row. Of a configuration only the parameters are shown in which a kernel's rows differ,
and of its arguments' types those; of the cases that launch it only as much as tells rows apart.
"""

from __future__ import annotations

import re
import shutil
import textwrap
from collections.abc import Sequence
from typing import Any

from harness.chips.targets import EMULATED_TARGETS
from harness.compile.compilation import Compilation, CompiledKernel, Flaw, OccupancyDocument
from harness.model import Verdict, all_tests
from harness.render import document
from harness.render.cases import case_list
from harness.render.document import Part, Table, Verbatim
from harness.render.github import command, line_of
from harness.render.terminal import printed
from harness.verbs.check import Checkup, Judgement

DEFAULT_WIDTH = 100
KERNEL_WIDTHS = (20, 16)  # what it should have, and what it must have
MATRIX_WIDTHS = (20, 15)
WAVES_WIDTH = 10
VALUES_SHOWN = 4
HEADERS = ("target", "kernel", "registers", "spills", "LDS KiB", "matrix", "waves")
KERNEL, SPILLS = HEADERS.index("kernel"), HEADERS.index("spills")
LEGEND = (
    "registers a thread, on AMD VGPR/AGPR/SGPR; LDS: shared memory a block, of the most there is",
    "waves: resident on a SIMD (sm_90: warps on a multiprocessor), of the most, and what limits them",
)


def parts(found: Checkup, width: int | None = None) -> list[Part]:
    """All of it, at most `width` columns wide where words allow (default: the terminal's width)."""
    columns = width or shutil.get_terminal_size((DEFAULT_WIDTH, 24)).columns
    told = (
        Verbatim(_judged(found)), _table(found.compilations, columns), _flaws(found), _missing(found), _remarks(found)
    )  # fmt: skip
    return [*(part for part in told if part), summary(found)]


def _remarks(found: Checkup) -> str:
    """What the emulator says of kernels that is no fault of theirs."""
    judgements = [found.judgement, *([found.emulated] if found.emulated else [])]
    lines = dict.fromkeys(remark for one in judgements for remark in one.remarks)
    return "\n".join(f"The emulator remarks: {line}" for line in lines)


def commands(found: Checkup) -> list[str]:
    """For GitHub: an error for a failed judgement and for each flaw at its line, or else a notice of the summary."""
    file, judgement = found.submission.path, found.judgement
    title = f"check: {found.submission.name} on {found.problem}"
    told = []
    if judgement.verdict not in (Verdict.ACCEPTED, Verdict.INFRASTRUCTURE_ERROR):
        line = line_of(judgement.verdict, judgement.report, file)
        told.append(command("error", judgement.report or judgement.message, title, file, line))
    for one in found.compilations:
        told += [command("error", f"{one.target}: {flaw.message}", title, file, flaw.line) for flaw in one.flaws]
    return told or [command("error" if found.exit_code else "notice", summary(found), title, file)]


def table(compilations: Sequence[Compilation], width: int = DEFAULT_WIDTH) -> str:
    """What each compiled kernel needs, target by target; "" where there is none."""
    return document.text([_table(compilations, width)])


def _table(compilations: Sequence[Compilation], width: int) -> Part:
    for matrix_width in MATRIX_WIDTHS:
        rows = _rows(compilations, matrix_width)
        # Kernels that neither spill nor use scratch, as they should, leave the room to what differs.
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
    for row in rows:
        row[KERNEL] = "\n".join(_wrapped(line, max(room, KERNEL_WIDTHS[1])) for line in row[KERNEL].splitlines())
    cells = [[row[i] for i in shown] for row in rows]
    note = (
        "no spills, no scratch"
        if clean
        else "!: spilled registers (sm_90: bytes), and below them bytes of scratch a thread; both cost time"
    )
    return Table([HEADERS[i] for i in shown], cells, below=[note, *LEGEND])


def summary(found: Checkup) -> str:
    """`accepted on CPU (all 7 test cases, within exact); compiles for gfx942; not for gfx1100: mine.py:42: ...`."""
    judgement, compilations = found.judgement, found.compilations
    good = [one.target for one in compilations if not one.flaws and not one.skipped and one.kernels]
    bad = [one for one in compilations if one.flaws]
    lacking = [one.target for one in compilations if one.missing and not one.flaws]
    parts = []
    if judgement.verdict is Verdict.ACCEPTED:
        how = " through Triton's interpreter" if "interpreter" in judgement.message else ""
        met = f", {judgement.standing}" if judgement.standing else ""
        where = f"accepted (emulated {judgement.emulated})" if judgement.emulated else "accepted on CPU"
        parts.append(f"{where} ({all_tests(len(judgement.checks))}{how}{met})")
    elif judgement.verdict is not Verdict.INFRASTRUCTURE_ERROR:
        where = f"(emulated {judgement.emulated})" if judgement.emulated else "on CPU"
        parts.append(f"{judgement.verdict.words} {where}: {judgement.message}")
    elif not any(one.hip for one in compilations):
        parts.append(f"not judged on a CPU: {judgement.message}")
    if found.emulated:
        parts.append(_as_machine_code(found.emulated))
    if good:
        not_run = judgement.verdict is Verdict.INFRASTRUCTURE_ERROR and any(one.hip for one in compilations)
        chips = list(dict.fromkeys(good))
        parts.append(("compiled, not run: " if not_run else "compiles for ") + ", ".join(chips))
        amd = [chip for chip in chips if chip.startswith("gfx")]
        if not_run and amd and not set(amd) & set(EMULATED_TARGETS):
            isnt = "is not emulated" if len(amd) == 1 else "are not emulated"
            parts.append(f"{' and '.join(amd)} {isnt}; {', '.join(EMULATED_TARGETS)} are")
    if bad:
        targets = ", ".join(dict.fromkeys(one.target for one in bad))
        parts.append(f"not for {targets}: {_said(found, bad[0].flaws[0]).splitlines()[0]}")
    parts += [f"not for {', '.join(targets)}: {why}" for why, targets in _refused(compilations).items()]
    if lacking:
        parts.append(f"no compiler here for {', '.join(dict.fromkeys(lacking))}")
    loaded = judgement.verdict in (Verdict.ACCEPTED, Verdict.WRONG_ANSWER)
    if not parts or (loaded and not (good or bad or lacking or _refused(compilations))):
        parts.append("nothing to compile: no kernel of its own")
    cached = judgement.cached and all(one.cached for one in compilations)
    return "; ".join(parts) + (" (cached)" if cached else "")


def _refused(compilations: Sequence[Compilation]) -> dict[str, list[str]]:
    """Why sources are for other targets, and which those are that they are not for."""
    found: dict[str, list[str]] = {}
    for one in compilations:
        if one.refusal and not one.flaws:
            found.setdefault(one.refusal, []).append(one.target)
    return found


def _as_machine_code(judgement: Judgement) -> str:
    """Of Triton's kernels: the verdict on what LLVM made of them."""
    if judgement.verdict is Verdict.ACCEPTED and judgement.emulated:
        met = f", {judgement.standing}" if judgement.standing else ""
        return f"accepted (emulated {judgement.emulated}) ({all_tests(len(judgement.checks))}{met})"
    if judgement.verdict is Verdict.INFRASTRUCTURE_ERROR:
        return f"not run as machine code: {judgement.message}"
    return f"{judgement.verdict.words} as machine code: {judgement.message}"


def _judged(found: Checkup) -> str:
    """The cases, and where the answer was wrong or none came, what is known of that."""
    judgement = found.judgement
    title = f"{found.submission.name} on {found.problem}, "
    if judgement.verdict is Verdict.INFRASTRUCTURE_ERROR:
        return f"{title}not judged on a CPU: {judgement.message}"
    cases = case_list(judgement.checks, judgement.cases)
    if judgement.verdict is Verdict.ACCEPTED:
        met = f", {judgement.standing}" if judgement.standing else ""
        return f"{title}right on {all_tests(len(judgement.checks))} of a CPU{met}:\n{cases}"
    tried = [cases] if judgement.checks else []
    lines = [f"{title}{judgement.verdict.words}:", *tried, judgement.report or f"  {judgement.message}"]
    if judgement.printed.strip():
        lines.append(printed(judgement.printed, "--json"))
    return "\n".join(line.rstrip() for line in lines)


def _flaws(found: Checkup) -> str:
    """What does not compile, each said once with its targets."""
    targets: dict[str, list[str]] = {}
    for one in found.compilations:
        for flaw in one.flaws:
            targets.setdefault(_said(found, flaw), []).append(one.target)
    return "\n".join(f"{', '.join(dict.fromkeys(names))}: {said}" for said, names in targets.items())


def _said(found: Checkup, flaw: Flaw) -> str:
    return f"{found.submission.path}:{flaw.line}: {flaw.message}" if flaw.line else flaw.message


def _missing(found: Checkup) -> str:
    targets: dict[str, list[str]] = {}
    for one in found.compilations:
        if one.missing:
            targets.setdefault(one.missing, []).append(one.target)
    return "\n".join(f"{', '.join(names)}: not compiled here: {what}" for what, names in targets.items())


def _rows(compilations: Sequence[Compilation], matrix_width: int) -> list[list[str]]:
    """A row for each kernel and whatever tells its configurations apart, in the order of HEADERS."""
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
    """Of kernels that are alike but for their SGPRs, which seldom limit anything: those as a range."""
    one = kernels[0]
    if one.vgprs is None:
        return str(one.registers or "")
    counts = sorted({kernel.sgprs or 0 for kernel in kernels}) if sgprs else [0]
    return f"{one.vgprs}/{one.agprs or 0}/" + "-".join(map(str, dict.fromkeys([counts[0], counts[-1]])))


def _needs(kernel: CompiledKernel, matrix_width: int) -> list[str]:
    """The columns after the registers."""
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
    """What tells `kernels`, one row, from `every` of that name on the target: parameters, types, or else the cases."""
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
        lines.append(_cases(kernels, every))
    return lines


def _identity(kernel: CompiledKernel, names: Sequence[str]) -> tuple[str, ...]:
    return (str(kernel.configuration), *(_type(kernel, name) for name in names))


def _types(kernels: Sequence[CompiledKernel], every: Sequence[CompiledKernel]) -> str:
    """The types of the arguments in which `every` differ: `*fp32` where each kernel has one for all of them, else
    `q=*bf16 scale=*fp32`."""
    names = _differing_types(every)
    rows = list(dict.fromkeys(tuple(_type(kernel, name) for name in names) for kernel in kernels))
    alike = all(len({_type(kernel, name) for name in names}) <= 1 for kernel in every)
    told = [row[0] if alike else " ".join(map("=".join, zip(names, row))) for row in rows] if names else []
    return _shortened(told)


def _differing_types(every: Sequence[CompiledKernel]) -> list[str]:
    names = dict.fromkeys(name for kernel in every for name in kernel.arguments)
    return [name for name in names if len({_type(kernel, name) for kernel in every}) > 1]


def _type(kernel: CompiledKernel, name: str) -> str:
    """An argument's type without what is known of its value; a 1, which Triton compiles in, is an integer as any."""
    kind = kernel.arguments.get(name, "").partition(",")[0]
    return "integer" if re.fullmatch(r"1|[iu](8|16|32|64)", kind) else kind


def _cases(kernels: Sequence[CompiledKernel], every: Sequence[CompiledKernel]) -> str:
    """The first case that launches `kernels`, less what all cases have in common, and how many more do."""
    cases = list(dict.fromkeys(case for kernel in kernels for case in kernel.cases))
    if not cases:
        return "not launched"
    common = set.intersection(*(set(case.split()) for kernel in every for case in kernel.cases))
    told = " ".join(word for word in cases[0].split() if word not in common) or cases[0]
    return told + (f" and {len(cases) - 1} more" if len(cases) > 1 else "")


def _values(kernels: Sequence[CompiledKernel], key: str) -> str:
    return _shortened(list(dict.fromkeys(str(kernel.configuration.get(key, "")) for kernel in kernels)))


def _shortened(values: Sequence[str]) -> str:
    return ",".join(values[:VALUES_SHOWN]) + (",…" if len(values) > VALUES_SHOWN else "")


def _by_kind(kernel: CompiledKernel) -> list[tuple[str, int]]:
    return sorted(kernel.matrix_instructions.items(), key=lambda item: -item[1])


def _instruction(name: str) -> str:
    """`v_mfma_f32_32x32x8_bf16` as `mfma 32x32x8 bf16`, `wgmma.mma_async...m64n64k16.f32.bf16.bf16` as `wgmma
    m64n64k16 bf16`: the accumulator, float32 as a rule, is left out."""
    kind, *rest = re.split(r"[_.]", name.removeprefix("v_"))
    shape = next((number for number, part in enumerate(rest) if re.fullmatch(r"m?\d+[xn]\d+[xk]\d+.*", part)), 0)
    types = [part for part in rest[shape + 1 :] if part not in ("row", "col", "f32", "1k")]
    return " ".join([kind, *rest[shape : shape + 1], *dict.fromkeys(types)])


def _kib(count: int) -> str:
    return f"{count / 1024:.3g}"


def _spills(kernel: CompiledKernel) -> str:
    """`0`, or what should be 0 and is not, marked: spills, and below them bytes of scratch."""
    if kernel.spills is None:
        return ""
    spills = f"{kernel.spills} !" if kernel.spills else "0"
    return spills + (f"\n{kernel.scratch_bytes} B !" if kernel.scratch_bytes else "")


def _wrapped(line: str, width: int) -> str:
    """`line` in lines of at most `width`, broken after spaces, commas and underscores where it has some."""
    lines = [""]
    for word in re.findall(r"[^ ,_]*[ ,_]|[^ ,_]+", line):
        for piece in textwrap.wrap(word, width, drop_whitespace=False):
            if len(lines[-1] + piece.rstrip()) > width:
                lines.append("")
            lines[-1] += piece
    return "\n".join(part.rstrip() for part in lines)


def _width(cell: Any) -> int:
    return max(map(len, str(cell).splitlines()), default=0)
