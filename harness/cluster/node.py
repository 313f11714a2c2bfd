"""`podium node`: this machine joins a cluster, or begins one, with the cards that it has; and leaves it.

    facts ─► ray start --resources '{"nvidia-h200": 4}' --labels podium.code=…,podium.torch=…   with RAY_AUTH_MODE=token

Ray's processes are told what was found by the variable PODIUM_NODE, by which `stop` knows them again.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import harness
from harness.cluster import engine, facts, pins
from harness.cluster.facts import Inventory
from harness.command import typed
from harness.errors import InfrastructureError, UsageError
from harness.progress import Narrate

PORT = 6379
STORE_BYTES = 256 << 20
"""Of shared memory for Ray's objects: a problem's files and lines of narration are all that travels."""

AGAIN = "python3 -m harness node --stop, and try again"
START_S = 120.0
STOP_S = 15.0


def start(
    root: Path,
    head: bool,
    address: str | None,
    ip: str | None,
    narrate: Narrate,
    block: bool = False,
    port: int = PORT,
    beside: bool = False,
) -> Inventory:
    """Start Ray here; what it was told of this machine. With `block` it returns when Ray has ended.

    `ip` is this machine's address in the cluster (default: Ray finds one). `beside`: also where a node with the same
    cards runs here, as clusters of one machine have them that Podium itself is tried on. Raises UsageError,
    InfrastructureError.
    """
    if head == (address is not None):
        raise UsageError("a node begins a cluster or joins one", "give --head, or --address HOST:PORT")
    if address is not None and not re.fullmatch(r"[^/\s]+:\d+", address):
        raise UsageError(f"{address!r} is no address of a head", "give HOST:PORT")
    if ip is not None:
        _check_ip(ip)
    engine.load()
    if head and (made := engine.make_token()):
        narrate(f"a token was made: {made}; copy it to the same place on every node")
    engine.check_token()
    if address is not None:
        engine.check_listens(address)
    found = facts.here(root)
    if not beside:
        _refuse_twice(found)
    _make_private(os.environ.get("RAY_TMPDIR"))
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", *arguments(found, head, address, ip, port)]
    command += ["--block"] if block else []
    try:
        if block:
            _note(address, ip, port, narrate)
            status, said = subprocess.run(command, env=environment(found), check=False).returncode, ""
        else:
            done = subprocess.run(
                command,
                env=environment(found),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                timeout=START_S,
                check=False,
            )
            status, said = done.returncode, done.stdout
    except subprocess.TimeoutExpired:
        raise InfrastructureError(f"Ray has not started within {START_S:g} s", AGAIN) from None
    if block:
        engine.joined_file().unlink(missing_ok=True)
    if status:
        engine.refuse_token(said, address or "this machine")
        if "timed out during startup" in said:
            raise InfrastructureError("Ray has not started within the 30 s that it allows: the machine is busy", AGAIN)
        last = [line for line in said.splitlines() if line.strip()][-6:]
        raise InfrastructureError(f"Ray has not started: status {status}", "\n  ".join(last) or None)
    if not block:
        _note(address, ip, port, narrate)
    return found


def _check_ip(ip: str) -> None:
    """Raises UsageError for what no node can have as its address."""
    if not engine.is_here(ip):
        raise UsageError(f"{ip} is no address of this machine", "give --ip one that `ip address` shows")
    with contextlib.suppress(ValueError):  # a name
        told = ipaddress.ip_address(ip)
        if told.is_unspecified:
            raise UsageError(f"{ip} stands for every address", "give --ip one that `ip address` shows")
        if told.version == 6 and told.is_loopback:
            # Ray puts one of IPv4 in its place: the head would not answer at the address that is said to others.
            raise UsageError(f"Ray does not listen at {ip}", "give --ip one that `ip address` shows")


def _make_private(folder: str | None) -> None:
    """Make the folder that Ray's session is to lie in, for its owner alone. Ray lets every user of the machine write to
    the session's own folders, its sockets' among them. Raises InfrastructureError."""
    if folder:
        try:
            os.makedirs(folder, mode=0o700, exist_ok=True)
        except OSError as error:
            raise InfrastructureError(f"{folder}, which is RAY_TMPDIR, cannot be made: {error.strerror}") from None


def _note(address: str | None, ip: str | None, port: int, narrate: Narrate) -> None:
    """Keep where `auto` finds this cluster, and say of a head's how others join. Raises InfrastructureError."""
    if address is None:
        here = ip or _found_by_ray()
        address = f"[{here}]:{port}" if ":" in here else f"{here}:{port}"
        if here.startswith("127."):
            # Ray binds every address whatever it is told, so this is no way to close its ports.
            narrate(
                f"no other machine joins at {here}: for that, --ip takes another address of this one. Ray's ports are"
                f" open at every address even so: {typed('docs', 'cluster')}, Trust"
            )
        else:
            narrate(f"other machines join by: {typed('node', '--address', address)}")
    path = engine.joined_file()
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        path.write_text(address)
    except OSError as error:
        raise InfrastructureError(f"{path} cannot be written: {error.strerror}") from None


def _found_by_ray() -> str:
    from ray.util import get_node_ip_address

    return str(get_node_ip_address())


def arguments(found: Inventory, head: bool, address: str | None, ip: str | None, port: int = PORT) -> list[str]:
    """Of `ray start`. Processors are no resource: a job takes a card, or the one place of a machine without any."""
    gpus = sum(card.device.kind != "cpu" for card in found.cards)
    words = ["--head", f"--port={port}", "--include-dashboard=false"] if head else [f"--address={address}"]
    words += [f"--node-ip-address={ip}"] if ip else []
    words += ["--num-cpus=0", f"--num-gpus={gpus}", f"--object-store-memory={STORE_BYTES}", "--disable-usage-stats"]
    words += [f"--resources={json.dumps(found.resources)}"]
    return [*words, f"--labels={','.join(f'{name}={value}' for name, value in pins.labels(found).items())}"]


def environment(found: Inventory) -> dict[str, str]:
    """Of Ray's processes: where Podium's code is, what was found, and the cards by their UUIDs, so that Ray gives them
    out by these."""
    code = str(Path(harness.__file__).resolve().parents[1])
    path = os.pathsep.join([code, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))])
    given = {**os.environ, **engine.QUIET, "PYTHONPATH": path, facts.NODE: found.model_dump_json()}
    if any(card.device.kind == "cuda" for card in found.cards):
        given["CUDA_VISIBLE_DEVICES"] = ",".join(card.id for card in found.cards)
    return given


def stop() -> int:
    """End what `start` has started on this machine; how many processes. Other clusters' stay."""
    engine.joined_file().unlink(missing_ok=True)
    ended: set[int] = set()
    for sent, wait_s in ((signal.SIGTERM, STOP_S), (signal.SIGKILL, STOP_S)):
        until = time.monotonic() + wait_s
        while (alive := set(_ours())) and time.monotonic() < until:
            for process in alive - ended if sent is signal.SIGTERM else alive:
                with contextlib.suppress(OSError):
                    os.kill(process, sent)
            ended |= alive
            time.sleep(0.1)
        if not alive:
            break
    else:
        raise InfrastructureError(f"{len(alive)} processes of Ray's do not end")
    return len(ended)


def _refuse_twice(found: Inventory) -> None:
    """Raises InfrastructureError where a node runs here that has one of these cards: both would give it to a job. A
    Slurm job beside this one may have other cards."""
    cards = {card.id for card in found.cards}
    for process in _ours():
        folder = Path(f"/proc/{process}")
        with contextlib.suppress(OSError, LookupError, ValueError):  # it ends, or was told by another Podium
            if (folder / "comm").read_text().strip() != "raylet":
                continue
            told = json.loads(_variables(folder)[facts.NODE])
            if not cards.isdisjoint(card["id"] for card in told["cards"]):
                words = (folder / "cmdline").read_text().split("\0")
                named = (each.partition("=")[2] for each in words if each.startswith("--gcs-address="))
                raise InfrastructureError(
                    f"this machine is a node already, of the cluster at {next(named, 'an unknown address')}",
                    f"to begin or join anew, end that first: {typed('node', '--stop')}",
                )


def _variables(folder: Path) -> dict[str, str]:
    """Those of the process with this folder in /proc. Raises OSError."""
    pairs = (folder / "environ").read_bytes().decode(errors="replace").split("\0")
    return {name: value for name, _, value in (pair.partition("=") for pair in pairs)}


def _ours() -> Iterator[int]:
    """Processes that run with the variable that `start` sets, but for this one. Those in other network namespaces are
    of other machines, such as containers that this one sees."""
    network = os.readlink("/proc/self/ns/net")
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            # Bytes: the name in it may contain any character.
            process, state = int(folder.name), (folder / "stat").read_bytes().rpartition(b")")[2].split()[0]
            if process == os.getpid() or state == b"Z" or os.readlink(folder / "ns/net") != network:
                continue
            if facts.NODE in _variables(folder):
                yield process
