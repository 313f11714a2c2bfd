"""Jobs on a real cluster whose parts are killed: a small form of bench/cluster_kills.py."""

import importlib.util
import json
import shutil
import subprocess
import sys

import pytest

from bench.cluster_kills import ALONE, HERE

pytestmark = pytest.mark.slow


def test_each_of_20_jobs_has_its_verdict_and_one_run_though_workers_stop_or_die_and_raylets_and_the_head_do():
    """One node joins while jobs are judged, and is used."""
    if importlib.util.find_spec("ray") is None:
        pytest.skip("Ray is not installed: .venv/bin/python -m pip install -c constraints.txt -e '.[cluster]'")
    if not shutil.which("ip") or not shutil.which("unshare") or subprocess.run([*ALONE, "true"]).returncode:
        pytest.skip("here is no network namespace to keep Ray in: it takes root and ip")
    command = [
        sys.executable,
        "-m",
        "bench.cluster_kills",
        "--jobs",
        "20",
        "--every",
        "2",
        "--seed",
        "1",
        "--kills",
        "6",
    ]
    done = subprocess.run(command, cwd=HERE, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["jobs"] == 20
    assert set(found["killed"]) == {"worker", "stop", "raylet", "head"}
