"""A cache of the values that were requested last."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

Made = TypeVar("Made")


class MadeOnce(Generic[Made]):
    """Holds at most `most` values by key."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept: OrderedDict[tuple[str, ...], Made] = OrderedDict()
        self._keeping = threading.Lock()

    def get(self, key: tuple[str, ...], make: Callable[[], Made]) -> Made:
        """Return the value of `key`, which `make` makes if it is not cached. Two threads may both make it."""
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
        """Clear the cache."""
        with self._keeping:
            self._kept.clear()

    def __len__(self) -> int:
        return len(self._kept)
