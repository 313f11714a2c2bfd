"""Find a GPU's case with a tensor so large that a 32-bit offset wraps in it, where no CPU test case has such a tensor.

Such cases take gigabytes, so a CPU's list has none, and a kernel whose offsets wrap is accepted there. Nothing here
imports torch.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path

from harness.compile.compilation import Count, Document, Said

DESCRIPTION = "inputs.json"
"""The file in which compile/inputs describes a target's inputs."""

INT32 = 1 << 31
"""The number of elements from which on an offset does not fit into a signed number of 32 bits."""


class Reach(Document):
    """The largest tensor among the GPU's cases, and the case. `elements` is 0 if offsets of 32 bits reach all of it, or
    if a CPU test case has such a tensor too."""

    elements: Count = 0
    case: Said = ""
    cached: bool = False


def reach(folder: Path, targets: Sequence[str]) -> Reach | None:
    """Read what `described` wrote to `folder`. Return None if it described the inputs of no target."""
    described = [folder / target for target in targets if (folder / target).exists()]
    if not described:
        return None
    elements, case = max((each for at in described for each in _largest(at)), default=(0, ""))
    on_cpu = max((count for count, _ in _largest(folder / "cpu")), default=0)
    return Reach(elements=elements, case=case) if elements > INT32 >= on_cpu else Reach()


def _largest(folder: Path) -> Iterator[tuple[int, str]]:
    """Yield the elements of each case's largest tensor."""
    for case in json.loads((folder / DESCRIPTION).read_text())["cases"]:
        placed = (tensor["shadow"] or tensor["values"] for tensor in case["tensors"])
        yield max((math.prod(each["shape"]) for each in placed), default=0), case["label"]
