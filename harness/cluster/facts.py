"""What a machine has that a job needs: cards, versions, a sandbox, and the code's own hash.

No card is touched: a context on it would take time from whoever is timed there. NVIDIA's cards are told by nvidia-smi,
AMD's by torch.
"""

from __future__ import annotations

import contextlib
import csv
import hashlib
import importlib.util
import io
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import harness
from harness import __version__
from harness.errors import InfrastructureError
from harness.machine import device as machine
from harness.model import PINNED, Device, Value
from harness.sandbox import footprint, tiers
from harness.verbs import calibration

NODE = "PODIUM_NODE"
"""The environment variable by which `podium node` tells Ray's workers what it found."""

_ASK_S = 20.0
_NOT_CODE = {"__pycache__", "bundled"}


class Card(Value):
    """One card, or a machine's processors. `id` is what tells it from all others: its UUID where the driver says it.

    `others` are processes that compute on it and are none of Ray's.
    """

    id: str
    device: Device
    others: tuple[str, ...] = ()


class Inventory(Value):
    """A machine, as a job sees it. `sandbox` is the isolation's tier, None where nothing confines; `calibrated` lists
    the models that were calibrated there; `vanished` are cards that it had as it became a node."""

    host: str
    root: Path
    podium: str
    code: str
    python: str
    torch: str | None
    triton: str | None
    driver: str | None
    sandbox: str | None
    cards: tuple[Card, ...]
    calibrated: tuple[str, ...] = ()
    vanished: tuple[str, ...] = ()

    @property
    def counts(self) -> dict[str, int]:
        """By slug, how many cards."""
        slugs = [card.device.slug for card in self.cards]
        return {slug: slugs.count(slug) for slug in dict.fromkeys(slugs)}

    @property
    def versions(self) -> dict[str, str | None]:
        """What a competition may pin."""
        return {name: getattr(self, name) for name in PINNED}

    @property
    def resources(self) -> dict[str, int]:
        """As Ray counts them: the cards of each model, and each card by itself, for jobs that are pinned to it."""
        return self.counts | {resource_of(card.id): 1 for card in self.cards}


def here(
    root: Path, sandbox: str | None = "", ours: Iterable[int] = (), environment: Mapping[str, str] = os.environ
) -> Inventory:
    """Of this machine. `sandbox` if it is known, else it is tried out; `ours` are processes that are no strangers. The
    `environment` says by CUDA_VISIBLE_DEVICES which cards count."""
    cards, driver = _cards(root, set(ours), environment)
    if sandbox == "":
        _check_torch(cards)
        isolation = tiers.strongest(cards[0].device)
        sandbox = isolation.tier if isolation.confines else None
    return Inventory(
        host=_host(),
        root=root,
        podium=__version__,
        code=code_sha256(),
        python=platform.python_version(),
        torch=_version("torch"),
        triton=_version("triton"),
        driver=driver,
        sandbox=sandbox,
        cards=tuple(cards),
        calibrated=tuple(sorted({c.device.slug for c in cards if _is_calibrated(root, c.device.slug)})),
    )


def now() -> Inventory | None:
    """Of the node that this process of Ray's runs on; None where `podium node` has not started it. Of NVIDIA's cards
    all that the node has, although Ray leaves a job one of them to see, and a pinned job may want another."""
    told = os.environ.get(NODE)
    if told is None:
        return None
    before = Inventory.model_validate_json(told)
    cards = ",".join(card.id for card in before.cards)
    found = here(before.root, before.sandbox, descendants(os.getppid()), {"CUDA_VISIBLE_DEVICES": cards})
    there = {card.id for card in found.cards}
    return found.model_copy(update={"vanished": tuple(card.id for card in before.cards if card.id not in there)})


def code_sha256(folder: Path | None = None) -> str:
    """Of Podium's own files: their paths and contents. Two nodes with the same one judge alike."""
    folder = folder or Path(harness.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        inside = path.relative_to(folder)
        if path.is_file() and not _NOT_CODE & set(inside.parts) and path.suffix != ".pyc":
            digest.update(f"{inside.as_posix()} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return digest.hexdigest()


def descendants(process: int) -> set[int]:
    """The process and all that it has started, directly or not. Processes that end meanwhile are left out."""
    return {process} | footprint.descendants(process, footprint.process_table())


def _cards(root: Path, ours: set[int], environment: Mapping[str, str]) -> tuple[list[Card], str | None]:
    """The cards, and the driver's version. A machine without any has one: its processors."""
    rows = _nvidia_smi("--query-gpu=index,uuid,name,memory.total,compute_cap,driver_version")
    rows = visible([row for row in rows if len(row) == 6], environment)
    if rows:
        apps = [row for row in _nvidia_smi("--query-compute-apps=gpu_uuid,pid,process_name") if len(row) == 3]
        return [_nvidia_card(root, number, row, apps, ours) for number, row in enumerate(rows)], rows[0][5]
    if machine.driver_present():
        _torch()
        named = [name for name in machine.all_cards() if name != "cpu"]
        if named:
            devices = [machine.detect(root, name) for name in named]
            return [Card(id=machine.card(device), device=device) for device in devices], None
    return [Card(id=f"cpu of {_host()}", device=machine.detect(root, "cpu"))], None


def visible(rows: list[list[str]], environment: Mapping[str, str]) -> list[list[str]]:
    """Of nvidia-smi's cards (index, uuid, …) those that CUDA_VISIBLE_DEVICES leaves, in its order."""
    if "CUDA_VISIBLE_DEVICES" not in environment:
        return rows
    wanted = [word.strip() for word in environment["CUDA_VISIBLE_DEVICES"].split(",") if word.strip()]
    return [row for word in wanted for row in rows if word == row[0] or (len(word) > 4 and row[1].startswith(word))]


def _nvidia_card(root: Path, number: int, row: list[str], apps: list[list[str]], ours: set[int]) -> Card:
    _, uuid, name, mebibytes, capability, _ = row
    device = Device(
        kind="cuda",
        name=name,
        slug=machine.slug(name),
        arch=f"sm_{capability.replace('.', '')}",
        torch_device=f"cuda:{number}",
        memory_bytes=int(float(mebibytes)) << 20,
        flush_bytes=machine.DEFAULT_FLUSH_BYTES["cuda"],
    )
    others = [
        f"{app[2]} ({app[1]})" for app in apps if app[0] == uuid and not (app[1].isdigit() and int(app[1]) in ours)
    ]
    return Card(id=uuid, device=machine.described(root, device), others=tuple(others))


def _torch(install: str = "PODIUM_TORCH=cuda make problems") -> Any:
    """The module. Raises InfrastructureError where it is missing or broken."""
    if importlib.util.find_spec("torch") is None:
        raise InfrastructureError("torch is not installed here, and no job is judged without it", install)
    try:
        import torch
    except Exception as error:  # one of its libraries is missing, or is of another version
        said = " ".join(str(error).split())[:200]
        raise InfrastructureError(f"torch cannot be imported here: {type(error).__name__}: {said}", install) from None
    return torch


def _check_torch(cards: Iterable[Card]) -> None:
    """Raises InfrastructureError where no job could be judged: torch is missing, or uses none of the driver's cards."""
    gpus = any(card.device.kind != "cpu" for card in cards)
    torch = _torch() if gpus else _torch("make problems")
    if gpus and not torch.cuda.is_available():
        raise InfrastructureError(
            f"this machine has GPUs, and torch {torch.__version__} uses none of them",
            "install the torch of their kind: PODIUM_TORCH=cuda make problems; to judge on processors: "
            "CUDA_VISIBLE_DEVICES= in front",
        )


def _nvidia_smi(what: str) -> list[list[str]]:
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    command = [program, what, "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_ASK_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return list(csv.reader(io.StringIO(done.stdout), skipinitialspace=True)) if done.returncode == 0 else []


def _host() -> str:
    """This machine's name, as text that can be sent and shown."""
    return os.fsencode(platform.node()).decode(errors="backslashreplace")


def _is_calibrated(root: Path, slug: str) -> bool:
    try:
        return calibration.read(root, slug) is not None
    except InfrastructureError:
        return False


def _version(package: str) -> str | None:
    with contextlib.suppress(metadata.PackageNotFoundError):
        return metadata.version(package)
    return None


def resource_of(card: str) -> str:
    """What Ray calls a card that a job is pinned to. Cards whose names are alike once they are cut stay apart."""
    name = label(card)
    return f"card-{name}" if name == card else f"card-{name[:54]}-{hashlib.sha256(card.encode()).hexdigest()[:8]}"


def label(text: str | None) -> str:
    """`text` as the value of a label of Ray's: letters, digits, `-`, `_` and `.`, at most 63 of them."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", text or "none")[:63].strip("-_.") or "none"
