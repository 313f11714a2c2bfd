"""The server's database: who may submit, what was submitted, and the queue.

    Database ─┬─► people   accounts, clients, sessions, invites, members
              └─► queue    submissions, jobs, states, runs
    reading                what is asked of them
    connection             SQLite and PostgreSQL, used in one way; migrations/*.sql
    rows                   what is read, as values

Runs themselves lie in results/, a file each, as those of `eval` do.
"""

from __future__ import annotations

from harness.server.store.connection import Connections, DatabaseGone
from harness.server.store.people import People
from harness.server.store.queue import Queue

__all__ = ["Database", "DatabaseGone"]


class Database:
    """The database at `url`: a file's path or postgresql://…; its tables are brought up to date.

    Raises DatabaseGone, and of every method of `people` and `queue` that too, where it cannot be used now.
    """

    def __init__(self, url: str) -> None:
        self.connections = Connections(url)
        self.connections.migrate()
        self.people = People(self.connections)
        self.queue = Queue(self.connections)

    def close(self) -> None:
        """Close its connections."""
        self.connections.close()
