"""At which jobs which cards have failed.

A card that is broken fails at everything at once. Where there are others of its kind, it leaves to them what it has
failed at: else it would use up the attempts of one job after another while the others are at work.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence


class Failures:
    """Of one server, since it was started. Jobs by their numbers, cards as torch calls them."""

    def __init__(self) -> None:
        self._cards: dict[int, set[str]] = {}
        self._changing = threading.Lock()

    def note(self, job: int, card: str) -> None:
        """This card had no run of the job."""
        with self._changing:
            self._cards.setdefault(job, set()).add(card)

    def forget(self, job: int) -> None:
        """The job is over."""
        with self._changing:
            self._cards.pop(job, None)

    def left_by(self, card: str, cards: Sequence[str]) -> list[int]:
        """The jobs that `card` leaves to another of `cards`, which has not failed at them."""
        with self._changing:
            return [job for job, failed in self._cards.items() if card in failed and set(cards) - failed]
