"""What comes of a run that nothing confines: refused, or shown and not ranked, or ranked for who insists."""

import json

import pytest
from click.testing import CliRunner

from harness.cli.options import verbs as cli
from harness.errors import InfrastructureError
from harness.judge import entrant
from harness.model import NO_ISOLATION, Isolation, eligibility
from harness.sandbox import tiers
from harness.verbs import eval as evaluation

HONEST = "def custom_kernel(data):\n    return data[0] * 2\n"

pytestmark = pytest.mark.usefixtures("roomy", "steady")


@pytest.fixture
def steady(monkeypatch):
    """Times may be as doubtful as they like: on a busy machine that would be named as the reason."""
    monkeypatch.setattr(entrant, "MOST_VOIDS", 10_000)
    for doubt in ("is_void", "is_unstable", "is_imprecise"):
        monkeypatch.setattr(eligibility, doubt, lambda *_: False)


@pytest.fixture
def evaluate(toy_root):
    (toy_root / "submissions" / "double" / "honest.py").write_text(HONEST)

    def run(*options: str):
        arguments = ["--root", str(toy_root), "eval", "double", "--device", "cpu", *options]
        return CliRunner().invoke(cli, arguments, standalone_mode=False)

    return run


@pytest.fixture
def nothing_confines(monkeypatch):
    monkeypatch.setattr(tiers, "_found", {"cpu": NO_ISOLATION})


def test_the_isolation_in_force_is_recorded_in_the_run_and_not_mentioned_on_the_board(evaluate, monkeypatch):
    real = next(iter(tiers._found.values()), None)
    result = evaluate("--json")
    assert result.exception is None
    (run,) = json.loads(result.stdout)["runs"]
    found = tiers._found["cpu"]
    assert real in (None, found) and run["environment"]["isolation"] == found.tier
    assert run["environment"]["isolation_layers"]["seccomp"] == found.seccomp
    if found.confines:
        assert run["unranked_because"] is None and "isolation" not in evaluate().stdout


def test_on_linux_a_run_that_nothing_confines_is_refused_with_what_to_install(evaluate, nothing_confines, monkeypatch):
    monkeypatch.setattr(evaluation.sys, "platform", "linux")
    result = evaluate()
    assert isinstance(result.exception, InfrastructureError) and result.exception.exit_code == 30
    assert "install bubblewrap" in str(result.exception) and "--allow-unsandboxed" in str(result.exception)


def test_a_quick_look_needs_no_sandbox(evaluate, nothing_confines):
    result = evaluate("--quick")
    assert result.exception is None and "accepted" in result.stdout and "quick" in result.stdout


@pytest.mark.slow
def test_elsewhere_it_is_judged_and_shown_but_not_ranked(evaluate, nothing_confines, monkeypatch):
    monkeypatch.setattr(evaluation.sys, "platform", "darwin")
    result = evaluate()
    assert result.exception is None and "Nothing is ranked here yet" in result.stdout
    assert "unsandboxed: nothing confined the submission" in result.stdout and "accepted" in result.stdout
    assert "Nothing new" in evaluate().stdout
    assert "Nothing new" not in evaluate("--allow-unsandboxed").stdout


def test_who_insists_gets_a_rank_and_the_board_says_so(evaluate, nothing_confines):
    result = evaluate("--allow-unsandboxed")
    assert result.exception is None
    header = next(line for line in result.stdout.splitlines() if "rank" in line and "submission" in line)
    row = next(line for line in result.stdout.splitlines() if "honest" in line and "1" in line)
    assert "isolation" in header and "none" in row


def test_tiers_are_named_by_what_holds_the_worker():
    names = [Isolation(b, ll, True, False, False).tier for b in (True, False) for ll in (True, False)]
    assert names == ["bubblewrap+landlock", "bubblewrap", "landlock", "process"]
    assert [Isolation(b, ll, True, False, False).confines for b in (True, False) for ll in (True, False)] == [
        True,
        True,
        True,
        False,
    ]
