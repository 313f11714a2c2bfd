"""What every part of the server works with: one value, made by `podium serve` and handed to the routers.

Serving ─┬─► root, database, hub, competitions()
         ├─► cards              by GPU name, what torch calls the cards of this machine
         └─► admission.accept   the one way in, for popcorn-cli and for the upload form
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
    """What was asked is not done: an HTTP status and a sentence for whoever asked. `retry_s`: when to try again."""

    def __init__(self, status: int, sentence: str, retry_s: int | None = None) -> None:
        super().__init__(sentence)
        self.status, self.sentence, self.retry_s = status, sentence, retry_s


@dataclass
class Serving:
    """One server: its files, its database, who listens, and which competitions there are.

    cards: the names of GPUs that people type (`H200`, `CPU`), each with the cards that are one (`cuda:0`; of a cluster
        the model's slug, as often as there are cards of it).
    admin_sha256: the hash of the administrator's token, or None where there is none: then nobody is one over HTTP.
    closed_because: why no submission is taken now, in a sentence; None where they are.
    arrived: is notified when a submission was queued.
    all_problems: whether the pages show the runs of every problem, and not only those of the competitions' problems.
    standings: the boards that popcorn-cli asks for.
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
        """Read all competitions' files, and give a number to each that has none; those that an administrator took down
        stay down. Raises ProblemError, DatabaseGone."""
        with self._changing:
            found = competitions.load_all(self.root)
            known = self.database.people.competitions()
            shown = {name: each for name, each in found.items() if known.get(name, (0, None))[1] is None}
            self._numbers = {name: self.database.people.number_of(name) for name in shown}
            self._open = shown

    def put_up(self, name: str) -> Competition:
        """Read the file of one competition and show it, even if it was taken down. Raises ProblemError,
        DatabaseGone."""
        found = competitions.load(self.root, name)
        with self._changing:
            self._numbers = {**self._numbers, name: self.database.people.number_of(name)}
            self._open = {**self._open, name: found}
        return found

    def take_down(self, name: str) -> None:
        """Show it no more. Raises DatabaseGone."""
        self.database.people.take_down(name)
        with self._changing:
            self._open = {other: each for other, each in self._open.items() if other != name}

    def close(self) -> None:
        """Take no submissions any more, and tell those who listen: the server ends."""
        self.closed_because = RESTARTING
        self.hub.publish_to_all(Event("closing", "", 0, ""))

    @property
    def closing(self) -> bool:
        """Whether the server ends."""
        return self.closed_because == RESTARTING

    def competitions(self) -> dict[str, Competition]:
        """Those that are shown, by name."""
        return self._open

    def shows(self, problem: str) -> bool:
        """Whether the pages show the stored runs of a problem."""
        return self.all_problems or any(each.problem == problem for each in self._open.values())

    def competition(self, name: str) -> Competition:
        """One by its name, in any case of letters. Raises Denied 404."""
        found = self._open.get(name.lower())
        if found is None:
            raise Denied(404, f"there is no competition {_shown(name)}")
        return found

    def competition_of(self, job: SubmissionRow) -> Competition:
        """The competition of a job, also one that was taken down since. Raises ProblemError where its file has gone."""
        return self._open.get(job.competition) or competitions.load(self.root, job.competition)

    def number_of(self, competition: Competition) -> int:
        """Its number in the database."""
        return self._numbers[competition.name]

    def gpus(self, competition: Competition) -> list[str]:
        """The GPUs on which a competition is judged: those that its file names and this server has."""
        wanted = {gpu.upper() for gpu in competition.gpus}
        return [gpu for gpu in self.cards if not wanted or gpu in wanted]

    def gpu(self, competition: Competition, name: str) -> str:
        """A GPU of a competition, as this server spells it. Raises Denied 400."""
        here = self.gpus(competition)
        for gpu in here:
            if gpu.lower() == name.lower():
                return gpu
        there = ", ".join(here) or "none at present"
        raise Denied(400, f"{competition.name} is not judged on {_shown(name)}: there is {there}")


def _shown(text: str) -> str:
    """What somebody typed, fit for a sentence."""
    short = text if len(text) <= 60 else f"{text[:60]}\N{HORIZONTAL ELLIPSIS}"
    return short if short.isprintable() and short else repr(short)
