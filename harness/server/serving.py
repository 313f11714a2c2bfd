"""The value that every part of the server shares. `podium serve` makes it and passes it to the routers.

Serving ─┬─► root, database, hub, competitions()
         ├─► cards              by GPU name, torch's names of this machine's cards
         └─► admission.accept   the only entrance, for popcorn-cli and for the upload form
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from pathlib import Path

from harness.server import competition as competitions
from harness.server.competition import Competition
from harness.server.events import Event, Hub
from harness.server.standings import Standings
from harness.server.store import Database
from harness.server.store.rows import SubmissionRow

RESTARTING = "the server is being restarted: try again in a minute"


class Denied(Exception):
    """A refused request: an HTTP status and a sentence for the client. `retry_s`: the seconds after which to try
    again."""

    def __init__(self, status: int, sentence: str, retry_s: int | None = None) -> None:
        super().__init__(sentence)
        self.status, self.sentence, self.retry_s = status, sentence, retry_s


@dataclass
class Serving:
    """One server: its files, its database, its listeners and its competitions.

    `cards`: by the GPU names that people type (`H200`, `CPU`), torch's names of the cards (`cuda:0`). For a cluster:
      the model's slug, once for each card. `admin_sha256`: the hash of the administrator's token. With None nobody is
      an administrator over HTTP. `closed_because`: why no submission is accepted now, in a sentence; None if they are
      accepted.
    `arrived`: notified when a submission was queued. `all_problems`: whether the pages show the runs of every problem,
      not only of the competitions' problems. `standings`: the boards for popcorn-cli.
    """

    root: Path
    database: Database
    hub: Hub = field(default_factory=Hub)
    cards: dict[str, tuple[str, ...]] = field(default_factory=lambda: {"CPU": ("cpu",)})
    admin_sha256: str | None = None
    closed_because: str | None = None
    arrived: threading.Condition = field(default_factory=threading.Condition)
    all_problems: bool = False
    standings: Standings = field(init=False)
    _open: dict[str, Competition] = field(default_factory=dict)
    _numbers: dict[str, int] = field(default_factory=dict)
    _changing: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.standings = Standings(self.database.queue)

    def load(self) -> None:
        """Read all competitions' files and give a number to each new one. Those that an administrator took down stay
        down. Raises ProblemError and DatabaseGone."""
        with self._changing:
            found = competitions.load_all(self.root)
            known = self.database.people.competitions()
            shown = {name: each for name, each in found.items() if known.get(name, (0, None))[1] is None}
            self._numbers = {name: self.database.people.number_of(name) for name in shown}
            self._open = shown

    def put_up(self, name: str) -> Competition:
        """Read the file of one competition and show it, even if it was taken down. Raises ProblemError and
        DatabaseGone."""
        found = competitions.load(self.root, name)
        with self._changing:
            self._numbers = {**self._numbers, name: self.database.people.number_of(name)}
            self._open = {**self._open, name: found}
        return found

    def take_down(self, name: str) -> None:
        """Hide a competition. Raises DatabaseGone."""
        self.database.people.take_down(name)
        with self._changing:
            self._open = {other: each for other, each in self._open.items() if other != name}

    def close(self) -> None:
        """Stop accepting submissions and tell listeners that the server ends."""
        self.closed_because = RESTARTING
        self.hub.publish_to_all(Event("closing", "", 0, ""))

    @property
    def closing(self) -> bool:
        """Whether the server is ending."""
        return self.closed_because == RESTARTING

    def competitions(self) -> dict[str, Competition]:
        """Return the shown competitions by name."""
        return self._open

    def shows(self, problem: str) -> bool:
        """Whether the pages show the stored runs of a problem."""
        return self.all_problems or any(each.problem == problem for each in self._open.values())

    def competition(self, name: str) -> Competition:
        """Return a competition by name, in upper or lower case. Raises Denied 404."""
        found = self._open.get(name.lower())
        if found is None:
            raise Denied(404, f"there is no competition {_shown(name)}")
        return found

    def competition_of(self, job: SubmissionRow) -> Competition:
        """Return the competition of a job, even if it was taken down since. Raises ProblemError if its file is gone."""
        return self._open.get(job.competition) or competitions.load(self.root, job.competition)

    def number_of(self, competition: Competition) -> int:
        """Return the competition's number in the database."""
        return self._numbers[competition.name]

    def gpus(self, competition: Competition) -> list[str]:
        """Return the GPUs of a competition: those that its file names and this server has."""
        wanted = {gpu.upper() for gpu in competition.gpus}
        return [gpu for gpu in self.cards if not wanted or gpu in wanted]

    def gpu(self, competition: Competition, name: str) -> str:
        """Return a GPU of a competition as this server spells it. Raises Denied 400."""
        here = self.gpus(competition)
        for gpu in here:
            if gpu.lower() == name.lower():
                return gpu
        there = f"it is judged on {', '.join(here)}" if here else "at present it is judged nowhere"
        raise Denied(400, f"{competition.name} is not judged on {_shown(name)}: {there}")


def _shown(text: str) -> str:
    """Make a user's input fit for a sentence."""
    short = text if len(text) <= 60 else f"{text[:60]}\N{HORIZONTAL ELLIPSIS}"
    return short if short.isprintable() and short else repr(short)
