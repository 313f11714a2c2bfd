"""Ratios of sums over rows, and the scatter of rows about them: Cochran, Sampling Techniques, 3rd ed. 1977, 6.4.

Ratios.of(over, under)   one ratio for each column of two matrices of rows
a + b                    the ratios over the rows of both
value, error, spread     vectors with one figure for each column
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

SUMS = 7


@dataclass(frozen=True)
class Ratios:
    """The sums over rows from which n ratios are computed, float64 `(SUMS, n)`: rows, numerators, denominators, squared
    numerators, products of both, squared denominators, fourth powers of denominators."""

    sums: torch.Tensor

    @staticmethod
    def of(over: torch.Tensor, under: torch.Tensor) -> Ratios:
        """From the columns of two matrices `(rows, n)` in float64. A row counts if its `under` is above zero; otherwise
        its `over` must be zero."""
        both, rows = over * under, (under > 0).double()
        squares = under.square()
        columns = (rows, over, under, over.square(), both, squares, squares.square())
        return Ratios(torch.stack([each.sum(0) for each in columns]))

    def __add__(self, other: Ratios) -> Ratios:
        return Ratios(self.sums + other.sums)

    def cpu(self) -> Ratios:
        return Ratios(self.sums.cpu())

    @property
    def rows(self) -> torch.Tensor:
        return self.sums[0]

    @property
    def effective_rows(self) -> torch.Tensor:
        """How many rows of equal weight would tell the `spread` as well: Kish, Survey Sampling, 1965, 11.7. A few rows
        may hold most of a part: of 5,120 rows of mla 24 to 320 count."""
        return self.sums[5].square() / self.sums[6]

    @property
    def equal_rows(self) -> torch.Tensor:
        """How many rows of equal weight have the same sum and the same squares of denominators."""
        return self.sums[2].square() / self.sums[5]

    @property
    def value(self) -> torch.Tensor:
        """The ratios; NaN if nothing was added."""
        return self.sums[1] / self.sums[2]

    @property
    def spread(self) -> torch.Tensor:
        """The root mean square deviation of rows from `value`, each weighted with its squared denominator."""
        return (self._left / self.sums[5]).sqrt().nan_to_num(0.0)

    @property
    def error(self) -> torch.Tensor:
        """The standard error of `value`, if rows are independent; 0 for fewer than two rows."""
        return self._error_of(self._left)

    def error_with(self, spread: float) -> torch.Tensor:
        """`error`, if the rows had this `spread`."""
        return self._error_of(spread**2 * self.sums[5])

    def _error_of(self, left: torch.Tensor) -> torch.Tensor:
        rows = self.sums[0]
        error = (left * rows / (rows - 1)).sqrt() / self.sums[2]
        return torch.where(rows >= 2, error.nan_to_num(0.0), 0.0)

    @property
    def _left(self) -> torch.Tensor:
        value = self.value.nan_to_num(0.0)
        return (self.sums[3] - 2 * value * self.sums[4] + value.square() * self.sums[5]).clamp(min=0.0)
