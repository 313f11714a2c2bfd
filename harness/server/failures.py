"""Which cards have failed at which jobs.

A broken card fails at every job quickly. If there are other cards of its kind, it leaves the jobs that it failed at to
them. Otherwise it would use up the attempts of one job after another while the other cards are busy.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence


class Failures:
    """The failures of one server since its start. Jobs are given by number, cards by torch's name."""

    def __init__(self) -> None:
        self._cards: dict[int, set[str]] = {}
        self._changing = threading.Lock()

    def note(self, job: int, card: str) -> None:
        """Record that this card returned no run of the job."""
        with self._changing:
            self._cards.setdefault(job, set()).add(card)

    def forget(self, job: int) -> None:
        """Forget a job that is over."""
        with self._changing:
            self._cards.pop(job, None)

    def left_by(self, card: str, cards: Sequence[str]) -> list[int]:
        """Return the jobs that `card` must leave to another of `cards` that has not failed at them."""
        with self._changing:
            return [job for job, failed in self._cards.items() if card in failed and set(cards) - failed]
