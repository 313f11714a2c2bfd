"""The rooms of harness/ stand as the picture in its docstring says, and imports run downwards."""

import ast
import re
from collections import defaultdict

import pytest

import harness
from bench import house

GROUND = {"__init__", "bootstrap"}
"""Not in the picture, and importing no other room: the version, and what runs before there is anything else."""

LOOSE = {"__init__", "__main__", "command", "custody", "errors", "progress", "temporary"}


def picture() -> list[list[str]]:
    """The lines of the picture in harness's docstring, the highest first: the rooms that stand in each."""
    drawn = [line for line in (harness.__doc__ or "").splitlines() if line.startswith("    ")]
    return [re.split(r" {2,}", line.strip())[0].split() for line in drawn]


def test_every_room_is_in_the_picture_once_and_no_other():
    drawn = [room for line in picture() for room in line]
    assert sorted(drawn) == sorted(house.arrows().keys() - GROUND)


def test_every_import_leads_to_a_lower_line_of_the_picture():
    height = {room: -number for number, line in enumerate(picture()) for room in line}
    up = [
        f"{room} imports {other}"
        for room, others in house.arrows().items()
        for other in others - GROUND
        if room in GROUND or height[other] >= height[room]
    ]
    assert not up


def test_every_module_stands_in_the_picture_of_its_room():
    missing = []
    for module, path in house.modules().items():
        picture = ast.get_docstring(ast.parse((path.parent / "__init__.py").read_text(encoding="utf-8"))) or ""
        if path.stem not in LOOSE and not re.search(rf"\b{path.stem}\b", picture):
            missing.append(module)
    assert not missing


def test_rooms_import_each_other_in_no_circle():
    assert not house.cycles(house.arrows())


def test_no_other_module_lies_loose_at_the_top():
    assert house.loose() == LOOSE


def test_no_module_is_much_longer_than_300_lines():
    """One that outgrows that is two nouns."""
    lengths = {module: len(path.read_text(encoding="utf-8").splitlines()) for module, path in house.modules().items()}
    assert not {module: length for module, length in lengths.items() if length > 330}


def test_a_class_has_a_name_of_its_own():
    found = defaultdict(list)
    for module, path in house.modules().items():
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(module)
    assert not {name: where for name, where in found.items() if len(where) > 1}


@pytest.fixture
def toy(tmp_path):
    """Makes a house of the given files, whose roof uses a room both at the top of a file and within a function."""

    def build(**files):
        for name, text in files.items():
            path = tmp_path / "toy" / f"{name.replace('__in__', '/')}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return house.arrows(tmp_path / "toy")

    return build


def test_rooms_arrows_and_floors_are_counted_as_the_docstring_says(toy):
    graph = toy(
        roof="from toy.hall import door\ndef late():\n    import toy.cellar\n",
        hall__in__door="from . import lock\nfrom toy import cellar\n",
        hall__in__lock="import os\n",
        cellar="",
    )
    assert graph == {"roof": {"hall", "cellar"}, "hall": {"cellar"}, "cellar": set()}
    assert house.floors(graph) == {"roof": 3, "hall": 2, "cellar": 1}


def test_a_circle_of_rooms_is_found_and_has_no_floors(toy):
    graph = toy(hall="import toy.stairs", stairs="from toy import cellar", cellar="def late():\n    import toy.hall\n")
    assert house.cycles(graph) == [("cellar", "hall", "stairs", "cellar")]
    with pytest.raises(ValueError, match="cellar -> hall -> stairs -> cellar"):
        house.floors(graph)


@pytest.mark.slow(ci=True)
def test_a_timed_call_goes_down_from_the_verb_to_the_worker_and_back_up_once():
    found = house.way()
    assert (found.down[0].module, found.down[-1].module) == ("harness.verbs.eval", "harness.judge.session")
    assert found.returns == 0, found.stays
