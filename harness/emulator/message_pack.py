"""The metadata of a code object, as bytes: MessagePack."""

from __future__ import annotations

from typing import Any

from harness.emulator.findings import Malformed


class MessagePack:
    """The part of MessagePack that metadata use: maps, arrays, strings, integers, booleans, nil (msgpack.org, spec)."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def value(self, depth: int = 0) -> Any:
        """The next value. Raises Malformed for anything else."""
        if depth > 32:
            raise Malformed("its metadata are nested too deeply")
        tag = self._take(1)[0]
        if tag < 0x80:
            return tag
        if tag >= 0xE0:
            return tag - 256
        if tag < 0x90:
            return self._map(tag & 15, depth)
        if tag < 0xA0:
            return self._array(tag & 15, depth)
        if tag < 0xC0:
            return self._text(tag & 31)
        if tag in (0xC0, 0xC2, 0xC3):
            return {0xC0: None, 0xC2: False, 0xC3: True}[tag]
        if 0xCC <= tag <= 0xD3:
            size = 1 << (tag & 3)
            return int.from_bytes(self._take(size), "big", signed=tag >= 0xD0)
        sized = {0xD9: (1, self._text), 0xDA: (2, self._text), 0xDB: (4, self._text), 0xC4: (1, self._take)}
        if tag in sized:
            size, read = sized[tag]
            return read(int.from_bytes(self._take(size), "big"))
        nested = {0xDC: (2, self._array), 0xDD: (4, self._array), 0xDE: (2, self._map), 0xDF: (4, self._map)}
        if tag in nested:
            size, read_nested = nested[tag]
            return read_nested(int.from_bytes(self._take(size), "big"), depth)
        raise Malformed(f"its metadata hold the tag 0x{tag:x}")

    def _take(self, count: int) -> bytes:
        taken = self._data[self._at : self._at + count]
        if len(taken) != count:
            raise Malformed("its metadata end too early")
        self._at += count
        return taken

    def _text(self, count: int) -> str:
        return self._take(count).decode("utf-8", "replace")

    def _array(self, count: int, depth: int) -> list[Any]:
        return [self.value(depth + 1) for _ in range(count)]

    def _map(self, count: int, depth: int) -> dict[Any, Any]:
        return {str(self.value(depth + 1)): self.value(depth + 1) for _ in range(count)}
