"""Ray, where it is installed. Its own words are turned into ours, and it never starts without a token."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import platform
import re
import secrets
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from harness.cluster import parcel
from harness.command import typed
from harness.errors import InfrastructureError, UsageError

INSTALL = "in a checkout: .venv/bin/python -m pip install -c constraints.txt -e '.[cluster]'"

START = (
    "start one: python3 -m harness node --head, and on each other machine: python3 -m harness node --address HOST:PORT"
)

LISTEN_S = 5.0
"""How long a head may take to be reached. Ray itself goes on trying for minutes, and says nothing."""

LEAST_TOKEN = 32
"""Characters of a token; `podium node --head` makes one of 64."""

QUIET = {
    "RAY_AUTH_MODE": "token",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_CLIENT_SERVER_CHECK_CHANNEL_TIMEOUT_S": "100",
    "RAY_worker_niceness": "0",
    "RAY_worker_oom_score_adjustment": "0",
}
"""Every process of Ray's has these: a token is always asked for, nothing is reported to Ray's makers, and a task
without a card sees all cards of its node. A head has 100 s, in the place of 30, to start the process of a ray://
client: a busy one took longer than 30. A judge is no nicer than that of `eval`, and does not end before its submission
where memory runs out: Ray would begin its own processes with niceness 15, and as the first to end."""


def load() -> Any:
    """The module `ray`. Raises InfrastructureError where it is not installed."""
    os.environ.update(QUIET)
    if importlib.util.find_spec("ray") is None:
        raise InfrastructureError("Ray is not installed here", INSTALL)
    import ray

    return ray


def token_file() -> Path:
    """Where this machine keeps the cluster's token."""
    return Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or Path.home() / ".ray" / "auth_token")


def token() -> str | None:
    """The cluster's token, as Ray looks for it; None where there is none. Raises InfrastructureError for one that is
    short or has characters that end Ray without a word, and a file that cannot be read."""
    named, where = os.environ.get("RAY_AUTH_TOKEN"), _where_the_token_is()
    try:
        found = named or token_file().read_text().strip()
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise InfrastructureError(f"{token_file()} cannot be read: {error}") from None
    anew = f"{'unset the variable' if named else f'remove {where}'} and start the head anew: it makes one"
    if len(found) < LEAST_TOKEN:
        raise InfrastructureError(
            f"the cluster's token, {where}, has {len(found)} characters: it takes {LEAST_TOKEN}", anew
        )
    if not re.fullmatch(r"[!-~]+", found):
        raise InfrastructureError(
            f"the cluster's token, {where}, has other characters than letters, digits and signs", anew
        )
    return found


def _where_the_token_is() -> str:
    return "RAY_AUTH_TOKEN" if os.environ.get("RAY_AUTH_TOKEN") else str(token_file())


def check_token() -> None:
    """Raises InfrastructureError where there is no token: without it no node answers."""
    if token() is None:
        raise InfrastructureError(
            f"there is no token here: neither RAY_AUTH_TOKEN nor {token_file()}",
            f"copy the file from the head's machine; `{typed('node', '--head')}` begins a cluster and makes one",
        )


def refuse_token(said: str, address: str) -> None:
    """Raises InfrastructureError if Ray `said`, of the cluster at `address`, that it has another token."""
    if "InvalidAuthToken" in said:
        raise InfrastructureError(
            f"the cluster at {address} has another token than {_where_the_token_is()}",
            "copy the file from the head's machine",
        )


def make_token() -> Path | None:
    """Make a token where there is none, in a file that only its owner reads; the file if one was made."""
    if token() is not None:
        return None
    path = token_file()
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(secrets.token_hex(32))
    return path


def check_address(address: str) -> None:
    """Raises UsageError for what is none of `auto`, HOST:PORT and ray://HOST:PORT. An address of IPv6 has brackets, as
    `node --head` prints it."""
    if address != "auto" and not re.fullmatch(r"(ray://)?(\[[0-9A-Fa-f:.]+\]|[^/\s:\[\]]+):\d+", address):
        raise UsageError(f"{address!r} is no address of a cluster", "give auto, HOST:PORT or ray://HOST:PORT")


def joined_file() -> Path:
    """Where this machine keeps the address of the cluster that its node belongs to. Machines may share the folder. The
    kernel lets a host's name hold any bytes, `/` too."""
    host = platform.node()
    plain = re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]*", host)
    return parcel.cache().parent / "joined" / (host if plain else hashlib.sha256(os.fsencode(host)).hexdigest())


def joined() -> str:
    """The cluster of this machine's node. Raises InfrastructureError where `podium node` has started none.

    Ray itself would look for it in the command lines of all processes, and in a folder that everybody may write to.
    There a submission, or another user, could name a head of its own, and Ray would send the token there.
    """
    if (named := os.environ.get("RAY_ADDRESS") or "auto") != "auto":
        check_address(named)
        return named
    try:
        return joined_file().read_text().strip()
    except OSError:
        raise InfrastructureError("`podium node` has started no node on this machine", START) from None


def check_listens(address: str) -> None:
    """Raises InfrastructureError where nothing listens at `address`."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), LISTEN_S).close()
    except (OSError, OverflowError) as error:
        said = getattr(error, "strerror", None) or str(error)
        raise InfrastructureError(f"no cluster answers at {address.removeprefix('ray://')}: {said}", START) from None


def connect(address: str) -> Any:
    """The module `ray`, connected to the cluster at `address`. Raises UsageError for what is no address,
    InfrastructureError where nothing answers."""
    check_address(address)
    ray = load()
    check_token()
    if address.startswith("ray://") and importlib.util.find_spec("grpc") is None:
        raise InfrastructureError("ray:// takes grpcio, which is not installed here", INSTALL)
    if ray.is_initialized():
        return ray
    if address == "auto":
        address = joined()
    check_listens(address)
    try:
        here = None if address.startswith("ray://") else node_here(address)
        _init(ray, address)
        if here is not None and not is_here(ray.util.get_node_ip_address()):
            # Ray looks for its node in the list of processes, prefers the head, and takes that node's address for this
            # machine's. Where two nodes share a list of processes and not a network, nothing would reach this process.
            ray.shutdown()
            _init(ray, address, _node_ip_address=here)
    except InfrastructureError:
        raise
    except Exception as error:  # ConnectionError, ValueError, RuntimeError, AuthenticationError and more: Ray's choice
        said = " ".join(str(error).split())
        refuse_token(said, address)
        raise InfrastructureError(f"no cluster answers at {address}: {said[:300]}", START) from None
    return ray


def _init(ray: Any, address: str, **more: str) -> None:
    # The current folder comes first on the path of all processes that Ray starts for this one, on every node. A node
    # that has a checkout at the same path would run that in the place of its own Podium.
    with _hushed(), contextlib.chdir("/"):
        ray.init(address=address, log_to_driver=False, logging_level="ERROR", configure_logging=False, **more)


def node_here(address: str) -> str:
    """The address of a node of the cluster at `address` that runs on this machine. Raises InfrastructureError where
    there is none, and Ray's errors. Ray itself looks for one for a minute."""
    here = [each for each in node_addresses(address) if is_here(each)]
    if not here:
        raise InfrastructureError(
            f"no node of the cluster at {address} runs on this machine",
            f"have it join: {typed('node', '--address', address)}; "
            f"or reach the cluster without a node: ray://{address.rpartition(':')[0]}:10001",
        )
    return here[0]


def node_addresses(address: str) -> list[str]:
    """Those of all living nodes of the cluster whose head is at `address`, by asking the head. Raises Ray's errors."""
    core = importlib.import_module("ray._raylet")  # `ray.nodes` takes a node here
    with _hushed():
        nodes = core.GcsClient(address=address).get_all_node_info(timeout=LISTEN_S).values()
    return [node.node_manager_address for node in nodes if node.state == node.ALIVE]


def is_here(ip: str) -> bool:
    """Whether it is an address of this machine."""
    try:
        socket.create_server((ip, 0), family=socket.AF_INET6 if ":" in ip else socket.AF_INET).close()
    except OSError:
        return False
    return True


@contextlib.contextmanager
def _hushed() -> Iterator[None]:
    """Within it nothing is printed on stderr: Ray's C++ prints each of its tries there, whatever its level of logs."""
    kept, null = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(null)
