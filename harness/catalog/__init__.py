"""Reads files: problems, submissions, the configuration, and a scanner's findings on a source.

    problems/*/problem.yml, reference.py  ─► problem ─────┐
    submissions/*/*.py, controls/*/*.py   ─► submission ──┼─► values of `model`
    configs/eval.yml                      ─► config ──────┘
                                             places        where those files lie: in the root, else bundled
    a path                                ─► foreign: gpumode, kernelbench: problems in other projects' forms, and
                                             their extra files: set_file, podium_file, formula
                                             imported      names for such paths
                                             strict_yaml   reads YAML; an unknown or repeated key is an error
                                             triage        findings of a source scanner; it decides nothing
                                             choice        the cases of a problem that a user asks for

Nothing here runs the code that it reads.
"""

from harness.catalog.places import default_root
from harness.catalog.problem import changed_ns, load_problem, load_problems, problem_names, problem_of
from harness.catalog.submission import (
    MAX_NAME_BYTES,
    MAX_SOURCE_BYTES,
    controls,
    load_submission,
    of_another_problem,
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
    "of_another_problem",
    "problem_names",
    "problem_of",
    "submission_of",
    "submissions",
]
