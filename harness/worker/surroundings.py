"""What a call must leave as it found it, or it and later ones are not timed as they should be: threads, the current
stream and device, capture."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import torch

_list_directory = os.listdir
_current_stream = torch.cuda.current_stream
_current_device = torch.cuda.current_device
_is_capturing = torch.cuda.is_current_stream_capturing
_TASKS = "/proc/self/task"


@dataclass(frozen=True)
class Look:
    """The number of this process's threads, native ones too; on a GPU the current device and stream, and whether it
    is being captured."""

    threads: int
    device: int = 0
    stream: int = 0
    capturing: bool = False


class Surroundings:
    def look(self) -> Look:
        return Look(_count_threads())

    def changed_since(self, before: Look) -> dict[str, Any]:
        """For the reply: more_threads, how many there are now that were not; left, what else is not as it was."""
        now = self.look()
        left = []
        if now.device != before.device:
            left.append(f"made device {now.device} the current one")
        if now.stream != before.stream:
            left.append("made another stream the current one")
        if now.capturing != before.capturing:
            left.append("left its stream being captured")
        return {"more_threads": max(now.threads - before.threads, 0), "left": left}


class GpuSurroundings(Surroundings):
    def look(self) -> Look:
        return Look(_count_threads(), _current_device(), _current_stream().cuda_stream, _is_capturing())


def _count_threads() -> int:
    try:
        return len(_list_directory(_TASKS))
    except OSError:  # systems other than Linux
        return 0
