"""Runs and checkups as JUnit XML, which CI systems show as tests: a suite for each submission, a test for each case.

    <testsuite name="double.mine" tests="3" failures="1">
      <testcase classname="double.mine.test" name="rows=4 cols=8"/>
      <testcase classname="double.mine.test" name="rows=3 cols=5"><failure type="wrong answer">report ...
      <testcase classname="double.mine.benchmark" name="rows=64 cols=64"><properties> latency_ns ...

A failure that belongs to the run but to none of its cases gets a test of its own. XML has no control characters, so
`legible` replaces them by their names.
"""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from xml.etree import ElementTree
from xml.etree.ElementTree import Element, SubElement

from harness.errors import InfrastructureError, UsageError
from harness.model import CaseCheck, Measurement, Run, Unranked, Verdict
from harness.records import whole_file
from harness.render.cases import how_near
from harness.render.legible import legible
from harness.verbs.checkup import Checkup

_ANOTHER = "name another file with --junit"
AS_A_WHOLE = "the run as a whole"


def check_free(path: Path, judged: Sequence[Path]) -> None:
    """Raise UsageError if `path` is one of the files to judge, or exists and is not JUnit XML."""
    if any(file.exists() and path.exists() and path.samefile(file) for file in judged):
        raise UsageError(f"{path} is the file that is to be judged", _ANOTHER)
    if not whole_file.may_replace(path, _is_junit):
        raise UsageError(f"{path} is there and is no JUnit XML: it is left as it is", _ANOTHER)


def _is_junit(head: bytes) -> bool:
    """Whether a file with this beginning is JUnit XML, from any program."""
    try:
        _, root = next(ElementTree.iterparse(io.BytesIO(head), ["start"]))
    except (ElementTree.ParseError, ValueError, LookupError, StopIteration):
        return False
    return root.tag in ("testsuites", "testsuite")


@contextlib.contextmanager
def beside(path: Path | None, suites: Iterable[Element]) -> Iterator[None]:
    """Write `suites` to `path`, if given, before the block runs. Raises InfrastructureError only after the block. So a
    full disk does not suppress the verdict, and a reader that closes stdout early does not suppress the file."""
    try:
        failed = None
        if path is not None:
            write(path, suites)
    except InfrastructureError as error:
        failed = error
    yield
    if failed is not None:
        raise failed


def write(path: Path, suites: Iterable[Element]) -> None:
    """Write `suites` to `path`, whole or not at all. Raises InfrastructureError."""
    document = Element("testsuites", name="podium")
    document.extend(suites)
    ElementTree.indent(document)
    try:
        whole_file.write(path, ElementTree.tostring(document, encoding="utf-8", xml_declaration=True) + b"\n")
    except OSError as error:
        raise InfrastructureError(f"{path} cannot be written: {error.strerror}", _ANOTHER) from None


def of_run(run: Run, stored: bool = True) -> Element:
    """Return the suite of a run: the checked cases, the timed cases, and those that the device cannot run.

    It contains the run's id if the run is `stored`, so that `show` finds it.
    """
    suite, name = _suite(run.problem, run.submission)
    suite.set("time", f"{run.duration_s:.3f}")
    suite.set("timestamp", _safe(run.started_at))
    score = run.score
    _properties(
        suite,
        {
            "run": run.id if stored else None,
            "device": run.device.name,
            "verdict": run.ending.verdict.words,
            "not_ranked": run.unranked_because,
            "tolerance": run.tolerance,
            "score_ns": score and score.latency_ns,
            "score_low_ns": score and score.low_ns,
            "score_high_ns": score and score.high_ns,
        },
    )
    verdict, message, detail = run.ending.verdict, run.ending.message, run.ending.detail
    _checks(suite, name, run.checks, verdict, message, detail)
    for measured in run.measurements:
        _properties(_case(suite, f"{name}.benchmark", measured.case.label), _latency(measured))
    for skipped in run.skipped:
        _child(_case(suite, f"{name}.benchmark", skipped.case.label), "skipped", message=skipped.reason)
    if run.unranked_because == Unranked.UNJUDGED:
        _child(_case(suite, name, AS_A_WHOLE), "skipped", message=message)
    elif verdict is not Verdict.ACCEPTED and not _failed(run.checks):
        _fail(_case(suite, name, AS_A_WHOLE), verdict, message, detail)
    _child(suite, "system-out", run.output)
    return _counted(suite)


def of_checkup(found: Checkup) -> Element:
    """Return the suite of a checkup: the CPU test cases, and a test for each target."""
    suite, name = _suite(found.problem, found.submission.name)
    judged = found.judgement
    _properties(suite, {"verdict": judged.verdict.words, "tolerance": judged.tolerances_met})
    _checks(suite, name, judged.checks, judged.verdict, judged.message, judged.report)
    seen = {each.case.label for each in judged.checks}
    for label in judged.cases:
        if label not in seen:
            _child(_case(suite, f"{name}.test", label), "skipped", message="not tried")
    if judged.verdict is Verdict.INFRASTRUCTURE_ERROR:
        _child(_case(suite, name, AS_A_WHOLE), "skipped", message=judged.message)
    elif judged.verdict is not Verdict.ACCEPTED and not _failed(judged.checks):
        _fail(_case(suite, name, AS_A_WHOLE), judged.verdict, judged.message, judged.report)
    for compiled in found.compilations:
        case = _case(suite, f"{name}.compile", f"{compiled.target} {'inline' if compiled.hip else 'Triton'}")
        if compiled.flaws:
            told = [f"line {flaw.line}: {flaw.message}" if flaw.line else flaw.message for flaw in compiled.flaws]
            _fail(case, Verdict.COMPILE_ERROR, told[0], "\n".join(told))
        elif compiled.skipped:
            _child(case, "skipped", message=compiled.skipped)
    _child(suite, "system-out", judged.printed)
    return _counted(suite)


def _suite(problem: str, submission: str) -> tuple[Element, str]:
    name = f"{_safe(problem)}.{_safe(submission)}"
    return Element("testsuite", name=name), name


def _checks(
    suite: Element, name: str, checks: Iterable[CaseCheck], verdict: Verdict, message: str, detail: str | None
) -> None:
    """Add a test for each of `checks`. A failed check without a report of its own gets the run's `message` and
    `detail`."""
    for check in checks:
        case = _case(suite, f"{name}.test", check.case.label + " (secret)" * check.secret)
        if check.verdict is not Verdict.ACCEPTED:
            same = check.verdict is verdict
            said = how_near(check) or (message if same else check.verdict.words)
            _fail(case, check.verdict, said, check.report or (detail if same else None))


def _failed(checks: Iterable[CaseCheck]) -> bool:
    return any(check.verdict is not Verdict.ACCEPTED for check in checks)


def _latency(measured: Measurement) -> dict[str, object]:
    return {
        "latency_ns": measured.latency.latency_ns,
        "low_ns": measured.latency.low_ns,
        "high_ns": measured.latency.high_ns,
        "floor_ns": measured.floor and measured.floor.latency_ns,
        "labels": ", ".join(measured.labels),
    }


def _case(suite: Element, group: str, name: str) -> Element:
    return SubElement(suite, "testcase", classname=_safe(group), name=_safe(name))


def _fail(case: Element, verdict: Verdict, message: str, text: str | None) -> None:
    kind = "error" if verdict is Verdict.INFRASTRUCTURE_ERROR else "failure"
    _child(case, kind, text or message, type=verdict.words, message=message)


def _child(parent: Element, kind: str, text: str = "", **attributes: str) -> None:
    """Add an element of this kind, unless it would be empty."""
    if text or attributes:
        SubElement(parent, kind, {name: _safe(value) for name, value in attributes.items()}).text = _safe(text)


def _properties(parent: Element, values: Mapping[str, object]) -> None:
    known = {name: value for name, value in values.items() if value not in (None, "")}
    if known:
        holder = SubElement(parent, "properties")
        for name, value in known.items():
            SubElement(holder, "property", name=name, value=_safe(str(value)))


def _counted(suite: Element) -> Element:
    cases = suite.findall("testcase")
    suite.set("tests", str(len(cases)))
    for count, kind in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(count, str(sum(case.find(kind) is not None for case in cases)))
    return suite


def _safe(text: str) -> str:
    """Return `text` with only characters that XML allows."""
    return re.sub("[\ufffe\uffff]", lambda found: f"‹U+{ord(found[0]):04X}›", legible(text.replace("\r\n", "\n")))
