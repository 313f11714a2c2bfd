"""What a run looks like as JSON, for programs that read runs: a JSON Schema made from the model itself."""

from __future__ import annotations

from typing import Any

from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core.core_schema import FloatSchema

from harness.model import SCHEMA_VERSION, Run

DIALECT = "https://json-schema.org/draft/2020-12/schema"
NOT_FINITE = ["Infinity", "-Infinity", "NaN"]
"""How JSON, which has no such numbers, says them here."""


class _Numbers(GenerateJsonSchema):
    """As pydantic does it, but that a number which may be infinite may be one of these words."""

    def float_schema(self, schema: FloatSchema) -> JsonSchemaValue:
        number = super().float_schema(schema)
        if schema.get("allow_inf_nan") is False or "le" in schema or "lt" in schema:
            return number
        return {"anyOf": [number, {"enum": NOT_FINITE}]}


def run_schema() -> dict[str, Any]:
    """The JSON Schema of a run file, of `--json` and of `Run.model_dump(mode="json")`, of all versions so far.

    `$id` has the version, `schema_version` in each run the one that it was written with.
    """
    schema = Run.model_json_schema(schema_generator=_Numbers)
    schema["properties"]["schema_version"] |= {"minimum": 1, "maximum": SCHEMA_VERSION}
    return {"$schema": DIALECT, "$id": f"podium:run:{SCHEMA_VERSION}", **schema, "title": "A run of Podium"}
