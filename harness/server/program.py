"""`podium serve`: one process with the server and its dispatcher."""

from __future__ import annotations

import contextlib
import logging
import re
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from harness.errors import InfrastructureError, PodiumError, UsageError
from harness.library import judges
from harness.machine.device import detect
from harness.model import Device
from harness.sandbox import tiers
from harness.server import app as application
from harness.server import descriptors
from harness.server.dispatcher import Dispatcher, Judging
from harness.server.guard import HEAD_S, LOOPBACK, patient
from harness.server.log import say
from harness.server.serving import Serving
from harness.server.store import Database
from harness.server.store.people import hashed

LOOK_S = 30.0
GRACE_S = 5
"""The seconds for requests that are being answered when the server ends."""

LEAST_TOKEN = 16
"""The fewest characters of an administrator's token."""


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, serving: Serving) -> None:
        super().__init__(config)
        self._serving = serving

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._serving.close()
        super().handle_exit(sig, frame)


def serve(
    root: Path,
    database: str,
    host: str,
    port: int,
    devices: tuple[str, ...] = (),
    token: str | None = None,
    *,
    behind_proxy: bool = False,
    all_problems: bool = False,
    judge: Judging = judges.judge_apart,
    elsewhere: Callable[[], dict[str, tuple[str, ...]]] | None = None,
    ready: Callable[[Serving], None] = lambda serving: None,
) -> None:
    """Serve until Ctrl-C or SIGTERM, which both end the server cleanly.

    `devices`: torch's names of the cards; default: all cards here. `behind_proxy`: a proxy on this machine names the
      client and the scheme in X-Forwarded-For and X-Forwarded-Proto. Without a proxy anybody could forge these headers.
    `all_problems`: show the stored runs of every problem. `elsewhere`: returns the cards of `judge` if they are not
      this machine's; it is called again every LOOK_S.

    Raises UsageError, ProblemError for a competition's file, and InfrastructureError if the port is taken, another
    server uses the database, or there is no sandbox.
    """
    if token is not None and len(token) < LEAST_TOKEN:
        raise UsageError(f"the administrator's token is too short: at least {LEAST_TOKEN} characters")
    if elsewhere is None:
        tiers.require(detect(root, "cpu"))
    with _listening(host, port) as listener:
        serving = Serving(
            root=root,
            database=Database(database),
            cards=cards(judges.names(root), devices) if elsewhere is None else elsewhere(),
            admin_sha256=hashed(token) if token is not None else None,
            all_problems=all_problems,
        )
        serving.load()
        dispatcher = Dispatcher(serving, judge)
        dispatcher.start()
        if elsewhere is not None:
            threading.Thread(target=_look_for_more, args=(dispatcher, elsewhere), daemon=True).start()
        http = patient(descriptors.connections())
        logging.getLogger("asyncio").addFilter(descriptors.Seldom())
        app = application.create(serving, dispatcher)
        config = configured(app, behind_proxy, http=http, backlog=descriptors.BACKLOG)
        names = ", ".join(serving.competitions()) or f"none yet: write {root}/configs/competitions/NAME.yml"
        where = listener.getsockname()
        say(f"http://{where[0]}:{where[1]}/ serves {names}; judging on {', '.join(serving.cards)}")
        for each in serving.competitions().values():
            if each.card is not None and elsewhere is None:
                say(f"{each.name} names a card, which it can only with --cluster: nothing of it can be judged")
            if not serving.gpus(each):
                say(f"{each.name} is judged on {', '.join(each.gpus)}, and none is here: it takes no submission")
        ready(serving)
        if threading.current_thread() is threading.main_thread():  # uvicorn raises the signal again when it ends
            signal.signal(signal.SIGTERM, lambda number, frame: None)
        with contextlib.suppress(KeyboardInterrupt):
            _Server(config, serving).run(sockets=[listener])
        say("stopped: what is accepted and has no verdict yet is judged when it is started again")


def configured(app: ASGIApp, behind_proxy: bool = False, **changes: Any) -> uvicorn.Config:
    """Return uvicorn's configuration for the application. `changes`: other arguments of uvicorn.Config."""
    words: dict[str, Any] = {
        "http": patient(),
        "ws": "none",
        "log_level": "warning",
        "access_log": False,
        "server_header": False,
        "timeout_keep_alive": int(HEAD_S),
        "timeout_graceful_shutdown": GRACE_S,
        "proxy_headers": behind_proxy,
        "forwarded_allow_ips": list(LOOPBACK),  # set here, so that no environment variable overrides it
    }
    return uvicorn.Config(app, **(words | changes))


def _listening(host: str, port: int) -> socket.socket:
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=512)
    except (OSError, OverflowError) as error:
        said = getattr(error, "strerror", None) or str(error)
        raise InfrastructureError(f"{host}:{port} cannot be listened on: {said}", "name another: --port") from None


def cards(here: list[tuple[str, str]], wanted: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    """Return torch's names of the cards, by the name that people type. Raises UsageError for a card that is not
    here."""
    known = dict(here)
    unknown = [device for device in wanted if device not in known and device != "cpu"]
    if unknown:
        raise UsageError(f"there is no {unknown[0]} here: there is {', '.join(known)}")
    found: dict[str, tuple[str, ...]] = {}
    for device in dict.fromkeys(wanted) or known:
        name = gpu_name(known.get(device, "CPU"))
        found[name] = (*found.get(name, ()), device)
    return found


def by_name(models: Iterable[tuple[Device, int]]) -> dict[str, tuple[str, ...]]:
    """Return the slugs of a cluster's cards, one for each card, by the name that people type. Models may share one."""
    found: dict[str, tuple[str, ...]] = {}
    for device, count in models:
        name = "CPU" if device.kind == "cpu" else gpu_name(device.name)
        found[name] = (*found.get(name, ()), *(device.slug,) * count)
    return found


def gpu_name(model: str) -> str:
    """Return the name that people type: `H200` for NVIDIA H200, `H100` for NVIDIA H100 80GB HBM3, `MI300X` for AMD
    Instinct MI300X. It is the first word with a digit, else the model's name without spaces."""
    words = re.findall(r"[A-Za-z0-9]+", model)
    return next((word for word in words if re.search(r"\d", word)), "".join(words) or "GPU").upper()


def _look_for_more(dispatcher: Dispatcher, elsewhere: Callable[[], dict[str, tuple[str, ...]]]) -> None:
    """Ask for new cards, since nodes may join while the server runs."""
    said = ""
    while True:
        time.sleep(LOOK_S)
        try:
            dispatcher.have(elsewhere())
        except Exception as error:  # the cluster may be gone for a while
            why = error.message if isinstance(error, PodiumError) else str(error)
            if why != said:
                say(f"the cluster does not say what it has: {why}")
            said = why
