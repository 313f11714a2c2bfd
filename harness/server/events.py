"""Events at the server, passed to listeners: to pages as server-sent events, and to popcorn-cli's streams.

    dispatcher, popcorn ── Hub.publish(Event) ──►  each Subscription that wants it  ──► a response of its own

Publishing is thread-safe and never waits: a slow listener loses the oldest events. That does no harm, because every
event states the present condition and not a change.

    with hub.subscribe(competition="mla") as listener:       # raises TooManyListeners: answer 503
        while not await request.is_disconnected():
            event = await listener.next(15)                   # None: nothing happened for 15 s, send a comment
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from harness.server.store.rows import JobState

MOST_LISTENERS = 500
"""The most open streams of all kinds. Each costs some kilobytes and a file descriptor."""

MOST_LISTENERS_OF_ONE = 20
"""The most open streams from one address or of one account."""

MOST_UNKNOWN = 0.8
"""The largest fraction of open streams for people who are not signed in, so that they cannot lock out competitors."""

MOST_WAITING = 256
"""The most events that wait for a slow listener."""


OVER = frozenset(state.value for state in JobState if state.over)


@dataclass(frozen=True)
class Event:
    """The condition of one submission.

    `kind` is one of:

    - `queue`: data has position (from 1) and of.
    - `state`: data has state, attempt and error.
    - `step`: data has doing, case, done, total and line; also sample, [which, of how many], while calls are timed.
    - `record`, a new best: data has run, score_ns and gpu.
    - `closing`: the server ends, so end the stream. It belongs to no competition and no submission.

    `competition`: its name. `submission`: its number. `user`: its author's name. `public`: the submission is for a
      board, so everybody may see its page and its result.
    """

    kind: str
    competition: str
    submission: int
    user: str
    data: dict[str, Any] = field(default_factory=dict)
    public: bool = False

    @functools.cached_property
    def for_its_author(self) -> str:
        """The event as JSON without line breaks."""
        return self._told(self.data)

    @functools.cached_property
    def for_others(self) -> str:
        """The same for others: without errors, and for a submission that is not public without its result. "" if
        nothing is left. Computed once for all listeners."""
        if not self.public and self.data.get("state") in OVER:
            return self._told({"state": "over"})
        left = {key: value for key, value in self.data.items() if key not in ("error", "line")}
        return self._told(left) if left else ""

    def _told(self, data: dict[str, Any]) -> str:
        told = {"kind": self.kind, "competition": self.competition, "submission": self.submission, "user": self.user}
        return json.dumps({**told, "public": self.public, "data": data})


class TooManyListeners(Exception):
    """No further stream can be opened now. The message is a sentence for the client."""


class Subscription:
    """The unread events of one listener."""

    def __init__(self, loop: asyncio.AbstractEventLoop, competition: str | None, submission: int | None) -> None:
        self._loop = loop
        self._competition, self._submission = competition, submission
        self._waiting: deque[Event] = deque(maxlen=MOST_WAITING)
        self._arrived = asyncio.Event()

    def wants(self, event: Event) -> bool:
        """Whether the listener asked for this event."""
        if self._submission is not None:
            return event.submission == self._submission
        return self._competition is None or event.competition == self._competition

    def narrow(self, submission: int) -> None:
        """From now on listen to this submission only."""
        self._submission = submission

    def put(self, event: Event) -> None:
        """Add an event. Callable from any thread."""
        self._waiting.append(event)
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._arrived.set)

    async def next(self, timeout_s: float) -> Event | None:
        """Return the oldest unread event, or None if none comes for `timeout_s`."""
        await self._some(timeout_s)
        return self._waiting.popleft() if self._waiting else None

    async def latest(self, timeout_s: float) -> list[Event]:
        """Return all unread events, but only the last of each kind for each submission. Empty if none comes for
        `timeout_s`."""
        await self._some(timeout_s)
        found: dict[tuple[int, str], Event] = {}
        while self._waiting:
            event = self._waiting.popleft()
            found.pop((event.submission, event.kind), None)
            found[event.submission, event.kind] = event
        return list(found.values())

    async def _some(self, timeout_s: float) -> None:
        if not self._waiting:
            self._arrived.clear()
            if not self._waiting:  # one may have come in between
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._arrived.wait(), timeout_s)


class Hub:
    """Where events are published and subscribed to."""

    def __init__(self, most: int = MOST_LISTENERS, most_of_one: int = MOST_LISTENERS_OF_ONE) -> None:
        self._most, self._most_of_one = most, most_of_one
        self._listeners: dict[Subscription, str | int] = {}
        self._changing = threading.Lock()

    def publish(self, event: Event) -> None:
        """Pass an event to every listener that wants it. Returns at once; callable from any thread."""
        with self._changing:
            listeners = list(self._listeners)
        for listener in listeners:
            if listener.wants(event):
                listener.put(event)

    def publish_to_all(self, event: Event) -> None:
        """Pass an event to every listener, whatever it listens to."""
        with self._changing:
            listeners = list(self._listeners)
        for listener in listeners:
            listener.put(event)

    @contextlib.contextmanager
    def subscribe(
        self,
        *,
        competition: str | None = None,
        submission: int | None = None,
        address: str = "",
        account: int | None = None,
    ) -> Iterator[Subscription]:
        """Listen to one submission, to one competition or to everything until the block ends. `address`: the client's
        address. `account`: the number of its account, if known; then streams are counted by account instead.

        Call it in the event loop. Raises TooManyListeners.
        """
        listener = Subscription(asyncio.get_running_loop(), competition, submission)
        with self._changing:
            whose = address if account is None else account
            held = list(self._listeners.values())
            unknown = sum(isinstance(each, str) for each in held)
            if len(held) >= self._most or (account is None and unknown >= MOST_UNKNOWN * self._most):
                raise TooManyListeners(f"{len(held)} streams are open, which is the most: try again later")
            if whose != "" and held.count(whose) >= self._most_of_one:
                your = "from your address" if account is None else "of your account"
                raise TooManyListeners(f"{self._most_of_one} streams are open {your}: close one")
            self._listeners[listener] = whose
        try:
            yield listener
        finally:
            with self._changing:
                self._listeners.pop(listener, None)

    @property
    def listeners(self) -> int:
        """The number of open streams."""
        return len(self._listeners)
