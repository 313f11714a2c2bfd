"""Shared by all pages: the server, the boards, the templates, and the addresses of pages."""

from __future__ import annotations

import functools
import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from fastapi import Request
from jinja2 import Environment
from markupsafe import Markup, escape

from harness import __version__
from harness.model import Run
from harness.records.scan import PUBLISHED
from harness.render import charts, html, plots
from harness.server import sessions
from harness.server.board.ledger import Ledger, Origin
from harness.server.board.results import TRIALS, Key, LiveBoard, Results
from harness.server.board.view import POINTS, age
from harness.server.serving import Serving
from harness.server.store.rows import Account, Mode
from harness.server.verdicts import progress_for_others

HERE = Path(__file__).parent
ASSETS = {"report.css": html.TEMPLATES, "board.css": HERE / "static", "board.js": HERE / "static"}
"""The static files of pages, with the folder of each."""


@dataclass(frozen=True)
class Site:
    """One server's pages. `results`: its boards. `ledger`: the submissions behind runs."""

    serving: Serving
    results: Results
    ledger: Ledger

    @property
    def boards(self) -> dict[Key, LiveBoard]:
        """The boards of the problems that are shown."""
        return {key: live for key, live in self.results.boards.items() if self.serving.shows(key[0])}

    def board(self, problem: str, device: str) -> LiveBoard | None:
        """Return a board, or None if there is none or its problem is not shown. Raises DatabaseGone."""
        return self.results.board(problem, device) if self.serving.shows(problem) else None

    def account(self, request: Request) -> Account | None:
        """Return the account of the viewer, if signed in. Raises DatabaseGone."""
        return sessions.account(request, self.serving.database.people)

    def may_see(self, path: str, run: str, who: Account | None) -> tuple[bool, bool]:
        """Return whether a run is shown to `who`, and whether its source and output are shown, too. The output may
        reveal the source.

        For a submission, its competition decides. A trial is shown only to its author. A run of `eval` or of another
        server is shown; its source is shown once the run is published. If a problem is not shown, only the author sees
        a run of it.
        `path`: the run's file under results/.
        """
        origin = self.ledger.origins([run]).get(run)
        shown = self.serving.shows(path.split("/")[1])
        if origin is None:
            visible = shown and not path.startswith(f"{TRIALS}/")
            return visible, visible and path.startswith(f"{PUBLISHED}/")
        if origin.removed:
            return False, False
        own = who is not None and who.id == origin.user_id
        if not shown and not own:
            return False, False
        if origin.mode != Mode.LEADERBOARD:
            return own, own
        return True, own or self._shows_source(origin, who)

    def _shows_source(self, origin: Origin, who: Account | None) -> bool:
        competition = self.serving.competitions().get(origin.competition)
        if competition is None:  # it was taken down, so its rule is unknown
            return False
        return competition.shows_source(origin.user_id, who.id if who else None)

    def render(self, name: str, request: Request, account: Account | None, **values: Any) -> str:
        """Return a page for `account`."""
        return render(name, account=account, csrf=sessions.csrf_token(request) if account else "", **values)


def render(name: str, **values: Any) -> str:
    """Render the template `name` with these values."""
    return _environment().get_template(name).render(**values)


def board_address(problem: str, device: str, kind: str = "") -> Markup:
    """Return the address of a board's page, or of its data, if `kind` is a name such as board.csv."""
    return _address("board", problem, device, *([kind] if kind else []))


def run_address(run: str, kind: str = "") -> Markup:
    """Return the address of a run's page, or of its data, if `kind` is a name such as run.json."""
    return _address("run", run, *([kind] if kind else []))


def submission_address(number: int) -> Markup:
    """Return the address of a submission's page."""
    return _address("submission", str(number))


def compare_address(a: str, b: str) -> Markup:
    """Return the address of the page that compares two runs."""
    return _address("compare", a, b)


def asset_address(name: str) -> Markup:
    """Return the address of a static file. It changes with the file, so that browsers can cache it forever."""
    return Markup(f"/static/{fingerprint(name)}/{name}")


@functools.cache
def asset(name: str) -> bytes:
    """Return the content of a static file."""
    return (ASSETS[name] / name).read_bytes()


@functools.cache
def fingerprint(name: str) -> str:
    """Return the fingerprint of a static file."""
    return hashlib.sha256(asset(name)).hexdigest()[:12]


def _address(*parts: str) -> Markup:
    return Markup(escape("/" + "/".join(quote(part, safe="") for part in parts)))


@functools.cache
def _environment() -> Environment:
    made = html.environment(HERE / "templates")
    made.globals.update(
        board_address=board_address,
        run_address=run_address,
        submission_address=submission_address,
        compare_address=compare_address,
        asset=asset_address,
        charts=charts,
        plots=plots,
        version=__version__,
        points=POINTS,
    )
    made.filters.update(age=age, progress_for_others=progress_for_others)
    return made


def shown_run(site: Site, run_id: str, who: Account | None) -> tuple[str, Run, bool] | None:
    """Return the path, the run and whether its source is shown, or None if nothing may be shown."""
    found = site.results.run(run_id)
    if found is None:
        return None
    visible, source = site.may_see(found[0], run_id, who)
    return (*found, source) if visible else None
