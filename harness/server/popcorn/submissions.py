"""The requests of popcorn-cli's commands: boards, GPUs, submitting, a person's own submissions, the ranked ones."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, File, Path, Query, UploadFile
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from harness.server import admission, removal
from harness.server.popcorn import answers
from harness.server.popcorn.accounts import Asks, Here, Who, client
from harness.server.serving import Denied, Serving
from harness.server.store.rows import Account, RunRow, SubmissionRow
from harness.server.verdicts import word_of

Number = Annotated[int, Path(ge=1, le=2**53)]
MOST_LISTED = 100


def router() -> APIRouter:
    """Return all routes except streams and those for administrators."""
    routes = APIRouter(tags=["popcorn-cli"])

    @routes.get("/health")
    def health(serving: Here) -> dict[str, Any]:
        """Whether the server works, its database included."""
        serving.database.people.competitions()
        return {"status": "ok"}

    @routes.get("/leaderboards")
    def leaderboards(serving: Here) -> list[dict[str, Any]]:
        """List the competitions."""
        return [
            {
                "name": each.name,
                "description": each.description or each.title,
                "task": {},
                "title": each.title,
                "problem": each.problem,
                "opens": each.opens.isoformat() if each.opens else None,
                "deadline": each.closes.isoformat() if each.closes else None,
                "gpu_types": serving.gpus(each),
            }
            for each in serving.competitions().values()
        ]

    @routes.get("/gpus/{board}")
    def gpus(serving: Here, board: str) -> list[str]:
        """List the GPUs of a competition."""
        return serving.gpus(serving.competition(board))

    @routes.get("/runner_queue/{gpu}")
    def runner_queue(serving: Here, gpu: str) -> dict[str, Any]:
        """Show how busy the cards of one kind are."""
        for known in serving.cards:
            if known.lower() == gpu.lower():
                return answers.runner_queue(serving, known)
        raise Denied(404, "this server has no such GPU")

    @routes.post("/submission/{board}/{gpu}/{mode}", status_code=202)
    async def submit(
        serving: Here, board: str, gpu: str, mode: str, file: Annotated[UploadFile, File()], asks: Asks = None
    ) -> dict[str, Any]:
        """Queue a file. The answer comes at once; the verdict comes from GET /user/submissions/{id}."""
        source = await file.read()
        # All of it runs in one thread: switching threads takes as long as a query.
        return await run_in_threadpool(_submit, serving, asks, board, gpu, mode, file.filename or "", source)

    @routes.get("/user/submissions")
    def own(
        serving: Here,
        who: Who,
        leaderboard: Annotated[str | None, Query()] = None,
        limit: Annotated[int, Query()] = 50,
        offset: Annotated[int, Query()] = 0,
    ) -> list[dict[str, Any]]:
        """List the account's own submissions, the newest first."""
        _check_window(limit, offset)
        board = serving.competition(leaderboard).name if leaderboard else None
        found = serving.database.queue.of_user(who.id, board, limit, offset)
        runs = serving.database.queue.runs_of([each.id for each in found])
        return [_listed(each, runs[each.id][-1] if runs[each.id] else None) for each in found]

    @routes.get("/user/submissions/{number}")
    def show(serving: Here, who: Who, number: Number) -> dict[str, Any]:
        """Show one submission with its source, its state and its result."""
        return answers.submission(serving, of(serving, who, number))

    @routes.get("/user/submissions/{number}/run")
    def run(serving: Here, who: Who, number: Number) -> Response:
        """Return the full run that decided a submission of the account, or null if there is none."""
        found = of(serving, who, number)
        runs = serving.database.queue.runs(number) if found.state.over else []
        last = answers.run_of(serving.root, runs[-1]) if runs else None
        whole = last.model_dump_json() if last is not None else "null"
        return Response(f'{{"run": {whole}}}', media_type="application/json")

    @routes.delete("/user/submissions/{number}")
    def delete(serving: Here, who: Who, number: Number) -> dict[str, Any]:
        """Delete a submission, until the deadline."""
        found = of(serving, who, number)
        competition = serving.competitions().get(found.competition)
        if competition is not None and competition.over():
            raise Denied(403, f"{competition.name} has closed: its board stays as it is")
        removal.delete(serving.database, serving.root, number)
        return {"status": "ok", "submission_id": number}

    @routes.get("/submissions/{board}/{gpu}")
    def ranked(
        serving: Here,
        board: str,
        gpu: str,
        limit: Annotated[int, Query()] = 50,
        offset: Annotated[int, Query()] = 0,
    ) -> list[dict[str, Any]]:
        """Return the board: each person's best, the fastest first."""
        _check_window(limit, offset)
        competition = serving.competition(board)
        on = serving.gpu(competition, gpu)
        places = serving.standings.of(competition.name, on).places
        return [
            {
                "submission_id": place.submission.id,
                "rank": place.rank,
                "submission_name": place.submission.file_name,
                "submission_time": place.submission.submitted_at,
                "submission_score": (place.run.score_ns or 0.0) / 1e9,
                "leaderboard_name": place.submission.competition,
                "user_id": str(place.submission.user_id),
                "user_name": place.submission.user,
                "gpu_type": place.submission.gpu,
            }
            for place in places[offset : offset + limit]
        ]

    @routes.get("/submission_count/{board}/{gpu}")
    def count(serving: Here, board: str, gpu: str, user_id: Annotated[str | None, Query()] = None) -> dict[str, int]:
        """Count the ranked runs of a board, of everyone or of one person."""
        competition = serving.competition(board)
        counts = serving.standings.of(competition.name, serving.gpu(competition, gpu)).ranked_runs
        return {"count": sum(count for user, count in counts.items() if user_id in (None, str(user)))}

    return routes


def _submit(
    serving: Serving, asks: str | None, board: str, gpu: str, mode: str, file_name: str, source: bytes
) -> dict[str, Any]:
    who = client(serving, asks)
    competition = serving.competition(board)
    submission, job = admission.accept(serving, who, competition, gpu, mode, file_name, source)
    return {
        "details": {"id": submission, "job_status_id": job},
        "runner_queue": answers.runner_queue(serving, serving.gpu(competition, gpu)),
        "status": "accepted",
    }


def of(serving: Serving, who: Account, number: int) -> SubmissionRow:
    """Return a submission of the account. Raises Denied 404, 403."""
    found = serving.database.queue.submission(number)
    if found is None or (found.user_id == who.id and found.deleted_at is not None):
        raise Denied(404, f"there is no submission {number}")
    if found.user_id != who.id:
        raise Denied(403, f"submission {number} is not yours")
    return found


def _check_window(limit: int, offset: int) -> None:
    if not 1 <= limit <= MOST_LISTED or not 0 <= offset <= 10**9:
        raise Denied(400, f"limit is from 1 to {MOST_LISTED}, and offset not below 0")


def _listed(row: SubmissionRow, last: RunRow | None) -> dict[str, Any]:
    score = last.score_ns / 1e9 if last is not None and last.score_ns is not None and row.state.over else None
    return {
        "id": row.id,
        "leaderboard_name": row.competition,
        "file_name": row.file_name,
        "submission_time": row.submitted_at,
        "done": row.state.over,
        "runs": [{"gpu_type": row.gpu, "score": score}] if row.state.over else [],
        "podium": {"state": word_of(row, last), "mode": row.mode.value, "error": answers.told(row, last)[1]},
    }
