"""Replaces harness.cluster.driver: it tells of a node and of a job, and then judges it."""

import contextlib
import json
import sys
from multiprocessing.connection import Connection

from bench.stand_in import run_of
from harness.library.request import Request

connection = Connection(int(sys.argv[1]))


def say(**words):
    connection.send_bytes(json.dumps(words).encode())


say(id=0, alive=True)
say(id=0, answer=None)
with contextlib.suppress(EOFError):
    while True:
        asked = json.loads(connection.recv_bytes())
        say(id=0, noted="the node box has left the cluster")
        say(id=asked["id"], told="mine: test 1 of 2")
        say(id=asked["id"], noted="mine: attempt 1 is lost: a reason")
        run = run_of(Request.model_validate(asked["judge"]))
        say(id=asked["id"], answer=run.model_dump(mode="json"))
