"""Runs for the tests of the server's board: stored as `eval` stores them, with the figures that a test gives."""

import hashlib
import http.client
import urllib.parse
import uuid
from types import SimpleNamespace

from harness import catalog
from harness.model import (
    Case,
    CaseCheck,
    ClockOwner,
    Device,
    Ending,
    Estimate,
    Excess,
    Floor,
    Measurement,
    Run,
    Submission,
    Verdict,
)
from harness.records.store import Store

CASES = [Case(parameters={"rows": rows, "cols": 64}) for rows in (64, 4096)]
GPU = Device(
    kind="cuda",
    name="Test 1000",
    slug="test-1000",
    arch="sm_90",
    torch_device="cuda:0",
    memory_bytes=80 << 30,
    flush_bytes=1,
    bandwidth_bytes_per_s=1e12,
)


def around(latency_ns, part=0.01):
    return Estimate(latency_ns=latency_ns, low_ns=latency_ns * (1 - part), high_ns=latency_ns * (1 + part))


def measurement(case, latency_ns, floor_ns):
    samples = [tuple(latency_ns * (1 + 0.01 * i) for i in range(4))] * 3
    floor = Floor(latency_ns=floor_ns, binds="bandwidth", format="float32") if floor_ns else None
    return Measurement(case=case, samples_ns=samples, latency=around(latency_ns, 0.02), floor=floor)


def store(root, name, latency_ns=1000.0, source=None, floor_ns=500.0, problem="double", tier="local", **changes):
    """Store a run of a submission called `name`, begun an hour after the previous one."""
    content = (source or f"def custom_kernel(data):  # {name}\n    return data[0] * 2\n").encode("utf-8", "replace")
    sha256 = hashlib.sha256(content).hexdigest()
    count = len(list((root / "results").glob("*/*/*/*.json")))
    check = CaseCheck(
        case=CASES[0],
        verdict=Verdict.ACCEPTED,
        tolerance="close",
        excess={"close": Excess(limit="rel_l2", ratio=0.5)},
        error=0.01,
    )
    fields = {
        "id": f"20260101T000000-{count:06d}-run",
        "problem": problem,
        "problem_revision": 1,
        "problem_sha256": catalog.load_problem(root, problem).sha256,
        "submission": name,
        "submission_sha256": sha256,
        "submission_path": "x",
        "device": GPU,
        "environment": {"python": "3.12", "packages": {"torch": "2.11"}, "isolation": "bubblewrap"},
        "started_at": f"2026-01-{1 + count // 24:02d}T{count % 24:02d}:00:00.000+00:00",
        "duration_s": 1.5,
        "ending": Ending(verdict=Verdict.ACCEPTED, message="all right"),
        "checks": (check,),
        "measurements": [measurement(CASES[0], latency_ns, floor_ns), measurement(CASES[1], 2 * latency_ns, floor_ns)],
        "clock": ClockOwner.JUDGE,
        "score": around(latency_ns),
        "tolerance": "close",
        "error": 0.01,
        "master_seed": "00",
        "config": {"confidence": 0.95},
    }
    run = Run(**{**fields, **changes})
    Store(root).write(run, Submission(name=name, problem=problem, sha256=sha256, source=content, path="x"), tier)
    return run


def failed(verdict=Verdict.WRONG_ANSWER, message="rel_l2 0.3 (limit 0.2)", detail=None):
    return {"ending": Ending(verdict=verdict, message=message, detail=detail), "score": None, "measurements": ()}


class Browser:
    """A browser without scripts: it keeps a cookie, sends forms, and follows no redirects."""

    def __init__(self, port):
        self._port, self.cookie = port, None

    def get(self, path, **headers):
        return self._ask("GET", path, None, headers)

    def post(self, path, fields=(), file=None, **headers):
        """Send a form. `file`: a name and its content."""
        if file is None:
            body, kind = urllib.parse.urlencode(dict(fields)).encode(), "application/x-www-form-urlencoded"
        else:
            body, kind = _multipart(dict(fields), *file)
        return self._ask("POST", path, body, {"Content-Type": kind, **headers})

    def sign_in(self, client):
        answer = self.post("/sign-in", {"client": client})
        assert answer.status == 303, answer.text
        return self

    def token(self):
        """The CSRF token of the forms on this browser's pages."""
        return self.get("/submit").text.partition('name="csrf" value="')[2].partition('"')[0]

    def _ask(self, method, path, body, headers):
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if self.cookie:
            sent["Cookie"] = self.cookie
        connection.request(method, path, body, sent)
        answer = connection.getresponse()
        content = answer.read()
        connection.close()
        if found := answer.getheader("Set-Cookie"):
            self.cookie = found.partition(";")[0]
        return SimpleNamespace(status=answer.status, headers=answer.headers, content=content, text=content.decode())


def _multipart(fields, name, content):
    boundary = uuid.uuid4().hex
    parts = [
        f'--{boundary}\r\nContent-Disposition: form-data; name="{key}"\r\n\r\n{value}\r\n'.encode()
        for key, value in fields.items()
    ]
    head = f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="{name}"\r\n\r\n'.encode()
    content = content if isinstance(content, bytes) else content.encode()
    body = b"".join([*parts, head, content, f"\r\n--{boundary}--\r\n".encode()])
    return body, f"multipart/form-data; boundary={boundary}"
