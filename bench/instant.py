"""A cluster whose judge answers at once. The tests that kill parts of a cluster use it.

python -m bench.instant CONNECTION_FD ADDRESS ROOT LONELY_S      Ray's process of a link
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from bench.stand_in import run_of
from harness import catalog
from harness.cluster import driver
from harness.cluster.job import Words, judge_job
from harness.library.judges import Judge
from harness.library.request import Request
from harness.progress import Narrate

JUDGE_S = 0.5

SILENT_S = 15.0
"""In the place of 60: so long a job that was stopped keeps its card."""


class InstantJudge(Judge):
    """Replaces the judging process: it answers in the worker itself, after JUDGE_S."""

    def __init__(self, environment: Mapping[str, str] | None = None, gives_way: bool = False) -> None:
        pass

    def ask(self, request: dict[str, Any], narrate: Narrate) -> Any:
        time.sleep(JUDGE_S)
        asked = Request.model_validate(request["judge"])
        problem = catalog.load_problem(asked.root, asked.problem)
        return run_of(asked).model_copy(update={"problem_sha256": problem.sha256}).model_dump(mode="json")

    def close(self) -> None:
        pass


def instant_job(asked: str, parcels: list[Any]) -> Words:
    """The cluster's task, with that judge."""
    yield from judge_job(asked, parcels, InstantJudge)


if __name__ == "__main__":
    from bench.instant import instant_job as task  # by its module's name, by which nodes find it

    driver.main(task, SILENT_S)
