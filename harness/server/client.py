"""Podium's own small client: `podium submit` and `podium status`. It needs none of the server's packages.

It speaks the interface of popcorn-cli and also reads the key `podium` of the answers. The user is identified by the
`cli_id` in ~/.popcorn.yaml or by $PODIUM_CLIENT_ID.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import time
import urllib.error
import urllib.parse
import urllib.request
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pydantic import BaseModel, TypeAdapter, ValidationError

from harness.errors import InfrastructureError, PodiumError, UsageError, did_you_mean
from harness.model import Run, Verdict

TIMEOUT_S = 60.0
POLL_S = 1.0
PATIENCE_S = 120.0
"""How long to keep asking a server that does not answer: it may be restarting."""

MOST_ANSWER = 128 << 20
CONFIG = ".popcorn.yaml"
_DIRECTIVE = re.compile(r"^(?:#|//)!POPCORN\s+(leaderboard|gpus?)\s+(.+)$")


class _Accepted(BaseModel):
    class Details(BaseModel):
        id: int

    details: Details


class _Competition(BaseModel):
    name: str
    gpu_types: list[str]


class _Listed(BaseModel):
    class State(BaseModel):
        mode: str
        state: str
        error: str | None

    id: int
    leaderboard_name: str
    file_name: str
    podium: State


class _Shown(BaseModel):
    class State(BaseModel):
        state: str
        verdict: Verdict | None

    class Job(BaseModel):
        status: str | None
        error: str | None

    id: int
    done: bool
    job: Job
    podium: State


class _Decided(BaseModel):
    run: Run | None


class Client:
    """A server at `url`, with the client id of a user."""

    def __init__(self, url: str, client_id: str | None = None) -> None:
        self._url = address(url)
        self._id = client_id

    def submit(self, competition: str, gpu: str, mode: str, path: Path) -> int:
        """Send the file at `path` and return its number. Raises UsageError and InfrastructureError."""
        source = read(path)
        boundary = uuid.uuid4().hex
        name = path.name.replace('"', "_").encode("ascii", "replace").decode()
        body = (
            f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="{name}"\r\n'
            "Content-Type: text/x-python\r\n\r\n"
        ).encode()
        body += source + f"\r\n--{boundary}--\r\n".encode()
        where = f"/submission/{_part(competition)}/{_part(gpu)}/{_part(mode)}"
        answer = self._ask("POST", where, body, f"multipart/form-data; boundary={boundary}", form=_Accepted)
        return int(answer["details"]["id"])

    def competitions(self) -> list[dict[str, Any]]:
        """Return the competitions."""
        found: list[dict[str, Any]] = self._ask("GET", "/leaderboards", form=list[_Competition])
        return found

    def submissions(self, competition: str | None, limit: int) -> list[dict[str, Any]]:
        """Return the user's own submissions, the newest first."""
        query = {"limit": str(limit)} | ({"leaderboard": competition} if competition else {})
        where = f"/user/submissions?{urllib.parse.urlencode(query)}"
        found: list[dict[str, Any]] = self._ask("GET", where, form=list[_Listed])
        return found

    def submission(self, number: int) -> dict[str, Any]:
        """Return one of the user's own submissions."""
        found: dict[str, Any] = self._ask("GET", f"/user/submissions/{number}", form=_Shown)
        return found

    def run(self, number: int) -> dict[str, Any] | None:
        """Return the run that decided a submission, as `podium show --json` prints it, or None if there is none."""
        found: dict[str, Any] | None = self._ask("GET", f"/user/submissions/{number}/run", form=_Decided)["run"]
        return found

    def wait(self, number: int, told: Callable[[str], None]) -> dict[str, Any]:
        """Wait until a submission has its verdict, and return the submission. `told` receives each change. Raises
        InfrastructureError if the server does not answer for long."""
        last, heard_s = "", time.monotonic()
        while True:
            try:
                found = self.submission(number)
                heard_s = time.monotonic()
            except InfrastructureError as error:
                if time.monotonic() - heard_s > PATIENCE_S:
                    raise
                found, said = None, f"{error.message}; asking again"
            if found is not None and found["done"]:
                return found
            if found is not None:
                said = f"submission {number}: {found['job']['status']}"
            if said != last:
                told(said)
            last = said
            time.sleep(POLL_S)

    def _ask(self, method: str, path: str, body: bytes | None = None, kind: str | None = None, *, form: Any) -> Any:
        """Send a request and return the answer, checked against `form`. Raises UsageError and InfrastructureError."""
        headers = {"Accept": "application/json"}
        if self._id is not None:
            headers["X-Popcorn-Cli-Id"] = self._id
        if kind is not None:
            headers["Content-Type"] = kind
        request = urllib.request.Request(self._url + path, body, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
                found = json.loads(answer.read(MOST_ANSWER))
                TypeAdapter(form).validate_python(found)
                return found
        except urllib.error.HTTPError as error:
            raise _refused(error) from None
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", error)
            raise InfrastructureError(f"{self._url} does not answer: {reason}") from None
        except ValidationError:
            said = f"{self._url} does not answer as Podium does"
            raise InfrastructureError(said, "is it Podium's address?") from None
        except ValueError:
            raise InfrastructureError(f"{self._url} does not answer with JSON", "is it Podium's address?") from None


def address(url: str) -> str:
    """Return the address of a server without a trailing slash. Raises UsageError if it is invalid."""
    try:
        parts = urllib.parse.urlsplit(url)
        whole = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        whole = False
    if not whole:
        raise UsageError(f"{url!r} is not the address of a server", "such as --server https://kernels.example.org")
    return url.rstrip("/")


def read(path: Path) -> bytes:
    """Read the source to send. Raises UsageError."""
    try:
        if path.exists() and not path.is_file() and not path.is_dir():  # reading a pipe or a device may never end
            raise UsageError(f"{path} is not a regular file", "name a file that lies on a disk")
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None


def _part(text: str) -> str:
    return urllib.parse.quote(text, safe="")


def _refused(error: urllib.error.HTTPError) -> PodiumError:
    """Turn an error answer into an exception: UsageError for the user's mistake, InfrastructureError for the
    server's."""
    said = f"the server answers {error.code}"
    try:
        detail = json.loads(error.read(1 << 20))["detail"]
        said = detail if isinstance(detail, str) else said
    except (ValueError, KeyError, TypeError, OSError, http.client.HTTPException):
        pass
    said = "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in said)
    kind = InfrastructureError if error.code == 429 or error.code >= 500 else UsageError
    return kind(said)


def client_id() -> str:
    """Return the user's client id. Raises UsageError if there is none."""
    given = os.environ.get("PODIUM_CLIENT_ID")
    if given:
        return _checked(given)
    path = Path.home() / CONFIG
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        lines = []
    for line in lines:
        key, colon, value = line.partition(":")
        if colon and key.strip() == "cli_id" and value.strip():
            return _checked(value.strip().strip("'\""))
    raise UsageError(
        f"~/{CONFIG} has no cli_id", "the organisers give you one: put the line `cli_id: …` into that file"
    )


def _checked(given: str) -> str:
    if not given.isascii() or not given.isprintable():
        raise UsageError("the cli_id has characters that a header cannot contain")
    return given


def directives(path: Path) -> dict[str, str]:
    """Read a file's directives, such as `#!POPCORN leaderboard mla`: leaderboard and gpu. Raises UsageError."""
    found: dict[str, str] = {}
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return {}
    for line in text.splitlines():
        if (said := _DIRECTIVE.match(line)) is not None:
            words = said[2].split()
            if said[1] != "leaderboard" and len(words) > 1:
                raise UsageError(f"{path} names {len(words)} GPUs: one at a time", "name it with --gpu")
            found["leaderboard" if said[1] == "leaderboard" else "gpu"] = words[0]
    return found


def choose(client: Client, path: Path, competition: str | None, gpu: str | None) -> tuple[str, str]:
    """Choose the competition and the GPU: the given ones, else the file's, else the only ones. Raises UsageError."""
    said = directives(path)
    there = {each["name"]: each for each in client.competitions()}
    name = competition or said.get("leaderboard") or (next(iter(there)) if len(there) == 1 else None)
    if not there:
        raise UsageError("the server has no competition", "its organisers open one")
    if name is None:
        raise UsageError(f"there are {len(there)} competitions", f"name one with --competition: {', '.join(there)}")
    if name.lower() not in there:
        raise UsageError(f"there is no competition {name}", did_you_mean(name, there))
    gpus = there[name.lower()]["gpu_types"]
    on = gpu or said.get("gpu") or (gpus[0] if len(gpus) == 1 else None)
    if on is None:
        raise UsageError(f"{name} is judged on {len(gpus)} GPUs", f"name one with --gpu: {', '.join(gpus)}")
    return name.lower(), on
