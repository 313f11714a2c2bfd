"""Judges each solution of the small folders and tasks in other projects' forms, and prints its verdict and description.

    python bench/foreign.py [--markdown] [--device cpu] [FOLDER-OR-TASK...]      (two minutes on two processors)

Folders of GPU MODE's form (tests/folders, with solutions/correct and solutions/wrong) are judged on the tests and on
the benchmark cases that count. Tasks of KernelBench's form (tests/tasks, with right/ and wrong/) are judged on their
one case. Nothing is timed. The first column has a folder's description, or the docstring of a task or solution. Exits
with 1 if a solution gets another verdict than its label, unless LABELLED_WRONGLY names it.
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections.abc import Iterator
from pathlib import Path

from tabulate import tabulate

ROOT = Path(__file__).resolve().parents[1]
if __name__ == "__main__":
    sys.path[0] = str(ROOT)

from harness import catalog  # noqa: E402
from harness.catalog.config import load_config  # noqa: E402
from harness.catalog.submission import load_submission  # noqa: E402
from harness.judge.evaluate import evaluate  # noqa: E402
from harness.machine.device import detect  # noqa: E402
from harness.model import Problem, Verdict  # noqa: E402

FOLDERS, TASKS = ROOT / "tests" / "folders", ROOT / "tests" / "tasks"
LABELLED_WRONGLY = {("vectorsum", "adds_to_what_is_there"), ("vectorsum", "of_one_axis")}
"""As two of pmpp_v2/vectorsum's own are: labelled correct, and refused by the folder's checker."""

MOST_SAID = 60
"""Characters of the reason that a table has."""

Row = tuple[str, str, str, str]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="folders and tasks by name (default: all)")
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    surprises = 0
    for title, places in (("folder", folders()), ("task", tasks())):
        rows: list[Row] = []
        for place, solutions in places:
            if options.names and place.stem not in options.names:
                continue
            problem = catalog.load_problem(ROOT, str(place))
            purpose = f"{place.stem}: {problem.description if place.is_dir() else docstring(place)}"
            for label, path in solutions:
                verdict, said = judged(problem, path, options.device)
                as_labelled = (verdict is Verdict.ACCEPTED) == (label in ("correct", "right"))
                surprises += not (as_labelled or (place.name, path.stem) in LABELLED_WRONGLY)
                solution = f"{label}/{path.stem}" if place.is_dir() else label
                rows.append((purpose, solution, verdict.words, docstring(path) + said))
                purpose = ""
                print(f"{place.stem}, {solution}: {verdict.words}", file=sys.stderr)
        headers = (title, "solution", "verdict", "what it does [what was said of it]")
        if rows and options.markdown:
            lines = [headers, ("---",) * len(headers), *rows]
            print("\n".join(f"| {' | '.join(line)} |" for line in lines), end="\n\n")
        elif rows:
            print(tabulate(rows, headers, tablefmt="simple_outline"), end="\n\n")
    return min(surprises, 1)


def folders() -> Iterator[tuple[Path, list[tuple[str, Path]]]]:
    for task in sorted(FOLDERS.glob("*/task.yml")):
        found = [
            (kind, path) for kind in ("correct", "wrong") for path in sorted(task.parent.glob(f"solutions/{kind}/*.py"))
        ]
        yield task.parent, found


def tasks() -> Iterator[tuple[Path, list[tuple[str, Path]]]]:
    for task in sorted(TASKS.glob("*.py"), key=lambda path: int(path.stem.partition("_")[0])):
        yield task, [(kind, TASKS / kind / task.name) for kind in ("right", "wrong")]


def judged(problem: Problem, path: Path, device: str) -> tuple[Verdict, str]:
    """The verdict on the tests and the benchmark cases that count, and of one that is refused the reason."""
    here = detect(ROOT, device)
    cases = problem.cases_for(here.kind)
    every = problem.only([*cases.test, *(case for case in cases.benchmark if case not in cases.test)], [])
    run = evaluate(every, load_submission(problem, path), here, load_config(ROOT), timed=False)
    reports = [check.report.splitlines()[1] for check in run.checks if check.report]
    said = (reports or [run.ending.message])[0].removeprefix("the problem's checker: ").replace("|", "/")
    if run.ending.verdict is Verdict.ACCEPTED:
        return run.ending.verdict, ""
    return run.ending.verdict, f" [{said if len(said) <= MOST_SAID else said[: MOST_SAID - 1] + '…'}]"


def docstring(path: Path) -> str:
    """The first line of a module's."""
    return (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").partition("\n")[0]


if __name__ == "__main__":
    sys.exit(main())
