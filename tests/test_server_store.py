"""The server's database, SQLite and PostgreSQL alike: accounts, the queue, and what holds when something fails."""

import hashlib
import sqlite3
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from databases import Postgres, programs

from harness.errors import InfrastructureError, UsageError
from harness.server.store import Database, DatabaseGone
from harness.server.store.people import fingerprint, hashed
from harness.server.store.rows import JobState, Mode, RunRow, now


@pytest.fixture(scope="module")
def postgres():
    if programs() is None:
        pytest.skip("postgresql is not installed")
    pytest.importorskip("psycopg")
    cluster = Postgres()
    yield cluster
    cluster.close()


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request, tmp_path):
    if request.param == "sqlite":
        return str(tmp_path / "podium.sqlite")
    cluster = request.getfixturevalue("postgres")
    cluster.empty()
    return cluster.url


@pytest.fixture
def database(url):
    database = Database(url)
    yield database
    database.close()


@pytest.fixture
def ada(database):
    return database.people.by_client(database.people.add("Ada"))


def accept(database, who, gpu="CPU", competition="mla", source=b"x = 1\n", **more):
    number = database.people.number_of(competition)
    return database.queue.accept(
        competition_id=number, user_id=who.id, file_name="mine.py", sha256=hashlib.sha256(source).hexdigest(),
        source=source, mode=Mode.LEADERBOARD, gpu=gpu, **more,
    )  # fmt: skip


def run_of(job, attempt, ns=1000.0, submission=0):
    return RunRow(
        id=f"run-j{job}a{attempt}", job_id=job, submission_id=submission, attempt=attempt, path="local/x",
        verdict="accepted", message="right", unranked=None, score_ns=ns, low_ns=None, high_ns=None, device="cpu",
        device_name="CPU", started_at=now(), ended_at=now(),
    )  # fmt: skip


def test_what_is_accepted_is_there_when_the_database_is_opened_again(url):
    first = Database(url)
    who = first.people.by_client(first.people.add("ada"))
    submission, job = accept(first, who, source=b"\x00\xff")
    first.close()
    again = Database(url)
    found = again.queue.submission(submission)
    assert (found.job_id, found.state, found.user, found.competition) == (job, JobState.PENDING, "ada", "mla")
    assert again.queue.source(submission) == b"\x00\xff"
    assert [each.state for each in again.queue.states(job)] == [JobState.PENDING]
    again.close()


def test_jobs_are_taken_in_the_order_of_acceptance_each_once_and_by_their_gpu(database, ada):
    numbers = [accept(database, ada)[0] for _ in range(20)]
    other = accept(database, ada, gpu="H200")[0]
    assert [each.id for each in database.queue.waiting("CPU")] == numbers
    assert database.queue.position(numbers[4]) == 5
    with ThreadPoolExecutor(4) as pool:
        taken = [job.id for job in pool.map(lambda _: database.queue.claim("CPU"), range(24)) if job]
    assert sorted(taken) == numbers
    assert database.queue.claim("H200").id == other
    assert database.queue.counts("CPU") == (0, 20)
    assert database.queue.position(numbers[4]) is None


def test_a_run_is_stored_once_however_often_its_attempt_ends(database, ada):
    submission, job = accept(database, ada)
    database.queue.claim("CPU")
    assert database.queue.end(job, 1, JobState.SUCCEEDED, None, run_of(job, 1))
    assert not database.queue.end(job, 1, JobState.FAILED, "late", run_of(job, 1, 5.0))
    assert [run.score_ns for run in database.queue.runs(submission)] == [1000.0]
    assert database.queue.submission(submission).state is JobState.SUCCEEDED


def test_what_an_earlier_attempt_says_late_changes_nothing(database, ada):
    submission, job = accept(database, ada)
    database.queue.claim("CPU")
    assert database.queue.put_back(job, 1, "the server was started anew")
    assert database.queue.claim("CPU").attempt == 2
    assert not database.queue.end(job, 1, JobState.FAILED, "late")
    database.queue.heartbeat(job, 1, "late")
    found = database.queue.submission(submission)
    assert (found.state, found.attempt, found.progress) == (JobState.RUNNING, 2, None)


def test_a_job_that_is_put_back_is_the_next_one(database, ada):
    first, job = accept(database, ada)
    accept(database, ada)
    database.queue.claim("CPU")
    database.queue.put_back(job, 1, "crowded", run_of(job, 1))
    assert database.queue.claim("CPU").id == first
    assert [state.detail for state in database.queue.states(job)] == [None, None, "crowded", None]


def test_an_error_within_a_transaction_leaves_nothing_of_it(database, ada):
    def refuse(recent):
        raise ValueError("no")

    with pytest.raises(ValueError):
        accept(database, ada, allowed=refuse)
    assert database.queue.waiting() == [] and database.queue.of_user(ada.id) == []
    assert accept(database, ada)[0]


def test_of_one_persons_requests_at_once_each_sees_those_before(database, ada):
    database.people.number_of("mla")
    begun = threading.Barrier(8)

    def allowed(recent):
        if recent:
            raise ValueError("one at a time")

    def enter(_):
        begun.wait()
        try:
            return accept(database, ada, allowed=allowed)
        except ValueError:
            return None

    with ThreadPoolExecutor(8) as pool:
        assert sum(found is not None for found in pool.map(enter, range(8))) == 1


def test_deleted_and_removed_ones_wait_no_more(database, ada):
    deleted, removed, kept = (
        accept(database, ada, source=source)[0] for source in (b"x = 1\n", b"x = 2\n", b"x = 3\n")
    )
    database.queue.delete(deleted)
    database.queue.remove(removed, "answers from a table")
    assert [each.id for each in database.queue.waiting()] == [kept]
    assert [each.id for each in database.queue.of_user(ada.id)] == [kept, removed]
    assert database.queue.submission(removed).removed_because == "answers from a table"
    assert [each.id for each in database.queue.of_competition("mla", JobState.PENDING)] == [kept]


def test_only_hashes_of_ids_and_sessions_are_stored(database, url, postgres_or_file):
    client = database.people.add("ada")
    session = database.people.begin_session(database.people.by_client(client).id)
    assert database.people.by_session(session).name == "ada"
    everything = postgres_or_file(url)
    assert hashed(client).encode() in everything
    assert client.encode() not in everything and session.encode() not in everything


@pytest.fixture
def postgres_or_file(tmp_path):
    def read(url):
        if url.startswith("postgresql"):
            import psycopg

            with psycopg.connect(url) as connection:
                tables = ("users", "clients", "sessions")
                return "".join(str(connection.execute(f"SELECT * FROM {t}").fetchall()) for t in tables).encode()
        return b"".join(path.read_bytes() for path in tmp_path.glob("podium.sqlite*"))

    return read


def test_a_client_that_registered_is_nobodys_until_it_is_approved(database):
    client = database.people.register("github")
    assert database.people.by_client(client) is None and database.people.is_pending(client)
    with pytest.raises(UsageError, match="no client"):
        database.people.approve("0" * 12, "ada")
    for wrong in ("%", "_" * 12, "'; --"):
        with pytest.raises(UsageError, match="not a fingerprint"):
            database.people.approve(wrong, "ada")
    database.people.approve(database.people.pending()[0].fingerprint, "Ada")
    assert database.people.by_client(client).name == "ada"
    assert database.people.pending() == []


def test_revoking_makes_all_ids_and_sessions_of_one_person_worthless(database):
    stolen, second, bobs = (database.people.add(name) for name in ("ada", "ada", "bob"))
    session = database.people.begin_session(database.people.by_client(stolen).id)
    fresh = database.people.revoke_clients("Ada")
    assert database.people.by_client(stolen) is None and database.people.by_client(second) is None
    assert database.people.by_session(session) is None
    assert database.people.by_client(fresh).name == "ada" and database.people.by_client(bobs).name == "bob"
    with pytest.raises(UsageError, match="no account eve"):
        database.people.revoke_clients("eve")


def test_the_verb_revoke_prints_a_new_id(tmp_path, podium):
    url = str(tmp_path / "accounts.sqlite")
    code, out, _ = podium("user", "add", "mallory", "--database", url)
    stolen = out.split()[-1]
    code, out, _ = podium("user", "revoke", "mallory", "--database", url)
    database = Database(url)
    assert code == 0 and database.people.by_client(out.split()[-1]).name == "mallory"
    assert database.people.by_client(stolen) is None
    database.close()
    assert podium("user", "revoke", "nobody", "--database", url)[0] == 2


@pytest.mark.parametrize("name", ["", "../x", "a b", "ä", "a" * 33, "-a", "<b>", "a\0", "a\n"])
def test_a_name_that_could_be_no_part_of_a_file_is_refused(database, name):
    with pytest.raises(UsageError, match="not a name for an account"):
        database.people.add(name)


def test_an_invite_lets_in_one_person_and_revoking_it_puts_them_out(database, ada):
    bob = database.people.by_client(database.people.add("bob"))
    database.people.number_of("mla"), database.people.number_of("fmha")
    (code,) = database.people.invite(["mla", "fmha"], 1)
    assert database.people.join(ada.id, code) == ["fmha", "mla"] == database.people.join(ada.id, code)
    assert database.people.join(bob.id, code) is None
    assert database.people.is_member(ada.id, "mla") and not database.people.is_member(bob.id, "mla")
    database.people.revoke(code)
    assert not database.people.is_member(ada.id, "mla")


def test_a_second_server_on_the_same_database_is_refused(url):
    first, second = Database(url), Database(url)
    first.connections.own()
    with pytest.raises(InfrastructureError, match="another server runs on this database"):
        second.connections.own()
    first.close()
    second.connections.own()
    second.close()


def test_a_server_that_starts_while_the_last_one_ends_waits_a_moment_for_its_database(postgres):
    first, second = Database(postgres.url), Database(postgres.url)
    first.connections.own()
    ending = threading.Timer(0.3, first.close)
    ending.start()
    second.connections.own()
    ending.join()
    second.close()


def test_a_database_of_a_newer_podium_is_refused(url):
    database = Database(url)
    with database.connections.writing() as rows:
        rows("INSERT INTO migrations VALUES (9999)")
    database.close()
    with pytest.raises(InfrastructureError, match="newer Podium"):
        Database(url)


def test_a_postgresql_that_goes_and_comes_back_is_used_again(postgres):
    postgres.empty()
    database = Database(postgres.url)
    who = database.people.by_client(database.people.add("ada"))
    kept = accept(database, who)[0]
    postgres.stop()
    try:
        with pytest.raises(DatabaseGone):
            accept(database, who)
    finally:
        postgres.start()
    assert [each.id for each in database.queue.waiting()] == [kept]
    assert accept(database, who)[0] > kept
    database.close()


def test_a_file_that_goes_is_said_and_not_made_anew(tmp_path):
    database = Database(str(tmp_path / "podium.sqlite"))
    who = database.people.by_client(database.people.add("ada"))
    database.connections.own()
    (tmp_path / "podium.sqlite").rename(tmp_path / "elsewhere")
    for _ in range(2):
        with pytest.raises(DatabaseGone, match="there is no"):
            accept(database, who)
    (tmp_path / "elsewhere").rename(tmp_path / "podium.sqlite")
    assert accept(database, who)
    database.close()


def test_a_full_disk_is_said_and_nothing_is_half_written(tmp_path):
    database = Database(str(tmp_path / "podium.sqlite"))
    who = database.people.by_client(database.people.add("ada"))
    database.people.number_of("mla")
    with database.connections.writing() as rows:  # as full as it gets: no page more
        pages = rows("PRAGMA page_count")[0][0]
        rows(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(DatabaseGone, match="full"):
        accept(database, who, source=b"x" * 900_000)
    assert database.queue.of_user(who.id) == []
    with database.connections.reading() as rows:
        rows("PRAGMA max_page_count = 1000000")
    assert accept(database, who, source=b"x" * 900_000)
    assert sqlite3.connect(tmp_path / "podium.sqlite").execute("PRAGMA integrity_check").fetchone() == ("ok",)
    database.close()


def test_no_other_scheme_is_taken_for_a_file():
    with pytest.raises(UsageError, match="mysql"):
        Database("mysql://localhost/podium")


def test_a_client_that_waited_too_long_for_approval_is_gone(database):
    old, new = database.people.register("github"), database.people.register("github")
    with database.connections.writing() as rows:
        rows("UPDATE clients SET created_at = ? WHERE sha256 = ?", ("2001-01-01T00:00:00.000000+00:00", hashed(old)))
    assert [database.people.is_pending(client) for client in (old, new)] == [False, True]
    assert [each.fingerprint for each in database.people.pending()] == [fingerprint(new)]
    with pytest.raises(UsageError, match="no client"):
        database.people.approve(fingerprint(old), "ada")
    database.people.register("github")
    with database.connections.reading() as rows:
        assert rows("SELECT COUNT(*) FROM clients WHERE user_id IS NULL") == [(2,)]


def test_what_another_process_does_meanwhile_parts_nobody_from_the_database(url, database):
    """`podium user add` beside a running server: with SQLite it was once taken for the last to leave, and removed the
    log to which the server went on writing."""
    program = "import sys; from harness.server.store import Database; d = Database(sys.argv[1]);"
    for number in range(3):
        with database.connections.reading() as outer, database.connections.reading() as inner:
            assert outer("SELECT 1") == inner("SELECT 1")
        added = f"{program} print(d.people.add('other{number}')); d.close()"
        done = subprocess.run([sys.executable, "-c", added, url], capture_output=True, text=True, check=True)
        assert database.people.by_client(done.stdout.strip()).name == f"other{number}"
        database.people.add(f"own{number}")
    listed = f"{program} print(*[each.name for each in d.people.all()]); d.close()"
    done = subprocess.run([sys.executable, "-c", listed, url], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["other0", "other1", "other2", "own0", "own1", "own2"]
