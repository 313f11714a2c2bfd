"""The messages between judge and worker: length-prefixed JSON over one socket, and nothing else.

    judge  ── {"nonce": n, "op": ..., ...} ──►  worker
    judge  ◄── {"nonce": n, "reply": {...}}  or  {"nonce": n, "failure": {...}} ──  worker

Ops: load, set up, map, call, go, collect, profile, quit. `worker/main` reads their contents, `judge/reply` validates
the replies. In a call the worker first sends {"nonce": n, "ready": true}. Then it either stops itself until the judge
continues it, or waits for "go" (worker/calls).

Tensors are never sent here; they lie in shared memory (`arena`). Nothing is ever unpickled. Everything that the worker
sends is untrusted: a frame that is too long, is no JSON object, or answers another nonce raises `ProtocolViolation`.

A frame is a 4-byte big-endian length and that many bytes of UTF-8 JSON.
"""

from __future__ import annotations

import json
import select
import socket
import struct
import time
from typing import Any, Protocol, SupportsIndex

MAX_FRAME_BYTES = 1 << 20
MAX_FDS = 16
_LENGTH = struct.Struct(">I")

Message = dict[str, Any]


class ProtocolViolation(Exception):
    """The other side sent a message that no honest one sends."""


class ChannelClosed(Exception):
    """The other side is gone."""


class ReplyTimeout(Exception):
    """No complete frame arrived in time."""


class PeerStopped(Exception):
    """The other side stopped without a complete frame."""


class Watch(Protocol):
    """Reports whether the other side has stopped."""

    stopped: bool

    def fileno(self) -> int: ...

    def note(self) -> None:
        """Read the waiting reports."""


class NoDescriptor(Exception):
    """A file descriptor that was sent did not arrive."""


class Descriptors(list[int]):
    """The file descriptors that arrived and were not taken yet."""

    def pop(self, index: SupportsIndex = -1) -> int:
        """Take one. Raises NoDescriptor if there is none."""
        if not self:
            raise NoDescriptor(
                "the process could receive no shared memory: the submission has lowered RLIMIT_NOFILE, "
                "or has as many files open as it may"
            )
        return super().pop(index)


class Channel:
    """Frames over a connected stream socket. Bytes of the next frame are kept for it.

    With `accepts_fds`, received file descriptors are appended to `fds`. The judge accepts none: the kernel drops those
    that a worker sends. `received_bytes`: the length of the last frame.
    """

    def __init__(self, connection: socket.socket, accepts_fds: bool = False) -> None:
        self._connection = connection
        self._accepts_fds = accepts_fds
        self._pending = bytearray()
        self._length: int | None = None
        self.fds = Descriptors()
        self.received_bytes = 0

    def fileno(self) -> int:
        return self._connection.fileno()

    def close(self) -> None:
        self._connection.close()

    def send(self, message: Message, fds: tuple[int, ...] = (), timeout_s: float | None = None) -> None:
        """Send one frame, with file descriptors attached to its first byte.

        Raises ValueError if it is too long, ChannelClosed, and ReplyTimeout if the other side does not read it in time.
        """
        body = json.dumps(message, separators=(",", ":")).encode()
        if len(body) > MAX_FRAME_BYTES:
            raise ValueError(f"a message of {len(body):,} bytes is over the limit of {MAX_FRAME_BYTES:,}")
        frame = _LENGTH.pack(len(body)) + body
        self._connection.settimeout(timeout_s)
        try:
            sent = socket.send_fds(self._connection, [frame], fds) if fds else 0
            self._connection.sendall(frame[sent:])
        except TimeoutError:
            raise ReplyTimeout from None
        except OSError as error:
            raise ChannelClosed(str(error)) from None

    def receive(self, timeout_s: float | None = None, watch: Watch | None = None) -> Message:
        """Receive the object of the next frame. Raises ReplyTimeout, ChannelClosed, ProtocolViolation, and PeerStopped
        if a `watch` is given."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        if self._length is None:
            (self._length,) = _LENGTH.unpack(self._take(_LENGTH.size, deadline, watch))
        if self._length > MAX_FRAME_BYTES:
            raise ProtocolViolation(f"a frame announces {self._length:,} bytes; the limit is {MAX_FRAME_BYTES:,}")
        body = self._take(self._length, deadline, watch)
        self.received_bytes = len(body)
        self._length = None
        return _parse(body)

    def awaits(self, timeout_s: float) -> bool:
        """Whether data has arrived that was not received yet, or arrives within this time."""
        poll = select.poll()
        poll.register(self._connection, select.POLLIN)
        return bool(self._pending) or bool(poll.poll(timeout_s * 1e3))

    def is_quiet(self) -> bool:
        """Whether nothing has been sent beyond the frames received: no frame waits, complete or not."""
        if self._pending or self._length is not None:
            return False
        try:
            self._connection.setblocking(False)
            extra = self._connection.recv(1)
        except BlockingIOError:
            return True
        except OSError:
            return True
        self._pending += extra
        return not extra

    def _take(self, count: int, deadline: float | None, watch: Watch | None) -> bytes:
        while len(self._pending) < count:
            if watch is not None:
                self._wait(deadline, watch)
            remaining = None if deadline is None else deadline - time.monotonic()
            if remaining is not None and remaining <= 0:
                raise ReplyTimeout
            self._connection.settimeout(remaining)
            try:
                data = self._read()
            except TimeoutError:
                raise ReplyTimeout from None
            except OSError as error:
                raise ChannelClosed(str(error)) from None
            if not data:
                raise ChannelClosed("the other side closed the channel")
            self._pending += data
        taken = bytes(self._pending[:count])
        del self._pending[:count]
        return taken

    def _wait(self, deadline: float | None, watch: Watch) -> None:
        """Wait until there is something to read, or nothing more can come."""
        while True:
            poll = select.poll()
            poll.register(self._connection, select.POLLIN)
            if watch.stopped:
                if not poll.poll(0):
                    raise PeerStopped
                return
            poll.register(watch.fileno(), select.POLLIN)
            ready = {fd for fd, _ in poll.poll(None if deadline is None else max(deadline - time.monotonic(), 0) * 1e3)}
            if not ready:
                raise ReplyTimeout
            if self.fileno() in ready:
                return
            watch.note()

    def _read(self) -> bytes:
        if not self._accepts_fds:
            return self._connection.recv(65536)
        data, fds, _, _ = socket.recv_fds(self._connection, 65536, MAX_FDS)
        self.fds += fds
        return data


def _parse(body: bytes) -> Message:
    try:
        message = json.loads(body)
    except (ValueError, RecursionError):
        raise ProtocolViolation("a frame holds no JSON") from None
    if not isinstance(message, dict):
        raise ProtocolViolation("a frame holds no JSON object")
    if not _is_unicode(message):
        raise ProtocolViolation("a frame holds text that is no Unicode")
    return message


def _is_unicode(message: Message) -> bool:
    """False for lone surrogates: JSON can escape them, but nothing can store them."""
    try:
        json.dumps(message, ensure_ascii=False).encode()
    except (UnicodeEncodeError, RecursionError):
        return False
    return True
