"""The only entrance for submissions. Uploads of popcorn-cli, Podium's own client and the upload form are checked here,
then queued.

Names, sources and modes come from strangers. A refusal is a `Denied` with a status and a sentence.
"""

from __future__ import annotations

import hashlib
import re
from datetime import UTC, datetime, timedelta
from pathlib import PurePosixPath, PureWindowsPath

from harness.server.competition import Competition
from harness.server.events import Event
from harness.server.log import say
from harness.server.serving import Denied, Serving
from harness.server.store.queue import Recent
from harness.server.store.rows import Account, JobState, Mode

LONGEST_NAME = 100
_STEM = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


def accept(
    serving: Serving, who: Account, competition: Competition, gpu: str, mode: str, file_name: str, source: bytes
) -> tuple[int, int]:
    """Queue one file and return the numbers of its submission and job. An accepted file survives the server's death.

    Raises Denied and DatabaseGone.
    """
    if serving.closed_because is not None:
        raise Denied(503, serving.closed_because, retry_s=60)
    asked = mode_of(mode, competition)
    on = serving.gpu(competition, gpu)
    check_entry(serving, who, competition)
    name = file_called(file_name)
    check_source(competition, source)

    def allowed(recent: list[Recent]) -> None:
        check_dates(competition)  # again: waiting for the database may have taken until after the deadline
        _check_limits(competition, recent)

    def barred(reason: str) -> None:
        raise Denied(403, f"this source was removed from {competition.name}: {reason}")

    submission, job = serving.database.queue.accept(
        competition_id=serving.number_of(competition),
        user_id=who.id,
        file_name=name,
        sha256=hashlib.sha256(source).hexdigest(),
        source=source,
        mode=asked,
        gpu=on,
        allowed=allowed,
        barred=barred,
    )
    said, public = {"state": JobState.PENDING.value}, asked is Mode.LEADERBOARD
    serving.hub.publish(Event("state", competition.name, submission, who.name, said, public))
    say(f"submission {submission} to {competition.name}: {asked.value} on {on}, pending")
    with serving.arrived:
        serving.arrived.notify_all()
    return submission, job


def mode_of(mode: str, competition: Competition) -> Mode:
    """Parse a mode, in upper or lower case. Raises Denied 400."""
    try:
        found = Mode(mode.lower())
    except ValueError:
        raise Denied(400, f"the mode is {'test, benchmark, profile' if competition.profile else 'test, benchmark'}"
                     " or leaderboard") from None  # fmt: skip
    if found is Mode.PROFILE and not competition.profile:
        raise Denied(400, f"{competition.name} does not allow profiling: run `podium profile` on a machine of your own")
    return found


def check_entry(serving: Serving, who: Account, competition: Competition) -> None:
    """Raise Denied unless this person may submit now."""
    check_dates(competition)
    if competition.entry == "invite" and not serving.database.people.is_member(who.id, competition.name):
        raise Denied(403, f"{competition.name} is for invited people: join it with your code first")


def check_dates(competition: Competition) -> None:
    """Raise Denied unless the competition is open now."""
    if not competition.begun():
        raise Denied(400, f"{competition.name} opens at {competition.opens:%Y-%m-%d %H:%M %Z}")
    if competition.over():
        raise Denied(400, f"{competition.name} closed at {competition.closes:%Y-%m-%d %H:%M %Z}")


def file_called(name: str) -> str:
    """Return the last part of a file's name. Raises Denied 400 if it is not allowed."""
    last = PurePosixPath(PureWindowsPath(name).name).name if "\0" not in name else ""
    stem, _, ending = last.rpartition(".")
    if ending != "py" or len(last) > LONGEST_NAME or not _STEM.fullmatch(stem):
        raise Denied(
            400, f"the file's name must be at most {LONGEST_NAME} of A-Z, a-z, 0-9, _, . and -, and end in .py"
        )
    return last


def check_source(competition: Competition, source: bytes) -> None:
    """Raise Denied unless the source is text of an allowed length."""
    if len(source) > competition.limits.bytes:
        raise Denied(413, f"the file is longer than {competition.limits.bytes:,} bytes, which is the most here")
    if not source.strip():
        raise Denied(400, "the file is empty")
    try:
        text = source.decode()
    except UnicodeDecodeError as error:
        raise Denied(400, f"the file is no UTF-8 text: {error.reason} at byte {error.start:,}") from None
    if "\0" in text:
        raise Denied(400, "the file is no text: it has a null byte")


def _check_limits(competition: Competition, recent: list[Recent]) -> None:
    """Check one person's submissions of the last hour and those that are not finished."""
    limits = competition.limits
    unfinished = [each for each in recent if not each.state.over]
    if len(unfinished) >= limits.waiting:
        numbers = ", ".join(str(each.id) for each in unfinished[:3])
        raise Denied(429, f"you have {len(unfinished)} in the queue ({numbers}): wait for a verdict", retry_s=30)
    at = datetime.now(UTC)
    last_hour = [datetime.fromisoformat(each.submitted_at) for each in recent]
    last_hour = [sent for sent in last_hour if at - sent < timedelta(hours=1)]
    if len(last_hour) >= limits.per_hour:
        free = sorted(last_hour)[-limits.per_hour] + timedelta(hours=1)
        wait_s = max(1, int((free - at).total_seconds()) + 1)
        raise Denied(429, f"you have sent {limits.per_hour} in the last hour: try again in {wait_s} s", wait_s)
