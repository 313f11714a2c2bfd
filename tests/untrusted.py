"""The two surfaces that read untrusted bytes, and inputs that try them.

    ProtocolSurface   what a worker sends ─► Channel ─► Session ─► compare ─► mismatch report
    ResultsSurface    a file in results/  ─► load_run ─► show; index ─► boards

`make(rng)` gives one input, `take(input)` hands it to the real code and names what came of it. Whatever the input, that
is a refusal or a value that holds; anything else escapes as an exception, which is a bug of ours.
"""

from __future__ import annotations

import copy
import json
import os
import random
import struct
from collections import deque
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from harness import catalog
from harness.judge.checked_call import compare, differences, overruns
from harness.judge.deadline import Allowance
from harness.judge.inputs import Dealer
from harness.judge.mismatch import report
from harness.judge.reference import Reference
from harness.judge.reply import Fault
from harness.judge.seeds import Seeds
from harness.judge.session import Session
from harness.judge.stage import Snapshot
from harness.model import (
    Case,
    CaseCheck,
    ClockOwner,
    Constant,
    Device,
    Ending,
    Estimate,
    Excess,
    Floor,
    Manner,
    Measurement,
    Problem,
    Run,
    Verdict,
)
from harness.records.run_file import load_run
from harness.records.store import Store
from harness.render import boards, document, verdicts
from harness.render import run as rendered_run
from harness.verbs import leaderboard
from harness.wire.arena import layout
from harness.wire.protocol import Channel

CHECKOUT = Path(__file__).resolve().parents[1]
CPU = Device(
    kind="cpu", name="CPU", slug="cpu", arch="x86_64", torch_device="cpu", memory_bytes=1 << 34, flush_bytes=1 << 20
)
NONCE, SECOND_NONCE = b"0123456789abcdef", b"fedcba9876543210"
"""Stand in a stream for the nonces of the call and of the question what came of it."""

SENSIBLE = {Verdict.INTEGRITY_VIOLATION, Verdict.TIMEOUT, Verdict.RUNTIME_ERROR, Verdict.COMPILE_ERROR}

RAW = [b"NaN", b"Infinity", b"-Infinity", b"1e999", b"-1e-999", b"9" * 400, b"9" * 4300, b"9" * 4301, b"-0", b"0.0"]
RAW += [rb'"\ud800"', rb'"\udfff\ud800"', b"[" * 90_000, b'{"a":' * 5_000, b"[" * 900 + b"]" * 900, b'"\xff"', b"{}{}"]
RAW += [b"\0", b"nul", b'"' + b"x" * 70_000 + b'"', rb'"\u0000"', b"tru", b"1" * 30 + b"e-30", b"", b","]
EXTREMES: list[Any] = [
    *[None, True, False, 0, 1, -1, 255, 256, 2**31, 2**31 - 1, 2**53 + 1, 2**63 - 1, 2**63, 2**64, -(2**63) - 1],
    *[10**18, 10**400, 0.0, -0.0, 5e-324, 1e-300, 1e300, 1.7976931348623157e308, -1.5, 0.5],
    *[
        "",
        "Infinity",
        "-Infinity",
        "NaN",
        "\0",
        "\x1b[31m\x1b[2J",
        "\u202e",
        "a\nb",
        "x" * 5_000,
        "../../../etc/passwd",
    ],
    *["accepted", "Tensor", "float32", [], {}, [[]], [None], [0], [2**62, 2**62], {"": None}, [1.0] * 300],
]


class ProtocolSurface:
    """A call of a real problem whose right answer lies in the arena: accepted are only replies that say where."""

    name = "protocol"

    def __init__(self) -> None:
        self._problem = catalog.load_problem(CHECKOUT, "kv_decode")
        self._case = self._problem.cpu.test[-1]
        dealer = Dealer(Reference(self._problem, CPU), self._case, Seeds("00", "fuzz", self._case))
        self._call = call = dealer.deal(True)
        self._arena = call.arena
        expected = call.expectation
        for name, tensor in expected.state.items():
            self._arena.view(call.state_specs[name]).copy_(tensor)
        tensors = list(expected.outputs.values())
        specs = layout(tensors, call.request["tail"])
        for spec, tensor in zip(specs, tensors, strict=True):
            self._arena.view(spec).copy_(tensor)
        self._reply = {
            "several": len(specs) > 1,
            "returned": len(specs),
            "outputs": [
                {
                    **{"type": "Tensor", "dtype": spec.dtype, "shape": list(spec.shape), "device": "cpu"},
                    **{"stride": list(tensor.stride()), "region": "arena", "offset": spec.offset, "copied": True},
                }
                for spec, tensor in zip(specs, tensors, strict=True)
            ],
            "interpreted": False,
            "inside_ns": 1.0,
            "overrun": [],
        }
        self._offsets = [spec.offset for spec in specs]
        self._values = [*EXTREMES, *self._offsets]
        assert (
            self.take([READY, frame(json.dumps({"nonce": NONCE.decode(), "reply": self._reply}).encode()), AFTERMATH])
            == "accepted"
        )

    def make(self, rng: random.Random) -> list[bytes]:
        """The pieces in which a stream of one to three frames arrives, most often between the two that are due."""
        stream = b"".join(self._frame(rng) for _ in range(rng.choice((1, 1, 1, 2, 3))))
        if rng.random() < 0.9:
            stream = READY + stream
        if rng.random() < 0.9:
            stream += AFTERMATH
        if rng.random() < 0.2:
            stream = _mutated_bytes(rng, stream)
        cuts = sorted(rng.randrange(len(stream) + 1) for _ in range(rng.choice((0, 0, 1, 3, 9))))
        return [stream[start:end] for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)]

    def take(self, pieces: list[bytes]) -> str:
        session = _SessionWithoutWorker(self._problem, Channel(_Wire(pieces)))  # type: ignore[arg-type]
        tolerances = self._problem.tolerances_for(self._case)
        try:
            session.begin({**self._call.request}, self._case.label)
            session.go()
            reply = session.reply()
            session.aftermath()
            session.channel_is_quiet()
        except Fault as fault:
            ending = fault.ending
            unjudged = ending.verdict is Verdict.INFRASTRUCTURE_ERROR and b"cannot_judge" in b"".join(pieces)
            assert ending.verdict in SENSIBLE or unjudged
            assert Ending.model_validate_json(ending.model_dump_json()) == ending
            return ending.verdict.words
        found = differences(self._call, reply, Snapshot({"arena": self._arena}), tolerances)
        comparison = compare(self._call, found + overruns(self._call, reply.overrun), tolerances)
        met = comparison.tolerance
        text = None if met is not None else report(self._problem, self._case, comparison, "python3 -m harness replay")
        check = CaseCheck(
            case=self._case,
            verdict=Verdict.WRONG_ANSWER if met is None else Verdict.ACCEPTED,
            tolerance=met,
            excess=comparison.excess,
            error=comparison.error,
            report=text,
        )
        assert CaseCheck.model_validate_json(check.model_dump_json()) == check
        if met is not None:
            assert [(output.region, output.offset) for output in reply.outputs] == [("arena", o) for o in self._offsets]
        return check.verdict.words

    def _frame(self, rng: random.Random) -> bytes:
        kind = rng.random()
        if kind < 0.15:
            body = rng.randbytes(rng.choice((0, 1, 4, 40, 400)))
        else:
            content: dict[str, Any] = {"nonce": NONCE.decode(), "reply": self._reply}
            if rng.random() < 0.15:
                content = {"nonce": SECOND_NONCE.decode(), "reply": {"inside_ns": 1.0}}
            if rng.random() < 0.25:
                failure = {"kind": rng.choice(("compile_error", "cannot_judge", "x")), "message": "m", "detail": "d"}
                content = {"nonce": NONCE.decode(), "failure": failure}
            body = _mutated_json(rng, content, self._values)
        header = struct.pack(">I", len(body))
        if rng.random() < 0.08:
            wrong = (0, len(body) + 1, max(len(body) - 1, 0), 2**20, 2**20 + 1, 2**31, 2**32 - 1, rng.getrandbits(32))
            header = struct.pack(">I", rng.choice(wrong))
        return header + body


class ResultsSurface:
    """Files called run-1.json in `root`/results, read by whoever lists, shows and ranks."""

    name = "results"

    def __init__(self, root: Path, batch: int = 1) -> None:
        self._root, self._batch = root, batch
        self._problem = catalog.load_problem(CHECKOUT, "kv_decode")
        self._documents = [run.model_dump(mode="json") for run in _runs(self._problem)]
        self._folder = root / "results" / "local" / self._problem.name / CPU.slug
        self._folder.mkdir(parents=True, exist_ok=True)
        (root / "configs").mkdir(exist_ok=True)
        (root / "configs" / "eval.yml").write_bytes((CHECKOUT / "configs" / "eval.yml").read_bytes())
        self._file = root / "apart" / self._problem.name / CPU.slug / "run-1.json"
        self._file.parent.mkdir(parents=True, exist_ok=True)
        self._loaded: list[Run] = []
        for run in _runs(self._problem):
            assert self.take(run.model_dump_json().encode()) == "loaded"

    def make(self, rng: random.Random) -> bytes:
        if rng.random() < 0.03:
            return rng.randbytes(rng.randrange(200))
        document = rng.choice(self._documents)
        if rng.random() < 0.2:
            document = _of_the_same_shape(rng, document)
        return _mutated_json(rng, document, EXTREMES)

    def take(self, text: bytes) -> str:
        self._file.write_bytes(text)
        try:
            run = load_run(self._file)
        except ValueError as error:
            assert str(error)
            str(error).encode()
            return "refused"
        # NaN is unequal to itself; the text that it is written as is not.
        written = run.model_dump_json()
        assert Run.model_validate_json(written).model_dump_json() == written
        for written in (document.text, document.markdown):
            written([*rendered_run.parts(run), verdicts.verdict_line(run), verdicts.failure(run)]).encode()
        self._loaded.append(run)
        if len(self._loaded) >= self._batch:
            self.flush()
        return "loaded"

    def flush(self) -> None:
        """Have the boards made of what was loaded since the last time."""
        loaded, self._loaded = self._loaded, []
        try:
            self._show(loaded)
        except Exception as error:
            for run in loaded:
                try:
                    self._show([run])
                except Exception:
                    raise AssertionError(f"the boards of {run.model_dump_json()}: {error!r}") from error
            raise

    def _show(self, runs: list[Run]) -> None:
        for old in self._folder.iterdir():
            old.unlink()
        (self._root / "results" / "index.sqlite").unlink(missing_ok=True)
        for number, run in enumerate(runs):
            name = f"run-{number}"
            (self._folder / f"{name}.json").write_bytes(run.model_copy(update={"id": name}).model_dump_json().encode())
        with Store(self._root).index() as index:
            assert len(index.paths()) + len(index.faults()) == len(runs)
        document.text(boards.parts(self._root, self._problem, None, cases=True)).encode()
        json.dumps(leaderboard.as_json(self._root, self._problem, None, cases=True))


def frame(body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + body


READY = frame(json.dumps({"nonce": NONCE.decode(), "ready": True}).encode())


AFTERMATH = frame(json.dumps({"nonce": SECOND_NONCE.decode(), "reply": {"inside_ns": None}}).encode())


class _Wire:
    """Stands for a socket: gives `pieces` as they are, the requests' nonces put in, then silence or the end."""

    def __init__(self, pieces: list[bytes]) -> None:
        self._pieces = deque(pieces)
        self._ends = sum(map(len, pieces)) % 2 == 0

    def fileno(self) -> int:
        return _ALWAYS_READABLE.fileno()

    def settimeout(self, seconds: float | None) -> None:
        pass

    def setblocking(self, blocking: bool) -> None:
        pass

    def sendall(self, request: bytes) -> None:
        message = json.loads(request[4:])
        if message["op"] != "go":
            self._put_in(NONCE if message["op"] == "call" else SECOND_NONCE, message["nonce"].encode())

    def _put_in(self, placeholder: bytes, nonce: bytes) -> None:
        whole = b"".join(self._pieces).replace(placeholder, nonce)
        start = 0
        for _ in range(len(self._pieces)):
            size = len(self._pieces.popleft())
            self._pieces.append(whole[start : start + size])
            start += size

    def recv(self, most: int) -> bytes:
        while self._pieces:
            piece = self._pieces.popleft()
            asked_later = piece.find(SECOND_NONCE)
            given = min(most, asked_later if asked_later > 0 else most)
            if len(piece) > given:
                self._pieces.appendleft(piece[given:])
            if piece:
                return piece[:given]
        if self._ends:
            return b""
        raise TimeoutError


_ALWAYS_READABLE = open(os.devnull, "rb")  # noqa: SIM115
_NEVER_READABLE = os.pipe()[0]


class _SessionWithoutWorker(Session):
    """The judge's end of a session, the worker's being written by hand."""

    def __init__(self, problem: Problem, channel: Channel) -> None:
        self.limits, self._channel, self.deadline = problem.limits, channel, None
        self.leash = SimpleNamespace(stopped=False, told=False, pid=0, fileno=lambda: _NEVER_READABLE)  # type: ignore[assignment]
        self._turn, self.allowance = 0, Allowance(None)

    def channel_is_quiet(self) -> bool:
        return self._channel.is_quiet()

    def _death(self) -> Fault:
        return Fault(Verdict.RUNTIME_ERROR, f"the process ended during {self._doing}")


def _mutated_json(rng: random.Random, document: Any, values: list[Any]) -> bytes:
    """`document` as JSON with something changed: values, keys, the text, or the bytes."""
    document = json.loads(json.dumps(document))
    marks: list[bytes] = []
    for _ in range(rng.choice((0, 1, 1, 1, 2, 5))):
        holder, key = _place(rng, document)
        change = rng.random()
        if key is None:
            continue
        elif change < 0.6:
            holder[key] = copy.copy(rng.choice(values))
        elif change < 0.75:
            del holder[key]
        elif change < 0.85:
            marks.append(rng.choice(RAW))
            holder[key] = f"RAW{len(marks) - 1}!"
        elif isinstance(holder, dict):
            holder[rng.choice(("surplus", "", "nonce", "reply", "id", key + "s"))] = copy.copy(holder[key])
        else:
            holder.append(copy.copy(holder[key]))
    text = json.dumps(document).encode()
    for number, raw in enumerate(marks):
        text = text.replace(f'"RAW{number}!"'.encode(), raw)
    if rng.random() < 0.05:  # a key that is there twice
        text = text.replace(b"{", b'{"nonce": "other", "id": "other", ', 1)
    if rng.random() < 0.15:
        text = _mutated_bytes(rng, text)
    if rng.random() < 0.01:
        text = text.decode("utf-8", "replace").encode(rng.choice(("utf-16", "utf-32", "utf-8-sig")))
    return text


def _mutated_bytes(rng: random.Random, data: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 8))):
        place = rng.randrange(len(changed) + 1)
        match rng.randrange(5):
            case 0 if place < len(changed):
                changed[place] ^= 1 << rng.randrange(8)
            case 1:
                changed[place:place] = rng.randbytes(rng.randrange(5))
            case 2:
                del changed[place : place + rng.randrange(20)]
            case 3:
                changed[place:place] = rng.choice(RAW)
            case 4:
                del changed[place:]
    return bytes(changed)


def _place(rng: random.Random, document: Any) -> tuple[Any, Any]:
    """A member of some dict or list in `document`, as its holder and its key; None for the key where that is empty."""
    holder = document
    while holder:
        key = rng.choice(list(holder) if isinstance(holder, dict) else range(len(holder)))
        if not isinstance(holder[key], dict | list) or rng.random() < 0.2:
            return holder, key
        holder = holder[key]
    return holder, None


_NUMBERS = [
    0,
    1,
    -1,
    2**31,
    2**63,
    10**30,
    0.0,
    -0.0,
    5e-324,
    1e-9,
    1e15,
    1.7e308,
    -1e300,
    "Infinity",
    "-Infinity",
    "NaN",
]
_TEXTS = ["", "\0", "\x1b[2J", "\u202eabc", "a\nb\tc", "x" * 3000, "é\U0001f600", "%s{}", "'; DROP TABLE runs"]


def _of_the_same_shape(rng: random.Random, node: Any) -> Any:
    """`node` with some of its leaves replaced by extreme ones of their kind, and some of its lists longer or empty."""
    if isinstance(node, dict):
        return {key: value if key == "id" else _of_the_same_shape(rng, value) for key, value in node.items()}
    if isinstance(node, list):
        members = [_of_the_same_shape(rng, member) for member in node]
        return members if rng.random() > 0.08 else members * rng.choice((0, 2, 50))
    if isinstance(node, bool) or node is None or rng.random() > 0.12:
        return node
    return rng.choice(_NUMBERS if isinstance(node, int | float) else _TEXTS)


def _runs(problem: Problem) -> list[Run]:
    """An accepted run, a wrong one and one that was not judged, with every field in use."""
    case = Case(parameters={"rows": 4, "cols": [1, 2], "dtype": "float32", "causal": True})
    excess = {"strict": Excess(limit="rel_l2", ratio=1.5), "loose": Excess(limit="max_mismatch", ratio=0.25)}
    check = CaseCheck(case=case, verdict=Verdict.ACCEPTED, tolerance="loose", excess=excess, error=0.25, calls=2)
    measurement = Measurement(
        case=case,
        samples_ns=((90.0, 110.0), (100.0, 95.0)),
        latency=Estimate(latency_ns=100.0, low_ns=90.0, high_ns=110.0),
        floor=Floor(latency_ns=40.0, binds="bandwidth", format="bf16"),
        labels=("odd",),
        manner=Manner.SANDWICH,
        bound_ns=900.0,
        inside_ns=101.0,
        voids={"cut by the slice": 3},
    )
    common: dict[str, Any] = {
        "id": "run-1",
        "problem": problem.name,
        "problem_revision": problem.revision,
        "problem_sha256": problem.sha256,
        "submission": "mine",
        "submission_sha256": "aa",
        "submission_path": "mine.py",
        "device": CPU,
        "environment": {"packages": {"torch": "2.13"}, "python": "3.11", "isolation": "process"},
        "started_at": "2026-01-01T00:00:00.000+00:00",
        "duration_s": 1.5,
        "output": "printed\n",
        "master_seed": "00ff",
        "config": {"confidence": 0.95},
        "checks": (check,),
    }
    accepted = Run(
        ending=Ending(verdict=Verdict.ACCEPTED, message="all 2 test cases are right"),
        measurements=(measurement, measurement),
        clock=ClockOwner.JUDGE,
        constants=(Constant(manner=Manner.SANDWICH, latency_ns=283_100, spread_ns=610, calls=400),),
        score=Estimate(latency_ns=100.0, low_ns=99.0, high_ns=101.0),
        tolerance="loose",
        error=0.25,
        **common,
    )
    wrong = Run(ending=Ending(verdict=Verdict.WRONG_ANSWER, message="wrong", detail="where"), **common)
    unjudged = Run(
        ending=Ending(verdict=Verdict.INFRASTRUCTURE_ERROR, message="no"), unranked_because="unjudged", **common
    )
    return [accepted, wrong, unjudged]
