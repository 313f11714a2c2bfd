"""Types that submissions name."""

from typing import TypeVar

import torch

input_t = TypeVar("input_t")
output_t = TypeVar("output_t", bound=torch.Tensor)
