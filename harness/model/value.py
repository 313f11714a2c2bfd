"""The base of every type in the model: frozen values, sanitized text, bounded times."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_COMMANDS_TO_TERMINALS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def _harmless(text: str) -> str:
    """`text` without characters that no file can hold (lone surrogates, which an exception's message may contain) and
    without terminal control codes. Otherwise a submission's message could repaint the board that shows it."""
    lines = _COLOUR.sub("", text).replace("\r\n", "\n").replace("\r", "\n")
    return _COMMANDS_TO_TERMINALS.sub("\N{REPLACEMENT CHARACTER}", lines).encode("utf-8", "replace").decode()


Text = Annotated[str, AfterValidator(_harmless)]
"""Text from outside: what submissions print and raise, and names of files."""

SHORTEST_NS, LONGEST_NS = 1e-3, 1e13
"""The bounds of a call's time. A picosecond is a thousandth of the finest clock's tick. Subtracting the time of a null
call may leave less than a tick, but not less than that. 1e13 ns are 10,000 s, the most that a problem may allow for a
call (`Limits.call_s`)."""

LONGEST_CALL_S = LONGEST_NS / 1e9

Nanoseconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
"""Any time. A stored run of schema version 1 may hold times that no clock can give."""

SampleNanoseconds = Annotated[float, Field(ge=SHORTEST_NS, le=LONGEST_NS)]
"""A possible time of a call."""

StoredSampleNanoseconds = Annotated[float, Field(gt=0, lt=1e15)]
"""A sample in a stored run of any schema version. The bound keeps sums of any number of samples finite. For version 2
and later `Run` also checks the bounds of a call's time."""


class Value(BaseModel):
    """Base of every type here: frozen, and strict about unknown keys."""

    # JSON has no infinity: it is written as the string "Infinity", which is read back as the number.
    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")
