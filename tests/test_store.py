"""Runs on disk are whole or not there; boards are read whatever lies beside them; and the index is only a cache."""

import contextlib
import errno
import json
import math
import os
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from harness.errors import InfrastructureError, UsageError
from harness.model import (
    SCHEMA_VERSION,
    Case,
    CaseCheck,
    ClockOwner,
    Device,
    Ending,
    Estimate,
    Excess,
    Floor,
    Label,
    Measurement,
    Problem,
    Run,
    Submission,
    Unranked,
    Verdict,
)
from harness.records import run_file, scan
from harness.records.entry import of_run
from harness.records.run_file import load_run
from harness.records.store import Store
from harness.records.tables import COLUMNS
from harness.render import run as rendered
from harness.verbs.agenda import took_before
from harness.verbs.compare import take

DEVICE = Device(
    kind="cuda", name="Test 1000", slug="test-1000", arch="sm_90", torch_device="cuda:0", memory_bytes=1, flush_bytes=1
)
SUBMISSION = Submission(name="mine", problem="double", sha256="aa", source=b"source\xff", path="mine.py")


def make_run(run_id="run-1", score=100.0, verdict=Verdict.ACCEPTED, **changes):
    case = Case(parameters={"rows": 4, "cols": [1, 2]})
    fields = {
        "id": run_id,
        "problem": "double",
        "problem_revision": 1,
        "problem_sha256": "cc",
        "submission": "mine",
        "submission_sha256": "aa",
        "submission_path": "mine.py",
        "device": DEVICE,
        "environment": {"packages": {"torch": "2.13"}, "isolation": "process"},
        "started_at": "2026-01-01T00:00:00.000+00:00",
        "duration_s": 1.5,
        "ending": Ending(verdict=verdict, message="as the test says"),
        "checks": (CaseCheck(case=case, verdict=verdict, tolerance=None, excess={}, error=0.25),),
        "measurements": (
            Measurement(
                case=case,
                samples_ns=((90.0, 110.0), (100.0,)),
                latency=Estimate(latency_ns=100.0),
                floor=Floor(latency_ns=40.0, binds="bandwidth", format="bf16"),
            ),
        ),
        "score": Estimate(latency_ns=score, low_ns=score * 0.99, high_ns=score * 1.01) if score else None,
        "clock": ClockOwner.JUDGE,
        "tolerance": "close",
        "error": 0.25,
        "output": "printed\n",
        "master_seed": "00ff",
        "config": {"confidence": 0.95},
    }
    return Run(**{**fields, **changes})


@pytest.fixture
def root(tmp_path):
    (tmp_path / "results").mkdir()
    return tmp_path


def put(root, *runs, tier="local"):
    for run in runs:
        Store(root).write(run, SUBMISSION, tier)


def problem(**changes):
    """The problem `double` as far as an index looks at it."""
    return Problem.model_construct(**{"name": "double", "revision": 1, "sha256": "cc", **changes})


def standings(root, device="test-1000", **changes):
    with Store(root).index() as index:
        return {entry.submission: entry for entry in index.standings(problem(**changes), device)}


def content(root):
    """All that boards see of an index."""
    with Store(root).index() as index:
        entries = sorted(map(repr, index.standings(problem(), "test-1000")))
        return index.paths(), index.devices("double"), entries, index.faults()


@pytest.fixture
def settled(monkeypatch):
    """A file of this moment is taken for one of long ago: of what was not touched since, nothing is in doubt."""
    monkeypatch.setattr(scan, "SETTLED_NS", 0)


def edit(root, run_id, old, new):
    """As an editor does: the file of a stored run, in its place."""
    path = folder(root) / f"{run_id}.json"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def folder(root, tier="local"):
    return root / "results" / tier / "double" / "test-1000"


@contextlib.contextmanager
def unprivileged():
    """As a user whom permissions hold back, should these tests run as root."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def locked_root():
    """A root that any user can read; `lock` makes its results read-only."""
    path = Path(tempfile.mkdtemp(prefix="podium-test-"))
    path.chmod(0o755)
    (path / "results").mkdir(mode=0o755)

    def lock():
        for found in [path / "results", *(path / "results").rglob("*")]:
            found.chmod(0o555 if found.is_dir() else 0o444)

    yield path, lock
    for found in [path / "results", *(path / "results").rglob("*")]:
        found.chmod(0o755)
    shutil.rmtree(path)


class TestWriting:
    def test_a_run_is_read_as_it_was_written(self, root):
        run = make_run()
        path = Store(root).write(run, SUBMISSION)
        assert path == folder(root) / "run-1.json"
        assert load_run(path) == run == Store(root).read("run-1")

    def test_the_source_is_kept_beside_it_byte_for_byte(self, root):
        put(root, make_run())
        assert (root / "results/local/double/sources/aa.py").read_bytes() == b"source\xff"

    def test_units_samples_and_version_are_in_the_file(self, root):
        stored = json.loads(Store(root).write(make_run(), SUBMISSION).read_text())
        assert stored["schema_version"] == SCHEMA_VERSION
        assert stored["measurements"][0]["samples_ns"] == [[90.0, 110.0], [100.0]]

    def test_a_run_that_missed_a_tolerance_without_measure_is_read_again(self, root):
        case = Case(parameters={"n": 1})
        check = CaseCheck(
            case=case,
            verdict=Verdict.WRONG_ANSWER,
            tolerance=None,
            excess={"close": Excess(limit="nan_or_inf", ratio=math.inf)},
            error=None,
        )
        put(root, make_run(verdict=Verdict.WRONG_ANSWER, score=None, checks=(check,)))
        assert standings(root)["mine"].verdict is Verdict.WRONG_ANSWER

    @pytest.mark.parametrize("field", ["message", "output", "path"])
    def test_text_that_is_no_unicode_can_be_stored(self, root, field):
        text = "\ud800"  # str(error) of a submission's exception, or a file's name, may hold one
        changes = {
            "message": {"ending": Ending(verdict=Verdict.RUNTIME_ERROR, message=text)},
            "output": {"output": text},
            "path": {"submission_path": text},
        }
        put(root, make_run(**changes[field]))
        assert Store(root).read("run-1")

    def test_nothing_is_left_where_the_last_step_fails(self, root, monkeypatch):
        put(root, make_run("before"))

        def no_space(*_):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(os, "replace", no_space)
        with pytest.raises(InfrastructureError) as caught:
            put(root, make_run("after"))
        assert str(folder(root)) in caught.value.message and "No space left" in caught.value.message
        assert caught.value.hint and caught.value.exit_code == 30
        monkeypatch.undo()
        assert sorted(path.name for path in folder(root).iterdir()) == ["before.json"]
        assert content(root)[0].keys() == {"before"}

    def test_a_file_system_that_takes_no_more_is_said(self, root):
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))  # Python ignores SIGXFSZ; writes fail with EFBIG
        try:
            with pytest.raises(InfrastructureError, match="could not be stored"):
                put(root, make_run())
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert list(folder(root).iterdir()) == []

    @pytest.mark.parametrize("last_step", ["replace", "fsync"])
    @pytest.mark.parametrize("file", [1, 2], ids=["source", "run"])
    def test_a_judge_killed_while_storing_leaves_no_run_and_no_fault(self, root, last_step, file):
        put(root, make_run("before"))
        child = os.fork()
        if child == 0:
            step, calls = getattr(os, last_step), []

            def killed(*arguments):
                calls.append(arguments)
                if len(calls) == file:
                    os.kill(os.getpid(), signal.SIGKILL)
                return step(*arguments)

            try:
                setattr(os, last_step, killed)
                put(root, make_run("after"))
            finally:
                os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
        paths, _, _, faults = content(root)
        assert paths.keys() == {"before"} and faults == []
        put(root, make_run("after"))
        assert content(root)[0].keys() == {"before", "after"}

    def test_a_locked_directory_is_named_before_and_after_measuring(self, locked_root):
        root, lock = locked_root
        lock()
        with unprivileged():
            with pytest.raises(InfrastructureError, match="results cannot be written to: Permission denied"):
                Store(root).check_writable()
            with pytest.raises(InfrastructureError, match=r"could not be stored in .*test-1000: Permission denied"):
                put(root, make_run())

    def test_a_name_too_long_for_a_file_is_an_infrastructure_error(self, root):
        with pytest.raises(InfrastructureError, match="File name too long"):
            put(root, make_run("x" * 300))

    def test_two_processes_that_write_at_once_lose_nothing(self, root, pytestconfig):
        program = (
            "import sys; sys.path.insert(0, 'tests')\n"
            "from pathlib import Path\n"
            "from test_store import Store, content, make_run, put\n"
            "root = Path(sys.argv[1])\n"
            "for number in range(8):\n"
            "    put(root, make_run(f'{sys.argv[2]}-{number}', submission=sys.argv[2]))\n"
            "    assert f'{sys.argv[2]}-{number}' in content(root)[0]\n"
        )
        writers = [
            subprocess.Popen([sys.executable, "-c", program, str(root), name], cwd=pytestconfig.rootpath)
            for name in ("a", "b")
        ]
        assert [writer.wait(300) for writer in writers] == [0, 0]
        paths, _, _, faults = content(root)
        assert paths.keys() == {f"{name}-{number}" for name in "ab" for number in range(8)} and faults == []
        assert {name: entry.runs for name, entry in standings(root).items()} == {"a": 8, "b": 8}


class TestReading:
    def test_a_beginning_of_an_id_is_enough_where_it_is_the_only_one(self, root):
        put(root, make_run("one-x"), make_run("one-y"), make_run("two-x"))
        assert Store(root).read("two").id == "two-x"
        with pytest.raises(UsageError) as caught:
            Store(root).read("one")
        assert "could be any of 2 runs" in caught.value.message
        assert caught.value.hint.split()[-2:] == ["one-y", "one-x"]

    @pytest.mark.parametrize("part", ["x", "wo", "wo-x", "-x", "", "\udcff", f"{300 * 'x'}.py"])
    def test_any_other_part_of_an_id_is_no_run(self, root, part):
        put(root, make_run("two-x"))
        with pytest.raises(UsageError, match="there is no run"):
            Store(root).read(part)

    def test_a_submission_s_name_stands_for_its_latest_run(self, root):
        put(root, make_run("20260101-aa-mine"), make_run("20260102-bb-mine"))
        put(root, make_run("20260103-cc-not_mine", submission="not_mine"))
        assert Store(root).read("mine").id == "20260102-bb-mine"

    @pytest.mark.parametrize("other", ["my-fp8", "team/fp8", "fp8.old", "FP8"])
    def test_a_submission_s_name_is_that_of_no_other_that_ends_or_begins_so(self, root, other):
        put(root, make_run("20260101-aa-fp8", submission="fp8"), make_run("20260102-bb-fp8", submission=other))
        assert Store(root).read("fp8").id == "20260101-aa-fp8"
        assert Store(root).read(other).id == "20260102-bb-fp8"
        (folder(root) / "20260101-aa-fp8.json").unlink()
        with pytest.raises(UsageError, match="there is no run fp8"):
            Store(root).read("fp8")

    def test_a_reproduction_is_no_run_of_that_name_and_stands_for_its_submission_only_alone(self, root):
        put(root, make_run("20260102-bb-mine-repro", unranked_because=Unranked.REPRODUCED, started_at="2026-01-02"))
        with pytest.raises(UsageError, match="there is no run repro"):
            Store(root).read("repro")
        assert Store(root).read("mine").id == "20260102-bb-mine-repro"
        put(root, make_run("20260101-aa-mine"))
        assert Store(root).read("mine").id == "20260101-aa-mine"
        (folder(root) / "20260101-aa-mine.json").unlink()
        put(root, make_run("20260101-aa-mine", unranked_because=Unranked.QUICK))
        assert Store(root).read("mine").id == "20260101-aa-mine"

    def test_of_a_source_that_one_device_cannot_run_the_latest_is_the_run_of_another(self, root):
        elsewhere = {"unranked_because": Unranked.UNJUDGED, "started_at": "2026-01-02"}
        put(root, make_run("20260101-aa-mine"), make_run("20260102-bb-mine", **elsewhere))
        assert Store(root).read("mine").id == "20260101-aa-mine"
        put(root, make_run("20260103-cc-mine", submission_sha256="f" * 64, **elsewhere | {"started_at": "2026-01-03"}))
        assert Store(root).read("mine").id == "20260103-cc-mine"

    def test_a_name_with_runs_of_two_problems_is_an_error_that_lists_them(self, root):
        put(root, make_run("20260101-aa-mine"), make_run("20260102-bb-mine", problem="triple"))
        with pytest.raises(UsageError, match="mine could be any of 2 runs") as caught:
            Store(root).read("mine")
        listed = [line.strip() for line in caught.value.hint.splitlines()]
        assert listed[1:] == ["20260102-bb-mine on triple", "20260101-aa-mine on double"]
        assert Store(root).read("mine", "double").id == "20260101-aa-mine"

    def test_of_many_choices_the_newest_are_named_and_it_is_said_how_many_more_there_are(self, root):
        for day in range(1, 31):
            name = f"long_name_{31 - day:02}"
            put(root, make_run(f"202601{day:02}-{31 - day:02}", submission=name, started_at=f"2026-01-{day:02}"))
        with pytest.raises(UsageError) as caught:
            Store(root).read("202601")
        said = [line.strip() for line in caught.value.hint.splitlines()]
        assert said[1:] == [*(f"202601{day:02}-{31 - day:02}" for day in range(30, 18, -1)), "and 18 more"]
        with pytest.raises(UsageError) as caught:
            Store(root).read("zzz")
        said = [line.strip() for line in caught.value.hint.splitlines()]
        assert (said[0], said[1], said[-1]) == ("valid, the newest first:", "long_name_01", "and 18 more")

    def test_a_first_look_is_the_latest_only_of_a_source_that_was_not_judged_in_full(self, root):
        quick = {"unranked_because": "quick"}
        put(root, make_run("20260101-aa-mine"), make_run("20260102-bb-mine", **quick))
        assert Store(root).read("mine").id == "20260101-aa-mine"
        put(root, make_run("20260103-cc-mine", submission_sha256="f" * 64, **quick))
        assert Store(root).read("mine").id == "20260103-cc-mine"

    def test_an_id_that_is_part_of_another_is_still_its_own(self, root):
        put(root, make_run("run"), make_run("run-2"))
        assert Store(root).read("run").id == "run"

    def test_an_unknown_id_suggests_the_nearest(self, root):
        put(root, make_run("20260101-mine"))
        with pytest.raises(UsageError) as caught:
            Store(root).read("20260102-mine")
        assert caught.value.hint == "did you mean 20260101-mine?"
        with pytest.raises(UsageError, match="there is no run"):
            Store(root / "elsewhere").read("x")

    def test_an_unknown_name_suggests_the_nearest_name(self, root):
        put(root, make_run("20260101T000000-1-slowtpl").model_copy(update={"submission": "slowtpl"}))
        with pytest.raises(UsageError) as caught:
            Store(root).read("slowtlp")
        assert caught.value.hint == "did you mean slowtpl?"

    def test_a_run_that_was_spoilt_since_is_an_infrastructure_error(self, root):
        path = Store(root).write(make_run(), SUBMISSION)
        content(root)
        with path.open("r+") as file:
            file.truncate(50)
        with pytest.raises(InfrastructureError, match=r"run-1\.json is not a run"):
            Store(root).read("run-1")

    def test_a_spoilt_file_is_that_of_no_name_that_only_ends_as_its_own(self, root):
        put(root, make_run("20260101-aa-my-fp8", submission="my-fp8"))
        (folder(root) / "20260101-aa-my-fp8.json").write_text("{")
        with pytest.raises(UsageError, match="there is no run fp8"):
            Store(root).read("fp8")
        with pytest.raises(InfrastructureError, match="my-fp8"):
            Store(root).read("my-fp8")


def test_every_published_run_is_readable_and_one_of_schema_version_1_is_worker_timed(pytestconfig):
    published = sorted((pytestconfig.rootpath / "results" / "published").glob("*/*/*.json"))
    assert published
    for run in map(load_run, published):
        entry = of_run("", run)
        assert run.schema_version > 1 or (entry.worker_timed and Unranked.WORKER_TIMED in rendered.clock(run)), run.id


def test_a_label_s_former_name_is_read_as_the_present_one_and_no_label_is_called_as_a_reason_not_to_rank_alone():
    stored = json.loads(make_run().model_dump_json())
    for before, now in [
        (["copied", "imprecise", "latency-bound"], (Label.COPIED, Label.LATENCY_BOUND, Label.WIDE)),
        (["tick-limited"], ("tick-limited",)),
    ]:
        stored["measurements"][0]["labels"] = before
        assert Run.model_validate(stored).measurements[0].labels == now
    of_both = {Label.CROWDED, Label.VOIDED, Label.WORKER_TIMED}  # which say the same of a case and of its run
    assert set(Label) & set(Unranked) == of_both


GOOD = make_run().model_dump(mode="json")
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.binary(max_size=60)
    | st.integers(0, 2000).map(lambda end: json.dumps(GOOD).encode()[:end])
    | st.tuples(st.sampled_from(sorted(GOOD)), json_values).map(lambda kv: json.dumps({**GOOD, kv[0]: kv[1]}).encode())
    | json_values.map(lambda value: json.dumps(value).encode())
)
@example(b"[" * 100_000)
@example(json.dumps({**GOOD, "schema_version": SCHEMA_VERSION + 1}).encode())
@example(json.dumps(GOOD).encode("utf-16"))
def test_whatever_a_file_holds_it_is_a_run_or_a_value_error(tmp_path, text):
    path = tmp_path / "double" / "test-1000" / "run-1.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text)
    try:
        assert load_run(path).id == "run-1"
    except ValueError as error:
        assert str(error)


def broken(**changes):
    return json.dumps({**GOOD, "id": "odd", **changes}).encode()


class TestFaults:
    @pytest.mark.parametrize(
        "text, said",
        [
            pytest.param(b"", "is not a run", id="empty"),
            pytest.param(os.urandom(300), "is not a run", id="noise"),
            pytest.param(json.dumps(GOOD).encode()[:700], "is not a run", id="truncated"),
            pytest.param(b'{"hello": "world"}', "is not a run", id="foreign"),
            pytest.param(b"[1, 2]", "is not a run", id="a list"),
            pytest.param(broken(id="other"), "holds the run other", id="another's name"),
            pytest.param(broken(schema_version=SCHEMA_VERSION + 1), "newer than this program", id="from the future"),
            pytest.param(broken(surplus=1), "surplus", id="unknown key"),
            pytest.param(broken(ending={"verdict": "great", "message": ""}), "ending.verdict", id="unknown verdict"),
            pytest.param(broken(score={"latency_ns": -1}), "score.latency_ns", id="negative score"),
            pytest.param(
                broken(
                    measurements=[
                        {**GOOD["measurements"][0], "floor": {**GOOD["measurements"][0]["floor"], "latency_ns": -1}}
                    ]
                ),
                "",
                id="negative floor",
            ),
            pytest.param(
                broken(problem_revision=10**30),
                "",
                id="a revision beyond 64 bits",
            ),
        ],
    )
    def test_a_file_that_is_no_run_is_reported_and_the_rest_works(self, root, text, said):
        put(root, make_run())
        (folder(root) / "odd.json").write_bytes(text)
        paths, _, entries, faults = content(root)
        assert paths.keys() == {"run-1"} and len(entries) == 1
        ((path, fault),) = faults
        assert path == "local/double/test-1000/odd.json" and said in fault

    def test_a_huge_file_is_not_read(self, root):
        put(root, make_run())
        with (folder(root) / "odd.json").open("wb") as file:
            file.truncate(run_file.MAX_RUN_BYTES + 1)  # sparse
        ((_, fault),) = content(root)[3]
        assert fault == "is too large to be a run"

    def test_folders_and_dead_links_called_like_runs_are_faults(self, root):
        put(root, make_run())
        (folder(root) / "folder.json").mkdir()
        (folder(root) / "link.json").symlink_to("/nowhere/at/all")
        paths, _, _, faults = content(root)
        assert paths.keys() == {"run-1"} and [Path(path).name for path, _ in faults] == ["folder.json", "link.json"]

    def test_other_files_are_nobody_s_business(self, root):
        put(root, make_run())
        (folder(root) / "notes.txt").write_text("x")
        (folder(root) / ".hidden.json").write_text("x")
        (root / "results" / "local" / "stray.json").write_text("x")
        (root / "results" / "elsewhere").mkdir()
        assert content(root)[3] == []

    def test_a_fault_that_is_removed_is_forgotten(self, root):
        put(root, make_run())
        (folder(root) / "odd.json").write_text("x")
        assert content(root)[3]
        (folder(root) / "odd.json").unlink()
        assert content(root)[3] == []

    def test_a_mended_file_is_a_run_again(self, root):
        put(root, make_run())
        (folder(root) / "odd.json").write_text("<<<<<<< conflict")
        assert content(root)[3]
        put(root, make_run("odd"))
        assert content(root)[0].keys() == {"run-1", "odd"}

    def test_a_pipe_called_like_a_run_does_not_stop_the_board(self, root):
        class Stuck(BaseException):
            pass

        def stuck(*_):
            raise Stuck

        put(root, make_run())
        os.mkfifo(folder(root) / "pipe.json")
        before = signal.signal(signal.SIGALRM, stuck)
        signal.setitimer(signal.ITIMER_REAL, 1.0)
        try:
            assert content(root)[0].keys() == {"run-1"}
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)


class TestPlaces:
    """A run lies in the folder of its problem and device, and no other has its id."""

    @pytest.mark.parametrize("place", ["other/test-1000", "double/test-2000"])
    def test_a_run_in_another_folder_is_none_and_the_right_one_counts(self, root, place):
        put(root, make_run())
        copy = root / "results" / "local" / place / "run-1.json"
        copy.parent.mkdir(parents=True)
        shutil.copy(folder(root) / "run-1.json", copy)
        paths, devices, entries, faults = content(root)
        assert paths == {"run-1": "local/double/test-1000/run-1.json"} and devices == {"test-1000": "Test 1000"}
        said = "holds a run of double/test-1000, but lies in another folder"
        assert len(entries) == 1 and faults == [(f"local/{place}/run-1.json", said)]
        assert Store(root).read("run-1").score.latency_ns == 100.0

    @pytest.mark.parametrize("order", [("published", "local"), ("local", "published")])
    @pytest.mark.parametrize("within", [True, False], ids=["read at once", "read one by one"])
    def test_of_two_files_with_one_id_the_published_one_is_read_and_the_other_is_named(self, root, order, within):
        for tier in order:
            put(root, make_run(score={"published": 100.0, "local": 1.0}[tier]), tier=tier)
            if not within:
                content(root)
        paths, _, _, faults = content(root)
        assert paths == {"run-1": "published/double/test-1000/run-1.json"}
        said = "has the id of results/published/double/test-1000/run-1.json, which is read instead"
        assert faults == [("local/double/test-1000/run-1.json", said)]
        with Store(root).index() as index:
            (listed,) = index.runs()
        assert listed.score_ns == standings(root)["mine"].score_ns == Store(root).read("run-1").score.latency_ns == 100

    @pytest.mark.parametrize("order", [("published", "local"), ("local", "published")])
    def test_a_copy_is_no_fault_and_counts_once_the_other_is_gone(self, root, order, settled):
        for tier in order:
            put(root, make_run(), tier=tier)
            paths, _, entries, faults = content(root)
            assert len(entries) == 1 and not faults
        assert paths == {"run-1": "published/double/test-1000/run-1.json"}
        (root / "results/published/double/test-1000/run-1.json").unlink()
        assert content(root)[0] == {"run-1": "local/double/test-1000/run-1.json"}

    def test_a_second_file_of_an_id_counts_once_the_first_is_gone(self, root, settled):
        other = make_run(device=DEVICE.model_copy(update={"slug": "test-0"}))
        put(root, make_run(), other)
        assert content(root)[0] == {"run-1": "local/double/test-0/run-1.json"}
        (root / "results/local/double/test-0/run-1.json").unlink()
        assert content(root)[0] == {"run-1": "local/double/test-1000/run-1.json"} and not content(root)[3]

    def test_a_board_is_not_made_again_for_a_second_file_that_lies_there(self, root, settled):
        put(root, make_run(), tier="published")
        put(root, make_run())
        before, after = ([Store(root).index().__enter__().revisions()] for _ in range(2))
        assert before == after

    def test_of_files_that_are_named_alone_the_same_one_is_read(self, root):
        put(root, make_run("before"))
        put(root, make_run("before"), tier="published")
        content(root)
        put(root, make_run(score=1.0))
        name = "double/test-1000/run-1.json"
        Store(root).index(only=[f"local/{name}"]).__enter__()
        put(root, make_run(score=100.0), tier="published")
        with Store(root).index(only=[f"published/{name}"]) as index:
            assert index.paths()["run-1"] == f"published/{name}" and index.entry("run-1").score_ns == 100.0

    def test_every_published_run_lies_in_its_place_and_has_an_id_of_its_own(self, pytestconfig):
        files = sorted((pytestconfig.rootpath / "results" / "published").glob("*/*/*.json"))
        assert len({load_run(file).id for file in files}) == len(files) > 0


def several():
    return [
        make_run("a1", 300.0),
        make_run("a2", 100.0),
        make_run("b1", submission="other", submission_sha256="bb", verdict=Verdict.TIMEOUT, score=None),
        make_run("c1", submission="third", problem_revision=2),
    ]


class TestIndex:
    def index_path(self, root):
        return root / "results" / "index.sqlite"

    def test_deleted_it_comes_back_the_same(self, root):
        put(root, *several())
        before = content(root)
        self.index_path(root).unlink()
        assert content(root) == before and self.index_path(root).exists()
        assert before[0].keys() == {"a1", "a2", "b1", "c1"} and len(before[2]) == 3

    @settings(deadline=None, max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(st.binary(min_size=1, max_size=300))
    @example(b"SQLite format 3\0" + b"\xff" * 200)
    def test_overwritten_with_anything_it_is_built_anew(self, tmp_path, garbage):
        if not (tmp_path / "results").exists():
            put(tmp_path, *several())
        self.index_path(tmp_path).unlink(missing_ok=True)
        before = content(tmp_path)
        self.index_path(tmp_path).write_bytes(garbage)
        assert content(tmp_path) == before

    @pytest.mark.parametrize("keep", [1024, 4096])
    def test_damaged_behind_its_header_it_is_built_anew(self, root, keep):
        put(root, *several())
        before = content(root)
        size = self.index_path(root).stat().st_size
        with self.index_path(root).open("r+b") as file:
            file.seek(keep)
            file.write(b"\xa5" * (size - keep))
        assert content(root) == before

    def test_without_its_tables_it_is_built_anew(self, root):
        put(root, *several())
        before = content(root)
        with contextlib.closing(sqlite3.connect(self.index_path(root))) as database:
            database.execute("DROP TABLE standings")
            database.commit()
        assert content(root) == before

    def test_of_another_version_it_is_built_anew(self, root):
        put(root, *several())
        before = content(root)
        with contextlib.closing(sqlite3.connect(self.index_path(root))) as database:
            database.executescript("DROP TABLE runs; CREATE TABLE runs (x); PRAGMA user_version = 99;")
        assert content(root) == before

    def test_of_the_version_before_it_is_built_anew(self, root):
        put(root, *several())
        before = content(root)
        lacked = {"clock", "problem_sha256"}
        columns = [name for name in COLUMNS if name not in lacked]
        with contextlib.closing(sqlite3.connect(self.index_path(root))) as database:
            database.executescript(
                f"DROP TABLE runs; CREATE TABLE runs ({', '.join(columns)}, PRIMARY KEY (path)); DROP TABLE standings;"
                "CREATE TABLE standings (problem, device, revision, submission, path, runs, all_runs);"
                "PRAGMA user_version = 4;"
            )
        assert content(root) == before
        with contextlib.closing(sqlite3.connect(self.index_path(root))) as database:
            assert {row for row in database.execute("SELECT clock, problem_sha256 FROM runs")} == {("judge", "cc")}

    def test_without_results_there_is_an_empty_one_and_nothing_is_created(self, tmp_path):
        assert content(tmp_path) == ({}, {}, [], [])
        assert list(tmp_path.iterdir()) == []

    def test_a_run_that_is_removed_is_gone(self, root):
        put(root, *several())
        assert standings(root)["mine"].runs == 2
        (folder(root) / "a1.json").unlink()
        assert content(root)[0].keys() == {"a2", "b1", "c1"} and standings(root)["mine"].runs == 1

    def test_a_folder_that_is_removed_takes_its_runs_along(self, root):
        put(root, *several())
        content(root)
        shutil.rmtree(folder(root))
        assert content(root) == ({}, {}, [], [])

    def test_folders_whose_names_are_prefixes_of_others_are_kept_apart(self, root):
        slugs = ("test-1000", "test-1000-x", "test-10001", "test-1000z")
        put(root, *(make_run(f"on-{slug}", device=DEVICE.model_copy(update={"slug": slug})) for slug in slugs))
        assert len(content(root)[0]) == 4
        shutil.rmtree(folder(root))
        assert content(root)[0].keys() == {f"on-{slug}" for slug in slugs[1:]}

    def test_a_run_written_right_after_a_look_is_seen(self, root):
        for number in range(20):
            put(root, make_run(f"run-{number}"))
            assert len(content(root)[0]) == number + 1

    def test_a_run_written_within_the_same_tick_as_a_look_is_seen(self, root):
        put(root, make_run("one"))
        stamp = folder(root).stat().st_mtime_ns
        content(root)
        put(root, make_run("two"))
        os.utime(folder(root), ns=(stamp, stamp))  # as a file system with a coarse clock leaves it
        assert content(root)[0].keys() == {"one", "two"}

    def test_a_settled_folder_is_looked_through_and_no_file_of_it_is_read_again(self, root, monkeypatch, settled):
        put(root, *several())
        before = content(root)
        monkeypatch.setattr(run_file, "read", lambda _: pytest.fail("read again"))
        assert content(root) == before

    def test_of_a_settled_folder_only_the_file_that_changed_is_read_again(self, root, monkeypatch, settled):
        put(root, *several())
        content(root)
        seen, read = [], run_file.read
        monkeypatch.setattr(run_file, "read", lambda path: seen.append(path.name) or read(path))
        edit(root, "b1", '"timeout"', '"runtime_error"')
        content(root)
        content(root)
        assert seen == ["b1.json"]

    def test_a_run_that_was_truncated_after_it_was_indexed_is_a_fault_and_on_no_board(self, root, settled):
        put(root, make_run("a1", 300.0), make_run("b1", submission="other"))
        content(root)
        (folder(root) / "a1.json").write_bytes((folder(root) / "a1.json").read_bytes()[:700])
        paths, _, _, faults = content(root)
        assert paths.keys() == {"b1"} == {entry.id for entry in standings(root).values()}
        assert [path for path, _ in faults] == ["local/double/test-1000/a1.json"] and "is not a run" in faults[0][1]

    def test_a_run_that_was_edited_after_it_was_indexed_is_what_its_file_says_now(self, root, settled):
        put(root, *several())
        assert standings(root)["mine"].score_ns == 300.0
        edit(root, "a1", '"latency_ns": 300.0', '"latency_ns": 50.0')
        assert standings(root)["mine"].score_ns == 100.0

    def test_an_edit_that_keeps_size_and_date_is_seen(self, root, settled):
        put(root, make_run("a1", 300.0))
        content(root)
        path, probe = folder(root) / "a1.json", root / "probe"
        before = path.stat()
        probe.touch()
        while probe.stat().st_ctime_ns <= before.st_ctime_ns:  # until the file system's clock has ticked
            probe.touch()
        edit(root, "a1", "300.0", "700.0")
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        assert (path.stat().st_size, path.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)
        assert standings(root)["mine"].score_ns == 700.0

    def test_of_a_file_in_doubt_the_content_decides(self, root, monkeypatch):
        """As it is within one tick of the file system's clock: nothing but the content tells."""
        monkeypatch.setattr(scan, "_stamp", lambda *_: scan.IN_DOUBT)
        put(root, make_run("a1", 300.0))
        assert standings(root)["mine"].score_ns == 300.0
        edit(root, "a1", "300.0", "700.0")
        assert standings(root)["mine"].score_ns == 700.0

    def test_a_file_of_a_moment_ago_is_in_doubt_until_its_clock_has_ticked(self, root, monkeypatch):
        put(root, make_run())
        assert scan.folders(root / "results")["local/double/test-1000"].stamp == scan.IN_DOUBT
        moment_ns = (folder(root) / "run-1.json").stat().st_ctime_ns
        monkeypatch.setattr(scan.time, "time_ns", lambda: moment_ns + scan.SETTLED_NS)
        assert scan.folders(root / "results")["local/double/test-1000"].stamp != scan.IN_DOUBT

    def test_what_was_touched_and_is_the_same_is_not_parsed_again(self, root, monkeypatch, settled):
        put(root, *several())
        before = content(root)
        for path in folder(root).iterdir():
            os.utime(path, ns=(0, 0))
        monkeypatch.setattr(run_file, "parse", lambda *_: pytest.fail("parsed again"))
        assert content(root) == before

    @pytest.mark.parametrize("indexed", [False, True])
    def test_a_read_only_directory_is_read_from_memory(self, locked_root, indexed):
        root, lock = locked_root
        put(root, *several())
        before = content(root)
        if indexed:
            put(root, make_run("late"))  # not in the index yet
        else:
            self.index_path(root).unlink()
        lock()
        stamp = os.stat(root / "results").st_mtime_ns
        with unprivileged():
            now = content(root)
        assert now[0].keys() == before[0].keys() | ({"late"} if indexed else set())
        assert os.stat(root / "results").st_mtime_ns == stamp and self.index_path(root).exists() == indexed

    def test_a_read_only_directory_with_a_spoilt_index_is_read_all_the_same(self, locked_root):
        root, lock = locked_root
        put(root, *several())
        before = content(root)
        self.index_path(root).write_bytes(b"noise" * 2000)
        lock()
        with unprivileged():
            assert content(root) == before

    def test_a_read_only_index_of_another_version_is_not_used(self, locked_root):
        root, lock = locked_root
        put(root, *several())
        before = content(root)
        with contextlib.closing(sqlite3.connect(self.index_path(root))) as database:
            database.executescript("DROP TABLE runs; CREATE TABLE runs (path); PRAGMA user_version = 99;")
        lock()
        with unprivileged():
            assert content(root) == before

    def test_a_full_disk_does_not_keep_boards_from_being_read(self, root):
        put(root, make_run())
        content(root)
        put(root, *(make_run(f"run-{number:03}", output="x" * 100) for number in range(2, 60)))
        size = self.index_path(root).stat().st_size
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
        try:
            assert len(content(root)[0]) == 59
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


class TestStandings:
    def at(self, day):
        return f"2026-01-{day:02}T00:00:00.000+00:00"

    @pytest.mark.parametrize(
        "scores, median", [([5], 5), ([5, 9], 9), ([9, 5, 7], 7), ([4, 1, 3, 2], 3), ([1, 1, 1, 9, 9], 1)]
    )
    def test_the_run_of_median_score_stands_for_a_source(self, root, scores, median):
        put(root, *(make_run(f"run-{number}", float(score)) for number, score in enumerate(scores)))
        entry = standings(root)["mine"]
        assert entry.score_ns == median and entry.runs == len(scores) and entry.ranked
        assert entry.low_ns == median * 0.99 and entry.floor_ns == pytest.approx(40) and entry.error == 0.25

    @pytest.mark.parametrize("verdict", [Verdict.WRONG_ANSWER, Verdict.INTEGRITY_VIOLATION])
    @pytest.mark.parametrize("day", [1, 3], ids=["before", "after"])
    def test_a_source_once_found_wrong_or_dishonest_stays_so(self, root, verdict, day):
        put(root, make_run("good", started_at=self.at(2)))
        put(root, make_run("bad", None, verdict, started_at=self.at(day), unranked_because="quick"))
        entry = standings(root)["mine"]
        assert entry.verdict is verdict and entry.id == "bad" and entry.runs == 1 and not entry.ranked

    @pytest.mark.parametrize("verdict", [Verdict.TIMEOUT, Verdict.RUNTIME_ERROR, Verdict.INFRASTRUCTURE_ERROR])
    def test_a_mishap_does_not_cost_a_source_its_rank(self, root, verdict):
        put(root, make_run("good"), make_run("bad", None, verdict, started_at=self.at(9)))
        assert standings(root)["mine"].id == "good"

    def test_the_latest_source_counts_and_no_run_of_an_older_one(self, root):
        put(root, make_run("old", 1.0, started_at=self.at(1)))
        put(root, make_run("new", 9.0, started_at=self.at(2), submission_sha256="bb"))
        entry = standings(root)["mine"]
        assert entry.sha256 == "bb" and entry.runs == 1

    def test_an_older_source_whose_run_was_reproduced_does_not_come_back(self, root):
        put(root, make_run("old", 1.0, started_at=self.at(1)))
        put(root, make_run("new", 9.0, started_at=self.at(2), submission_sha256="bb"))
        put(root, make_run("again", 1.0, started_at=self.at(3), unranked_because=Unranked.REPRODUCED))
        assert standings(root)["mine"].id == "new"

    def test_a_reproduction_never_ranks_and_does_not_stand_for_a_source_that_has_another_run(self, root):
        put(root, make_run("quick", started_at=self.at(1), unranked_because="quick"))
        put(root, make_run("again", 1.0, started_at=self.at(2), unranked_because=Unranked.REPRODUCED))
        assert standings(root)["mine"].id == "quick"

    def test_a_reproduction_that_is_wrong_costs_its_source_the_rank(self, root):
        put(root, make_run("good", started_at=self.at(1)))
        put(
            root,
            make_run("bad", None, Verdict.WRONG_ANSWER, started_at=self.at(2), unranked_because=Unranked.REPRODUCED),
        )
        assert standings(root)["mine"].id == "bad"

    def test_a_fault_in_an_older_source_is_forgiven(self, root):
        put(root, make_run("old", None, Verdict.WRONG_ANSWER, started_at=self.at(1)))
        put(root, make_run("new", started_at=self.at(2), submission_sha256="bb"))
        assert standings(root)["mine"].ranked

    def test_a_first_look_does_not_take_the_place_of_a_whole_run_of_its_source_that_is_not_ranked_either(self, root):
        put(root, make_run("whole", started_at=self.at(1), unranked_because="crowded"))
        put(root, make_run("first-look", started_at=self.at(2), unranked_because="quick"))
        assert standings(root)["mine"].id == "whole"

    def test_a_first_look_at_another_source_displaces_what_was_wrong_and_nothing_that_was_accepted_in_full(self, root):
        changed = {"unranked_because": "quick", "submission_sha256": "f" * 64}
        put(root, make_run("wrong", None, Verdict.WRONG_ANSWER, started_at=self.at(1)))
        put(root, make_run("look", started_at=self.at(2), **changed))
        assert standings(root)["mine"].id == "look"
        put(root, make_run("whole", started_at=self.at(3), unranked_because="crowded", submission_sha256="c" * 64))
        put(root, make_run("look-again", started_at=self.at(4), **changed))
        assert standings(root)["mine"].id == "whole"
        put(root, make_run("ranked", started_at=self.at(5), submission_sha256="c" * 64))
        put(root, make_run("look-later", started_at=self.at(6), **changed))
        assert standings(root)["mine"].id == "ranked"
        put(root, make_run("bad", None, Verdict.WRONG_ANSWER, started_at=self.at(7), **changed))
        assert standings(root)["mine"].id == "bad"

    def test_first_looks_are_not_counted_among_the_runs_of_a_source(self, root):
        put(root, make_run("look", started_at=self.at(1), unranked_because="quick"))
        assert (standings(root)["mine"].id, standings(root)["mine"].runs) == ("look", 0)
        put(root, make_run("whole", started_at=self.at(2), unranked_because="crowded"))
        put(root, make_run("look-again", started_at=self.at(3), unranked_because="quick"))
        assert (standings(root)["mine"].id, standings(root)["mine"].runs) == ("whole", 1)

    @pytest.mark.parametrize("reason", ["quick", "interpreted"])
    def test_a_quick_run_never_ranks_however_fast(self, root, reason):
        put(root, make_run("quick", 1.0, unranked_because=reason, started_at=self.at(9)))
        assert not standings(root)["mine"].ranked and standings(root)["mine"].unranked == reason
        put(root, make_run("full", 9.0))
        assert standings(root)["mine"].id == "full"

    def test_the_latest_of_unranked_runs_is_shown(self, root):
        for day, name in [(1, "a"), (3, "c"), (2, "b")]:
            put(root, make_run(name, None, Verdict.TIMEOUT, started_at=self.at(day)))
        assert standings(root)["mine"].id == "c"

    def test_the_best_before_a_run_is_ranked_honest_earlier_and_on_its_board(self, root):
        elsewhere = DEVICE.model_copy(update={"slug": "other"})
        for name, score, changes in (
            ("best", 4.0, {"started_at": self.at(1)}),
            ("second", 5.0, {"started_at": self.at(2)}),
            ("quick", 1.0, {"started_at": self.at(1), "unranked_because": "quick"}),
            ("liar", 1.0, {"started_at": self.at(1), "submission_sha256": "bb"}),
            ("other_revision", 1.0, {"started_at": self.at(1), "problem_revision": 2}),
            ("other_files", 1.0, {"started_at": self.at(1), "problem_sha256": "dd"}),
            ("other_clock", 1.0, {"started_at": self.at(1), "clock": ClockOwner.WORKER}),
            ("elsewhere", 1.0, {"started_at": self.at(1), "device": elsewhere}),
            ("mine", 3.0, {"started_at": self.at(3)}),
            ("later", 1.0, {"started_at": self.at(4)}),
        ):
            put(root, make_run(name, score, **changes))
        caught = {"started_at": self.at(5), "submission_sha256": "bb"}
        put(root, make_run("caught", None, Verdict.INTEGRITY_VIOLATION, **caught))
        with Store(root).index() as index:
            before = {name: index.best_before(index.entry(name)) for name in ("best", "second", "mine", "later")}
            assert index.entry("nothing") is None
        assert {name: found and found.id for name, found in before.items()} == {
            "best": None, "second": "best", "mine": "best", "later": "mine"
        }  # fmt: skip

    def test_runs_of_another_revision_or_device_do_not_count(self, root):
        other = DEVICE.model_copy(update={"slug": "other", "name": "Other"})
        put(root, make_run("one"), make_run("two", problem_revision=2), make_run("three", device=other))
        assert standings(root)["mine"].id == "one" and standings(root)["mine"].runs == 1
        assert standings(root, revision=2)["mine"].id == "two" and standings(root, device="other")["mine"].id == "three"
        with Store(root).index() as index:
            assert index.devices("double") == {"test-1000": "Test 1000", "other": "Other"}
            assert index.devices("nothing") == {}

    @pytest.mark.parametrize("other", [{"problem_sha256": "dd"}, {"problem_revision": 2}])
    def test_what_the_present_files_never_judged_is_shown_with_its_latest_older_run(self, root, other):
        put(root, make_run("older", 1.0, **other), make_run("now", 9.0, started_at=self.at(1)))
        put(root, *(make_run(f"old{day}", submission="old", started_at=self.at(day), **other) for day in (2, 3)))
        put(root, make_run("oldest", submission="old", started_at=self.at(1), problem_sha256="ee"))
        found = standings(root)
        assert (found["mine"].id, found["mine"].runs, found["mine"].older) == ("now", 1, False)
        assert (found["old"].id, found["old"].older) == ("old3", True)

    def test_a_source_that_was_wrong_on_an_older_revision_is_judged_anew(self, root):
        put(root, make_run("bad", None, Verdict.WRONG_ANSWER, problem_sha256="dd", started_at=self.at(5)))
        put(root, make_run("good"))
        assert standings(root)["mine"].id == "good"

    def test_of_two_clocks_the_judge_s_stands_for_a_source(self, root):
        put(root, *(make_run(f"own{n}", float(n), clock=ClockOwner.WORKER) for n in (1, 2, 3)))
        assert (standings(root)["mine"].id, standings(root)["mine"].runs) == ("own2", 3)
        put(root, make_run("judged", 9.0))
        entry = standings(root)["mine"]
        assert (entry.id, entry.runs, entry.clock, entry.worker_timed) == ("judged", 1, ClockOwner.JUDGE, False)

    def test_published_and_local_runs_count_together(self, root):
        put(root, make_run("a", 1.0), tier="published")
        put(root, make_run("b", 3.0), make_run("c", 2.0))
        assert standings(root)["mine"].score_ns == 2.0

    def test_a_run_that_was_published_and_is_still_here_is_one_run(self, root):
        put(root, make_run("a", 1.0), tier="published")
        put(root, make_run("a", 1.0))
        assert standings(root)["mine"].runs == 1

    def test_a_score_without_all_floors_is_nothing_of_the_limit(self, root):
        whole = make_run().measurements[0]
        put(root, make_run(measurements=(whole, whole.model_copy(update={"floor": None}))))
        assert standings(root)["mine"].floor_ns is None

    def test_floors_are_averaged_as_latencies_are(self, root):
        def measurement(floor):
            return (
                make_run()
                .measurements[0]
                .model_copy(update={"floor": Floor(latency_ns=floor, binds="flops", format="x")})
            )

        put(root, make_run(measurements=(measurement(10.0), measurement(1000.0))))
        assert standings(root)["mine"].floor_ns == pytest.approx(100.0)

    @pytest.mark.parametrize("field", ["score", "started_at"])
    def test_between_equals_the_choice_does_not_depend_on_the_order_of_reading(self, root, field):
        fields = {
            "score": [{"score": 1.0}, {"score": 1.0}],
            "started_at": [{"submission_sha256": "x"}, {"submission_sha256": "y"}],
        }[field]
        put(root, make_run("b", **fields[0]))
        content(root)
        put(root, make_run("a", **fields[1]))
        before = content(root)
        (root / "results" / "index.sqlite").unlink()
        assert content(root) == before

    @settings(deadline=None, max_examples=6, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(
        st.lists(
            st.tuples(st.booleans(), st.sampled_from("xy"), st.sampled_from("pq"), st.integers(1, 9)),
            min_size=2,
            max_size=6,
        )
    )
    def test_after_any_coming_and_going_it_is_what_a_new_index_would_be(self, tmp_path, changes):
        for number, (stays, name, source, score) in enumerate(changes):
            run = make_run(
                f"run-{number}",
                score + number / 100,
                submission=name,
                submission_sha256=source,
                started_at=self.at(1 + number),
            )
            put(tmp_path, run)
            content(tmp_path)
            if not stays:
                (folder(tmp_path) / f"run-{max(number - 1, 0)}.json").unlink(missing_ok=True)
        incremental = content(tmp_path)
        (tmp_path / "results" / "index.sqlite").unlink(missing_ok=True)
        assert content(tmp_path) == incremental
        shutil.rmtree(tmp_path / "results")


class TestJudged:
    def judged(self, root, quick=False, worker_timed=False):
        with Store(root).index() as index:
            return index.judged(problem(), "test-1000", quick, worker_timed=worker_timed)

    def test_every_verdict_but_the_machine_s_fault_settles_a_source(self, root):
        for number, verdict in enumerate(Verdict):
            put(root, make_run(f"run-{number}", None, verdict, submission_sha256=verdict.value))
        assert self.judged(root) == {v.value for v in Verdict} - {"infrastructure_error"}

    def test_an_accepted_quick_run_settles_only_a_quick_evaluation(self, root):
        put(root, make_run(unranked_because="quick"))
        assert self.judged(root, quick=True) == {"aa"} and self.judged(root, quick=False) == set()

    @pytest.mark.parametrize("reason", [Unranked.NOISY, Unranked.UNSTABLE, Unranked.VOIDED, Unranked.CROWDED])
    def test_a_run_that_the_machine_left_in_doubt_settles_nothing(self, root, reason):
        put(root, make_run(unranked_because=reason))
        assert self.judged(root) == set() == self.judged(root, quick=True)

    def test_a_quick_run_that_failed_settles_both(self, root):
        put(root, make_run("x", None, Verdict.WRONG_ANSWER, unranked_because="quick"))
        assert self.judged(root, quick=False) == {"aa"}

    def test_a_reproduction_settles_nothing(self, root):
        put(root, make_run("x", unranked_because=Unranked.REPRODUCED))
        put(root, make_run("y", None, Verdict.WRONG_ANSWER, unranked_because=Unranked.REPRODUCED))
        assert self.judged(root, quick=True) == set()

    @pytest.mark.parametrize("other", [{"problem_revision": 2}, {"problem_sha256": "dd"}])
    def test_another_revision_settles_nothing(self, root, other):
        put(root, make_run(**other))
        assert self.judged(root) == set()

    def test_a_time_of_the_worker_s_settles_only_what_the_judge_cannot_time(self, root):
        put(root, make_run(clock=ClockOwner.WORKER))
        assert self.judged(root) == set() and self.judged(root, worker_timed=True) == {"aa"}

    @pytest.mark.parametrize("changes", [{"verdict": Verdict.TIMEOUT}, {"unranked_because": "interpreted"}])
    def test_what_was_not_timed_is_settled_whoever_would_have_timed_it(self, root, changes):
        put(root, make_run(score=None, clock=ClockOwner.WORKER, **changes))
        assert self.judged(root) == {"aa"}


def test_names_that_submissions_to_two_problems_have_mean_runs_of_one(tmp_path, monkeypatch):
    monkeypatch.setattr(Store, "source", lambda *_: b"")
    other = {"problem": "triple"}
    put(tmp_path, make_run("20260101T000000-aaaaaa-mine"), make_run("20260102T000000-bbbbbb-mine", **other))
    put(tmp_path, make_run("20260103T000000-cccccc-old", submission="old"))
    put(tmp_path, make_run("20260104T000000-dddddd-new", submission="new", **other))
    for a, b, ids in [
        ("old", "mine", ["20260103T000000-cccccc-old", "20260101T000000-aaaaaa-mine"]),
        ("mine", "old", ["20260101T000000-aaaaaa-mine", "20260103T000000-cccccc-old"]),
        ("mine", "new", ["20260102T000000-bbbbbb-mine", "20260104T000000-dddddd-new"]),
        ("old", "new", ["20260103T000000-cccccc-old", "20260104T000000-dddddd-new"]),  # which compare refuses
    ]:
        versions = take(tmp_path, a, b)
        assert [versions.a.id, versions.b.id] == ids


def test_how_long_stored_runs_took_is_asked_in_one_look_at_the_files(root, monkeypatch):
    for number in range(4):
        Store(root).write(make_run(f"run-{number}"), SUBMISSION)
    looks, folders = [], scan.folders
    with monkeypatch.context() as patched:
        patched.setattr(scan, "folders", lambda results: looks.append(results) or folders(results))
        with Store(root).index():
            pass
        at_once = len(looks)
        assert took_before(Store(root), problem(), DEVICE, quick=False) == {False: [1.5] * 4}
    assert len(looks) == 2 * at_once


def test_a_run_that_was_taken_in_alone_and_is_gone_by_the_next_look_is_gone(root, monkeypatch):
    monkeypatch.setattr(scan, "SETTLED_NS", 0)
    Store(root).write(make_run("run-1"), SUBMISSION)
    assert listed_in(root) == ["run-1"]
    path = Store(root).write(make_run("run-2"), SUBMISSION)
    assert listed_in(root, [path]) == ["run-1", "run-2"]
    path.unlink()
    assert listed_in(root) == ["run-1"]


def test_a_copy_is_read_as_soon_as_the_first_of_its_id_is_taken_in_as_gone(root):
    local = Store(root).write(make_run("run-1"), SUBMISSION)
    first = Store(root).write(make_run("run-1"), SUBMISSION, tier="published")
    assert listed_in(root) == ["run-1"]
    first.unlink()
    assert listed_in(root, [first]) == ["run-1"]
    with Store(root).index() as index:
        assert index.paths() == {"run-1": str(local.relative_to(root / "results"))}


def listed_in(root, only=None):
    """The ids of the runs in the index, brought up to date with all files or with these alone."""
    names = None if only is None else [str(path.relative_to(root / "results")) for path in only]
    with Store(root).index(names) as index:
        return [run.id for run in index.runs()]
