"""Replaces harness.cluster.driver: the first process dies of its first job, the next ones judge it. Where its root has
a file `stops`, it is stopped and does not die."""

import contextlib
import json
import os
import signal
import sys
from multiprocessing.connection import Connection
from pathlib import Path

from bench.stand_in import run_of
from harness.library.request import Request

connection, died = Connection(int(sys.argv[1])), Path(sys.argv[3]) / "died"
connection.send_bytes(b'{"id": 0, "answer": null}')
with contextlib.suppress(EOFError):
    while True:
        asked = json.loads(connection.recv_bytes())
        if not died.exists():
            died.touch()
            if died.with_name("stops").exists():
                os.kill(os.getpid(), signal.SIGSTOP)
            sys.exit(1)
        run = run_of(Request.model_validate(asked["judge"]))
        connection.send_bytes(json.dumps({"id": asked["id"], "answer": run.model_dump(mode="json")}).encode())
