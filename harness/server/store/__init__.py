"""The server's database: accounts, submissions and the queue.

    Database ─┬─► people   accounts, clients, sessions, invites, members
              └─► queue    submissions, jobs, states, runs
    reading                queries
    connection             SQLite and PostgreSQL, used in one way; migrations/*.sql
    rows                   rows as values

The runs themselves are files in results/, like those of `eval`.
"""

from __future__ import annotations

from harness.server.store.connection import Connections, DatabaseGone
from harness.server.store.people import People
from harness.server.store.queue import Queue

__all__ = ["Database", "DatabaseGone"]


class Database:
    """The database at `url`: a file's path or postgresql://…. Its tables are brought up to date.

    Raises DatabaseGone if it cannot be used now. So does every method of `people` and `queue`.
    """

    def __init__(self, url: str) -> None:
        self.connections = Connections(url)
        self.connections.migrate()
        self.people = People(self.connections)
        self.queue = Queue(self.connections)

    def close(self) -> None:
        """Close the connections."""
        self.connections.close()
