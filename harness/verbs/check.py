"""Check a submission without the target GPU: judge it on the CPU test cases, and compile it for other chips.

    submission ──► judge/evaluate, the CPU test cases, smallest first ──────────► Judgement ┐
         │                                                                                 ├─► Checkup ─► exit code
         └───────► confined processes, one a target:  compile/cross_compile (Triton) ─► Compilation ┘
    problem ─────► compile/described: its inputs ─┘   compile/inline (HIP, CUDA)

Judging and compiling run side by side, as memory and processors allow. Right answers and compilations are cached by a
hash of everything that they depend on, so checking an unchanged file again is immediate. A wrong answer, a crash or a
timeout is not cached. Nothing is timed, ranked or stored.

This process never imports the submission. The processes that import it run in the sandbox and see neither the problem
nor the cache. A report from such a process counts for its own submission only.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import json
import math
import re
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from harness.catalog.config import load_config
from harness.chips.targets import DEFAULT_TARGETS, EMULATED_TARGETS, TARGETS
from harness.command import how_to_get_offline
from harness.compile import compilation, tools
from harness.compile.compilation import Compilation, Flaw
from harness.compile.kept import Kept
from harness.compile.processes import SUBMISSION, Finished, Job, Processes, isolation, room
from harness.compile.reach import Reach, reach
from harness.compile.telling import plain
from harness.emulator import decoding
from harness.errors import InfrastructureError, UsageError
from harness.judge.emulation import Emulation
from harness.machine.device import detect
from harness.model import Case, Device, Problem, Submission, Verdict, tolerances_met
from harness.progress import Narrate
from harness.sandbox import tiers
from harness.temporary import temporary_folder
from harness.verbs.checkup import Checkup, Judgement, and_what_ran_uncompiled

PATIENCE_S = 20.0
"""The seconds that a compiler may take for one kernel once the submission has timed out on its test cases."""


def check(
    root: Path,
    problem: Problem,
    submission: Submission,
    targets: Sequence[str] = (),
    emit: Path | None = None,
    narrate: Narrate = lambda line: None,
    stop_at_first: bool = False,
    run: bool = True,
) -> Checkup:
    """Judge `submission`, and compile it for `targets` or the default ones.

    `emit`: a directory for the compilers' output. `stop_at_first`: judge no test case after a wrong one. `run`: also
      run the code for the first named target that the emulator supports, both inline HIP and Triton. `problem` may hold
      only some of its cases.

    Raises UsageError for an unknown target, ProblemError when the problem's own code fails, and InfrastructureError if
    `emit` cannot be written.
    """
    asked = _asked(targets)
    cases = " ".join(case.key for case in problem.every_case)
    chip = next((target for target in targets if target in EMULATED_TARGETS), None) if run else None
    kept = Kept(
        {
            "submission": submission.sha256,
            "path": submission.path,  # messages name it
            "problem": problem.sha256,
            "cases": cases,
            "tools": tools.fingerprint(),
            "packages": tools.packages(),
        }
    )
    foreign = problem.foreign is not None
    jobs = [] if foreign else [(engine, target) for target in asked for engine in engines(submission.text)]
    if foreign and engines(submission.text):
        narrate("kernels for a problem in another project's form are judged here, not compiled for other chips")
    found = {} if emit else {job: old for job in jobs if (old := _kept_compilation(kept, job)) is not None}
    waiting = {f"{engine}-{target}": (engine, target) for engine, target in jobs if (engine, target) not in found}
    with temporary_folder() as folder, Processes(hidden=[root]) as processes:
        if waiting:
            _be_writable(emit)
            compiled_for = list(dict.fromkeys(target for _, target in waiting.values()))
            narrate(f"compiling for {', '.join(compiled_for)}")
            if not isolation().confines:
                narrate(f"nothing here confines submissions: this one runs with your rights; {tiers.HOW_TO_GET_ONE}")
            _describe(problem, compiled_for, folder)
            at_once = max(1, room() // len(waiting))
            processes.start([_process(name, job, folder, submission, emit, at_once) for name, job in waiting.items()])
        reached = _reach(kept, problem, asked, folder) if jobs else None
        judge = functools.partial(_judge, root, problem, submission, kept, narrate, stop_at_first)
        judgement = _kept_judgement(kept, _slot(chip, False)) or judge(Emulation(chip), _slot(chip, False))
        if waiting:
            judged = judgement.verdict is not Verdict.INFRASTRUCTURE_ERROR
            narrate(f"{judgement.verdict.words if judged else 'not judged'} on CPU: {plain(judgement.message)}")
        began, hangs = time.monotonic(), judgement.verdict is Verdict.TIMEOUT

        def told() -> None:
            at = "; ".join(f"{name.rpartition('-')[2]}: {what}" for name, what in processes.doing().items())
            narrate(f"still compiling, {time.monotonic() - began:.0f} s after the verdict: {at}")

        with _writing_to(emit):
            for name, finished in processes.results(told, PATIENCE_S if hangs else math.inf):
                found[waiting[name]] = _compilation(waiting[name], finished, submission, kept)
    emulated, machine_code = None, found.get(("cross_compile", chip)) if chip else None
    if machine_code and not machine_code.flaws and not machine_code.skipped and not hangs:
        slot = _slot(chip, True)
        emulated = _kept_judgement(kept, slot) or judge(Emulation(chip, triton=True), slot)
    compilations = tuple(found[job] for job in jobs)
    if not foreign and (problem.cases.benchmark or problem.cases.test):
        compilations = and_what_ran_uncompiled(compilations, judgement, asked)
    runnable = _runnable(compilations, submission) if run and not targets else ()
    lacking = how_to_get_offline() if runnable and decoding.available() is not None else None
    return Checkup(problem.name, submission, judgement, compilations, emulated, chip, runnable, lacking, reached)


def _asked(targets: Sequence[str]) -> tuple[str, ...]:
    """Return the targets to compile for. Raises UsageError for an unknown one."""
    for target in targets:
        if target not in TARGETS:
            # Suggest no nearest name: the nearest name of a chip is another chip.
            raise UsageError(f"there is no target {target!r}", f"targets are {', '.join(TARGETS)}")
    return tuple(dict.fromkeys(targets)) or DEFAULT_TARGETS


def _runnable(compilations: Sequence[Compilation], submission: Submission) -> tuple[str, ...]:
    """Return the targets for which the emulator can run the compiled code."""
    good = {one.target for one in compilations if one.kernels and not one.flaws and not one.skipped}
    known = "harness.hip" in submission.text or "cross_compile" in engines(submission.text)
    return tuple(target for target in EMULATED_TARGETS if target in good) if known else ()


def _be_writable(emit: Path | None) -> None:
    """Create the directory and test that it can be written, before the compilers start. Raises InfrastructureError."""
    with _writing_to(emit):
        if emit is not None:
            emit.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=emit):
                pass


@contextlib.contextmanager
def _writing_to(emit: Path | None) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if emit is None:
            raise
        what = f"{emit} cannot be written: {error.strerror}"
        raise InfrastructureError(what, "make room or name another directory with --emit") from None


def engines(text: str) -> list[str]:
    """Return the modules of `harness.compile` that compile the kernels of this source. The list is empty for a file
    that cannot be parsed; the judge reports that error."""
    try:
        nodes = list(ast.walk(ast.parse(text)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    names: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            names |= {node.value} if node.value.replace(".", "_").isidentifier() else set()  # import_module("triton")
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Attribute) and node.attr == "load_inline":
            names.add("torch.utils.cpp_extension.load_inline")
    inline = {"harness.hip", "torch.utils.cpp_extension.load_inline"} & names
    triton = any(name.partition(".")[0] == "triton" for name in names)
    return ["cross_compile"] * triton + ["inline"] * bool(inline)


def _judge(
    root: Path,
    problem: Problem,
    submission: Submission,
    kept: Kept,
    narrate: Narrate,
    stop_at_first: bool,
    emulation: Emulation,
    slot: str,
) -> Judgement:
    """Judge the CPU test cases as an evaluation does: with fresh inputs and a worker that knows no answer."""
    from harness.judge import secret_cases
    from harness.judge.evaluate import evaluate  # imports torch

    cpu = detect(root, "cpu")
    ordered = smallest_first(problem, problem.cpu.test, cpu)
    reordered = problem.model_copy(update={"cpu": problem.cpu.model_copy(update={"test": ordered})})
    as_what = f" as machine code for {emulation.target}" if emulation.triton else ""
    narrate(f"judging on the CPU{as_what}: loading (limit {problem.limits.load_s:g} s)")
    config = load_config(root)
    run = evaluate(
        reordered,
        submission,
        cpu,
        config,
        timed=False,
        stop_at_first=stop_at_first,
        narrate=narrate,
        emulation=emulation,
    )
    judgement = Judgement(
        verdict=run.ending.verdict,
        message=run.ending.message,
        report=_by_its_path(run.ending.detail, submission),
        printed=run.output,
        cases=tuple(case.label for case in ordered),
        checks=run.checks,
        secret_untried=secret_cases.untried(reordered.cpu, run),
        totals=run.totals,
        tolerances_met=tolerances_met([*run.checks, *run.totals]) if run.ending.verdict is Verdict.ACCEPTED else None,
        emulated=run.environment.get("emulated"),
        interpreted_cases=run.environment.get("interpreted_cases", 0),
        interpreted_kernels=tuple(run.environment.get("interpreted_kernels", ())),
        interpreted_switches=tuple(run.environment.get("interpreted_switches", ())),
        not_emulated=tuple(run.environment.get("not_emulated", ())),
        remarks=tuple(run.environment.get("emulated_remarks", ())),
    )
    if judgement.verdict in (Verdict.ACCEPTED, Verdict.INFRASTRUCTURE_ERROR):
        kept.write(slot, judgement.model_dump(mode="json"))
    return judgement


def smallest_first(problem: Problem, cases: Sequence[Case], device: Device) -> tuple[Case, ...]:
    """Sort `cases` by the bytes that they move, as far as the problem states them."""
    from harness.judge.reference import open_reference

    return tuple(sorted(cases, key=open_reference(problem, device).most_bytes))


def _by_its_path(report: str | None, submission: Submission) -> str | None:
    """In a traceback, replace the path of the worker's copy with the submission's own path."""
    return report and re.sub(r'File "[^"]*/submission\.py"', lambda _: f'File "{submission.path}"', report)


def _kept_judgement(kept: Kept, slot: str) -> Judgement | None:
    return kept.read(slot, Judgement)


def _slot(chip: str | None, triton: bool) -> str:
    """Return the name under which a judgement is cached."""
    return "judgement" + (f"-{chip}" if chip else "") + ("-triton" if triton else "")


def _kept_compilation(kept: Kept, job: tuple[str, str]) -> Compilation | None:
    return kept.read("-".join(job), Compilation)


def _describe(problem: Problem, targets: Sequence[str], folder: Path) -> None:
    """Write the description of the problem for the compiling processes to `folder`. Raises ProblemError."""
    from harness.compile import described  # imports torch

    described.on_targets(problem, targets, folder)
    described.on_cpu(problem, folder / "cpu")


def _reach(kept: Kept, problem: Problem, targets: Sequence[str], folder: Path) -> Reach | None:
    """Return what is cached, or read it in the descriptions in `folder`. They are made now if nothing was compiled."""
    if (old := kept.read("reach", Reach)) is not None:
        return old
    if not (folder / "cpu").exists():
        _describe(problem, targets[:1], folder)
    if (found := reach(folder, targets)) is not None:
        kept.write("reach", found.model_dump(mode="json"))
    return found


def _process(
    name: str, job: tuple[str, str], folder: Path, submission: Submission, emit: Path | None, at_once: int
) -> Job:
    engine, target = job
    words = ["--target", target, "--inputs", "inputs", "--file", str(SUBMISSION)]
    given = {"inputs": folder / target} if (folder / target).exists() else {}
    if engine == "inline":
        words += ["--cpu", "cpu"]
        given["cpu"] = folder / "cpu"
    else:
        words += ["--at-once", str(at_once)]
    if emit is not None:
        words += ["--emit", "emit"]
    return Job(
        name,
        (f"harness.compile.{engine}", *words),
        source=submission.source,
        given=given,
        collect={} if emit is None else {f"emit/{target}": emit.resolve() / target},
        interpreted=engine == "inline",
    )


def _compilation(job: tuple[str, str], finished: Finished, submission: Submission, kept: Kept) -> Compilation:
    """Return the report of a compiling process, or a Compilation with the reason if there is no report."""
    engine, target = job
    printed = _as_in_json(finished.printed, finished.submission, submission.path)
    printed = _as_in_json(printed, "(submission.py, ", f"({Path(submission.path).name}, ")  # in Python's syntax errors
    found = compilation.read(printed) if finished.trouble is None else None
    if found is None or found.target != target:
        trouble = finished.trouble or "the compiler ended without a report"
        flaw = Flaw(message=trouble, unfinished=finished.status is None or finished.excess is not None)
        return Compilation(target=target, hip=engine == "inline", fault=flaw)
    found = found.model_copy(update={"cached": False, "hip": engine == "inline"})
    if found.fault and found.fault.refused and not found.kernels:
        found = found.model_copy(update={"fault": None, "refusal": found.fault.message})
    if not any(kernel.fault for kernel in found.kernels):  # a compiler may have been killed, or out of time
        kept.write("-".join(job), found.model_dump(mode="json"))
    return found


def _as_in_json(document: str, seen: str, path: str) -> str:
    """Replace `seen` with `path` in the strings of a JSON document."""
    return document.replace(json.dumps(seen)[1:-1], json.dumps(path)[1:-1])
