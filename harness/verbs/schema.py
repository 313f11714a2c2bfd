"""The JSON Schema of a run, made from the model itself, for programs that read runs."""

from __future__ import annotations

from typing import Any

from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core.core_schema import FloatSchema

from harness.model import SCHEMA_VERSION, Run

DIALECT = "https://json-schema.org/draft/2020-12/schema"
NOT_FINITE = ["Infinity", "-Infinity", "NaN"]
"""The strings that stand for numbers which JSON cannot hold."""


class _Numbers(GenerateJsonSchema):
    """Pydantic's schema generator, except that a number that may be infinite may also be one of these strings."""

    def float_schema(self, schema: FloatSchema) -> JsonSchemaValue:
        number = super().float_schema(schema)
        if schema.get("allow_inf_nan") is False or "le" in schema or "lt" in schema:
            return number
        return {"anyOf": [number, {"enum": NOT_FINITE}]}


def run_schema() -> dict[str, Any]:
    """Return the JSON Schema of a run file, `--json` and `Run.model_dump(mode="json")`. It covers all versions so far.

    `$id` holds the schema's version. `schema_version` in a run is the version that it was written with.
    """
    schema = Run.model_json_schema(schema_generator=_Numbers)
    schema["properties"]["schema_version"] |= {"minimum": 1, "maximum": SCHEMA_VERSION}
    return {"$schema": DIALECT, "$id": f"podium:run:{SCHEMA_VERSION}", **schema, "title": "A run of Podium"}
