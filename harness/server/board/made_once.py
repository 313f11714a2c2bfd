"""What is made once and kept while it is among those that were asked for last."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

Made = TypeVar("Made")


class MadeOnce(Generic[Made]):
    """At most `most` values by their keys."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept: OrderedDict[tuple[str, ...], Made] = OrderedDict()
        self._keeping = threading.Lock()

    def get(self, key: tuple[str, ...], make: Callable[[], Made]) -> Made:
        """The value of `key`, which `make` makes where it is not kept. Two threads may both make it."""
        with self._keeping:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
        made = make()
        with self._keeping:
            self._kept[key] = made
            while len(self._kept) > self._most:
                self._kept.popitem(last=False)
        return made

    def forget(self) -> None:
        """Make all of it anew."""
        with self._keeping:
            self._kept.clear()

    def __len__(self) -> int:
        return len(self._kept)
