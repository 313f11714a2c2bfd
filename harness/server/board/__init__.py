"""The live board. The server renders the pages, which work without scripts. Scripts update running and waiting
submissions live.

site        what every page needs          answers      headers, ETags, pages in place of errors
results     the boards, held in memory     ledger       whose runs they are
view        which rows of a board, how     pages        front, board, run, compare
made_once   what is made once and kept     live         server-sent events
mine        signing in, the upload form, one's own submissions
file_names  which run files came or went   same_source  one person's source is one entry
data        JSON, CSV, Atom, badges        templates/   a page each, with a board's columns

    board = LiveSite(serving); app.include_router(board.router); board.start() … board.stop()
"""

from __future__ import annotations

from fastapi import APIRouter

from harness.server.board import data, live, mine, pages
from harness.server.board.ledger import Ledger
from harness.server.board.results import Results
from harness.server.board.site import Site
from harness.server.serving import Serving

__all__ = ["LiveSite"]


class LiveSite:
    """The live board of a server. `router` holds its routes. Between `start` and `stop` its boards are kept up to date;
    `results.wake()` updates them at once."""

    def __init__(self, serving: Serving) -> None:
        ledger = Ledger(serving.database)
        self.results = Results(serving.root, ledger)
        site = Site(serving, self.results, ledger)
        self.router = APIRouter()
        for part in (pages, mine, live, data):
            self.router.include_router(part.routes(site))

    def prepare(self) -> None:
        """Read the slow files before the first request."""
        self.results.prepare()

    def start(self) -> None:
        """Read the boards now, and again whenever a run is stored."""
        self.results.start()

    def stop(self) -> None:
        """Stop the updates."""
        self.results.stop()
