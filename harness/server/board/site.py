"""What every page needs: the server, the boards, the templates, the addresses of pages."""

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
"""The files that pages refer to, by the folder that each lies in."""


@dataclass(frozen=True)
class Site:
    """One server's pages. `results`: its boards; `ledger`: whose runs they are."""

    serving: Serving
    results: Results
    ledger: Ledger

    @property
    def boards(self) -> dict[Key, LiveBoard]:
        """The boards of the problems that are shown."""
        return {key: live for key, live in self.results.boards.items() if self.serving.shows(key[0])}

    def board(self, problem: str, device: str) -> LiveBoard | None:
        """One of them; None where there is none, or its problem is not shown. Raises DatabaseGone."""
        return self.results.board(problem, device) if self.serving.shows(problem) else None

    def account(self, request: Request) -> Account | None:
        """Who looks, if they have signed in. Raises DatabaseGone."""
        return sessions.account(request, self.serving.database.people)

    def may_see(self, path: str, run: str, who: Account | None) -> tuple[bool, bool]:
        """Whether a run is shown to `who` at all, and whether with its source and what it printed, which may tell the
        source. Of a submission its competition decides; a trial is its author's alone. A run of `eval`, or of a server
        that is not this one, is shown, with its source once it is published. Of a problem that is not shown its author
        alone sees a run. `path`: the run's file under results/."""
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
        if competition is None:  # taken down: what it allowed is not known any more
            return False
        return competition.shows_source(origin.user_id, who.id if who else None)

    def render(self, name: str, request: Request, account: Account | None, **values: Any) -> str:
        """A page for `account`."""
        return render(name, account=account, csrf=sessions.csrf_token(request) if account else "", **values)


def render(name: str, **values: Any) -> str:
    """The template `name` with these values."""
    return _environment().get_template(name).render(**values)


def board_address(problem: str, device: str, kind: str = "") -> Markup:
    """Of a board's page; `kind`: of its data, such as board.csv."""
    return _address("board", problem, device, *([kind] if kind else []))


def run_address(run: str, kind: str = "") -> Markup:
    """Of a run's page; `kind`: of its data, such as run.json."""
    return _address("run", run, *([kind] if kind else []))


def submission_address(number: int) -> Markup:
    """Of a submission's page."""
    return _address("submission", str(number))


def compare_address(a: str, b: str) -> Markup:
    """Of the page that holds two runs against each other."""
    return _address("compare", a, b)


def asset_address(name: str) -> Markup:
    """Of a static file; another one after it has changed, so that browsers keep it for good."""
    return Markup(f"/static/{fingerprint(name)}/{name}")


@functools.cache
def asset(name: str) -> bytes:
    """A static file's content."""
    return (ASSETS[name] / name).read_bytes()


@functools.cache
def fingerprint(name: str) -> str:
    """Of a static file."""
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
    """The path, the run and whether its source is shown; None where there is nothing to show."""
    found = site.results.run(run_id)
    if found is None:
        return None
    visible, source = site.may_see(found[0], run_id, who)
    return (*found, source) if visible else None
