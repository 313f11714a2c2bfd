"""What happens at the server, told to whoever listens: to pages by SSE, to popcorn-cli's streams.

    dispatcher, popcorn ── Hub.publish(Event) ──►  each Subscription that wants it  ──► a response of its own

Publishing is thread-safe and never waits: a listener that is too slow loses the oldest events. What is lost is no harm,
for every event says how things stand, not what has changed.

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
"""Open streams at once, of all kinds. Each costs some kilobytes and a file descriptor."""

MOST_LISTENERS_OF_ONE = 20
"""Open streams at once from one address, or of one account."""

MOST_UNKNOWN = 0.8
"""Of all open streams the part that those who have not signed in may take: nobody keeps out those who compete."""

MOST_WAITING = 256
"""Events that a slow listener may be behind."""


OVER = frozenset(state.value for state in JobState if state.over)


@dataclass(frozen=True)
class Event:
    """How one submission stands.

    kind: `queue` (data: position from 1, of), `state` (state, attempt, error), `step` (doing, case, done, total, line,
    and sample: [which, of how many] where calls are timed), `record` (a new best: run, score_ns, gpu),
        `closing` (the server ends: end the stream; of no competition and no submission).
    competition: its name. submission: its number. user: its author's name. public: it is for a board: everybody may
    see its page, and know how it ended.
    """

    kind: str
    competition: str
    submission: int
    user: str
    data: dict[str, Any] = field(default_factory=dict)
    public: bool = False

    @functools.cached_property
    def for_its_author(self) -> str:
        """JSON, without line breaks."""
        return self._told(self.data)

    @functools.cached_property
    def for_others(self) -> str:
        """The same without what was wrong with it, and unless it is public without how it ended; "" where nothing is
        left. Made once for all."""
        if not self.public and self.data.get("state") in OVER:
            return self._told({"state": "over"})
        left = {key: value for key, value in self.data.items() if key not in ("error", "line")}
        return self._told(left) if left else ""

    def _told(self, data: dict[str, Any]) -> str:
        told = {"kind": self.kind, "competition": self.competition, "submission": self.submission, "user": self.user}
        return json.dumps({**told, "public": self.public, "data": data})


class TooManyListeners(Exception):
    """No further stream can be opened now; the message is a sentence for whoever asked."""


class Subscription:
    """What one listener has not yet read."""

    def __init__(self, loop: asyncio.AbstractEventLoop, competition: str | None, submission: int | None) -> None:
        self._loop = loop
        self._competition, self._submission = competition, submission
        self._waiting: deque[Event] = deque(maxlen=MOST_WAITING)
        self._arrived = asyncio.Event()

    def wants(self, event: Event) -> bool:
        """Whether the event is one of those that were asked for."""
        if self._submission is not None:
            return event.submission == self._submission
        return self._competition is None or event.competition == self._competition

    def narrow(self, submission: int) -> None:
        """Listen to this submission alone from now on."""
        self._submission = submission

    def put(self, event: Event) -> None:
        """Called in any thread."""
        self._waiting.append(event)
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._arrived.set)

    async def next(self, timeout_s: float) -> Event | None:
        """The oldest event that was not read yet, or None if none comes for `timeout_s`."""
        await self._some(timeout_s)
        return self._waiting.popleft() if self._waiting else None

    async def latest(self, timeout_s: float) -> list[Event]:
        """All that were not read yet, of each submission's the last of a kind; none if none comes for `timeout_s`."""
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
            if not self._waiting:  # one may have come between
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._arrived.wait(), timeout_s)


class Hub:
    """Where events are published and listened for."""

    def __init__(self, most: int = MOST_LISTENERS, most_of_one: int = MOST_LISTENERS_OF_ONE) -> None:
        self._most, self._most_of_one = most, most_of_one
        self._listeners: dict[Subscription, str | int] = {}
        self._changing = threading.Lock()

    def publish(self, event: Event) -> None:
        """Tell whoever wants it. Returns at once, in any thread."""
        with self._changing:
            listeners = list(self._listeners)
        for listener in listeners:
            if listener.wants(event):
                listener.put(event)

    def publish_to_all(self, event: Event) -> None:
        """Tell everyone, whatever they listen to."""
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
        """Listen to one submission, to one competition or to all, until the block ends. `address`: of the client;
        `account`: the number of whose client it is, where that is known, and then its streams are counted alone.

        Called in the event loop. Raises TooManyListeners.
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
        """How many streams are open."""
        return len(self._listeners)
