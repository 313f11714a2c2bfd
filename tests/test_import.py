"""`import`: another project's problems are called by name, wherever they lie; what cannot be judged is left out."""

import json
import shutil
from datetime import UTC, datetime
from pathlib import Path

import click
import pytest

from harness import catalog
from harness.cli.options import _problems, verbs
from harness.judge.reference import open_reference
from harness.machine.device import detect
from harness.model import Foreign
from harness.ranking.board import rank
from harness.render import boards
from harness.render.document import Prose
from tests.test_ranking import entry

TESTS = Path(__file__).parent


@pytest.fixture
def checkout(tmp_path):
    """Of another project: a set of two folders, one that cannot be judged, two tasks, and what is no problem."""
    place = tmp_path / "theirs"
    for name in ("vectoradd", "prefixsum"):
        shutil.copytree(TESTS / "folders" / name, place / "problems/small" / name)
    for path in (TESTS / "folders").glob("*.py"):
        shutil.copy(path, place / "problems/small")
    several = shutil.copytree(place / "problems/small/prefixsum", place / "problems/small/several") / "task.yml"
    several.write_text(several.read_text() + "multi_gpu: true\n")
    (place / "problems/small.yaml").write_text(
        "name: small\ndeadline: 2025-12-30\nproblems:\n"
        "  - {directory: small/vectoradd, name: adds, deadline: '2025-06-30 23:59', gpus: [H100, MI300]}\n"
        "  - {directory: small/prefixsum, name: sums, deadline: ''}\n"
    )
    (place / "level1").mkdir()
    for name in ("1_stateless", "10_float16"):
        shutil.copy(TESTS / "tasks/1_stateless.py", place / "level1" / f"{name}.py")
    (place / "level1/__init__.py").touch()
    (place / "prompts").mkdir()
    shutil.copy(TESTS / "tasks/1_stateless.py", place / "prompts/example.py")
    return place


def test_all_problems_of_a_checkout_get_names_and_what_cannot_be_judged_its_reason(podium, toy_root, checkout):
    code, out, _ = podium("import", str(checkout), "--json")
    done = json.loads(out)
    names = {each["name"]: (each["for"], each["until"]) for each in done["problems"]}
    assert code == 0 and names == {
        "level1_1_stateless": ("any device", "open"),
        "level1_10_float16": ("any device", "open"),
        "adds": ("H100, MI300", "2025-06-30 23:59"),
        "sums": ("any device", "2025-12-30 00:00"),
    }
    ((path, why),) = done["left_out"].items()
    assert path.endswith("small/several") and "several GPUs" in why
    code, out, _ = podium("problems")
    assert code == 0 and all(name in out for name in (*names, "double"))


def test_an_imported_name_is_a_problems_wherever_one_is_asked_for(podium, toy_root, checkout, monkeypatch):
    podium("import", str(checkout))
    (toy_root / "sums").mkdir()
    monkeypatch.chdir(toy_root)  # where a folder has the same name
    sums = catalog.load_problem(toy_root, "sums")
    assert sums.foreign.path == checkout / "problems/small/prefixsum" and sums.root == toy_root
    code, _, err = podium("new", "adds", "mine")
    assert code == 0 and (toy_root / "submissions/adds/mine.py").exists(), err
    code, _, err = podium("eval", "sumz", "mine.py")
    assert code == 2 and "did you mean sums" in err


def test_a_shell_completes_imported_names(podium, toy_root, checkout):
    context = click.Context(verbs)
    context.params = {"root": toy_root}
    podium("import", str(checkout / "level1"))
    assert _problems(context, None, "level1_1") == ["level1_10_float16", "level1_1_stateless"]
    (toy_root / "configs/imported.yml").write_text("[")
    assert _problems(context, None, "d") == []


def test_a_set_file_a_folder_and_a_task_are_imported_too_and_again_under_their_present_name(podium, toy_root, checkout):
    small, task = checkout / "problems/small.yaml", checkout / "level1/1_stateless.py"
    for path in (small, checkout / "problems/small/prefixsum", task):
        assert podium("import", str(path))[0] == 0
    (checkout / "problems/small/prefixsum/podium.yml").write_text("name: totals\n")
    podium("import", str(small))
    names = (toy_root / "configs/imported.yml").read_text().splitlines()[1:]
    assert [name.partition(":")[0] for name in names] == ["adds", "level1_1_stateless", "totals"]


def test_a_name_stands_for_one_problem(podium, checkout):
    podium("import", str(checkout / "problems/small.yaml"))
    other = shutil.copytree(checkout / "level1", checkout / "more/level1")
    assert podium("import", str(checkout / "level1"))[0] == 0
    code, out, err = podium("import", str(other))
    assert code == 2 and not out and "its name level1_1_stateless is that of" in err and "1 more" in err


def test_what_holds_no_problem_and_what_is_not_there_is_said_in_a_sentence(podium, toy_root, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file.txt").write_text("x")
    for path, said in (
        (tmp_path / "empty", "holds no problem"),
        (tmp_path / "nowhere", "nowhere: nothing is there"),
        (tmp_path / "file.txt", "file.txt: it is not a Python file"),
        (f"{tmp_path}/empty:float16", "only a task's file can have a precision after a colon"),
        ("https://example.org/reference-kernels", "addresses are not fetched"),
    ):
        code, out, err = podium("import", str(path))
        assert code == 2 and not out and said in err and "Traceback" not in err
    assert not (toy_root / "configs/imported.yml").exists()


def test_a_checkout_that_has_gone_takes_no_other_problem_along(podium, toy_root, checkout):
    podium("import", str(checkout / "problems/small.yaml"))
    shutil.rmtree(checkout)
    code, out, err = podium("problems")
    assert code == 0 and "double" in out and "adds" not in out and "adds, which was imported, cannot be loaded" in err
    code, out, err = podium("eval", "adds", "x.py")
    assert code == 2 and "there is no problem at" in err
    (toy_root / "configs/imported.yml").write_text("adds: [1]\n")
    code, out, err = podium("eval", "adds", "x.py")
    assert code == 2 and "imported.yml: adds" in err


class TestWhatASetSays:
    @pytest.mark.parametrize(
        ("device", "gpus", "fits"),
        [
            ("NVIDIA H100 80GB HBM3", ["H100"], True),
            ("AMD Instinct MI300X", ["B200", "MI300"], True),
            ("NVIDIA B200", ["B200_Nebius"], True),
            ("NVIDIA GB200", ["B200"], False),
            ("NVIDIA L40S", ["L4"], False),
            ("NVIDIA L4", ["L4"], True),
            ("AMD EPYC (2 CPUs)", ["H100"], False),
            ("AMD EPYC (2 CPUs)", [], True),
        ],
    )
    def test_a_device_is_one_of_those_that_a_competition_is_for(self, device, gpus, fits):
        foreign = Foreign(form="gpumode", path=Path(), modules={}, gpus=tuple(gpus))
        said = foreign.terms(device, datetime.now(UTC))
        assert said == ([] if fits else [f"The competition is for {' and '.join(gpus)}, and this is {device}."])

    def test_a_deadline_is_or_was(self):
        foreign = Foreign(form="gpumode", path=Path(), modules={}, deadline=datetime(2025, 6, 30, 23, 59, tzinfo=UTC))
        for year, verb in ((2024, "is"), (2026, "was")):
            (said,) = foreign.terms("any", datetime(year, 1, 1, tzinfo=UTC))
            assert said == f"The competition's deadline {verb} 2025-06-30 23:59 UTC."

    def test_run_and_board_say_on_what_and_until_when_it_was(self, podium, toy_root, checkout):
        podium("import", str(checkout / "problems/small.yaml"))
        adds = catalog.load_problem(toy_root, "adds")
        reference = open_reference(adds, detect(toy_root, "cpu"))
        device = reference.problem.foreign.terms("AMD EPYC", datetime.now(UTC))
        assert device == [
            "The competition is for H100 and MI300, and this is AMD EPYC.",
            "The competition's deadline was 2025-06-30 23:59 UTC.",
        ]
        assert list(reference.notes)[1:] == device[1:] and "H100 and MI300" in reference.notes[0]
        table = boards.board(adds, "AMD EPYC", rank([entry("mine", 100.0)], ()), [])[1]
        assert device == [line for line in table.below if line.startswith("The competition")]

    def test_a_board_says_so_where_nothing_is_ranked(self, podium, toy_root, checkout):
        podium("import", str(checkout / "problems/small.yaml"))
        adds = catalog.load_problem(toy_root, "adds")
        said = [part.content for part in boards.board(adds, "AMD EPYC", rank([], ()), []) if isinstance(part, Prose)]
        assert said == adds.foreign.terms("AMD EPYC", datetime.now(UTC)) and len(said) == 2

    @pytest.mark.parametrize("stated", ["soon", "2025-13-01", "30", "[2025]"])
    def test_a_deadline_that_is_no_time_is_said(self, podium, checkout, stated):
        path = checkout / "problems/small.yaml"
        path.write_text(path.read_text().replace("2025-06-30 23:59", stated))
        code, out, err = podium("import", str(path))
        assert code == 2 and not out and f"problems.0.deadline: {stated!r} is not a time" in err

    def test_task_yml_may_name_gpus_and_the_set_file_wins(self, toy_root, checkout):
        for name in ("vectoradd", "prefixsum"):
            task = checkout / "problems/small" / name / "task.yml"
            task.write_text(task.read_text() + "gpus: [B200]\n")
        found = catalog.load_problems(toy_root, str(checkout / "problems/small.yaml"))
        assert [problem.foreign.gpus for problem in found] == [("H100", "MI300"), ("B200",)]
