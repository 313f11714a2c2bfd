"""Words that a verb is given: empty ones are refused, and none reaches a terminal that would obey it."""

import json

import pytest

from tests.test_cli import HONEST, WRONG, submit

ESCAPES = "\x1b[31m\x07\r\u202e"


def is_harmless(text):
    return not set(text) & set(ESCAPES.replace("[31m", ""))


@pytest.mark.parametrize(
    "words",
    [
        ("eval", "double", "FILE", "-k", ""),
        ("eval", "double", "FILE", "--case", ""),
        ("eval", "double", "FILE", "--junit="),
        ("eval", "double", ""),
        ("check", "double", "FILE", "-k", ""),
        ("check", "double", "FILE", "--emit", ""),
        ("replay", "double", "FILE", "", "--seed", "1"),
        ("report", "--out", ""),
        ("export", "--to", ""),
        ("show", ""),
        ("leaderboard", ""),
        ("compare", "", ""),
        ("verify", ""),
        ("new", "double", ""),
        ("doctor", "--device", ""),
        ("profile", "double", "FILE", "--out", ""),
    ],
)
def test_an_empty_word_is_refused_in_a_sentence_before_anything_is_done(podium, toy_root, words):
    honest = str(submit(toy_root, "honest", HONEST))
    before = sorted(toy_root.rglob("*"))
    code, out, err = podium(*[honest if word == "FILE" else word for word in words])
    assert (code, out) == (2, "") and err.startswith(f"error: {words[0]}: ")
    assert ("is given nothing" in err or "is empty" in err) and len(err.splitlines()) == 2
    assert sorted(toy_root.rglob("*")) == before


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("replay", "double", "FILE", "rows=3 cols=5", "--seed", "abc"), "'abc' is not a whole number"),
        (("compare", "a", "b", "--duel", "--pairs", "4.5"), "'4.5' is not a whole number"),
        (("compare", "a", "b", "--fail-if-slower", "much"), "'much' is not a number"),
    ],
)
def test_a_word_in_place_of_a_number_is_refused_in_plain_words(podium, toy_root, words, said):
    honest = str(submit(toy_root, "honest", HONEST))
    code, out, err = podium(*[honest if word == "FILE" else word for word in words])
    assert (code, out) == (2, "") and err.splitlines()[0] == f"error: invalid value for '{words[-2]}': {said}"


@pytest.mark.parametrize(
    "words",
    [
        ("eval", f"dou{ESCAPES}ble"),
        ("eval", "double", f"no{ESCAPES}where.py"),
        ("check", "double", f"no{ESCAPES}where.py"),
        ("show", f"mi{ESCAPES}ne"),
        ("compare", f"mi{ESCAPES}ne", "mine"),
        ("repro", f"mi{ESCAPES}ne"),
        ("forget", f"mi{ESCAPES}ne"),
        ("report", "--out", f"no{ESCAPES}where/board.html"),
        ("doctor", "--device", f"de{ESCAPES}vice"),
        ("doctor", f"--dev{ESCAPES}ice"),
        (f"ev{ESCAPES}al",),
        ("replay", "double", "FILE", f"rows{ESCAPES}=3", "--seed", "1"),
        ("eval", "double", "FILE", "-k", f"ro{ESCAPES}ws"),
        ("docs", f"pa{ESCAPES}ge"),
        ("import", f"no{ESCAPES}where"),
        ("export", f"no{ESCAPES}where", "--to", "x"),
    ],
)
def test_what_a_terminal_would_obey_is_named_in_what_is_said_of_it(podium, toy_root, words):
    honest = str(submit(toy_root, "honest", HONEST))
    code, out, err = podium(*[honest if word == "FILE" else word for word in words])
    assert code == 2 and out == "" and err.startswith("error: ") and is_harmless(err), err


def test_a_problem_s_own_text_is_harmless_in_what_is_said_of_it(podium, toy_root):
    file = toy_root / "problems" / "double" / "problem.yml"
    file.write_text(file.read_text() + '"ke\\e[31my\\a": 1\n')
    code, out, err = podium("eval", "double")
    assert code == 2 and out == "" and "‹U+001B›[31my‹U+0007›" in err and is_harmless(err), err


def test_a_report_s_place_is_harmless_in_the_line_that_names_it(podium, toy_root):
    code, out, _ = podium("report", "double", "--out", str(toy_root / "bo\x1b[31mard.html"))
    assert code == 0 and "bo‹U+001B›[31mard.html" in out and is_harmless(out)


@pytest.mark.parametrize("case", ["1", "--case=1", "--case=rows=64 cols=64", "rows=64 cols=64"])
def test_replay_takes_a_case_by_its_number_as_the_other_verbs_do(podium, toy_root, case):
    words = ("replay", "double", str(submit(toy_root, "wrong", WRONG)), case, "--seed", "5", "--device", "cpu")
    code, out, _ = podium(*words)
    assert code == 10 and "rows=64 cols=64" in out and "--seed 5" in out


@pytest.mark.parametrize(
    ("cases", "said"),
    [
        ((), "replay needs the CASE of the mismatch report"),
        (("1", "--case", "1"), "replay takes one CASE, and was given 2"),
        (("rows=64", "cols=64"), "replay takes one CASE, and was given 2"),
        (("2",), "double has no benchmark case 2 on this device"),
    ],
)
def test_replay_is_of_one_case(podium, toy_root, cases, said):
    words = ("replay", "double", str(submit(toy_root, "honest", HONEST)), *cases, "--seed", "5", "--device", "cpu")
    code, out, err = podium(*words)
    assert (code, out) == (2, "") and said in err


def test_a_file_that_is_named_twice_is_judged_once(podium, toy_root):
    honest, other = submit(toy_root, "honest", HONEST), submit(toy_root, "other", HONEST)
    words = [str(honest), str(honest.parent / ".." / "double" / "honest.py"), str(other)]
    code, out, _ = podium("eval", "double", *words, "--quick", "--json", "--device", "cpu")
    assert code == 0 and [run["submission"] for run in json.loads(out)["runs"]] == ["honest", "other"]


@pytest.mark.parametrize("words", [("show",), ("new", "double", "mine"), ("report", "--out", "b.html")])
def test_in_a_directory_that_is_gone_nothing_is_done_and_it_is_said(podium, toy_root, monkeypatch, words):
    (toy_root / "problems" / "double" / "template.py").write_text(HONEST)
    (toy_root / "gone").mkdir()
    monkeypatch.chdir(toy_root / "gone")
    (toy_root / "gone").rmdir()
    before = sorted(toy_root.rglob("*"))
    code, out, err = podium(*words)
    monkeypatch.chdir(toy_root)
    assert (code, out) == (30, "") and err.startswith("error: the current directory is gone\n")
    assert sorted(toy_root.rglob("*")) == before


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (("compare", "one"), "compare takes A B: "),
        (("check", "double", "one.py", "two.py"), "check takes PROBLEM FILE: "),
        (("schema", "run"), "schema takes no words: "),
        (("replay", "double", "one.py", "1"), "The seed of the inputs, from the mismatch report. "),
    ],
)
def test_a_word_too_many_or_too_few_is_answered_with_what_the_verb_takes(podium, words, hint):
    code, out, err = podium(*words)
    assert (code, out) == (2, "") and hint in err.splitlines()[1] and err.rstrip().endswith(f"{words[0]} --help")


@pytest.mark.parametrize("verb", ["show", "repro", "compare"])
def test_a_submission_without_a_run_is_told_from_a_name_that_is_not_there(podium, toy_root, verb):
    submit(toy_root, "honest", HONEST)
    words = ("honest", "honest") if verb == "compare" else ("honest",)
    code, out, err = podium(verb, *words)
    assert (code, out) == (2, "") and "error: honest has no run yet" in err
    assert "eval double submissions/double/honest.py" in err.splitlines()[1]
    assert "there is no run nowhere" in podium("show", "nowhere")[2]


def test_a_folder_in_the_place_of_a_file_is_answered_with_what_to_name(podium, toy_root):
    code, out, err = podium("eval", "double", str(toy_root / "submissions" / "double"))
    assert (code, out) == (2, "") and "is a folder\n  name a file in it; eval without a file judges all\n" in err
