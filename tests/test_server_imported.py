"""Imported problems as competitions: the same judge, the same boards, and nothing of this machine shown."""

import json
from pathlib import Path

import pytest

pytest.importorskip("fastapi")

from served import Server, until

from harness.errors import ProblemError
from harness.library import judges
from harness.records.store import Store
from harness.server import competition
from harness.server.board.results import Results
from harness.server.dispatcher import Dispatcher
from harness.verbs.import_ import import_

TESTS = Path(__file__).parent
VECTORADD = TESTS / "folders/vectoradd/solutions"
ADD = "title: Add\nproblem: vectoradd_small\nlimits: {per_hour: 1000, waiting: 100}\n"


@pytest.fixture
def imported(toy_root):
    import_(toy_root, TESTS / "folders/small.yaml")
    return toy_root


@pytest.mark.slow
def test_submissions_to_an_imported_folder_get_the_folders_verdicts(imported):
    server = Server(imported, judging=False, add=ADD)
    dispatcher = Dispatcher(server.serving, judges.judge_apart)
    dispatcher.start()
    try:
        client = server.person("ada")
        for name, status in (("correct/plain", "pass"), ("wrong/without_last_row", "fail")):
            source = (VECTORADD / f"{name}.py").read_text()
            found = server.judged(client, source, board="add", mode="test")
            assert found["runs"][0]["result"]["check"] == status, found
        assert "the problem's checker: 33 elements are off" in json.dumps(found)
        assert "replay vectoradd_small mine.py" in json.dumps(found), "by its name"
        for stored in imported.glob("results/trials/vectoradd_small/*/*.json"):
            assert str(TESTS) not in stored.read_text(), "what is served tells no path of this machine"
    finally:
        server.close()
        dispatcher.stop()


def test_a_run_of_an_imported_problem_stands_on_its_live_board(imported):
    server = Server(imported, add=ADD)
    try:
        server.judged(server.person("ada"), board="add")
        results = Results(imported)
        until(lambda: results.refresh() or results.boards)
        (((problem, _), board),) = results.boards.items()
        assert (problem, board.problem.name) == ("vectoradd_small", "vectoradd_small") and board.runs == 1
        (stored,) = (Store(imported).read(name) for name in ["ada.mine"])
        assert stored.problem == "vectoradd_small"
    finally:
        server.close()


@pytest.mark.parametrize(
    ("problem", "complaint"),
    [
        ("vectoradd_smal", "there is no vectoradd_smal"),
        ("./tests/folders/vectoradd", "is a path, and a board needs a name"),
        ("gone", "there is no problem at .*nowhere"),
        ("other", "other is called vectoradd_small now"),
    ],
)
def test_what_is_no_imported_problem_is_said_in_a_sentence(imported, problem, complaint):
    names = imported / "configs/imported.yml"
    names.write_text(names.read_text() + f"gone: {imported}/nowhere\nother: {TESTS}/folders/vectoradd\n")
    (imported / "configs/competitions").mkdir()
    (imported / "configs/competitions/add.yml").write_text(f"title: Add\nproblem: {problem}\n")
    with pytest.raises(ProblemError, match=complaint):
        competition.load(imported, "add")


@pytest.mark.slow(ci=True)
def test_a_folder_that_ends_its_judge_costs_the_submission_alone_and_is_named(imported):
    folder = imported / "guest"
    folder.mkdir()
    files = "[{name: submission.py, source: '@SUBMISSION@'}, {name: reference.py, source: reference.py}]"
    (folder / "task.yml").write_text(f"files: {files}\ntests: [{{seed: 1}}]\nbenchmarks: [{{seed: 1}}]\n")
    text = "import os\ndef generate_input(seed):\n    os._exit(0)\ndef check_implementation(data, output):\n    pass\n"
    (folder / "reference.py").write_text(text)
    import_(imported, folder)
    server = Server(imported, judging=False, guest=ADD.replace("vectoradd_small", "guest"), add=ADD)
    dispatcher = Dispatcher(server.serving, judges.judge_apart)
    dispatcher.start()
    try:
        client = server.person("ada")
        number = server.sent(client, board="guest", mode="test")
        source = (VECTORADD / "correct/plain.py").read_text()
        after = server.judged(client, source, board="add", mode="test")
        assert after["runs"][0]["result"]["check"] == "pass", "the queue goes on"
        found = json.dumps(server.over(client, number))
        said = "it could not be judged here: generate_input of "
        assert said in found and "ended the process that judges, with status 0" in found, found
        assert not list(imported.glob("results/*/guest/*/*.json")), "no run"
    finally:
        server.close()
        dispatcher.stop()
