"""The words of the project as values: problems, cases, tolerances, submissions, runs and their verdicts.

    value  ─►  case, tolerance, foreign  ─┬─►  problem  ─┬─►  run, tolerances_met
               floor, label  ─────────────┴─►  timing   ─┤      └─►  eligibility
               isolation, pinned  ────────┬─►  verdict  ─┤
                                          └─►  profiled ─┘

Every type here is immutable. Values are validated where they enter from a file: `catalog` reads problems, `records`
reads runs. Nothing here imports torch. Names end in their unit: `_ns` nanoseconds, `_s` seconds, `_bytes` bytes.
"""

from harness.model.case import (
    Case,
    Cases,
    CaseValue,
    Draw,
    SecretCases,
    case_of,
    told_apart,
)
from harness.model.floor import Floor, of_limit
from harness.model.foreign import CHECKER, Foreign, FormatCost, Precision
from harness.model.isolation import NO_ISOLATION, Isolation
from harness.model.label import DISTURBED, OLDER_SOURCE, Label, Unranked
from harness.model.pinned import PINNED, Pinned
from harness.model.problem import (
    Device,
    Limits,
    Problem,
    PublishedFigure,
    SampledRows,
    Submission,
)
from harness.model.profiled import ProfiledCase, ProfiledPart
from harness.model.run import SCHEMA_VERSION, Finding, Run, Skipped
from harness.model.timing import (
    CPU_BOUND,
    GPU_BOUND,
    ClockOwner,
    Constant,
    Estimate,
    Manner,
    Measurement,
    Round,
    TimedBaseline,
)
from harness.model.tolerance import BANDS, Tolerance
from harness.model.tolerances_met import in_words, tolerances_met
from harness.model.value import (
    LONGEST_CALL_S,
    Nanoseconds,
    SampleNanoseconds,
    Text,
    Value,
)
from harness.model.verdict import (
    CaseCheck,
    Ending,
    Excess,
    Total,
    Verdict,
    all_tests,
    not_emulated,
    outcome,
    through_interpreter,
)

__all__ = [
    "BANDS",
    "CHECKER",
    "CPU_BOUND",
    "DISTURBED",
    "GPU_BOUND",
    "LONGEST_CALL_S",
    "NO_ISOLATION",
    "OLDER_SOURCE",
    "PINNED",
    "SCHEMA_VERSION",
    "Case",
    "CaseCheck",
    "CaseValue",
    "Cases",
    "ClockOwner",
    "Constant",
    "Device",
    "Draw",
    "Ending",
    "Estimate",
    "Excess",
    "Finding",
    "Floor",
    "Foreign",
    "FormatCost",
    "Isolation",
    "Label",
    "Limits",
    "Manner",
    "Measurement",
    "Nanoseconds",
    "Pinned",
    "Precision",
    "Problem",
    "ProfiledCase",
    "ProfiledPart",
    "PublishedFigure",
    "Round",
    "Run",
    "SampleNanoseconds",
    "SampledRows",
    "SecretCases",
    "Skipped",
    "Submission",
    "Text",
    "TimedBaseline",
    "Tolerance",
    "Total",
    "Unranked",
    "Value",
    "Verdict",
    "all_tests",
    "case_of",
    "in_words",
    "not_emulated",
    "of_limit",
    "outcome",
    "through_interpreter",
    "told_apart",
    "tolerances_met",
]
