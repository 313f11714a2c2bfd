"""Makes the pictures of the board in README: docs/board.png and docs/board-dark.png, from the published runs.
Writes the runs that they show to docs/board.json: a test says when that is no longer what is published.

The board is for the problem's revision of the latest published run.

    python bench/picture.py [--problem mla]

Needs Chromium (Debian and Ubuntu: apt install chromium) and playwright, which `make test` installs.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from pathlib import Path

if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from playwright.sync_api import sync_playwright

from harness import catalog
from harness.model import Problem
from harness.records.run_file import load_run
from harness.render import html

ROOT = Path(__file__).resolve().parents[1]
SIZE = {"width": 1100, "height": 980}
SHOWN = ROOT / "docs" / "board.json"
PICTURES = {"light": ROOT / "docs" / "board.png", "dark": ROOT / "docs" / "board-dark.png"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--problem", default="mla")
    problem = catalog.load_problem(ROOT, parser.parse_args().problem)
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if program is None:
        raise SystemExit("Chromium is not installed")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as started:
        # Without results/local: the picture shows published runs only.
        (Path(folder) / "results").mkdir()
        for name in ("results/published", "submissions", "configs"):
            (Path(folder) / name).symlink_to(ROOT / name)
        page_file = Path(folder) / "board.html"
        html.write(Path(folder), [as_judged(problem)], page_file)
        browser = started.chromium.launch(executable_path=program)
        for scheme, path in PICTURES.items():
            page = browser.new_context(viewport=SIZE, color_scheme=scheme, device_scale_factor=1.5).new_page()
            page.goto(page_file.as_uri())
            page.evaluate("scrollTo(0, document.querySelector('.top').offsetTop)")  # past the page's own head
            page.screenshot(path=path)
            print(f"{path.relative_to(ROOT)}: {path.stat().st_size / 1e3:.0f} kB")
        browser.close()
    SHOWN.write_text(json.dumps({"problem": problem.name, "runs": published(problem.name)}, indent=1) + "\n")


def published(problem: str) -> list[str]:
    """The ids of the published runs of a problem, on any device."""
    return sorted(load_run(path).id for path in (ROOT / "results" / "published" / problem).glob("*/*.json"))


def as_judged(problem: Problem) -> Problem:
    """`problem` as it was when the latest published run was judged: the board ranks runs of that revision."""
    paths = (ROOT / "results" / "published" / problem.name).glob("*/*.json")
    latest = max(map(load_run, paths), key=lambda run: run.started_at)
    return problem.model_copy(update={"revision": latest.problem_revision, "sha256": latest.problem_sha256})


if __name__ == "__main__":
    main()
