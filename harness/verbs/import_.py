"""Import problems of other projects: give each a name in this checkout."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from harness.catalog import foreign, imported
from harness.catalog.problem import problem_names
from harness.errors import InfrastructureError, PodiumError, UsageError
from harness.model import Problem
from harness.records import whole_file


@dataclass(frozen=True)
class Imported:
    """The result of an import: the problems that now have names, and by path the reason why others have none."""

    problems: list[Problem] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)


def import_(root: Path, path: Path) -> Imported:
    """Give names to the problem at `path`, to the problems that a set file there lists, or to all problems below a
    folder. Importing a problem again replaces its earlier name.

    Raises UsageError if there is no problem, InfrastructureError if the names cannot be written.
    """
    path = path.absolute()
    is_folder = path.is_dir() and not (path / foreign.TASK).exists()
    places = list(imported.problems_beneath(path)) if is_folder else foreign.places(path)
    if not places:
        raise UsageError(
            f"{path} holds no problem of another project",
            f"one is a folder with {foreign.TASK} (GPU MODE), or a Python file in a folder level1, level2, ... "
            "(KernelBench)",
        )
    done, faults = Imported(), []
    here = {str(place.resolve()) for place in places}
    names = {name: where for name, where in imported.paths(root).items() if where not in here}
    own = set(problem_names(root))
    for place in places:
        try:
            problem = foreign.load(root, place)
            if problem.name in names or problem.name in own:
                taken = names.get(problem.name, "a problem of Podium's")
                raise UsageError(f"its name {problem.name} is that of {taken}: name in podium.yml gives another")
        except PodiumError as error:
            done.left_out[str(place)] = error.message
            faults.append(error)
            continue
        names[problem.name] = str(place.resolve())
        done.problems.append(problem)
    if not done.problems:
        more = f"; {len(faults) - 1} more there cannot be judged either" if len(faults) > 1 else ""
        raise UsageError(f"{faults[0].message}{more}", faults[0].hint)
    _write(root / imported.FILE, imported.text(names))
    return done


def _write(file: Path, text: str) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        whole_file.write(file, text.encode())
    except OSError as error:
        raise InfrastructureError(f"{file} cannot be written: {error.strerror}") from None
