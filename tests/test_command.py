"""Hints name the command that their reader typed."""

import ast
import re
import shlex
import sys
import tomllib
from pathlib import Path

import pytest

from harness import command
from harness.cli import verbs
from harness.model import Verdict

CHECKOUT = Path(__file__).resolve().parents[1]


@pytest.fixture
def installed(monkeypatch):
    monkeypatch.setattr(command, "installed", lambda: True)


@pytest.mark.parametrize(
    ("caller", "expected"),
    [
        (None, "python3 -m harness compare a b --duel"),
        ("podium", "podium compare a b --duel"),
        ("make", "make compare A=a B=b ARGS=--duel"),
    ],
)
def test_a_command_is_in_the_words_of_who_typed_one(monkeypatch, caller, expected):
    if caller:
        monkeypatch.setenv(command.CALLER, caller)
    assert command.typed("compare", "a", "b", "--duel") == expected


def test_what_make_has_no_target_for_is_called_without_it(monkeypatch):
    monkeypatch.setenv(command.CALLER, "make")
    assert command.typed("replay", "mla", "x.py", "a=1 b=2") == "python3 -m harness replay mla x.py 'a=1 b=2'"


def test_words_with_spaces_and_several_files_reach_make_whole(monkeypatch):
    monkeypatch.setenv(command.CALLER, "make")
    assert command.typed("eval", "mla", "a.py", "b.py", "--case", "m=1 n=2") == (
        "make eval PROBLEM=mla SUBMISSION='a.py b.py' ARGS='--case '\"'\"'m=1 n=2'\"'\"''"
    )
    assert command.typed("eval", "my set/p", "--quick") == "make eval PROBLEM='my set/p' ARGS=--quick"


def test_the_targets_and_variables_of_make_are_those_of_the_makefile():
    lines = re.findall(r"^\t\$\(call run,harness (.*)\)$", (CHECKOUT / "Makefile").read_text(), re.MULTILINE)
    found = {}
    for line in lines:
        verb, *words = line.split()
        names = re.findall(r"\$\$\{?(?!DEVICE|TARGET)([A-Z]+)\b", " ".join(words))
        found[verb] = tuple(dict.fromkeys(names))
    assert found == command.VARIABLES


def test_a_root_that_was_named_stands_in_every_hint_until_the_verb_ends(monkeypatch):
    with command.at_root("../my cup"):
        assert command.typed("eval", "mla") == "python3 -m harness --root '../my cup' eval mla"
        monkeypatch.setenv(command.CALLER, "podium")
        assert command.typed("replay", "mla", "x.py") == "podium --root '../my cup' replay mla x.py"
        monkeypatch.setenv(command.CALLER, "make")  # no target of make takes a root
        assert command.typed("eval", "mla") == "python3 -m harness --root '../my cup' eval mla"
    assert command.typed("eval", "mla") == "make eval PROBLEM=mla"


def test_a_hint_of_a_verb_names_the_root_that_was_typed_and_no_other(podium, toy_root):
    told = f"python3 -m harness --root {toy_root} eval double"
    assert told in podium("leaderboard", "double")[1]
    podium("no-such-verb")
    assert command.typed("eval", "mla") == "python3 -m harness eval mla"


def test_a_page_is_a_path_in_a_checkout_and_a_verb_of_an_installed_podium(monkeypatch, podium):
    assert command.page("security") == "docs/security.md"
    said = "Read docs/adding-a-problem.md.\nExample: python3 -m harness docs"
    assert command.translated(said) == said
    monkeypatch.setattr(command, "installed", lambda: True)
    monkeypatch.setenv(command.CALLER, "podium")
    assert command.page("security") == "`podium docs security`"
    assert command.translated(said) == "Read `podium docs adding-a-problem`.\nExample: podium docs"


def test_every_hint_names_a_page_that_there_is_and_in_the_reader_s_words():
    """Help and the skeleton of a problem are translated; all other texts ask `command.page`."""
    asked = set()
    for path in [*(CHECKOUT / "harness").rglob("*.py")]:
        tree = ast.parse(path.read_text())
        written = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}  # docstrings
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in written:
                assert not re.search(r"docs/[a-z-]+\.md", node.value), f"{path}: {node.value!r}"
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "page" and node.args:
                asked |= {node.args[0].value} if isinstance(node.args[0], ast.Constant) else set()
    assert len(asked) >= 4 and all((CHECKOUT / "docs" / f"{name}.md").is_file() for name in asked)


def test_docs_lists_the_pages_in_the_index_s_order_and_prints_one_in_the_reader_s_words(podium, monkeypatch):
    code, out, _ = podium("docs")
    assert code == 0 and re.search(r"^debugging +Debugging a wrong kernel$", out, re.MULTILINE)
    assert {line.split()[0] for line in out.splitlines()} >= {page.stem for page in (CHECKOUT / "docs").glob("*.md")}
    index = (CHECKOUT / "docs" / "README.md").read_text()
    linked = re.findall(r"^\| \[([\w-]+)\.\w+\]", index, re.MULTILINE)
    assert [line.split()[0] for line in out.splitlines()] == ["README", *linked]
    for name in ("debugging", "docs/debugging.md", "debugging.md"):
        assert podium("docs", name)[1] == (CHECKOUT / "docs" / "debugging.md").read_text()
    monkeypatch.setenv(command.CALLER, "podium")
    _, out, _ = podium("docs", "first-kernel")
    assert "podium new kv_replicate first\n" in out and "python3 -m harness" not in out
    code, _, err = podium("docs", "debuging")
    assert code == 2 and "did you mean debugging?" in err


def test_an_installed_podium_is_called_podium_also_by_programs(monkeypatch, installed):
    monkeypatch.setattr(sys, "argv", ["/home/me/agent.py"])
    assert command.typed("eval", "mla") == "podium eval mla"
    monkeypatch.setattr(sys, "argv", ["/env/lib/python3.12/site-packages/harness/__main__.py"])
    assert command.typed("eval", "mla") == "python3 -m harness eval mla"


def test_an_installed_podium_names_pip_for_what_a_checkout_sets_up(installed):
    extra = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["offline"]
    names = [re.split(r"[<>=;]", requirement)[0] for requirement in extra]
    words = shlex.split(command.how_to_get_offline().partition("pip install ")[2])
    assert [re.split(r"[<>=]", word)[0] for word in words] == names
    assert words[0] == extra[0].partition(";")[0], "an older clang is of no use for gfx950"


@pytest.mark.parametrize("caller", ["podium", "make"])
def test_help_and_hints_of_a_verb_are_in_those_words_too(podium, monkeypatch, toy_root, caller):
    monkeypatch.setenv(command.CALLER, caller)
    code, out, _ = podium("check", "--help")
    assert code == 0 and "python3 -m harness" not in out.partition("Usage")[2].partition("\n")[2]
    expected = {
        "podium": "Example: podium check mla submissions/mla/triton_bf16.py --target gfx950",
        "make": "Example: make check PROBLEM=mla SUBMISSION=submissions/mla/triton_bf16.py",
    }
    assert expected[caller] in out
    _, out, _ = podium("leaderboard", "double")
    program = {"podium": "podium", "make": "python3 -m harness"}[caller]  # no target of make takes a root
    assert f"{program} --root {toy_root} eval double" in out
    _, _, err = podium("check", "--nonsense")
    assert {"podium": "podium check --help", "make": "make check ARGS=--help"}[caller] in err


@pytest.mark.parametrize("verb", sorted(verbs.commands))
def test_every_verb_s_help_says_how_it_may_end(podium, verb):
    code, out, _ = podium(verb, "--help")
    said = " ".join(out.partition("Exit codes: ")[2].split())
    assert code == 0 and said.startswith("0 ") and all(word in said for word in ("2 usage", "30 ", "130 interrupted"))
    if verb in ("eval", "check", "replay", "compare", "repro", "submit"):
        assert all(f"{verdict.exit_code} {verdict.words}" in said for verdict in Verdict if verdict.disqualifies)


@pytest.mark.parametrize(
    ("installed", "on_path", "python"),
    [
        (True, "/env/bin/pip", "pip"),
        (True, "/usr/bin/pip", "/env/bin/python3 -m pip"),
        (True, None, "/env/bin/python3 -m pip"),
        (False, "/env/bin/pip", ".venv/bin/python -m pip"),
    ],
)
def test_what_is_to_be_installed_goes_to_the_python_that_judges(monkeypatch, installed, on_path, python):
    monkeypatch.setattr(command, "installed", lambda: installed)
    monkeypatch.setattr(command.shutil, "which", lambda program: on_path)
    monkeypatch.setattr(sys, "executable", "/env/bin/python3")
    assert command.pip_install("safetensors") == f"{python} install safetensors"
