"""The gain of each dim of each head, which shows what a mean over heads or over dims hides: a dim of one head that is
never written.

    Cells.of(squares, products, noise, own)   from rows, each divided by its norm
    a + b                                     the cells over the rows of both
    value, room                               matrices (heads, dims): the gains, and by how much noise widens a band
    furthest                                  where the gain is furthest from 1

Cells are many and their rows few, so the scatter of a cell's own rows says little about its noise. Therefore the noise
is that of whole rows: the error of a row counts as if it were spread evenly over the row's dims.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

ERRORS = 5
"""A band is widened by this many standard errors: of thousands of cells, the furthest is about four off by chance."""


@dataclass(frozen=True)
class Cells:
    """Sums over rows, float64 (3, heads, dims): numerators and denominators of the gains, and the variances that the
    rows' errors give the numerators."""

    sums: torch.Tensor

    @staticmethod
    def of(over: torch.Tensor, under: torch.Tensor, error: torch.Tensor, own: torch.Tensor) -> Cells:
        """`over` and `under`, (rows, dims): each row's <out, ref> and <ref, ref> by dim, over its <ref, ref>. `error`,
        (rows, 1): each row's squared relative error. `own`, (rows, heads): 1 at a row's head, if the
        row counts."""
        width = under.shape[-1]
        columns = torch.cat([over, under, under * (error / width)], dim=1)
        return Cells((own.mT @ columns).unflatten(1, (3, width)).transpose(0, 1))

    def __add__(self, other: Cells) -> Cells:
        return Cells(self.sums + other.sums)

    @property
    def value(self) -> torch.Tensor:
        """The gains; NaN where the reference is zero."""
        return self.sums[0] / self.sums[1]

    @property
    def room(self) -> torch.Tensor:
        return ERRORS * self.sums[2].sqrt() / self.sums[1]

    @property
    def furthest(self) -> str:
        """Which cell's gain is further from 1 than any other's, by its noise."""
        away = ((self.value - 1).abs() / self.room).nan_to_num(0.0, posinf=torch.inf)
        head, dim = divmod(int(away.argmax()), away.shape[1])
        return f"head {head}, dim {dim}"
