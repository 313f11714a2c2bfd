"""A server for tests, on loopback: in a thread of this process, with a judge that answers at once."""

import json
import socket
import threading
import time
import urllib.error
import urllib.request
import uuid
from types import SimpleNamespace

import uvicorn

from bench.stand_in import run_of
from harness.progress import note
from harness.server import app as application
from harness.server.board import results
from harness.server.dispatcher import Dispatcher
from harness.server.guard import MOST_CONNECTIONS, patient
from harness.server.program import configured
from harness.server.serving import Serving
from harness.server.store import Database
from harness.server.store.people import hashed

TOKEN = "an administrator's token"
RIGHT = "def custom_kernel(data):\n    return data[0] * 2\n"
DOUBLE = "title: Twice\nproblem: double\nlimits: {per_hour: 1000, waiting: 100}\n"

results.LOOK_S = 0.1  # a test that stores a run waits for the boards to look


def saying(**words):
    """A source for the stand-in judge."""
    said = " ".join(f"{name}={value}" for name, value in words.items())
    return f"# stand-in: {said}\n{RIGHT}"


class Judge:
    """Replaces the real judge. While `held` it begins but does not finish. `judged`: the requests that it has
    judged. `notes`: lines that it tells of each job, for the log too."""

    def __init__(self):
        self.judged, self.free, self.requests = [], threading.Event(), []
        self.free.set()
        self.failures = 0
        self.notes = []

    def __call__(self, request, narrate, started):
        times = [sha256 for _, sha256 in self.judged].count(request.submission.sha256)
        self.judged.append((request.submission.path, request.submission.sha256))
        self.requests.append(request)
        narrate("loading (limit 300 s)")
        for line in self.notes:
            note(narrate, line)
        assert self.free.wait(60)
        if self.failures:
            self.failures -= 1
            raise RuntimeError("the judge has a bug")
        return run_of(request, times)


class Server:
    """One server: `url`, `serving`, `judge`, and requests to it."""

    def __init__(
        self, root, database=None, judging=True, body_s=2.0, behind_proxy=False, most=MOST_CONNECTIONS, **competitions
    ):
        folder = root / "configs" / "competitions"
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in (competitions or {"double": DOUBLE}).items():
            (folder / f"{name}.yml").write_text(text)
        self.root, self.judge = root, Judge()
        url = database or str(root / "server.sqlite")
        self.serving = Serving(root, Database(url), admin_sha256=hashed(TOKEN))
        self.serving.load()
        self.dispatcher = Dispatcher(self.serving, self.judge)
        if judging:
            self.dispatcher.start()
        app = application.create(self.serving, self.dispatcher, body_s=body_s)
        config = configured(app, behind_proxy, http=patient(most), log_level="error", timeout_graceful_shutdown=1)
        self.app, self._uvicorn = app, uvicorn.Server(config)
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.port = self._socket.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self._uvicorn.run, args=([self._socket],), daemon=True)
        self._thread.start()
        until = time.monotonic() + 60
        while not self._uvicorn.started:
            assert self._thread.is_alive() and time.monotonic() < until
            time.sleep(0.01)

    def close(self):
        self.judge.free.set()
        self._uvicorn.should_exit = True
        self._thread.join(60)

    def person(self, name):
        """A client id."""
        return self.serving.database.people.add(name)

    def ask(self, method, path, client=None, body=None, kind=None, token=None, **headers):
        """The status and the JSON of an answer (or its text, if it is none)."""
        if client is not None:
            headers["X-Popcorn-Cli-Id"] = client
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        if isinstance(body, dict | list):
            body, kind = json.dumps(body).encode(), "application/json"
        if kind:
            headers["Content-Type"] = kind
        headers = {name.replace("_", "-"): value for name, value in headers.items()}
        request = urllib.request.Request(self.url + path, body, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                status, text = answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            status, text = error.code, error.read().decode()
        try:
            return status, json.loads(text)
        except ValueError:
            return status, text

    def send(self, client, source=RIGHT, name="mine.py", mode="leaderboard", board="double", gpu="CPU", path=None):
        """The status and the answer to a submission."""
        body, kind = multipart(source, name)
        return self.ask("POST", path or f"/submission/{board}/{gpu}/{mode}", client, body, kind)

    def sent(self, client, *words, **named):
        """The number of a submission that is accepted."""
        status, answer = self.send(client, *words, **named)
        assert status == 202, answer
        return answer["details"]["id"]

    def judged(self, client, *words, **named):
        """A submission that has its verdict, as its author sees it."""
        return self.over(client, self.sent(client, *words, **named))

    def over(self, client, number):
        until = time.monotonic() + 120
        while time.monotonic() < until:
            status, found = self.ask("GET", f"/user/submissions/{number}", client)
            if status == 200 and found["done"]:
                return found
            time.sleep(0.02)
        raise AssertionError(f"submission {number} has no verdict")


def until(happened):
    """Wait until `happened()` is true."""
    end = time.monotonic() + 60
    while not happened():
        assert time.monotonic() < end
        time.sleep(0.02)


def multipart(source, name="mine.py", field="file"):
    """A form with one file: its bytes and its type."""
    boundary = uuid.uuid4().hex
    content = source if isinstance(source, bytes) else source.encode()
    head = f'--{boundary}\r\nContent-Disposition: form-data; name="{field}"; filename="{name}"\r\n\r\n'.encode()
    return head + content + f"\r\n--{boundary}--\r\n".encode(), f"multipart/form-data; boundary={boundary}"


def raw(port, data, timeout=30):
    """The server's answer to these bytes: status and body. Status 0 if it closes the connection without an answer."""
    with socket.create_connection(("127.0.0.1", port), timeout) as connection:
        connection.sendall(data)
        answer = b""
        try:
            while chunk := connection.recv(65536):
                answer += chunk
        except ConnectionResetError:
            pass
    head, _, body = answer.partition(b"\r\n\r\n")
    return SimpleNamespace(status=int(head.split()[1]) if head else 0, body=body)
