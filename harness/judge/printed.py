"""The output that a worker prints."""

from __future__ import annotations

import os
import threading
from typing import IO

OUTPUT_KEPT_BYTES = 32 << 10
"""Bytes kept of the beginning of the output, and as many of its end."""


class Printed:
    """Reads a pipe in the background until its end. It keeps the head and the tail, however much comes."""

    def __init__(self, pipe: IO[bytes]) -> None:
        self._pipe = pipe
        self._head, self._tail, self._total = bytearray(), bytearray(), 0
        self._thread = threading.Thread(target=self._drain, daemon=True)
        self._thread.start()

    def text(self) -> str:
        head = self._head.decode("utf-8", errors="replace")
        tail = bytes(self._tail).decode("utf-8", errors="replace")
        left_out = self._total - len(self._head) - len(self._tail)
        return head + (f"\n[... {left_out:,} bytes left out ...]\n" if left_out > 0 else "") + tail

    def close(self, within_s: float = 1.0) -> None:
        """Wait for the end of the output; then `text` is complete. A process that left the group may hold the pipe open
        longer; its output is ignored."""
        self._thread.join(within_s)

    def _drain(self) -> None:
        fd = self._pipe.fileno()
        while data := os.read(fd, 1 << 16):
            self._total += len(data)
            room = OUTPUT_KEPT_BYTES - len(self._head)
            self._head += data[:room]
            self._tail = (self._tail + data[room:])[-OUTPUT_KEPT_BYTES:]
        self._pipe.close()
