"""Selects the cases of a problem that a user asks for. A run of selected cases is never ranked."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from harness.errors import UsageError, did_you_mean
from harness.model import Case, Problem


def choose(problem: Problem, device_kind: str, named: Sequence[str], words: Sequence[str]) -> Problem:
    """`problem` with the selected cases only. `named`: numbers of benchmark cases, counted from 1, or labels, also of
    secret cases that a run could draw. `words`: of the named cases (of all, if none is named) keep those that have
    every word. A word matches as a whole value if some case has such a value, else as a part of the label (`has`).

    Raises UsageError for an unknown case, or if no case is left.
    """
    cases = problem.cases_for(device_kind)
    asked = [case_named(problem, device_kind, name) for name in named]
    drawn = [case for case in asked if case not in cases.test and case not in cases.benchmark]
    values = {value for case in problem.every_case for value in case.words}
    tests, benchmarks = (
        [case for case in of if (not asked or case in asked) and all(_fits(case, word, values) for word in words)]
        for of in ((*cases.test, *drawn), cases.benchmark)
    )
    if not tests and not benchmarks:
        labels = "".join(f"\n    {case.label}" for case in (*cases.test, *cases.benchmark))
        raise UsageError(f"no case of {problem.name} has {' and '.join(map(repr, words))}", f"there are:{labels}")
    return problem.only(tests, benchmarks, partial=tests != list(cases.test))


def _fits(case: Case, word: str, values: Collection[str]) -> bool:
    """True if the case has `word`. If `word` is a value of some case, it must be a whole value, because `bfloat16`
    contains `float16`."""
    return word in case.words if word in values else has(case.label, word)


def has(label: str, word: str) -> bool:
    """True if `word` occurs in a case's label. Part of a name or word is enough; part of a number is not. `1` and
    `batch=1` occur in `batch=1`, but not in `batch=16`. `batch` occurs in both, `fp4` in `format=mxfp4`."""
    before = r"(?<![\w.-])" if word[:1].isdigit() else ""
    behind = r"(?![\w.])" if word[-1:].isdigit() else ""
    return re.search(before + re.escape(word) + behind, label) is not None


def choose_to_check(problem: Problem, named: Sequence[str], words: Sequence[str]) -> Problem:
    """As `choose` for a CPU's cases, but all become test cases, because nothing is timed. Benchmark cases are large.
    They are included only if they are named, or if no test case has the `words`."""
    chosen = choose(problem, "cpu", named, words)
    tests, benchmarks = chosen.cpu.test, chosen.cpu.benchmark
    return chosen.only([*tests, *(benchmarks if named or not tests else ())], [], partial=chosen.partial)


def case_named(problem: Problem, device_kind: str, name: str) -> Case:
    """The case that `name` means: the number of a benchmark case, counted from 1, or any case's label. Raises
    UsageError."""
    benchmarks = problem.cases_for(device_kind).benchmark
    if re.fullmatch(r"-?[0-9]{1,9}", name):
        if not 1 <= int(name) <= len(benchmarks):
            listed = "".join(f"\n    {number}: {case.label}" for number, case in enumerate(benchmarks, 1))
            raise UsageError(f"{problem.name} has no benchmark case {name} on this device", f"there are:{listed}")
        return benchmarks[int(name) - 1]
    case = problem.case_called(name)
    if case is None:
        raise no_such_case(problem, name)
    return case


def no_such_case(problem: Problem, label: str) -> UsageError:
    """The error for a label that no case has. It names a parameter that no case has or that is given twice, or the
    values that no run draws, or the parameters that are missing and their values, or those that are too many, or else
    the nearest label."""
    names, known = re.findall(r"(\w+)=", label), problem.parameters
    unknown = [name for name in names if name not in known]
    if 0 < len(unknown) < len(names):
        hint = f"it has no parameter {unknown[0]!r}; {did_you_mean(unknown[0], known)}"
    elif len(set(names)) < len(names):
        hint = f"it has {next(name for name in names if names.count(name) > 1)} twice"
    elif refusals := problem.refusals(label):
        hint = "\n    or for another kind of case: ".join(refusals)
    elif lacking := problem.lacking(label):
        hint = "a case of your own also needs " + "\n    or ".join(lacking)
    elif surplus := problem.surplus(label):
        hint = "a case of your own must do without " + "\n    or without ".join(surplus)
    else:
        hint = did_you_mean(label, {known.label for known in problem.every_case})
    return UsageError(f"{problem.name} has no case {label!r}", hint)
