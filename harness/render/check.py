"""A checkup as text: the judgement, a table of each kernel's resources, compile errors and a summary."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Sequence

from harness.chips.targets import EMULATED_TARGETS
from harness.command import typed
from harness.compile.compilation import Flaw
from harness.model import Verdict, all_tests, not_emulated, through_interpreter
from harness.render import fit, kernels, left_out
from harness.render.cases import case_list
from harness.render.document import Part, Verbatim
from harness.render.github import command, line_of
from harness.render.run import totals_of
from harness.render.verdicts import printed
from harness.verbs.checkup import MOST_NAMED, Checkup, Judgement


def parts(found: Checkup, width: int | None = None) -> list[Part]:
    """Return all parts, at most `width` columns wide where words allow (default: the terminal's width)."""
    columns = width or shutil.get_terminal_size((kernels.DEFAULT_WIDTH, 24)).columns
    table = kernels.part(found.compilations, columns)
    together = _wrong_together(found.judgement)
    notes = (_in_part(found), _untried_switches(found), _remarks(found), _untried_offsets(found))
    told = (Verbatim(_judged(found)), *together, table, _flaws(found), *notes, _next_step(found))
    return [*(part for part in told if part), summary(found)]


def _in_part(found: Checkup) -> str:
    """Return a line on the kernels of which not every configuration was judged."""
    names = ", ".join(found.judged_in_part)
    of_them = "Of an autotuner's configurations the first was judged here, the others were only compiled: "
    return of_them + names if names else ""


def _untried_switches(found: Checkup) -> str:
    """Return a line on what compiled kernels do that no test case here has made them do."""
    if not found.untried_switches:
        return ""
    return f"Compiled, and judged in no test case here: {_some(found.untried_switches)}"


def _remarks(found: Checkup) -> str:
    """Return the emulator's remarks on kernels. They do not affect the verdict."""
    judgements = [found.judgement, *([found.emulated] if found.emulated else [])]
    lines = dict.fromkeys(remark for one in judgements for remark in one.remarks)
    return "\n".join(f"The emulator remarks: {line}" for line in lines)


def _untried_offsets(found: Checkup) -> str:
    """Return a line on a GPU's case whose offsets no test case of a CPU has, if the file is accepted."""
    if (beyond := found.untried_offsets) is None or found.judgement.verdict is not Verdict.ACCEPTED:
        return ""
    return (
        f"No test case here has a tensor of more than 2^31 elements. A GPU's has one, of {beyond.elements:,}: "
        f"offsets of 32 bits wrap in it, and that would not be seen here. It is {beyond.case}"
    )


def _next_step(found: Checkup) -> str:
    """Return the command to type next."""
    if not found.exit_code:
        return _how_to_run(found)
    again = _again(found)
    return f"To judge that case again, alone and with the same inputs: {again}" if again else ""


def _again(found: Checkup) -> str:
    """Return the command at the end of a failed case's report, if it is to stand below the table of kernels and not in
    the report: the table pushes that up, and the report on machine code is not shown. Without kernels the report stands
    right above the summary and keeps its command."""
    reports = [one.report for one in (found.judgement, found.emulated) if one and one.report]
    *_, last = reports[0].splitlines() if reports else [""]
    if not last.startswith(fit.COMMAND) or not any(one.kernels or one.flaws for one in found.compilations):
        return ""
    return last.removeprefix(fit.COMMAND)


def _how_to_run(found: Checkup) -> str:
    """Return the command that runs the machine code without the chip, if the user did not ask for that."""
    if not found.runnable:
        return ""
    first, *others = found.runnable
    typed_so = typed("check", found.problem, found.submission.path, "--target", first)
    also = f" (or {', '.join(others)})" if others else ""
    before = f"first `{found.setup}`, then " if found.setup else ""
    return f"To run the machine code in the emulator, without the chip: {before}{typed_so}{also}"


def _of_these(found: Checkup, message: str) -> str:
    """Return `message` with the targets that were asked for. A worker that only compiled the file names targets of its
    own."""
    good = dict.fromkeys(one.target for one in found.compilations if one.kernels and not one.flaws and not one.skipped)
    words = f"compiled for {', '.join(good)}, not run" if good else "not run"
    return re.sub(
        r"(?:compiled for [\w, ]+?|no compiler here)(?:, not for [\w, ]+?)?, not run", words, message, count=1
    )


def commands(found: Checkup) -> list[str]:
    """Return commands for GitHub: an error for a failed judgement and for each flaw at its line, else a notice with the
    summary."""
    file, judgement = found.submission.path, found.judgement
    title = f"check: {found.submission.name} on {found.problem}"
    told = []
    if judgement.verdict not in (Verdict.ACCEPTED, Verdict.INFRASTRUCTURE_ERROR):
        line = line_of(judgement.verdict, judgement.report, file)
        told.append(command("error", judgement.report or judgement.message, title, file, line))
    for one in found.compilations:
        told += [command("error", f"{one.target}: {flaw.message}", title, file, flaw.line) for flaw in one.flaws]
    return told or [command("error" if found.exit_code else "notice", summary(found), title, file)]


def summary(found: Checkup) -> str:
    """Return one line: `accepted on CPU (all 7 test cases, within exact); compiles for gfx942; not for gfx1100:
    mine.py:42: ...`."""
    judgement, compilations = found.judgement, found.compilations
    good = [one.target for one in compilations if not one.flaws and not one.skipped and one.kernels]
    bad = any(one.flaws for one in compilations)
    parts = []
    if judgement.verdict is Verdict.ACCEPTED:
        interpreted, count = judgement.interpreted_cases, len(judgement.checks)
        how = through_interpreter(interpreted, count) if judgement.interpreted_kernels else ""
        met = f", {judgement.tolerances_met}" if judgement.tolerances_met else ""
        where = f"accepted (emulated {judgement.emulated})" if judgement.emulated else "accepted on CPU"
        parts.append(f"{where} ({all_tests(count)}{how}{met}{not_emulated(judgement.not_emulated)})")
    elif judgement.verdict is not Verdict.INFRASTRUCTURE_ERROR:
        where = f"(emulated {judgement.emulated})" if judgement.emulated else "on CPU"
        wrong = judgement.verdict is Verdict.WRONG_ANSWER
        said = left_out.cause(judgement.message) if wrong else judgement.message
        parts.append(f"{judgement.verdict.words} {where}: {said}")
    elif not any(one.hip for one in compilations):
        parts.append(f"not judged on a CPU: {judgement.message}")
    if found.emulated:
        parts.append(_as_machine_code(found.emulated))
    if good:
        not_run = judgement.verdict is Verdict.INFRASTRUCTURE_ERROR and any(one.hip for one in compilations)
        chips = list(dict.fromkeys(good))
        parts.append(("compiled, not run: " if not_run else "compiles for ") + ", ".join(chips))
        if found.never_run:
            parts.append(f"compiled, but launched in no test case here: {_some(found.never_run)}")
        if found.never_compiled:
            parts.append(f"interpreted, but compiled for no target: {_some(found.never_compiled)}")
        if not_run and (found.chip in chips or "harness.hip" not in found.submission.text):
            parts.append(_of_these(found, judgement.message))
        amd = [chip for chip in chips if chip.startswith("gfx")]
        if not_run and amd and not set(amd) & set(EMULATED_TARGETS):
            isnt = "is not emulated" if len(amd) == 1 else "are not emulated"
            parts.append(f"{' and '.join(amd)} {isnt}; {', '.join(EMULATED_TARGETS)} are")
    parts += _not_for(found)
    refused = _reasons((one.target, one.refusal) for one in compilations if not one.flaws)
    parts += [f"not for {', '.join(targets)}: {why}" for why, targets in refused.items()]
    lacking = _reasons((one.target, one.missing) for one in compilations)
    parts += [f"not compiled here for {', '.join(targets)}: {why}" for why, targets in lacking.items()]
    if not parts and judgement.verdict is Verdict.INFRASTRUCTURE_ERROR:
        parts.append(f"not judged on a CPU: {judgement.message}")
    loaded = judgement.verdict in (Verdict.ACCEPTED, Verdict.WRONG_ANSWER)
    if not parts or (loaded and not (good or bad or lacking or refused)):
        parts.append("nothing to compile: no kernel of its own")
    cached = judgement.cached and all(one.cached for one in compilations)
    return "; ".join(parts) + (" (cached)" if cached else "")


def _some(names: Sequence[str]) -> str:
    return ", ".join([*names[:MOST_NAMED], *(["..."] if len(names) > MOST_NAMED else [])])


def _not_for(found: Checkup) -> list[str]:
    """Return the first reason of each target that the file does not compile for, and apart from them those of targets
    for which nobody knows, because a compiler was stopped."""
    how = "nor does it compile for" if found.judgement.verdict is Verdict.COMPILE_ERROR else "not for"
    flaws: dict[str, list[Flaw]] = {}
    for one in found.compilations:
        flaws.setdefault(one.target, []).extend(one.flaws)
    targets: dict[tuple[str, str], list[str]] = {}
    for target, each in flaws.items():
        known = list(dict.fromkeys([flaw for flaw in each if not flaw.unfinished] or each))
        if known:
            first = f" (the first of {len(known)} reasons)" if len(known) > 1 else ""
            said = _said(found, known[0]).splitlines()[0]
            words = first if said == found.judgement.message else f"{first}: {said}"  # the summary begins with that
            targets.setdefault(("unfinished for" if known[0].unfinished else how, words), []).append(target)
    return [f"{how} {', '.join(names)}{words}" for (how, words), names in targets.items()]


def _reasons(of_targets: Iterable[tuple[str, str | None]]) -> dict[str, list[str]]:
    """Return the targets of each reason, each target once."""
    found: dict[str, list[str]] = {}
    for target, why in of_targets:
        if why and target not in found.setdefault(why, []):
            found[why].append(target)
    return found


def _as_machine_code(judgement: Judgement) -> str:
    """Return the verdict on Triton's kernels as machine code."""
    if judgement.verdict is Verdict.ACCEPTED and judgement.emulated:
        met = f", {judgement.tolerances_met}" if judgement.tolerances_met else ""
        return f"accepted (emulated {judgement.emulated}) ({all_tests(len(judgement.checks))}{met})"
    if judgement.verdict is Verdict.INFRASTRUCTURE_ERROR:
        return f"not run as machine code: {judgement.message}"
    return f"{judgement.verdict.words} as machine code: {judgement.message}"


def _judged(found: Checkup) -> str:
    """Return the list of cases and, unless the answer was right, the details."""
    judgement = found.judgement
    title = f"{found.submission.name} on {found.problem}, "
    if judgement.verdict is Verdict.INFRASTRUCTURE_ERROR:
        return f"{title}not judged on a CPU: {_of_these(found, judgement.message)}"
    cases = case_list(judgement.checks, judgement.cases, judgement.secret_untried)
    if judgement.verdict is Verdict.ACCEPTED:
        met = f", {judgement.tolerances_met}" if judgement.tolerances_met else ""
        return f"{title}right on {all_tests(len(judgement.checks))} of a CPU{met}:\n{cases}"
    tried = [cases] if judgement.checks else []
    seen = judgement.report or f"  {judgement.message}"
    seen = seen.removesuffix(f"\n{fit.COMMAND}{_again(found)}")
    seen = fit.hanging(seen) if judgement.verdict is Verdict.WRONG_ANSWER else seen
    lines = [f"{title}{judgement.verdict.words}:", *tried, seen]
    if judgement.printed.strip():
        lines.append(printed(judgement.printed, "--json"))
    return "\n".join(line.rstrip() for line in lines)


def _wrong_together(judgement: Judgement) -> list[Part]:
    """Return the totals over all cases if one of them breaks its limits."""
    return [totals_of(judgement.totals)] if any(each.tolerance is None for each in judgement.totals) else []


def _flaws(found: Checkup) -> str:
    """Return the compile errors, each once with its targets and the first case that launches the kernel."""
    targets: dict[str, list[str]] = {}
    cases: dict[str, list[str]] = {}
    for one in found.compilations:
        for flaw in one.flaws:
            said = _said(found, flaw)
            targets.setdefault(said, []).append(one.target)
            cases.setdefault(said, []).extend(one.cases_with(flaw))
    lines = []
    for said, names in targets.items():
        lines.append(f"{', '.join(dict.fromkeys(names))}: {said}")
        launching = list(dict.fromkeys(cases[said]))
        if launching:
            lines.append(f"  in {launching[0]}" + (f" and {len(launching) - 1} more" if len(launching) > 1 else ""))
    return "\n".join(lines)


def _said(found: Checkup, flaw: Flaw) -> str:
    return f"{found.submission.path}:{flaw.line}: {flaw.message}" if flaw.line else flaw.message
