"""What files say: problems and submissions, the configuration, and what a scanner says of a source.

    problems/*/problem.yml, reference.py  ─► problem ─────┐
    submissions/*/*.py, controls/*/*.py   ─► submission ──┼─► values of `model`
    configs/eval.yml                      ─► config ──────┘
                                             places        where those files lie: in the root, else bundled
    a path                                ─► foreign: gpumode, kernelbench: problems in other projects' forms, and what
                                             belongs to them: set_file, podium_file, formula
                                             imported      names for such paths
                                             strict_yaml   reads YAML; an unknown or repeated key is an error
                                             triage        what a scanner of sources finds; it decides nothing
                                             choice        the cases of a problem that somebody asks for

Nothing here runs what it reads.
"""

from harness.catalog.places import default_root
from harness.catalog.problem import changed_ns, load_problem, load_problems, problem_names, problem_of
from harness.catalog.submission import (
    MAX_NAME_BYTES,
    MAX_SOURCE_BYTES,
    controls,
    load_submission,
    submission_of,
    submissions,
)

__all__ = [
    "MAX_NAME_BYTES",
    "MAX_SOURCE_BYTES",
    "changed_ns",
    "controls",
    "default_root",
    "load_problem",
    "load_problems",
    "load_submission",
    "problem_names",
    "problem_of",
    "submission_of",
    "submissions",
]
