"""However many connections idle, files are left for judges, databases and pages, and the log stays short."""

import logging
import os
import resource
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

pytest.importorskip("fastapi")

from harness.server import descriptors
from harness.server.guard import MOST_CONNECTIONS


@pytest.mark.parametrize("files", [256, 512, 1024, 4096, 2**20])
def test_connections_never_take_all_files_that_may_be_open(files):
    assert 0 < descriptors.most_of(files) <= min(files - 3 * files // 4 + max(files - 1024, 0) + 256, MOST_CONNECTIONS)
    if files >= 1024:
        assert files - descriptors.most_of(files) >= descriptors.RESERVED


def test_what_the_event_loop_complains_of_again_and_again_is_told_once():
    seldom = descriptors.Seldom()
    records = [logging.makeLogRecord({"msg": said}) for said in ("accept failed", "accept failed", "another")]
    assert [seldom.filter(record) for record in records] == [True, False, True]


@pytest.mark.slow(ci=True)
def test_at_a_low_limit_idle_connections_are_cut_and_the_server_answers(toy_root):
    files, idle = 700, []
    command = [sys.executable, "-m", "bench.stand_in", "serve", str(toy_root)]
    log = toy_root / "server.log"
    with log.open("wb") as written:
        server = subprocess.Popen(
            command,
            cwd=Path(__file__).resolve().parents[1],
            stderr=written,
            stdout=written,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (files, files)),
        )
    try:
        end = time.monotonic() + 120
        while b"http://" not in log.read_bytes():
            assert server.poll() is None and time.monotonic() < end, log.read_text()
            time.sleep(0.05)
        port = int(log.read_text().partition("http://127.0.0.1:")[2].partition("/")[0])
        for _ in range(files + 100):
            idle.append(socket.create_connection(("127.0.0.1", port), 30))
        end = time.monotonic() + 30
        while len(os.listdir(f"/proc/{server.pid}/fd")) > files - descriptors.BACKLOG:
            assert time.monotonic() < end
            time.sleep(0.05)
        for each in idle:
            each.close()
        end = time.monotonic() + 30
        while True:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=30) as answer:
                    assert answer.status == 200
                break
            except OSError:
                assert time.monotonic() < end
                time.sleep(0.05)
        assert b"Too many open files" not in log.read_bytes()
        assert log.stat().st_size < 10_000
    finally:
        for each in idle:
            each.close()
        server.send_signal(signal.SIGTERM)
        server.wait(60)
