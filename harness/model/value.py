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

SHORTEST_NS, LONGEST_NS = 1e-3, 1e13
"""What a call can have taken. A picosecond is a thousandth of the finest clock's tick: what is left of a call when the
time of one that computes nothing is taken off may be less than a tick, but not less than that. 1e13 ns are the 10,000 s
that a problem may allow a call at most (`Limits.call_s`)."""

LONGEST_CALL_S = LONGEST_NS / 1e9

Nanoseconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
"""Any time; a stored run of schema version 1 may hold one that no clock gives."""

SampleNanoseconds = Annotated[float, Field(ge=SHORTEST_NS, le=LONGEST_NS)]
"""What a call can have taken."""

StoredSampleNanoseconds = Annotated[float, Field(gt=0, lt=1e15)]
"""The same in a stored run of any schema version; sums of any number of them are finite. From version 2 on `Run` asks
for what a call can have taken."""


class Value(BaseModel):
    """Base of every type here: frozen, and strict about unknown keys."""

    # JSON has no infinity: it travels as the string "Infinity", which is read back as the number.
    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")
