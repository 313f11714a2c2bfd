"""A stand-in for the judge: it judges nothing and answers in 20 ms, in its own process. The server's tests and load
tests use it.

    python -m bench.stand_in serve ROOT [--port 0]     a server with this judge; prints its address
    python -m bench.stand_in judge                     the process: a request per line in, a run per line out

A source states its run in a line `# stand-in: verdict=wrong_answer score_ns=1200 delay_s=0.5`, or
`# stand-in: unranked=crowded,crowded,` for the first, second and third time that it is judged.
"""

from __future__ import annotations

import argparse
import functools
import json
import re
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from harness.errors import InfrastructureError
from harness.library.judges import Judge
from harness.library.request import Request
from harness.machine.device import detect
from harness.model import (
    Case,
    CaseCheck,
    ClockOwner,
    Device,
    Ending,
    Estimate,
    Excess,
    Manner,
    Measurement,
    ProfiledCase,
    ProfiledPart,
    Run,
    Unranked,
    Verdict,
)
from harness.progress import Narrate, Step, tell

DELAY_S = 0.02
LOG = "stand-in.log"
"""In the root: a line for each time that something was judged, its path."""


class StandIn:
    """Takes the place of `judges.judge_apart`. Its process is started by the first request and kept."""

    def __init__(self, delay_s: float = DELAY_S) -> None:
        self._command = [sys.executable, "-m", "bench.stand_in", "judge", "--delay", str(delay_s)]
        self._process: subprocess.Popen[str] | None = None
        self._asking = threading.Lock()

    def __call__(self, request: Request, narrate: Narrate, started: Callable[[Judge], None]) -> Run:
        """The run that the source asks for."""
        with self._asking:
            if self._process is None or self._process.poll() is not None:
                where = str(Path(__file__).resolve().parents[1])
                pipe = subprocess.PIPE
                self._process = subprocess.Popen(self._command, cwd=where, stdin=pipe, stdout=pipe, text=True)
            assert self._process.stdin is not None and self._process.stdout is not None
            tell(narrate, Step("test", "rows=4 cols=8", 0, 2))
            try:
                self._process.stdin.write(request.model_dump_json() + "\n")
                self._process.stdin.flush()
                answer = self._process.stdout.readline()
            except OSError as error:
                raise InfrastructureError(f"the process that judges has gone: {error}") from None
            tell(narrate, Step("test", "rows=3 cols=5", 1, 2))
        if not answer:
            raise InfrastructureError("the process that judges has ended")
        return Run.model_validate_json(answer)

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()


@functools.cache
def _device(root: Path) -> Device:
    return detect(root, "cpu")


def run_of(request: Request, times: int = 0) -> Run:
    """What the source asks for; `times` says how often it was judged before."""
    submission = request.submission
    asked = dict(re.findall(r"(\w+)=(\S+)", " ".join(re.findall(r"# stand-in: (.*)", submission.text))))
    verdict = Verdict(asked.get("verdict", "accepted"))
    accepted, timed = verdict is Verdict.ACCEPTED, request.depth in ("quick", "full")
    reasons = asked.get("unranked", "").split(",")
    unranked: str | None = Unranked.QUICK if request.depth != "full" else reasons[min(times, len(reasons) - 1)] or None
    ns = float(asked.get("score_ns", "1000"))
    case = Case(parameters={"rows": 4, "cols": 8})
    check = CaseCheck(
        case=case,
        verdict=verdict if verdict is Verdict.WRONG_ANSWER else Verdict.ACCEPTED,
        tolerance="close" if accepted else None,
        excess={"close": Excess(limit="rel_l2", ratio=0.5)},
        error=0.0,
        report="y: all elements are wrong" if verdict is Verdict.WRONG_ANSWER else None,
    )
    measured = Measurement(
        case=case,
        samples_ns=((ns, ns * 1.1), (ns, ns * 0.9)),
        latency=Estimate(latency_ns=ns, low_ns=ns * 0.99, high_ns=ns * 1.01),
        manner=Manner.STOPPED,
        bound_ns=1.0,
    )
    part = ProfiledPart(name="aten::mul", count=1.0, self_ns=ns)
    profile = ProfiledCase(case=case, calls=3, call_ns=2 * ns, parts=(part,))
    checked = verdict in (Verdict.ACCEPTED, Verdict.WRONG_ANSWER)
    return Run(
        id="20260101T000000-000000-stand-in",
        problem=request.problem,
        problem_revision=1,
        problem_sha256="0" * 64,
        submission=submission.name,
        submission_sha256=submission.sha256,
        submission_path=submission.path,
        device=_device(request.root),
        environment={"python": sys.version.split()[0], "isolation": "none", "packages": {}},
        started_at=datetime.now(UTC).isoformat(),
        duration_s=0.02,
        ending=Ending(verdict=verdict, message=f"the stand-in says {verdict.words}", detail=asked.get("detail")),
        checks=(check,) if checked else (),
        measurements=(measured,) if accepted and timed else (),
        profiles=(profile,) if accepted and request.depth == "profile" else (),
        clock=ClockOwner.JUDGE,
        score=measured.latency if accepted and timed else None,
        unranked_because=unranked if accepted else None,
        tolerance="close" if accepted else None,
        error=0.0 if accepted else None,
        output="",
        master_seed="0" * 32,
        config={},
    )


def answer(delay_s: float) -> None:
    """Answer what comes on stdin until it ends."""
    times: Counter[str] = Counter()
    for line in sys.stdin:
        request = Request.model_validate_json(line)
        asked = re.search(r"# stand-in:.*\bdelay_s=([0-9.]+)", request.submission.text)
        time.sleep(float(asked[1]) if asked else delay_s)
        run = run_of(request, times[request.submission.sha256])
        times[request.submission.sha256] += 1
        with open(request.root / LOG, "a") as log:
            log.write(f"{request.submission.path} {request.submission.sha256}\n")
        print(run.model_dump_json(), flush=True)


def main() -> None:
    """Serve or judge, as the words say."""
    words = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    words.add_argument("what", choices=["serve", "judge"])
    words.add_argument("root", nargs="?", type=Path)
    words.add_argument("--port", type=int, default=0)
    words.add_argument("--database")
    words.add_argument("--delay", type=float, default=DELAY_S)
    given = words.parse_args()
    if given.what == "judge":
        answer(given.delay)
        return
    from harness.server.program import serve

    judge = StandIn(given.delay)
    database = given.database or str(given.root / "results" / "server" / "podium.sqlite")
    try:
        serve(given.root, database, "127.0.0.1", given.port, ("cpu",), "an administrator's token", judge=judge)
    finally:
        judge.close()
        print(json.dumps({"ended": True}), flush=True)


if __name__ == "__main__":
    main()
