"""The server behind a real nginx and a real Caddy with TLS, by the very lines that docs/server.md gives."""

import contextlib
import http.client
import json
import os
import re
import shutil
import socket
import ssl
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("fastapi")

from served import RIGHT, Server, multipart, until

CHECKOUT = Path(__file__).resolve().parents[1]
TOO_OFTEN = 21
"""Registrations from one address, of which the last is refused."""

pytestmark = pytest.mark.slow


class Proxy:
    """nginx or Caddy before `server`: `port` speaks TLS, with a certificate of its own that `trust` accepts."""

    def __init__(self, server, folder, program):
        self._folder, self.certificate = folder, folder / "cert.pem"
        words = "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext subjectAltName=DNS:localhost"
        made = ["openssl", *words.split(), "-keyout", str(folder / "key.pem"), "-out", str(self.certificate)]
        subprocess.run(made, check=True, capture_output=True)
        self.trust = ssl.create_default_context(cafile=str(self.certificate))
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self._process = subprocess.Popen(
            {"nginx": self._nginx, "caddy": self._caddy}[program](server.url),
            env={**os.environ, "XDG_DATA_HOME": str(folder), "XDG_CONFIG_HOME": str(folder)},
        )
        until(self._answers)

    def _nginx(self, url):
        """The command, by the lines of docs/server.md."""
        folder = self._folder
        documented = _documented(
            r"server \{",
            (r"listen 443 ssl", f"listen 127.0.0.1:{self.port} ssl"),
            (r"server_name \S+;", "server_name localhost;"),
            (r"/etc/letsencrypt/\S+/fullchain.pem", str(self.certificate)),
            (r"/etc/letsencrypt/\S+/privkey.pem", str(folder / "key.pem")),
            (r"http://127.0.0.1:8000", url),
        )
        temporary = "".join(f"{kind}_temp_path {folder}/{kind};\n" for kind in
                            ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))  # fmt: skip
        user = "user root;\n" if os.geteuid() == 0 else ""
        (folder / "nginx.conf").write_text(
            f"{user}pid {folder}/pid;\nerror_log {folder}/error.log;\ndaemon off;\n"
            "events { worker_connections 1024; }\n"
            f"http {{\naccess_log off;\n{temporary}{documented}\n}}\n"
        )
        return ["nginx", "-p", str(folder), "-c", str(folder / "nginx.conf")]

    def _caddy(self, url):
        """The command, by the lines of docs/server.md; they leave the certificate to Caddy, which asks the internet."""
        documented = _documented(
            r"kernels.example.org \{",
            (r"kernels.example.org \{", f"localhost:{self.port} {{\ntls {self.certificate} {self._folder}/key.pem"),
            (r"127.0.0.1:8000", url.removeprefix("http://")),
        )
        # No port but this one is opened, and only to this machine.
        (self._folder / "Caddyfile").write_text(
            f"{{\nadmin off\nauto_https disable_redirects\ngrace_period 1s\ndefault_bind 127.0.0.1\n}}\n{documented}\n"
        )
        return ["caddy", "run", "--config", str(self._folder / "Caddyfile"), "--adapter", "caddyfile"]

    def _answers(self):
        assert self._process.poll() is None
        with contextlib.suppress(OSError):
            return self.ask("GET", "/health")[0] == 200

    def connection(self, source="127.0.0.1"):
        made = http.client.HTTPSConnection("localhost", self.port, timeout=60, context=self.trust,
                                           source_address=(source, 0))  # fmt: skip
        made._create_connection = lambda address, *rest: socket.create_connection(("127.0.0.1", self.port), *rest)
        return made

    def ask(self, method, path, body=None, source="127.0.0.1", **headers):
        """The status, the headers and the text."""
        made = self.connection(source)
        made.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
        answer = made.getresponse()
        text = answer.read().decode()
        made.close()
        return answer.status, answer.headers, text

    def close(self):
        self._process.terminate()
        self._process.wait(60)


def _documented(begin, *changes):
    """A block of docs/server.md that begins so, with each change made once."""
    text = (CHECKOUT / "docs/server.md").read_text()
    found = re.search(rf"```\n({begin}\n.*?\n\}})\n```", text, re.DOTALL)[1]
    for pattern, own in changes:
        found, count = re.subn(pattern, own, found)
        assert count == 1, pattern
    return found


@pytest.fixture(params=["nginx", "caddy"])
def proxied(request, toy_root, tmp_path):
    if not (shutil.which(request.param) and shutil.which("openssl")):
        pytest.skip(f"{request.param} is not installed")
    server = Server(toy_root, behind_proxy=True)
    folder = tmp_path / "proxy"
    folder.mkdir()
    proxy = Proxy(server, folder, request.param)
    yield server, proxy
    proxy.close()
    server.close()


def test_podium_submit_goes_through_it_to_the_verdict(proxied, tmp_path):
    server, proxy = proxied
    (tmp_path / "mine.py").write_text(RIGHT)
    words = ["submit", str(tmp_path / "mine.py"), "--server", f"https://localhost:{proxy.port}", "--json"]
    own = {"PODIUM_CLIENT_ID": server.person("ada"), "SSL_CERT_FILE": str(proxy.certificate)}
    command = [sys.executable, "-m", "harness", *words]
    done = subprocess.run(command, cwd=CHECKOUT, env={**os.environ, **own}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["run"]["ending"]["verdict"] == "accepted"


def test_streams_arrive_event_by_event(proxied):
    server, proxy = proxied
    client = server.person("ada")
    live = proxy.connection()
    live.request("GET", "/live")
    events = live.getresponse()
    assert events.readline() == b"retry: 5000\n"
    server.judge.free.clear()
    body, kind = multipart(RIGHT)
    asking = proxy.connection()
    asking.request("POST", "/double/CPU/test", body, {"X-Popcorn-Cli-Id": client, "Content-Type": kind})
    answer = asking.getresponse()
    assert answer.readline() == b"event: status\n"  # while the judge is held
    assert b"accepted" in answer.readline()
    line = b""
    while b'"state"' not in line:
        line = events.readline()
    server.judge.free.set()
    assert b"event: result" in answer.read()
    live.close()


def test_a_browser_signs_in_sees_the_board_and_its_cookie_is_for_tls_alone(proxied):
    server, proxy = proxied
    client = server.person("ada")
    server.judged(client)
    origin = f"https://localhost:{proxy.port}"
    form = {"Content_Type": "application/x-www-form-urlencoded", "Origin": origin, "Sec_Fetch_Site": "same-origin"}
    status, headers, text = proxy.ask("POST", "/sign-in", f"client={client}", **form)
    assert status == 303, text
    cookie = headers["set-cookie"]
    assert "Secure" in cookie and "HttpOnly" in cookie
    status, _, text = proxy.ask("GET", "/mine", Cookie=cookie.partition(";")[0])
    assert status == 200 and "mine.py" in text
    form["Origin"] = "https://elsewhere.example"
    assert proxy.ask("POST", "/sign-in", f"client={client}", **form)[0] == 403
    (device,) = {path.parent.name for path in server.root.glob("results/local/double/*/*.json")}
    until(lambda: proxy.ask("GET", f"/board/double/{device}")[0] == 200)
    assert proxy.ask("GET", "/feed.atom")[2].count(origin) == 2  # a feed's addresses are those that were asked for


def test_limits_go_by_the_address_that_the_proxy_saw_whatever_the_client_says(proxied):
    _, proxy = proxied
    path = "/auth/init?provider=github"
    forged = [proxy.ask("GET", path, source="127.0.0.2", X_Forwarded_For=f"10.0.0.{n}")[0] for n in range(TOO_OFTEN)]
    assert forged == [200] * (TOO_OFTEN - 1) + [429]
    assert proxy.ask("GET", path, source="127.0.0.3")[0] == 200


def test_who_goes_past_the_proxy_is_not_believed(proxied):
    server, _ = proxied
    found = []
    for number in range(TOO_OFTEN):
        with socket.create_connection(("127.0.0.1", server.port), 30, source_address=("127.0.0.9", 0)) as connection:
            head = f"Host: x\r\nX-Forwarded-For: 10.0.0.{number}\r\nConnection: close\r\n\r\n"
            connection.sendall(f"GET /auth/init?provider=github HTTP/1.1\r\n{head}".encode())
            found.append(int(connection.makefile("rb").readline().split()[1]))
    assert found == [200] * (TOO_OFTEN - 1) + [429]


def test_more_connections_than_one_address_may_have_come_through_it(proxied):
    _, proxy = proxied
    held = []
    for _ in range(210):
        held.append(proxy.connection(f"127.0.1.{1 + len(held) // 15}"))
        held[-1].request("GET", "/live")
        assert held[-1].getresponse().status == 200
    assert proxy.ask("GET", "/health")[0] == 200
    for connection in held:
        connection.close()
    time.sleep(0.1)
