"""`schema`: the JSON Schema of a run holds for every run that is there, and for nothing that is no run."""

import copy
import json
from pathlib import Path

import pytest

from harness.cli import main
from harness.model import SCHEMA_VERSION

CHECKOUT = Path(__file__).resolve().parents[1]
PUBLISHED = sorted((CHECKOUT / "results" / "published").glob("*/*/*.json"))
TYPES = {"object": dict, "array": list, "string": str, "boolean": bool, "null": type(None)}
EXPLAINS = {"title", "description", "default", "format", "$defs", "$schema", "$id"}


@pytest.fixture
def schema(capsys):
    assert main(["schema"]) == 0
    return json.loads(capsys.readouterr().out)


def faults(value, schema, defs, where="run"):
    """Where `value` is not as `schema` says, by the keywords that pydantic uses; another one fails the test."""
    for word, said in sorted(schema.items(), key=lambda item: item[0] != "type"):
        if word == "$ref":
            yield from faults(value, defs[said.removeprefix("#/$defs/")], defs, where)
        elif word == "anyOf":
            if all(any(faults(value, one, defs, where)) for one in said):
                yield f"{where}: {value!r}"
        elif word == "type":
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if said in ("number", "integer"):
                right = number and (said == "number" or value == int(value))
            else:
                right = isinstance(value, TYPES[said])
            if not right:
                yield f"{where}: {value!r} is no {said}"
                return
        elif word == "enum":
            if value not in said:
                yield f"{where}: {value!r}"
        elif word == "const":
            if value != said:
                yield f"{where}: {value!r}"
        elif word in ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"):
            low, strict = word.lower().endswith("minimum"), word.startswith("exclusive")
            if (value < said if low else value > said) or (strict and value == said):
                yield f"{where}: {value!r} {word} {said}"
        elif word == "minItems":
            if len(value) < said:
                yield f"{where}: {len(value)} items"
        elif word == "required":
            yield from (f"{where} lacks {name}" for name in said if name not in value)
        elif word == "items":
            for index, item in enumerate(value):
                yield from faults(item, said, defs, f"{where}.{index}")
        elif word in ("properties", "additionalProperties"):
            known = schema.get("properties", {})
            for name, item in value.items():
                if word == "properties" and name in known:
                    yield from faults(item, known[name], defs, f"{where}.{name}")
                elif word == "additionalProperties" and name not in known and said is False:
                    yield f"{where} has {name}"
                elif word == "additionalProperties" and name not in known and said is not True:
                    yield from faults(item, said, defs, f"{where}.{name}")
        else:
            assert word in EXPLAINS, f"this test does not know {word}"


def test_its_version_is_that_of_the_run_files(schema):
    assert schema["$id"] == f"podium:run:{SCHEMA_VERSION}"
    assert schema["properties"]["schema_version"]["maximum"] == SCHEMA_VERSION


def test_every_published_run_fits_it(schema):
    assert len(PUBLISHED) > 20
    for path in PUBLISHED:
        assert not list(faults(json.loads(path.read_text()), schema, schema["$defs"])), path.name


def test_a_ratio_without_end_fits_it_as_it_is_written(schema):
    excess = {"limit": "rel_l2", "ratio": "Infinity"}
    assert not list(faults(excess, schema["$defs"]["Excess"], schema["$defs"]))
    assert list(faults({**excess, "ratio": "large"}, schema["$defs"]["Excess"], schema["$defs"]))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("schema_version", SCHEMA_VERSION + 1),
        ("ending", {"verdict": "fine", "message": ""}),
        ("score", {"latency_ns": -1.0}),
        ("another", 1),
        ("device", None),
    ],
)
def test_what_is_no_run_does_not_fit_it(schema, key, value):
    run = json.loads(PUBLISHED[0].read_text())
    spoilt = copy.deepcopy(run) | {key: value}
    assert list(faults(spoilt, schema, schema["$defs"]))
