"""tl.map_elementwise, which Triton's interpreter lacks: it calls a device function on one element after another.

    map_elementwise(f, x, y)            out[i] = f(x[i], y[i])
    map_elementwise(f, x, y, pack=2)    out[i], out[i+1] = f(x[i], x[i+1], y[i], y[i+1])

Elements packed together are neighbours in row-major order here. On a device they are those that one thread holds, which
depends on the layout. Python calls the function once per element, so a large block is slow.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime.interpreter import TensorHandle, interpreter_semantic


def map_elementwise(scalar_fn: Any, *args: Any, pack: Any = 1, **_: Any) -> Any:
    """Replaces tl.map_elementwise. Returns one block, or a tuple of blocks for a function that returns a tuple."""
    pack = getattr(pack, "value", pack)
    blocks = interpreter_semantic.broadcast_tensors(*args)
    shape, count = blocks[0].handle.data.shape, blocks[0].handle.data.size
    results: list[list[Any]] = []
    single = False
    for start in range(0, count, pack):
        of_thread = range(start, start + pack)
        returned = scalar_fn(*(element(block, at) for block in blocks for at in of_thread))
        single = not isinstance(returned, tuple | tl.tuple)
        results.append([interpreter_semantic.to_tensor(value) for value in ([returned] if single else returned)])
    columns = [[row[first + at] for row in results for at in range(pack)] for first in range(0, len(results[0]), pack)]
    made = tuple(block_of(column, shape) for column in columns)
    return made[0] if single else made


def element(block: tl.tensor, at: int) -> tl.tensor:
    kind = block.dtype.scalar
    return tl.tensor(TensorHandle(block.handle.data.reshape(-1)[at : at + 1], kind), kind)


def block_of(scalars: list[tl.tensor], shape: tuple[int, ...]) -> tl.tensor:
    kind = scalars[0].dtype
    data = np.concatenate([scalar.handle.data.reshape(1) for scalar in scalars]).reshape(shape)
    return tl.tensor(TensorHandle(data, kind), tl.block_type(kind, list(shape)))
