"""Runs, submissions and queues as popcorn-cli reads them. Scores are in seconds, benchmarks in nanoseconds."""

from __future__ import annotations

import base64
import functools
import io
import math
import statistics
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness.model import Measurement, ProfiledCase, Run, Verdict
from harness.records.run_file import load_run
from harness.render import document, timing
from harness.server.serving import Serving
from harness.server.store.rows import JobState, Mode, RunRow, SubmissionRow
from harness.server.verdicts import UNRANKED, error_of, one_line, word_of

MODES = {
    Mode.TEST: ("test",),
    Mode.BENCHMARK: ("test", "benchmark"),
    Mode.LEADERBOARD: ("test", "benchmark", "leaderboard"),
    Mode.PROFILE: ("test", "profile"),
}
"""The runs that the client sees for a submission in each mode. For a leaderboard submission it also expects a secret
run. In Podium every input is secret, so both are the same run."""

LONGEST_OUTPUT = 20_000


@functools.lru_cache(maxsize=256)
def _read(path: Path) -> Run:
    return load_run(path)


def run_of(root: Path, row: RunRow) -> Run | None:
    """Return the run, or None if its file can no longer be read."""
    try:
        return _read(root / "results" / row.path)
    except ValueError:
        return None


def submission(serving: Serving, row: SubmissionRow) -> dict[str, Any]:
    """Return the answer to GET /user/submissions/{id}."""
    queue = serving.database.queue
    runs = queue.runs(row.id)
    last = runs[-1] if runs and row.state.over else None
    run = run_of(serving.root, last) if last is not None else None
    position = queue.position(row.id)
    state, error = told(row, last)
    return {
        "id": row.id,
        "leaderboard_id": row.competition_id,
        "leaderboard_name": row.competition,
        "file_name": row.file_name,
        "user_id": str(row.user_id),
        "submission_time": row.submitted_at,
        "done": row.state.over,
        "code": queue.source(row.id).decode("utf-8", "replace"),
        "runs": runs_of(row, last, run) if last is not None else [],
        "job": {"status": status(row, state, position), "error": error, "last_heartbeat": row.heartbeat_at},
        "runner_queue": runner_queue(serving, row.gpu) if not row.state.over else None,
        "podium": {
            "state": word_of(row, last),
            "mode": row.mode.value,
            "gpu": row.gpu,
            "attempt": row.attempt,
            "position": position,
            "progress": row.progress,
            "verdict": last.verdict if last is not None else None,
            "message": last.message if last is not None else None,
            "unranked": last.unranked if last is not None else None,
            "removed_because": row.removed_because,
            "run_ids": [each.id for each in runs],
        },
    }


def told(row: SubmissionRow, last: RunRow | None) -> tuple[JobState, str | None]:
    """Return a job's state and error for popcorn-cli. Both generations of the client expect that a leaderboard
    submission without a rank has failed, even if it is right."""
    if row.removed_at is not None:
        return JobState.FAILED, f"removed by the organisers: {row.removed_because}"
    if word_of(row, last) == UNRANKED:
        return JobState.FAILED, row.error or UNRANKED
    return row.state, row.error


def status(row: SubmissionRow, state: JobState, position: int | None) -> str:
    """Return the text that the client shows while it waits. For a finished job it is the state alone. A job that is
    judged again says so: its steps begin anew, which would look like a fault."""
    if state is JobState.PENDING and position is not None:
        return f"pending, number {position} in the queue"
    if state is JobState.RUNNING:
        words = "running" if row.attempt == 1 else f"running, attempt {row.attempt}"
        return f"{words}: {row.progress}" if row.progress else words
    return state.value


def runner_queue(serving: Serving, gpu: str) -> dict[str, Any]:
    """Return how busy the cards of one kind are."""
    queued, running = serving.database.queue.counts(gpu)
    cards = len(serving.cards.get(gpu, ()))
    return {
        "runner": "Podium",
        "gpu": gpu,
        "queued_jobs": queued,
        "running_jobs": running,
        "available_runners": max(0, cards - running),
        "status": "online",
        "error": None,
    }


def runs_of(row: SubmissionRow, last: RunRow, run: Run | None) -> list[dict[str, Any]]:
    """Return the client's runs, made from the run that decided."""
    accepted = last.verdict == Verdict.ACCEPTED.value
    right = accepted or (run is not None and bool(run.checks) and _all_right(run))
    found = []
    for mode in MODES.get(row.mode, ()):
        passed = right if mode == "test" else accepted and (mode != "leaderboard" or last.ranked)
        score = last.score_ns / 1e9 if mode == "leaderboard" and passed and last.score_ns is not None else None
        found.append(_run(row, last, mode, passed, score, secret=False))
        if run is not None and mode != "leaderboard":
            found[-1]["result"] = _RESULTS[mode](run)
            found[-1]["diagnostics"] = diagnostics(run)
        if not passed:
            break
    if row.mode is Mode.LEADERBOARD and found[-1]["mode"] == "leaderboard":
        found.append(_run(row, last, "leaderboard", found[-1]["passed"], None, secret=True))
    return found


def _run(
    row: SubmissionRow, last: RunRow, mode: str, passed: bool, score: float | None, secret: bool
) -> dict[str, Any]:
    return {
        "start_time": last.started_at,
        "end_time": last.ended_at,
        "mode": mode,
        "secret": secret,
        "runner": row.gpu,
        "score": score,
        "passed": passed,
        "result": None,
        "diagnostics": None,
    }


def _all_right(run: Run) -> bool:
    return all(check.verdict is Verdict.ACCEPTED for check in run.checks)


def _tests(run: Run) -> dict[str, Any]:
    found: dict[str, Any] = {"check": "pass" if _all_right(run) and run.checks else "fail"}
    found["test-count"] = len(run.checks)
    for number, check in enumerate(run.checks):
        right = check.verdict is Verdict.ACCEPTED
        found[f"test.{number}.spec"] = check.case.label
        found[f"test.{number}.status"] = "pass" if right else "fail"
        if not right:
            found[f"test.{number}.error"] = _cut(check.report or check.verdict.words)
    return found


def _benchmarks(run: Run) -> dict[str, Any]:
    found: dict[str, Any] = {"check": "pass" if run.ending.verdict is Verdict.ACCEPTED else "fail"}
    found["benchmark-count"] = len(run.measurements)
    for number, measured in enumerate(run.measurements):
        found |= {f"benchmark.{number}.{key}": value for key, value in _benchmark(measured).items()}
    return found


def _benchmark(measured: Measurement) -> dict[str, Any]:
    samples = [ns for process in measured.samples_ns for ns in process]
    spread = statistics.pstdev(samples)
    return {
        "spec": measured.case.label,
        "runs": len(samples),
        "mean": measured.latency.latency_ns,
        "std": spread,
        "err": spread / math.sqrt(len(samples)),
        "best": min(samples),
        "worst": max(samples),
        "status": "pass",
    }


def _profiles(run: Run, cases: Sequence[ProfiledCase] | None = None) -> dict[str, Any]:
    """Return the profiles of all cases, or of `cases`. Both generations expect a number as the count and base64 as the
    report."""
    shown = run.profiles if cases is None else cases
    found: dict[str, Any] = {"check": "pass" if run.ending.verdict is Verdict.ACCEPTED else "fail"}
    found["benchmark-count"] = len(shown)
    for number, each in enumerate(shown):
        found[f"benchmark.{number}.spec"] = each.case.label
        found[f"benchmark.{number}.status"] = "pass"
        found[f"benchmark.{number}.report"] = base64.b64encode(_profile_in_words(run, each).encode()).decode()
    return found


def _profile_in_words(run: Run, profile: ProfiledCase) -> str:
    return document.text([timing.profile_of(profile, run.device.kind)])


_RESULTS = {"test": _tests, "benchmark": _benchmarks, "profile": _profiles}


def diagnostics(run: Run) -> dict[str, Any]:
    """Return the program's output and the reason why it ended."""
    compiled = run.ending.verdict is not Verdict.COMPILE_ERROR
    accepted = run.ending.verdict is Verdict.ACCEPTED
    why = "" if accepted else f"{run.ending.message}\n{run.ending.detail or ''}".strip()
    return {
        "stdout": _cut(run.output),
        "stderr": _cut(why) if compiled else "",
        "success": accepted,
        "exit_code": run.ending.verdict.exit_code,
        "duration": run.duration_s,
        "compilation": {"success": compiled, "stdout": "", "stderr": "" if compiled else _cut(why)},
    }


def full(row: SubmissionRow, last: RunRow, run: Run) -> dict[str, Any]:
    """Return a result for a stream."""
    passed = error_of(run, row.mode) is None
    tables = {**_tests(run), **_benchmarks(run)}
    one = {
        "start": last.started_at,
        "end": last.ended_at,
        "compilation": None,
        "run": {
            "success": run.ending.verdict is Verdict.ACCEPTED,
            "passed": passed,
            "command": "",
            "stdout": _cut(run.output),
            "stderr": diagnostics(run)["stderr"],
            "exit_code": run.ending.verdict.exit_code,
            "duration": run.duration_s,
            "result": {key: str(value) for key, value in tables.items()},
        },
        "profile": None,
    }
    packages = run.environment.get("packages", {})
    return {
        "success": passed,
        "error": error_of(run, row.mode) or "",
        "system": {
            "gpu": run.device.name,
            "device_count": 1,
            "cpu": str(run.environment.get("cpu", "")),
            "runtime": run.device.kind,
            "platform": str(run.environment.get("platform", "")),
            "torch": str(packages.get("torch", "")),
            "hostname": "",
        },
        "runs": {mode: one for mode in MODES.get(row.mode, ()) if mode != "profile"} | _profiled(run, one),
    }


def _profiled(run: Run, one: dict[str, Any]) -> dict[str, Any]:
    """Return `profile.0` and so on, one for each case: the table, and an archive with the same as text and as JSON."""
    found = {}
    for number, each in enumerate(run.profiles):
        kept = io.BytesIO()
        with zipfile.ZipFile(kept, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("profile.txt", _profile_in_words(run, each) + "\n")
            archive.writestr("profile.json", each.model_dump_json(indent=1))
        profile = {
            "profiler": "torch.profiler",
            "trace": base64.b64encode(kept.getvalue()).decode(),
            "download_url": None,
        }
        run_of_it = {**one["run"], "result": _profiles(run, [each])}
        found[f"profile.{number}"] = {**one, "run": run_of_it, "profile": profile}
    return found


def report(row: SubmissionRow, run: Run) -> str:
    """Return the whole run as text, as `podium show` prints it."""
    from harness.render.run import parts

    return f"Submission {row.id}: {one_line(run.ending.message)}\n\n{document.text(parts(run))}"


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST_OUTPUT else f"{text[:LONGEST_OUTPUT]}\n[{len(text) - LONGEST_OUTPUT:,} more]"
