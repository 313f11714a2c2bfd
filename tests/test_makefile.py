"""The Makefile, run for real in a checkout whose .venv/bin/python only prints the words it was given."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

MAKEFILE = Path(__file__).parent.parent / "Makefile"
VERBS = ["new", "new-problem", "eval", "check", "verify", "repro", "leaderboard", "show", "compare", "report"]
VERBS += ["profile", "problems", "doctor"]
VERBS += ["setup-offline", "serve", "test", "test-all", "test-triton", "bench-gpu", "lint", "clean", "help"]
VARIABLES = ["PROBLEM", "NAME", "SUBMISSION", "DEVICE", "TARGET", "RUN", "A", "B", "ARGS", "PYTHON"]
# Each would leave a file called "pwned" if make or the shell executed it.
HOSTILE = [
    "$(shell touch pwned)",
    "$$(touch pwned)",
    "$(touch pwned)",
    "`touch pwned`",
    "; touch pwned",
    "&& touch pwned",
]
HOSTILE += ['"; touch pwned; "', "'; touch pwned; '", "| touch pwned", "a b", "$HOME", "mla # no comment", "-n"]

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")

PRINT_WORDS = f"""#!/bin/sh
case $1 in -I*) exec '{sys.executable}' "$@";; esac
for word in "$@"; do printf '<%s>\\n' "$word"; done
exit "${{STATUS:-0}}"
"""


@pytest.fixture
def checkout(tmp_path):
    shutil.copy(MAKEFILE, tmp_path)
    for name in ("problems/mla", "problems/mha", "harness", ".venv/bin", "bin"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("pyproject.toml", "constraints.txt", "problems/mla/problem.yml", "problems/mha/problem.yml"):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (1e9, 1e9))
    write_program(tmp_path / ".venv/bin/python", PRINT_WORDS)
    write_program(tmp_path / "bin/python3", PRINT_WORDS.replace("-I*)", "-Ic)"))  # shows that bootstrap was run
    for name in (".podium-ready", ".podium-ready-dev", ".podium-ready-offline", ".podium-ready-server"):
        (tmp_path / ".venv" / name).touch()
    return tmp_path


def write_program(path, text):
    path.write_text(text)
    path.chmod(0o755)


def make(checkout, *words, **variables):
    environment = {k: v for k, v in os.environ.items() if k not in VARIABLES and not k.startswith(("MAKE", "MFLAGS"))}
    environment["PATH"] = f"{checkout / 'bin'}:{environment['PATH']}"
    environment.update(variables)
    return subprocess.run(["make", *words], cwd=checkout, env=environment, capture_output=True, text=True, timeout=300)


def words_given(result):
    assert result.returncode == 0, result.stderr
    return re.findall(r"<(.*)>", result.stdout)


def test_make_alone_lists_every_target_and_needs_no_environment(checkout):
    shutil.rmtree(checkout / ".venv")
    result = make(checkout)
    assert result.returncode == 0
    assert re.findall(r"^  ([a-z-]+) +\S", result.stdout, re.MULTILINE) == VERBS


@pytest.mark.parametrize(
    ("words", "verb_line"),
    [
        (["eval", "PROBLEM=mla"], ["eval", "mla"]),
        (["eval", "PROBLEM=mla", "SUBMISSION=a.py  b.py"], ["eval", "mla", "a.py", "b.py"]),
        (["eval", "PROBLEM=mla", "DEVICE=cuda:1"], ["eval", "mla", "--device", "cuda:1"]),
        (["eval", "PROBLEM=mla", "ARGS=--json --note 'two words'"], ["eval", "mla", "--json", "--note", "two words"]),
        (["eval", "PROBLEM=mla", "SUBMISSION=a.py", "ARGS=--watch"], ["eval", "mla", "a.py", "--watch"]),
        (["check", "PROBLEM=mla", "SUBMISSION=a.py"], ["check", "mla", "a.py"]),
        (["check", "PROBLEM=mla", "SUBMISSION=a.py", "TARGET=gfx942"], ["check", "mla", "a.py", "--target", "gfx942"]),
        (["leaderboard", "PROBLEM=mla"], ["leaderboard", "mla"]),
        (["show", "RUN=0123"], ["show", "0123"]),
        (["repro", "RUN=0123"], ["repro", "0123"]),
        (["repro", "RUN=0123", "DEVICE=cuda:1"], ["repro", "0123", "--device", "cuda:1"]),
        (["compare", "A=old", "B=new"], ["compare", "old", "new"]),
        (
            ["compare", "A=old", "B=new", "DEVICE=cpu", "ARGS=--duel"],
            ["compare", "old", "new", "--device", "cpu", "--duel"],
        ),
        (["new", "PROBLEM=mla", "NAME=mine"], ["new", "mla", "mine"]),
        (["new-problem", "NAME=window"], ["new-problem", "window"]),
        (["doctor"], ["doctor"]),
        (["doctor", "DEVICE=cuda:1", "ARGS=--calibrate"], ["doctor", "--device", "cuda:1", "--calibrate"]),
        (["report"], ["report"]),
        (["report", "PROBLEM=mla", "DEVICE=nvidia-h200"], ["report", "mla", "--device", "nvidia-h200"]),
        (["problems"], ["problems"]),
        (
            ["profile", "PROBLEM=mla", "SUBMISSION=a.py", "DEVICE=cuda:1", "ARGS=--case 2"],
            ["profile", "mla", "a.py", "--device", "cuda:1", "--case", "2"],
        ),
        (["verify"], ["verify"]),
        (["verify", "PROBLEM=mla"], ["verify", "mla"]),
    ],
)
def test_a_target_is_one_line_over_the_verb(checkout, words, verb_line):
    result = make(checkout, *words)
    assert words_given(result) == ["-m", "harness", *verb_line]
    assert result.stderr == ""


def test_the_tests_take_args(checkout):
    words = words_given(make(checkout, "test", "ARGS=-k 'floor or tie'"))
    assert words[:3] == ["-m", "pytest", "-q"] and words[-2:] == ["-k", "floor or tie"]


def test_a_star_in_submission_is_expanded(checkout):
    for name in ("a.py", "b.py"):
        (checkout / name).touch()
    assert words_given(make(checkout, "eval", "PROBLEM=mla", "SUBMISSION=*.py"))[-2:] == ["a.py", "b.py"]


@pytest.mark.parametrize("typed", ["PROBLM", "problem", "SUBMISION", "ARG", "TARGETS", "XYZZY"])
def test_an_unknown_variable_is_refused_by_name_before_anything_is_done(checkout, typed):
    result = make(checkout, "eval", "PROBLEM=mla", f"{typed}=mla")
    assert result.returncode == 2 and result.stdout == ""
    options = "ARGS takes options: ARGS='--case 1'"
    assert f"unknown variable {typed}: there are {' '.join(VARIABLES)}. {options}.  Stop.\n" in result.stderr


def test_a_mistyped_target_is_refused_before_any_other_is_made(checkout):
    result = make(checkout, "eval", "evl", "PROBLEM=mla")
    assert result.returncode == 2 and result.stdout == ""
    assert "unknown target evl: see make help" in result.stderr


@pytest.mark.parametrize("verb", ["new", "eval", "leaderboard", "profile"])
@pytest.mark.parametrize("words", [[], ["PROBLEM="], ["PROBLEM= "]])
def test_a_missing_problem_is_asked_for_with_the_problems_there_are(checkout, verb, words):
    result = make(checkout, verb, *words)
    assert result.returncode == 2
    assert f"say which problem: make {verb} PROBLEM=mla; problems are:" in result.stderr
    assert {"mla", "mha"} <= set(re.findall(r"\w+", result.stderr.split("problems are:")[1]))
    assert result.stdout == ""


@pytest.mark.parametrize("verb", ["new", "check", "compare", "repro"])
def test_who_asks_for_help_has_to_name_nothing(checkout, verb):
    result = make(checkout, verb, "ARGS=--help")
    assert result.returncode == 0 and verb in result.stdout


@pytest.mark.parametrize("verb", ["check", "profile"])
def test_a_missing_submission_is_asked_for(checkout, verb):
    assert f"say which file: make {verb} PROBLEM=mla SUBMISSION=" in make(checkout, verb, "PROBLEM=mla").stderr


def test_setting_up_offline_work_installs_its_extra_and_then_nothing(checkout):
    assert "bootstrap" not in make(checkout, "setup-offline").stdout
    (checkout / ".venv/.podium-ready-offline").unlink()
    assert words_given(make(checkout, "setup-offline"))[:4] == ["-I", "harness/bootstrap", "install", "--offline"]


def test_serving_installs_its_extra_first_and_then_serves_with_the_words_of_args(checkout):
    (checkout / ".venv/.podium-ready-server").unlink()
    said = make(checkout, "serve", "ARGS=--port 8123").stdout
    assert said.index("<--server>") < said.index("<serve>") < said.index("<8123>")


@pytest.mark.parametrize("verb", ["show", "repro"])
def test_a_missing_run_is_asked_for(checkout, verb):
    assert f"say which run: make {verb} RUN=" in make(checkout, verb).stderr


@pytest.mark.parametrize("words", [[], ["A=one"], ["B=two"]])
def test_two_runs_to_compare_are_asked_for(checkout, words):
    assert "say which runs: make compare A=" in make(checkout, "compare", *words).stderr


def test_a_name_is_asked_for_and_not_taken_from_the_environment(checkout):
    result = make(checkout, "new", "PROBLEM=mla", NAME="thishost")
    assert result.returncode == 2 and "make new PROBLEM=mla NAME=mine" in result.stderr and not result.stdout


@pytest.mark.parametrize("value", HOSTILE)
@pytest.mark.parametrize(
    "verb, variable",
    [
        ("eval", "PROBLEM"),
        ("show", "RUN"),
        ("eval", "DEVICE"),
        ("check", "TARGET"),
        ("new", "NAME"),
        ("new-problem", "NAME"),
        ("compare", "B"),
    ],
)
def test_a_value_is_one_word_and_is_never_executed(checkout, verb, variable, value):
    words = [verb, f"{variable}={value}"] + (["PROBLEM=mla"] if variable in ("DEVICE", "TARGET", "NAME") else [])
    words += ["A=old"] if verb == "compare" else []
    words += ["SUBMISSION=a.py"] if verb == "check" else []
    assert words_given(make(checkout, *words))[-1] == value.strip()
    assert not (checkout / "pwned").exists()


@pytest.mark.parametrize("variable", ["SUBMISSION", "ARGS"])
def test_a_value_of_several_words_is_never_executed(checkout, variable):
    value = "a.py; touch pwned $(shell touch pwned) $$(touch pwned) `touch pwned` && touch pwned | touch pwned > pwned"
    assert words_given(make(checkout, "eval", "PROBLEM=mla", f"{variable}={value}"))[3:] == ["mla", *value.split()]
    assert not (checkout / "pwned").exists()


def test_a_name_is_never_executed(checkout):
    for word in ("a;touch${IFS}pwned=1", "a'`touch${IFS}pwned`=1", "x;touch${IFS}pwned"):
        assert make(checkout, word).returncode == 2
    assert not (checkout / "pwned").exists()


def test_args_with_an_open_quote_are_refused_before_the_verb_runs(checkout):
    result = make(checkout, "eval", "PROBLEM=mla", "ARGS=-k 'foo")
    assert result.returncode == 2
    assert "ARGS=-k 'foo: No closing quotation" in result.stderr
    assert result.stdout == ""


def test_a_verb_that_fails_adds_nothing_but_makes_own_line(checkout):
    result = make(checkout, "eval", "PROBLEM=mla", STATUS="14")
    assert result.returncode == 2
    assert re.fullmatch(r"make: \*\*\* \[Makefile:\d+: eval\] Error 14\n", result.stderr)


def test_a_ready_environment_is_not_made_again(checkout):
    assert "bootstrap" not in make(checkout, "eval", "PROBLEM=mla").stdout


@pytest.mark.parametrize("name", ["pyproject.toml", "constraints.txt"])
@pytest.mark.parametrize(("words", "asked"), [(["eval", "PROBLEM=mla"], ["install"]), (["test"], ["install", "--dev"])])
def test_a_change_of_the_dependencies_makes_it_again(checkout, name, words, asked):
    os.utime(checkout / name, (4e9, 4e9))
    assert words_given(make(checkout, *words))[: 2 + len(asked)] == ["-I", "harness/bootstrap", *asked]


def test_an_environment_whose_python_is_gone_is_made_again(checkout):
    (checkout / ".venv/bin/python").unlink()
    (checkout / ".venv/bin/python").symlink_to("no-such-python")
    assert "<harness/bootstrap>" in make(checkout, "problems").stdout


def test_a_python_that_is_named_is_asked_even_if_the_environment_is_ready(checkout):
    other = checkout / "bin/other python"
    shutil.copy(checkout / "bin/python3", other)
    assert "<harness/bootstrap>" in make(checkout, "problems", f"PYTHON={other}").stdout


def test_a_failed_installation_stops_the_verb(checkout):
    (checkout / ".venv/.podium-ready").unlink()
    result = make(checkout, "problems", STATUS="30")
    assert result.returncode == 2
    assert "<harness>" not in result.stdout


def test_no_python_at_all_is_one_sentence(checkout):
    result = make(checkout, "problems", "PYTHON=no-such-python")
    assert result.returncode == 2
    sentence, makes_own = result.stderr.splitlines()
    assert "there is no no-such-python here: install Python 3.11 or newer" in sentence
    assert makes_own.endswith("Error 30")


def test_another_activated_environment_is_not_passed_on(checkout):
    write_program(checkout / ".venv/bin/python", '#!/bin/sh\necho "<${VIRTUAL_ENV-none}>"\n')
    assert words_given(make(checkout, "problems", VIRTUAL_ENV="/other/venv")) == ["none"]


def test_clean_keeps_the_results(checkout):
    (checkout / "results/local").mkdir(parents=True)
    (checkout / "harness/__pycache__").mkdir()
    assert make(checkout, "clean").returncode == 0
    assert not (checkout / ".venv").exists()
    assert not (checkout / "harness/__pycache__").exists()
    assert (checkout / "results/local").exists()
