"""Replaces judge_job: the processes of the first two attempts stop before they say a word."""

import json
import os
import signal

from harness.cluster.job import judge_job


def task(asked, parcels):
    """A job's words. The first process stops in Judging's `__init__`, which Ray waits for; the second when it is asked
    for a word."""
    if json.loads(asked)["attempt"] == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    return _words(asked, parcels)


def _words(asked, parcels):
    if json.loads(asked)["attempt"] == 2:
        os.kill(os.getpid(), signal.SIGSTOP)
    yield from judge_job(asked, parcels)
