"""What every type of the model is made of: frozen values, harmless text, bounded times."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_COMMANDS_TO_TERMINALS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def _harmless(text: str) -> str:
    """`text` without what no file can hold (half surrogate pairs, as an exception's message may have them) and without
    what a terminal obeys: a submission's message could repaint the board that it is shown on."""
    lines = _COLOUR.sub("", text).replace("\r\n", "\n").replace("\r", "\n")
    return _COMMANDS_TO_TERMINALS.sub("\N{REPLACEMENT CHARACTER}", lines).encode("utf-8", "replace").decode()


Text = Annotated[str, AfterValidator(_harmless)]
"""Text from outside: what submissions print and raise, and the names of files."""

Nanoseconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
SampleNanoseconds = Annotated[float, Field(gt=0, lt=1e15)]
"""What a worker may claim that a call took: less than twelve days. Sums of any number of them are finite."""


class Value(BaseModel):
    """Base of every type here: frozen, and strict about unknown keys."""

    # JSON has no infinity: it travels as the string "Infinity", which is read back as the number.
    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")
