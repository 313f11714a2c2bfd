"""A scanner's findings stand beside a run and decide nothing; that it is missing is no error."""

import importlib.util
import json
from pathlib import Path

import pytest
from test_cli import HONEST, submit
from test_store import make_run, put

from harness.catalog import triage
from harness.cli import main
from harness.model import Finding, Run
from harness.records.store import Store

CHECKOUT = Path(__file__).resolve().parents[1]
PATCHED = "import torch\ntorch.cuda.Event.elapsed_time = lambda self, other: 0.001\n" + HONEST

scanner = pytest.mark.skipif(
    importlib.util.find_spec("kernelguard") is None, reason="KernelGuard is not installed: pip install kernelguard"
)


@scanner
def test_a_patched_clock_is_flagged_and_a_plain_submission_is_not():
    found = triage.scan(PATCHED)
    assert found and found[0].rule == "TIMER_MONKEYPATCH" and found[0].flagged
    assert triage.scan(HONEST) == ()


@pytest.mark.slow(ci=True)
@scanner
@pytest.mark.parametrize(
    "path", sorted(CHECKOUT.glob("submissions/*/*.py")), ids=lambda path: f"{path.parent.name}/{path.stem}"
)
def test_no_bundled_submission_is_flagged(path):
    assert not [found for found in triage.scan(path.read_text()) if found.flagged]


@scanner
def test_what_is_precise_enough_for_a_competitor_is_a_finding_and_no_flag():
    found = triage.scan("def custom_kernel(data):\n    q, k, v = data\n    return (q.half() @ k.half()).float()\n")
    assert not any(finding.flagged for finding in found)


@scanner
@pytest.mark.parametrize("source", ["(" * 5000, "\0", "\ud800", "x = " + "-" * 20_000 + "1", "é" * 1000, ""])
def test_a_source_that_no_parser_takes_is_scanned_or_said_to_be_unscanned(source):
    assert all(isinstance(found, Finding) for found in triage.scan(source))


@scanner
def test_a_scan_that_does_not_end_is_ended_and_flagged(monkeypatch):
    monkeypatch.setattr(triage, "SCAN_S", 0.01)
    (found,) = triage.scan(HONEST)
    assert found.rule == "UNSCANNED" and found.flagged


@pytest.mark.slow(ci=True)
@scanner
def test_findings_are_stored_and_shown_and_the_verdict_is_what_it_is_without_them(toy_root, capsys):
    submit(toy_root, "suspect", PATCHED)
    assert main(["--root", str(toy_root), "eval", "double", "--quick"]) == 0
    out = capsys.readouterr().out
    assert "TIMER_MONKEYPATCH" in out and "not a verdict" in out
    assert Store(toy_root).read("suspect").triage[0].rule == "TIMER_MONKEYPATCH"
    assert main(["--root", str(toy_root), "show", "suspect"]) == 0
    assert "decides nothing" in capsys.readouterr().out


def test_without_the_scanner_nothing_is_flagged(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert triage.scan(PATCHED) == ()


def test_a_run_from_before_there_was_a_scanner_is_read():
    document = json.loads(make_run().model_dump_json())
    del document["triage"]
    assert Run.model_validate(document).triage == ()


def test_the_board_shows_severe_findings_only(toy_root, capsys):
    mild = Finding(rule="MILD", severity="medium", what="a cast")
    severe = Finding(rule="SEVERE", severity="critical", what="a patched clock")
    put(toy_root, make_run("20260101-one", triage=(mild,)))
    main(["--root", str(toy_root), "leaderboard", "double"])
    out = capsys.readouterr().out
    assert "flags" not in out.lower()
    put(toy_root, make_run("20260102-one", triage=(mild, severe), submission="other"))
    main(["--root", str(toy_root), "leaderboard", "double"])
    out = capsys.readouterr().out
    assert "SEVERE" in out and "MILD" not in out and "not a verdict" in out
