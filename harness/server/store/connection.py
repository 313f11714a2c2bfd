"""Connections to SQLite or PostgreSQL, used in the same way: transactions, and the numbered migrations.

    sqlite:///podium.sqlite  or a path ─► sqlite3     one writer at a time, readers beside it (WAL)
    postgresql://…                     ─► psycopg     if the extra `postgres` is installed

SQL is written with ? for values. A failure of the database (a full disk, no connection) is a DatabaseGone.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

from harness.errors import InfrastructureError, UsageError

MIGRATIONS = Path(__file__).with_name("migrations")
BUSY_S = 20.0
"""How long a write waits for one of another process, such as `podium user add`."""

MOST_CONNECTIONS = 24
_ADVISORY_LOCK = 7_064_211_026
"""The number of PostgreSQL's lock on the database. It can be any number that no other program uses."""

LETS_GO_S = 2.0
"""How long a server waits for PostgreSQL's lock. PostgreSQL releases that of a server that has ended a moment later."""


class DatabaseGone(InfrastructureError):
    """The database cannot be read or written now. The request had no effect, and may succeed later.

    The message is for the server's operator and may name files and hosts. `told` is for everyone else.
    """

    told = "the database cannot be used now"


class Transaction(Protocol):
    """A transaction: all of its statements take effect, or none."""

    def __call__(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]: ...


class Connections:
    """Connections to one database, opened when needed and kept."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.postgres = url.startswith(("postgresql://", "postgres://"))
        if not self.postgres and "://" in url and not url.startswith("sqlite:///"):
            raise UsageError(f"{url.partition(':')[0]}:// is not a database", "a file's path, or postgresql://…")
        self.path = None if self.postgres else Path(url.removeprefix("sqlite:///"))
        self._idle: list[Any] = []
        self._writing = threading.Lock()
        self._most = threading.BoundedSemaphore(MOST_CONNECTIONS)
        self._sole: Any = None
        if self.postgres:
            try:
                import psycopg
            except ModuleNotFoundError:
                raise UsageError(
                    "PostgreSQL needs psycopg", "in a checkout: pip install -c constraints.txt '.[postgres]'"
                ) from None
            self._failures: tuple[type[Exception], ...] = (psycopg.OperationalError, psycopg.InterfaceError)
        else:
            self._failures = (sqlite3.OperationalError, sqlite3.DatabaseError)

    def _open(self) -> Any:
        if self.postgres:
            import psycopg

            return psycopg.connect(self.url, autocommit=True, connect_timeout=5)
        assert self.path is not None
        self._keep_private(self.path)
        opened = sqlite3.connect(self.path, BUSY_S, isolation_level=None, check_same_thread=False)
        opened.execute("PRAGMA journal_mode = WAL")
        opened.execute("PRAGMA synchronous = FULL")
        opened.execute("PRAGMA foreign_keys = ON")
        return opened

    @staticmethod
    def _keep_private(path: Path) -> None:
        """Restrict the file to its owner, because it holds everyone's sources and codes. SQLite gives its companion
        files (-wal, -shm) the same rights.

        An existing file is not opened: closing it would drop all locks that SQLite holds on it in this process
        (https://sqlite.org/howtocorrupt.html, 2.2). Another process would then think it is the last one, and remove the
        log that this process still writes to.
        """
        with contextlib.suppress(OSError):  # SQLite reports the fault better
            if not path.exists():
                os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
            for each in (path, Path(f"{path}-wal"), Path(f"{path}-shm")):
                if each.exists() and each.stat().st_mode & 0o077:
                    each.chmod(0o600)

    @contextlib.contextmanager
    def writing(self) -> Iterator[Transaction]:
        """Begin a transaction that may write. Raises DatabaseGone; then nothing was written."""
        with contextlib.nullcontext() if self.postgres else self._writing:
            yield from self._transaction("BEGIN" if self.postgres else "BEGIN IMMEDIATE")

    @contextlib.contextmanager
    def reading(self) -> Iterator[Transaction]:
        """Begin a transaction that sees one state of the database. Raises DatabaseGone."""
        yield from self._transaction("BEGIN ISOLATION LEVEL REPEATABLE READ" if self.postgres else "BEGIN")

    def _transaction(self, begin: str) -> Iterator[Transaction]:
        with self._most:
            connection = None
            try:
                connection = self._taken()

                def rows(sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
                    cursor = connection.execute(sql.replace("?", "%s") if self.postgres else sql, values)
                    return cursor.fetchall() if cursor.description else []

                self._begin(connection, begin)
                yield rows
                connection.execute("COMMIT")
            except BaseException as error:
                if connection is not None:
                    with contextlib.suppress(Exception):
                        connection.execute("ROLLBACK")
                    with contextlib.suppress(Exception):
                        connection.close()
                if self.failed(error):
                    said = " ".join(str(error).split())
                    raise DatabaseGone(f"{DatabaseGone.told}: {said or type(error).__name__}") from error
                raise
            self._idle.append(connection)

    def failed(self, error: BaseException) -> bool:
        """Whether the error means that the database cannot be used, rather than that a statement was wrong."""
        return isinstance(error, self._failures) and not _a_bug(error)

    def _taken(self) -> Any:
        with contextlib.suppress(IndexError):
            connection = self._idle.pop()
            if self.path is not None and not self.path.exists():  # the file was deleted: do not write to a ghost
                connection.close()
                self._forget()
                raise sqlite3.OperationalError(f"there is no {self.path} any more")
            return connection
        if self.path is not None and not self.path.exists() and self._sole is not None:
            raise sqlite3.OperationalError(f"there is no {self.path} any more")
        return self._open()

    def _begin(self, connection: Any, begin: str) -> None:
        connection.execute(begin)

    def _forget(self) -> None:
        while self._idle:
            with contextlib.suppress(Exception):
                self._idle.pop().close()

    def migrate(self) -> int:
        """Bring the tables up to date and return the number of the last migration. Raises DatabaseGone, and
        InfrastructureError if a newer Podium made the tables."""
        if self.path is not None:
            try:
                self.path.parent.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise DatabaseGone(f"{self.path.parent} cannot be made: {error.strerror}") from None
        files = {int(path.stem): path for path in MIGRATIONS.glob("*.sql")}
        with self.writing() as rows:
            rows("CREATE TABLE IF NOT EXISTS migrations (number INTEGER PRIMARY KEY)")
            if self.postgres:
                rows("LOCK TABLE migrations IN ACCESS EXCLUSIVE MODE")
            done = {number for (number,) in rows("SELECT number FROM migrations")}
            if done - files.keys():
                raise InfrastructureError("the database was made by a newer Podium", "start that, or name another")
            for number in sorted(files.keys() - done):
                for statement in _statements(files[number].read_text(encoding="utf-8"), self.postgres):
                    rows(statement)
                rows("INSERT INTO migrations VALUES (?)", (number,))
        return max(files)

    def own(self) -> None:
        """Become the only server of this database until `close`. Raises InfrastructureError if another server owns
        it."""
        taken = InfrastructureError("another server runs on this database", "end it, or name another: --database")
        if self.postgres:
            with contextlib.suppress(AttributeError):
                self._sole.close()
            try:
                self._sole = self._open()
                until = time.monotonic() + LETS_GO_S
                while not self._sole.execute("SELECT pg_try_advisory_lock(%s)", (_ADVISORY_LOCK,)).fetchone()[0]:
                    if time.monotonic() > until:
                        raise taken
                    time.sleep(0.05)
            except self._failures as error:
                raise DatabaseGone(f"{DatabaseGone.told}: {error}") from error
            return
        assert self.path is not None
        if self._sole is not None:  # a lock on a file outlives any failure of the database
            return
        lock = os.open(f"{self.path}.lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            raise taken from None
        self._sole = os.fdopen(lock)

    def close(self) -> None:
        """Close idle connections, and release the database for another server."""
        self._forget()
        if self._sole is not None:
            self._sole.close()
            self._sole = None


def _a_bug(error: BaseException) -> bool:
    """Whether a statement was wrong."""
    return isinstance(error, sqlite3.IntegrityError | sqlite3.ProgrammingError) or bool(
        re.search(r"no such (table|column)|syntax error", str(error))
    )


def _statements(text: str, postgres: bool) -> list[str]:
    key = "BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY" if postgres else "INTEGER PRIMARY KEY AUTOINCREMENT"
    bare = re.sub(r"--[^\n]*", "", text).replace("SERIAL_KEY", key)
    return [statement for statement in map(str.strip, bare.split(";")) if statement]
