"""The choice of rows of a long output that are checked."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Selection:
    """The secret rows of an output that are checked: their numbers along `axis`, which has `length` rows."""

    axis: int
    rows: torch.Tensor
    length: int

    def whole_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return (*shape[: self.axis], self.length, *shape[self.axis + 1 :])
