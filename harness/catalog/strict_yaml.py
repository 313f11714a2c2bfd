"""Reads YAML files strictly. An error names the file, the line or key, and the nearest valid key."""

from __future__ import annotations

import typing
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from harness.errors import ProblemError, nearest

Model = TypeVar("Model", bound=BaseModel)


def read(path: Path, model: type[Model]) -> Model:
    """The document at `path` as a `model`. Raises ProblemError with one sentence about the first fault found."""
    document = _parse(path, read_text(path))
    document = {} if document is None else document
    try:
        return model.model_validate(document)
    except ValidationError as error:
        raise ProblemError(_first_complaint(path, model, document, error)) from None


def read_text(path: Path) -> str:
    """The text of `path`. Raises ProblemError if it is missing or not UTF-8."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ProblemError(f"{path} is missing") from None
    except UnicodeDecodeError as error:
        raise ProblemError(f"{path} cannot be read: byte {error.start:,} is not UTF-8") from None
    except OSError as error:
        raise ProblemError(f"{path} cannot be read: {error.strerror}") from None


_VALID = "Input should be a valid "


class _UniqueKeyLoader(yaml.SafeLoader):
    """Refuses a repeated key. PyYAML would silently take the later one."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)  # type: ignore[no-untyped-call]
            if not isinstance(key, str | int | float | bool | None):
                raise yaml.MarkedYAMLError(problem="a key must be a plain word", problem_mark=key_node.start_mark)
            if key in seen:
                raise yaml.MarkedYAMLError(problem=f"the key {key!r} is given twice", problem_mark=key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)


def _parse(path: Path, text: str) -> Any:
    try:
        return yaml.load(text, Loader=_UniqueKeyLoader)  # a SafeLoader
    except yaml.MarkedYAMLError as error:
        line = f", line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise ProblemError(f"{path}{line}: {error.problem}") from None
    except (yaml.YAMLError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        # PyYAML lets its constructors' errors through: 2026-13-45 is a ValueError, for example.
        raise ProblemError(f"{path} cannot be read as YAML: {error}") from None


def _first_complaint(path: Path, model: type[BaseModel], document: Any, error: ValidationError) -> str:
    complaints = error.errors()
    # A misspelt key is also a missing one, and a value that fits no branch of a union fails in each. So prefer a
    # complaint about an unknown key, then the complaint deepest inside the document.
    unknown = [complaint for complaint in complaints if complaint["type"] == "extra_forbidden"]
    complaint = unknown[0] if unknown else max(complaints, key=lambda each: len(_written(each["loc"], document)))
    where = _written(complaint["loc"], document)
    if complaint["type"] == "extra_forbidden":
        guess = nearest(str(where[-1]), _model_at(model, where[:-1]).model_fields)
        return f"{path}: unknown key {_dotted(where)}" + (f": did you mean {guess}?" if guess else "")
    if complaint["type"] == "missing":
        return f"{path}: {_dotted([*where, complaint['loc'][-1]])} is missing"
    kinds = [each["msg"].removeprefix(_VALID) for each in complaints if _written(each["loc"], document) == where]
    if len(kinds) > 1 and all(each["msg"].startswith(_VALID) for each in complaints):  # one a branch
        *first, last = dict.fromkeys(kinds)
        return f"{path}: {_dotted(where)}: must be a valid {', '.join(first)} or {last}"
    return f"{path}: {_dotted(where) or 'the document'}: {_in_words(complaint, _model_at(model, where))}"


def _in_words(complaint: ErrorDetails, model: type[BaseModel]) -> str:
    """A complaint about a value, without pydantic's terms. `model`: the type that the value should have, if it is a
    model."""
    if complaint["type"] == "model_type":
        needed = [name for name, field in model.model_fields.items() if field.is_required()]
        return "must be keys with values" + (
            f", such as {{{', '.join(f'{name}: ...' for name in needed)}}}" if needed else ""
        )
    if complaint["type"] == "dict_type":
        return "must be keys with values"
    return complaint["msg"].removeprefix("Value error, ").replace("Input should be", "must be")


def _dotted(where: list[str | int]) -> str:
    return ".".join(map(str, where))


def _written(where: tuple[str | int, ...], document: Any) -> list[str | int]:
    """The place of a complaint as the writer of `document` sees it: only the keys and indices. Pydantic also lists the
    branches of unions."""
    found: list[str | int] = []
    place: Any
    for place in where:
        if (isinstance(document, dict) and place in document) or (
            isinstance(document, list) and isinstance(place, int) and place < len(document)
        ):
            found.append(place)
            document = document[place]
    return found


def _model_at(model: type[BaseModel], where: list[str | int]) -> type[BaseModel]:
    """The model whose fields are the valid keys at the place `where` of a `model` document."""
    for part in where:
        field = model.model_fields.get(str(part))
        if field is not None and (inner := _model_in(field.annotation)) is not None:
            model = inner
    return model


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for arg in typing.get_args(annotation) if (found := _model_in(arg))), None)
