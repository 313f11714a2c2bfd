"""`--junit`: what a verb judged, as the XML that CI systems show, whatever the verdict and whatever was printed."""

import io
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from harness.cli import working
from harness.model import Case, CaseCheck, Ending, Excess, Skipped, Unranked, Verdict
from harness.render import junit
from tests.test_cli import HONEST, WRONG, submit
from tests.test_store import make_run

NASTY = "\x00\x08\x1b[31m]]><b>&\ud800\ufffe\uffff\r\x85"


def suite_of(path: Path) -> ElementTree.Element:
    (suite,) = ElementTree.parse(path).getroot()
    return suite


def counts(suite: ElementTree.Element) -> tuple[str, ...]:
    return tuple(suite.get(name) for name in ("tests", "failures", "errors", "skipped"))


def check(verdict: Verdict, report: str | None = None, **more) -> CaseCheck:
    fields = {"tolerance": None, "excess": {}, "error": None, "report": report} | more
    return CaseCheck(case=Case(parameters={"rows": 3}), verdict=verdict, **fields)


def test_each_case_of_an_accepted_run_is_a_test_and_a_timed_one_has_its_latency(podium, toy_root, roomy):
    path = toy_root / "report.xml"
    code, out, _ = podium("eval", "double", str(submit(toy_root, "honest", HONEST)), "--junit", str(path))
    suite = suite_of(path)
    assert code == 0 and "accepted: honest" in out and counts(suite) == ("3", "0", "0", "0")
    assert suite.get("name") == "double.honest" and float(suite.get("time")) > 0
    names = [(case.get("classname"), case.get("name")) for case in suite.iter("testcase")]
    assert sorted(names) == [
        ("double.honest.benchmark", "rows=64 cols=64"),
        ("double.honest.test", "rows=3 cols=5"),
        ("double.honest.test", "rows=4 cols=8"),
    ]
    (timed,) = [case for case in suite.iter("testcase") if "benchmark" in case.get("classname")]
    assert float(timed.find("properties/property[@name='latency_ns']").get("value")) > 0
    assert suite.find("properties/property[@name='verdict']").get("value") == "accepted"


def test_a_wrong_case_fails_with_its_report_and_the_exit_code_stays(podium, toy_root):
    path = toy_root / "report.xml"
    path.write_text('<testsuites name="of an earlier run"/>')
    paths = [str(submit(toy_root, name, source)) for name, source in (("honest", HONEST), ("wrong", WRONG))]
    code, out, _ = podium("eval", "double", *paths, "--quick", "--json", "--junit", str(path))
    honest, wrong = ElementTree.parse(path).getroot()
    assert code == 10 and out.startswith("{")
    assert (honest.get("failures"), wrong.get("failures")) == ("0", "2")
    failure = wrong.find("testcase/failure")
    assert failure.get("type") == "wrong answer" and "max_mismatch is above" in failure.get("message")
    assert "rel_l2" in failure.text and f"--root {toy_root} replay double" in failure.text


def test_what_no_case_shows_stands_in_a_test_of_its_own(podium, toy_root):
    path = toy_root / "report.xml"
    assert podium("eval", "double", str(submit(toy_root, "broken", "def (")), "--junit", str(path))[0] == 11
    (case,) = suite_of(path).iter("testcase")
    assert case.get("name") == "the run as a whole" and case.find("failure").get("type") == "compile error"
    assert "SyntaxError" in case.find("failure").text


@pytest.mark.parametrize(
    ("verdict", "unranked", "kind"),
    [
        (Verdict.INTEGRITY_VIOLATION, None, "failure"),
        (Verdict.INFRASTRUCTURE_ERROR, None, "error"),
        (Verdict.INFRASTRUCTURE_ERROR, Unranked.UNJUDGED, "skipped"),
    ],
)
def test_a_fault_of_the_machine_is_no_failure_of_the_submission(verdict, unranked, kind):
    run = make_run(ending=Ending(verdict=verdict, message="why"), unranked_because=unranked, checks=(), measurements=())
    (case,) = junit.of_run(run).iter("testcase")
    assert [child.tag for child in case] == [kind] and case.find(kind).get("message") == "why"


def test_a_case_that_the_device_cannot_do_is_skipped_and_a_secret_one_is_called_so():
    skipped = Skipped(case=Case(parameters={"rows": 9}), reason="too large")
    run = make_run(checks=(check(Verdict.ACCEPTED, secret=True),), measurements=(), skipped=(skipped,))
    drawn, left = junit.of_run(run).iter("testcase")
    assert drawn.get("name") == "rows=3 (secret)" and left.find("skipped").get("message") == "too large"


def test_a_run_is_named_by_its_id_only_where_show_finds_it():
    named = {
        stored: junit.of_run(make_run(), stored).find("properties/property[@name='run']") for stored in (True, False)
    }
    assert named[True].get("value") == make_run().id and named[False] is None


def test_no_text_makes_the_document_invalid(tmp_path):
    excess = {NASTY: Excess(limit=NASTY, ratio=2)}
    run = make_run(
        submission=NASTY,
        ending=Ending(verdict=Verdict.WRONG_ANSWER, message=NASTY, detail=NASTY),
        checks=(check(Verdict.WRONG_ANSWER, report=NASTY, excess=excess), check(Verdict.WRONG_ANSWER)),
        output=NASTY,
        measurements=(),
    )
    junit.write(tmp_path / "report.xml", [junit.of_run(run)])
    suite = suite_of(tmp_path / "report.xml")
    for text in (suite.get("name"), suite.find("testcase/failure").text, suite.find("system-out").text):
        assert "]]><b>&" in text and "‹U+FFFE›" in text
    assert "‹U+001B›" in suite.get("name") and "‹U+D800›" in suite.get("name")


def test_a_checkup_has_its_cases_those_not_tried_and_a_test_for_each_target(podium, toy_root, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(toy_root / "cache"))
    path = toy_root / "report.xml"
    wrong = str(submit(toy_root, "wrong", WRONG))
    assert podium("check", "double", wrong, "-x", "--junit", str(path))[0] == 10
    suite = suite_of(path)
    assert counts(suite) == ("2", "1", "0", "1") and "rel_l2" in suite.find("testcase/failure").text
    assert suite.find("testcase/skipped").get("message") == "not tried"


@pytest.mark.parametrize("verb", ["eval", "check"])
@pytest.mark.parametrize(
    "there",
    [b"# my notes\n", b"<html><body/></html>", b"\x00\xff", b'<?xml version="1.0" encoding="utf-7"?><testsuites/>'],
)
def test_no_file_is_replaced_that_is_no_junit_xml_and_nothing_is_judged(podium, toy_root, verb, there):
    path = toy_root / "there.xml"
    path.write_bytes(there)
    code, out, err = podium(verb, "double", str(submit(toy_root, "honest", HONEST)), "--junit", str(path))
    assert (code, out) == (2, "") and f"{path} exists and is not JUnit XML, so it is not overwritten" in err
    assert path.read_bytes() == there and "judging" not in err


@pytest.mark.parametrize("verb", ["eval", "check"])
def test_the_file_that_is_to_be_judged_is_never_replaced_by_whatever_path(podium, toy_root, verb):
    honest = submit(toy_root, "honest", HONEST)
    (toy_root / "link.xml").symlink_to(honest)
    for path in (honest, toy_root / "link.xml", honest.parent / ".." / "double" / "honest.py"):
        code, out, err = podium(verb, "double", str(honest), "--junit", str(path))
        assert (code, out) == (2, "") and "is the file that is to be judged" in err
    assert honest.read_text() == HONEST


@pytest.mark.parametrize("there", [b"", b"<testsuites/>", b'<?xml version="1.0"?>\n<testsuite name="x"><testcase '])
def test_what_is_empty_or_junit_xml_is_replaced(tmp_path, there):
    path = tmp_path / "report.xml"
    path.write_bytes(there)
    junit.check_free(path, [])
    junit.write(path, [junit.of_run(make_run())])
    junit.check_free(path, [])
    assert counts(suite_of(path)) == ("2", "0", "0", "0")


def test_a_place_that_is_none_is_refused_before_anything_is_judged(podium, toy_root):
    honest = str(submit(toy_root, "honest", HONEST))
    code, out, err = podium("eval", "double", honest, "--junit", str(toy_root / "nowhere" / "report.xml"))
    assert (code, out) == (2, "") and "is not a directory" in err and "judging" not in err
    assert podium("eval", "double", honest, "--junit", str(toy_root))[0] == 2
    code, _, err = podium("eval", "double", honest, "--watch", "--junit", "report.xml")
    assert code == 2 and "neither --json nor --markdown nor --junit" in err


@pytest.mark.parametrize("verb", ["check", "eval"])
def test_a_file_that_cannot_be_written_costs_nobody_the_verdict(podium, toy_root, verb):
    wrong = submit(toy_root, "wrong", WRONG)
    more = ["--quick", "--device", "cpu"] if verb == "eval" else []
    code, out, err = podium(verb, "double", str(wrong), "--junit", "/dev/full", *more)
    assert code == 30 and "error: /dev/full cannot be written: No space left on device" in err
    assert "wrong answer" in out and "reproduce: " in out


def test_a_reader_who_has_seen_enough_costs_nobody_the_file(podium, toy_root, monkeypatch):
    def closed(*_):
        raise BrokenPipeError

    monkeypatch.setattr(working, "print_parts", closed)
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    written = toy_root / "junit.xml"
    assert podium("check", "double", str(submit(toy_root, "mine", HONEST)), "--junit", str(written))[0] == 0
    assert ElementTree.parse(written).getroot().tag == "testsuites"
