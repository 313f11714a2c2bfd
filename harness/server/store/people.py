"""Who may submit: accounts, clients, browser sessions, competitions' numbers, invites and members.

Only hashes of client ids and sessions are stored. Both are 256 random bits, so a plain SHA-256 is as good as a slow
hash.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from datetime import UTC, datetime, timedelta

from harness.errors import UsageError
from harness.server.store.connection import Connections, Transaction
from harness.server.store.rows import Account, InviteRow, PendingClient, now, stamp

NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,31}")
"""An account's name. It becomes part of file names and addresses."""

SESSION_DAYS = 14
PENDING_DAYS = 30
"""How long a client waits for approval."""

MOST_PENDING = 1000
"""The most clients that wait for approval. A new one replaces the oldest."""

FINGERPRINT = 12
"""The hexadecimal digits of a client's hash that identify it for an administrator: 48 bits."""

_ACCOUNT = "SELECT u.id, u.name, u.created_at, u.blocked_because FROM users u"


def new_client_id() -> str:
    """Create an id for ~/.popcorn.yaml. YAML reads it as text, whatever its digits are."""
    return f"podium-{secrets.token_hex(32)}"


def hashed(secret: str) -> str:
    """Return the hash that is stored for a client id, a session or a token."""
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).hexdigest()


def fingerprint(client: str) -> str:
    """Return a short name of a client for administrators, which does not reveal its id."""
    return hashed(client)[:FINGERPRINT]


class People:
    """The accounts of one database, with everything that belongs to them."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    def add(self, name: str) -> str:
        """Create a client id for the account `name`, and the account if there is none. The id is shown only once.

        Raises UsageError for an invalid name.
        """
        name = checked_name(name)
        client = new_client_id()
        with self._connections.writing() as rows:
            user = _user(rows, name)
            rows("INSERT INTO clients VALUES (?, ?, ?, ?)", (hashed(client), user, "podium", now()))
        return client

    def revoke_clients(self, name: str) -> str:
        """Invalidate every id and session of the account `name`, and return a new id, which is shown only once.

        Raises UsageError if there is no such account.
        """
        client = new_client_id()
        with self._connections.writing() as rows:
            found = rows("SELECT id FROM users WHERE name = ?", (name.lower(),))
            if not found:
                raise UsageError(f"there is no account {name.lower()}")
            rows("DELETE FROM clients WHERE user_id = ?", (found[0][0],))
            rows("DELETE FROM sessions WHERE user_id = ?", (found[0][0],))
            rows("INSERT INTO clients VALUES (?, ?, ?, ?)", (hashed(client), found[0][0], "podium", now()))
        return client

    def register(self, provider: str) -> str:
        """Create an id that waits for approval."""
        client = new_client_id()
        with self._connections.writing() as rows:
            rows("DELETE FROM clients WHERE user_id IS NULL AND created_at < ?", (_expired(),))
            rows(
                "DELETE FROM clients WHERE user_id IS NULL AND sha256 NOT IN"
                " (SELECT sha256 FROM clients WHERE user_id IS NULL ORDER BY created_at DESC LIMIT ?)",
                (MOST_PENDING - 1,),
            )
            rows("INSERT INTO clients VALUES (?, NULL, ?, ?)", (hashed(client), provider, now()))
        return client

    def approve(self, print_: str, name: str) -> None:
        """Give the client with this fingerprint to the account `name`, created if there is none. Raises UsageError."""
        name = checked_name(name)
        if not re.fullmatch(rf"[0-9a-f]{{{FINGERPRINT}}}", print_):
            raise UsageError(f"{print_!r} is no fingerprint of a client", "podium user list shows those that wait")
        with self._connections.writing() as rows:
            waits = "SELECT sha256 FROM clients WHERE user_id IS NULL AND created_at >= ? AND sha256 LIKE ?"
            found = rows(waits, (_expired(), f"{print_}%"))
            if len(found) != 1:
                raise UsageError(f"no client {print_} waits for approval", "podium user list shows those that wait")
            rows("UPDATE clients SET user_id = ? WHERE sha256 = ?", (_user(rows, name), found[0][0]))

    def block(self, name: str, reason: str | None) -> None:
        """Block an account, or unblock it with None. Raises UsageError if there is none."""
        with self._connections.writing() as rows:
            if not rows("UPDATE users SET blocked_because = ? WHERE name = ? RETURNING id", (reason, name)):
                raise UsageError(f"there is no account {name}")
            if reason is not None:
                rows("DELETE FROM sessions WHERE user_id = (SELECT id FROM users WHERE name = ?)", (name,))

    def by_client(self, client: str) -> Account | None:
        """Return the account of a client id, or None."""
        wanted = hashed(client)
        query = (
            f"{_ACCOUNT.replace('SELECT', 'SELECT k.sha256,')} JOIN clients k ON k.user_id = u.id WHERE k.sha256 = ?"
        )
        with self._connections.reading() as rows:
            found = rows(query, (wanted,))
        # The index compares hashes, whose bytes nobody can choose. The whole hash is then compared in constant time.
        return Account(*found[0][1:]) if found and hmac.compare_digest(found[0][0], wanted) else None

    def is_pending(self, client: str) -> bool:
        """Whether this id waits for approval."""
        with self._connections.reading() as rows:
            waits = "SELECT 1 FROM clients WHERE sha256 = ? AND user_id IS NULL AND created_at >= ?"
            return bool(rows(waits, (hashed(client), _expired())))

    def all(self) -> list[Account]:
        """Return every account, by name."""
        with self._connections.reading() as rows:
            return [Account(*row) for row in rows(f"{_ACCOUNT} ORDER BY u.name")]

    def named(self, name: str) -> Account | None:
        """Return an account by its name."""
        with self._connections.reading() as rows:
            found = rows(f"{_ACCOUNT} WHERE u.name = ?", (name,))
        return Account(*found[0]) if found else None

    def pending(self) -> list[PendingClient]:
        """Return the clients that wait for approval, the oldest first."""
        with self._connections.reading() as rows:
            waits = "FROM clients WHERE user_id IS NULL AND created_at >= ? ORDER BY created_at"
            found = rows(f"SELECT sha256, provider, created_at {waits}", (_expired(),))
        return [PendingClient(sha256[:FINGERPRINT], provider, at) for sha256, provider, at in found]

    # Browser sessions.

    def begin_session(self, user_id: int) -> str:
        """Begin a session and return its secret, for a cookie."""
        secret = secrets.token_urlsafe(32)
        expires = stamp(datetime.now(UTC) + timedelta(days=SESSION_DAYS))
        with self._connections.writing() as rows:
            rows("DELETE FROM sessions WHERE expires_at < ?", (now(),))
            rows("INSERT INTO sessions VALUES (?, ?, ?)", (hashed(secret), user_id, expires))
        return secret

    def by_session(self, secret: str) -> Account | None:
        """Return the account of a session, or None if the session has expired or never existed."""
        with self._connections.reading() as rows:
            found = rows(
                f"{_ACCOUNT} JOIN sessions x ON x.user_id = u.id WHERE x.sha256 = ? AND x.expires_at > ?",
                (hashed(secret), now()),
            )
        return Account(*found[0]) if found else None

    def end_session(self, secret: str) -> None:
        """End a session."""
        with self._connections.writing() as rows:
            rows("DELETE FROM sessions WHERE sha256 = ?", (hashed(secret),))

    # Competitions: their numbers and members.

    def number_of(self, competition: str) -> int:
        """Return a competition's number, which is assigned if it has none. A competition that was taken down opens
        again."""
        with self._connections.writing() as rows:
            rows(
                "INSERT INTO competitions (name, created_at) VALUES (?, ?) ON CONFLICT (name) DO UPDATE"
                " SET deleted_at = NULL",
                (competition, now()),
            )
            return int(rows("SELECT id FROM competitions WHERE name = ?", (competition,))[0][0])

    def competitions(self) -> dict[str, tuple[int, str | None]]:
        """Return each competition's number and when it was taken down, by name."""
        with self._connections.reading() as rows:
            return {name: (number, at) for name, number, at in rows("SELECT name, id, deleted_at FROM competitions")}

    def take_down(self, competition: str) -> None:
        """Take a competition off the server. Its submissions stay in the database."""
        with self._connections.writing() as rows:
            rows("UPDATE competitions SET deleted_at = ? WHERE name = ?", (now(), competition))

    def is_member(self, user_id: int, competition: str) -> bool:
        """Whether this person has joined."""
        with self._connections.reading() as rows:
            query = (
                "SELECT 1 FROM members m JOIN competitions c ON c.id = m.competition_id"
                " WHERE m.user_id = ? AND c.name = ?"
            )
            return bool(rows(query, (user_id, competition)))

    def invite(self, competitions: list[str], count: int) -> list[str]:
        """Create codes, each for one person and all of these competitions."""
        codes = [secrets.token_hex(8).upper() for _ in range(count)]
        with self._connections.writing() as rows:
            for code in codes:
                for competition in competitions:
                    rows(
                        "INSERT INTO invites (code, competition_id, created_at)"
                        " SELECT ?, id, ? FROM competitions WHERE name = ?",
                        (code, now(), competition),
                    )
        return codes

    def invites(self, competition: str) -> list[InviteRow]:
        """Return the codes for a competition, used and unused."""
        with self._connections.reading() as rows:
            found = rows(
                "SELECT i.code, c.name, i.created_at, u.name, i.used_at FROM invites i"
                " JOIN competitions c ON c.id = i.competition_id LEFT JOIN users u ON u.id = i.user_id"
                " WHERE c.name = ? ORDER BY i.created_at, i.code",
                (competition,),
            )
        return [InviteRow(*row) for row in found]

    def revoke(self, code: str) -> list[str]:
        """Revoke a code, and remove the person who joined with it. Return the competitions of the code."""
        with self._connections.writing() as rows:
            found = rows("DELETE FROM invites WHERE code = ? RETURNING competition_id, user_id", (code,))
            for competition, user in found:
                rows("DELETE FROM members WHERE competition_id = ? AND user_id = ?", (competition, user))
            return [rows("SELECT name FROM competitions WHERE id = ?", (number,))[0][0] for number, _ in found]

    def join(self, user_id: int, code: str) -> list[str] | None:
        """Use a code and return its competitions, which this person has now joined. None if the code is invalid or
        another person's."""
        with self._connections.writing() as rows:
            for_update = " FOR UPDATE" if self._connections.postgres else ""
            found = rows(f"SELECT competition_id, user_id FROM invites WHERE code = ?{for_update}", (code,))
            if not found or any(user not in (None, user_id) for _, user in found):
                return None
            rows("UPDATE invites SET user_id = ?, used_at = ? WHERE code = ?", (user_id, now(), code))
            names = []
            for competition, _ in found:
                rows("INSERT INTO members VALUES (?, ?, ?) ON CONFLICT DO NOTHING", (user_id, competition, now()))
                names.append(rows("SELECT name FROM competitions WHERE id = ?", (competition,))[0][0])
        return sorted(names)


def _expired() -> str:
    """Return the time before which waiting clients have expired."""
    return stamp(datetime.now(UTC) - timedelta(days=PENDING_DAYS))


def checked_name(name: str) -> str:
    """Return `name` in lower case. Raises UsageError if it cannot be an account's name."""
    lower = name.lower()
    if not NAME.fullmatch(lower):
        raise UsageError(
            f"{name!r} is no name for an account: 1 to 32 of a-z, 0-9, _ and -, beginning with a letter or digit"
        )
    return lower


def _user(rows: Transaction, name: str) -> int:
    rows("INSERT INTO users (name, created_at) VALUES (?, ?) ON CONFLICT DO NOTHING", (name, now()))
    return int(rows("SELECT id FROM users WHERE name = ?", (name,))[0][0])
