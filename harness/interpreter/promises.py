"""What a kernel promises to Triton's compiler, which relies on it without a check.

    tl.multiple_of(x, 16)    the first element of x is a multiple of 16, or FalsePromise
    tl.assume(condition)     upstream checks it

With a false promise compiled code may load 16 bytes from an address that is no multiple of 16: an error on NVIDIA's
chips. The interpreter would not notice. Only the first element is compared, because the compiler reads the promise so
that it holds for the first element of each run of neighbours. How long those are is another promise, tl.max_contiguous,
which is not checked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import triton.language as tl


class FalsePromise(RuntimeError):
    """A kernel says of a value what does not hold."""


def checked(multiple_of: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """tl.multiple_of, which raises FalsePromise before it does what `multiple_of` does."""

    def compared(input: Any, values: Any) -> Any:
        if isinstance(input, tl.tensor):  # the index of a loop may be a Python number
            first = int(input.handle.data.reshape(-1)[0])
            for value in values if isinstance(values, list | tuple | tl.tuple) else (values,):
                said: int = value.value if isinstance(value, tl.constexpr) else value
                if first % said:
                    what = "address" if input.dtype.scalar.is_ptr() else "number"
                    raise FalsePromise(f"tl.multiple_of says {said}, and the {what} is {first:,}")
        return multiple_of(input, values)

    return compared
