"""Measures the structure of harness/: which rooms import each other, and how a submission's call travels through the
judge.

    python bench/house.py            both
    python bench/house.py --graph    the imports alone, which takes no time

The graph. A room is a folder or a loose module of harness/. An arrow is an import, at the top of a file or within a
function, from one room to another. A floor is one more than the highest room that a room imports. Rooms that import
each other in a circle are a cycle.

The way. A toy submission goes through `eval --quick` on a CPU, and `sys.setprofile` records the functions of
harness/verbs and harness/judge that are entered. The analysis covers one timed call, the last but one of the
submission. A stay is a function that has been entered and not left when the request goes to the worker, from the verb
down, or one that is entered on the call's behalf in a module further up on that way. A room is a module of these. A
return is an entry into a module that the way has left: another module lies between. On the call's behalf is everything
from where its caller (the innermost function that also requests the next call) starts it to where it starts the next
call. `beside` counts the other functions entered meanwhile, each once: functions called and left before or after.
"""

from __future__ import annotations

import argparse
import ast
import itertools
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])

ROOT = Path(__file__).resolve().parents[1]
HOUSE = ROOT / "harness"
LOOKED_AT = ("harness.verbs", "harness.judge")

EVAL_YML = """\
cpu: &few
  {processes: 1, warmup_calls: 2, pilot_calls: 1, min_samples: 4, max_samples: 4, budget_s: 0.1, judging_budget_s: 1.0}
gpu: *few
"""

Arrows = Mapping[str, frozenset[str]]
"""What each room imports."""


def modules(house: Path = HOUSE) -> dict[str, Path]:
    """Every module by its dotted name, such as harness.judge.trial; a package by its folder's."""
    found = {}
    for path in sorted(house.rglob("*.py")):
        parts = (house.name, *path.relative_to(house).with_suffix("").parts)
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(module: str, path: Path, known: Mapping[str, Path]) -> Iterator[str]:
    """The modules of `known` that a file imports, wherever in it."""
    house = next(iter(known)).partition(".")[0]
    package = module.split(".") if path.name == "__init__.py" else module.split(".")[:-1]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            names = [whole if (whole := f"{base}.{alias.name}") in known else base for alias in node.names]
        else:
            continue
        yield from (name for name in names if name.partition(".")[0] == house)


def room_of(module: str) -> str:
    """`judge` of harness.judge.trial; `__init__` of the package itself."""
    return (*module.split("."), "__init__")[1]


def arrows(house: Path = HOUSE) -> Arrows:
    """Each room with the rooms that it imports."""
    known = modules(house)
    found: dict[str, set[str]] = {}
    for module, path in known.items():
        room = room_of(module)
        found.setdefault(room, set()).update(room_of(name) for name in imports(module, path, known))
    return {room: frozenset(others - {room}) for room, others in found.items()}


def cycles(graph: Arrows) -> list[tuple[str, ...]]:
    """Rooms that import each other, directly or by way of others: one path for each that a walk runs into."""
    found: list[tuple[str, ...]] = []
    done: set[str] = set()

    def walk(room: str, way: tuple[str, ...]) -> None:
        if room in way:
            found.append((*way[way.index(room) :], room))
        elif room not in done:
            for other in sorted(graph[room]):
                walk(other, (*way, room))
            done.add(room)

    for room in sorted(graph):
        walk(room, ())
    return found


def floors(graph: Arrows) -> dict[str, int]:
    """The floor of each room, from 1, the highest first. Raises ValueError where there is a cycle."""
    if found := cycles(graph):
        raise ValueError(f"rooms import each other: {' -> '.join(found[0])}")
    known: dict[str, int] = {}

    def floor(room: str) -> int:
        if room not in known:
            known[room] = 1 + max(map(floor, graph[room]), default=0)
        return known[room]

    return dict(sorted(((room, floor(room)) for room in graph), key=lambda item: (-item[1], item[0])))


def loose(house: Path = HOUSE) -> set[str]:
    """The modules that lie in no folder."""
    return {path.stem for path in house.glob("*.py")}


@dataclass(frozen=True)
class Stay:
    """A function on the way. `back`: its module was left before."""

    module: str
    function: str
    back: bool


@dataclass(frozen=True)
class Way:
    """The stays down to the request, those of further up that were entered besides, and how many functions beside."""

    down: tuple[Stay, ...]
    called_back: tuple[Stay, ...]
    beside: int

    @property
    def stays(self) -> tuple[Stay, ...]:
        return (*self.down, *self.called_back)

    @property
    def rooms(self) -> list[str]:
        return list(dict.fromkeys(stay.module for stay in self.stays))

    @property
    def returns(self) -> int:
        return sum(stay.back for stay in self.stays)


@dataclass(frozen=True)
class _Entered:
    """A function entered, and the stack that it was entered on, itself the last."""

    code: CodeType
    stack: tuple[FrameType, ...]


class _Tracer:
    """Every entry into a function of the modules looked at, and the stack of such at each request for a call."""

    def __init__(self) -> None:
        self.entries: list[_Entered] = []
        self.requests: list[tuple[int, tuple[FrameType, ...]]] = []
        self._stack: list[FrameType] = []

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        if event not in ("call", "return"):
            return
        module = frame.f_globals.get("__name__", "")
        if module.startswith(LOOKED_AT):
            if event == "call":
                self._stack.append(frame)
                self.entries.append(_Entered(frame.f_code, tuple(self._stack)))
            elif self._stack and self._stack[-1] is frame:
                self._stack.pop()
        elif event == "call" and module == "harness.wire.protocol" and frame.f_code.co_name == "send":
            message = frame.f_locals["message"]
            if message.get("op") == "call" and message.get("null") is None:
                self.requests.append((len(self.entries), tuple(self._stack)))


def way() -> Way:
    """The way of one timed call of a toy submission on a CPU."""
    from bench import experiment
    from harness.machine import device
    from harness.verbs import eval as evaluation

    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        problem, submission = experiment.one_pass(root, [{"variant": "once", "elements": 256}])
        (root / "configs").mkdir()
        (root / "configs" / "eval.yml").write_text(EVAL_YML)
        here, tracer = device.detect(root, "cpu"), _Tracer()
        sys.setprofile(tracer)
        try:
            (run,) = evaluation.judge(root, problem, [submission], here, True, lambda line: None, True)
        finally:
            sys.setprofile(None)
    if run.score is None:
        raise SystemExit(f"the toy was not timed: {run.ending.message} {run.ending.detail or ''}")
    return _of_call(tracer.entries, tracer.requests[-2], tracer.requests[-1])


def _of_call(
    entries: Sequence[_Entered], this: tuple[int, tuple[FrameType, ...]], following: tuple[int, tuple[FrameType, ...]]
) -> Way:
    (_, stack), (_, after) = this, following
    shared = sum(1 for one, other in zip(stack, after) if one is other)
    begins = next(i for i, entry in enumerate(entries) if entry.stack == stack[: shared + 1])
    ends = next(i for i, entry in enumerate(entries) if entry.stack == after[: shared + 1])
    down = tuple(_stay(stack[: depth + 1]) for depth in range(len(stack)))
    on_the_way = {frame.f_code for frame in stack}
    meanwhile = {entry.code: entry for entry in reversed(entries[begins:ends]) if entry.code not in on_the_way}
    others = {code: _stay(entry.stack) for code, entry in meanwhile.items()}
    back = tuple(stay for stay in reversed(others.values()) if stay.back)
    return Way(down, back, len(others) - len(back))


def _stay(stack: tuple[FrameType, ...]) -> Stay:
    names = [frame.f_globals["__name__"] for frame in stack]
    own = names[-1]
    left = any(one == own and other != own for one, other in itertools.pairwise(names))
    return Stay(own, stack[-1].f_code.co_qualname, left and names[-2] != own)


def print_graph() -> None:
    graph = arrows()
    print(f"{len(graph)} rooms, {sum(map(len, graph.values()))} arrows, {len(loose())} loose modules")
    for cycle in (found := cycles(graph)):
        print(f"cycle: {' -> '.join(cycle)}")
    if not found:
        height = floors(graph)
        print(f"{max(height.values())} floors, no cycle")
        for room, floor in height.items():
            print(f"{floor:3}  {room:<12} {', '.join(sorted(graph[room]))}")


def print_way(found: Way) -> None:
    print(f"{len(found.stays)} stays in {len(found.rooms)} rooms with {found.returns} returns; {found.beside} beside")
    for stay in found.stays:
        print(f"  {'back to ' * stay.back}{stay.module.removeprefix('harness.')}: {stay.function}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graph", action="store_true", help="the imports alone")
    given = parser.parse_args()
    print_graph()
    if not given.graph:
        print()
        print_way(way())


if __name__ == "__main__":
    main()
