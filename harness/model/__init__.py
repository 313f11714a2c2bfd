"""The words of the project as values: problems, cases, tolerances, submissions, runs and their verdicts.

    value  ─►  problem  ─►  run

Everything here is immutable and validated where it enters from a file (`catalog` reads problems, `store` reads runs).
Nothing here imports torch. Units stand in the names: `_ns` nanoseconds, `_s` seconds, `_bytes` bytes.
"""

from harness.model.problem import (
    Case,
    Cases,
    CaseValue,
    Device,
    Limits,
    Problem,
    PublishedFigure,
    SampledRows,
    Submission,
    Tolerance,
    told_apart,
)
from harness.model.run import (
    CROWDED,
    NOISY,
    REPRODUCED,
    SCHEMA_VERSION,
    UNJUDGED,
    UNSANDBOXED,
    UNSTABLE,
    CaseCheck,
    Ending,
    Estimate,
    Excess,
    Finding,
    Floor,
    Measurement,
    Round,
    Run,
    Skipped,
    Verdict,
    outcome,
)
from harness.model.value import (
    Nanoseconds,
    SampleNanoseconds,
    Text,
    Value,
)

__all__ = [
    "CROWDED",
    "NOISY",
    "REPRODUCED",
    "SCHEMA_VERSION",
    "UNJUDGED",
    "UNSANDBOXED",
    "UNSTABLE",
    "Case",
    "CaseCheck",
    "CaseValue",
    "Cases",
    "Device",
    "Ending",
    "Estimate",
    "Excess",
    "Finding",
    "Floor",
    "Limits",
    "Measurement",
    "Nanoseconds",
    "Problem",
    "PublishedFigure",
    "Round",
    "Run",
    "SampleNanoseconds",
    "SampledRows",
    "Skipped",
    "Submission",
    "Text",
    "Tolerance",
    "Value",
    "Verdict",
    "outcome",
    "told_apart",
]
