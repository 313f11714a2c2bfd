"""`from harness import evaluate`: a source judged from Python, by a process that is kept for the next."""

import os
import select
import signal
import subprocess
import sys
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

from harness import evaluate, evaluate_many
from harness.catalog.config import Sampling
from harness.errors import InfrastructureError, PodiumError, UsageError
from harness.judge import profiled
from harness.judge import spare as spares
from harness.judge.reply import ProfileReply
from harness.library import close, judges
from harness.model import Case, Run, Unranked, Verdict
from harness.temporary import remove_abandoned

CHECKOUT = Path(__file__).resolve().parents[1]
RIGHT = "def custom_kernel(data):\n    return data[0] * data[1]['factor']\n"
WRONG = "def custom_kernel(data):\n    return data[0] * 3\n"
FEW = Sampling(
    processes=1, warmup_calls=1, pilot_calls=1, min_samples=2, max_samples=2, budget_s=0.1, judging_budget_s=1
)


@pytest.fixture(scope="module", autouse=True)
def _judges_end(no_namespaces):
    """The judges that are kept fork their workers, and end with these tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", no_namespaces, prepend=os.pathsep)
        yield
    close()


@pytest.fixture
def root(toy_root):
    """The checkout in miniature. A judge that an earlier test has started serves this one as well."""
    return toy_root


@pytest.fixture
def own_judge(root):
    """For a test that looks for what a judge leaves in `root`: it is started there."""
    close()
    return root


def python(program, **environment):
    """What a Python prints that sees this checkout."""
    around = {**os.environ, "PYTHONPATH": str(CHECKOUT), **environment}
    words = [sys.executable, "-c", textwrap.dedent(program)]
    done = subprocess.run(words, env=around, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_the_package_imports_nothing_and_evaluate_no_torch():
    program = """
        import sys
        before = set(sys.modules)
        import harness
        print(sorted(name for name in set(sys.modules) - before if name != "harness"))
        from harness import evaluate, evaluate_many
        print("torch" in sys.modules)
    """
    assert python(program) == ["[]", "False"]


def test_a_name_that_the_package_has_not_is_an_attribute_error():
    import harness

    with pytest.raises(AttributeError, match="no attribute 'evaluat'"):
        harness.evaluat  # noqa: B018


@pytest.mark.slow(ci=True)
def test_a_run_is_what_a_run_file_holds(root):
    run = evaluate("double", RIGHT, "cpu", FEW, root=root)
    assert run.ending.verdict is Verdict.ACCEPTED, run.ending
    assert run.unranked_because is Unranked.QUICK and len(run.measurements) == 1
    assert len(run.measurements[0].samples_ns[0]) == 2
    assert Run.model_validate_json(run.model_dump_json()) == run
    assert (run.submission, run.device.kind) == ("submission", "cpu")
    assert not (root / "results" / "local").exists()


@pytest.mark.slow
def test_a_profile_has_the_operators_of_every_benchmark_case_and_no_score(root):
    run = evaluate("double", RIGHT, "cpu", "profile", root=root)
    assert run.ending.verdict is Verdict.ACCEPTED, run.ending
    (profile,) = run.profiles
    counts = {part.name: part.count for part in profile.parts}
    assert counts["aten::mul"] == 1 and profile.call_ns > 0
    assert profile.case.parameters == {"rows": 64, "cols": 64}
    assert (run.score, run.measurements, run.unranked_because, run.output) == (None, (), Unranked.QUICK, "")
    wrong = evaluate("double", WRONG, "cpu", "profile", root=root)
    assert (wrong.ending.verdict, wrong.profiles) == (Verdict.WRONG_ANSWER, ())


def test_a_profile_has_the_median_of_whole_calls_and_the_means_of_their_parts():
    def reply(call_ns, **own_ns):
        parts = [{"name": name, "count": 2, "self_ns": ns} for name, ns in own_ns.items()]
        return ProfileReply(call_ns=call_ns, parts=parts, launches=0)

    case = Case(parameters={"rows": 64})
    found = profiled._added_up(case, [reply(100, mul=30, to=60), reply(9000, mul=8910, to=60), reply(200, to=60)])
    assert (found.calls, found.call_ns) == (3, 200), "one call that was interrupted is not what a call takes"
    assert [(part.name, part.count, part.self_ns) for part in found.parts] == [("mul", 4 / 3, 2980), ("to", 2, 60)]


def test_what_is_profiled_is_within_the_sandbox(root):
    reads = f"if torch.autograd._profiler_enabled():\n        open({str(root / 'problems/double/reference.py')!r})"
    source = f"import torch\ndef custom_kernel(data):\n    {reads}\n    return data[0] * 2\n"
    run = evaluate("double", source, "cpu", "profile", root=root)
    assert run.ending.verdict is Verdict.RUNTIME_ERROR
    assert "PermissionError" in run.ending.message or "FileNotFoundError" in run.ending.message


def test_a_submission_that_forges_its_profile_misleads_its_author_alone_or_is_caught(root):
    forging = """
        import torch.autograd.profiler as profilers
        def custom_kernel(data):
            if {looked_at}:
                profilers.profile.key_averages = lambda self: [type("E", (), {fields})]
            return data[0] * data[1]["factor"]
    """
    for fields, verdict in (
        ({"key": "free", "count": 1, "self_cpu_time_total": 1e-3}, Verdict.ACCEPTED),
        ({"key": "free", "count": -1, "self_cpu_time_total": 1e-3}, Verdict.INTEGRITY_VIOLATION),
        ({"key": "free", "count": 1, "self_cpu_time_total": float("nan")}, Verdict.INTEGRITY_VIOLATION),
    ):
        shown = repr(fields).replace("nan", "float('nan')")
        source = textwrap.dedent(forging.format(looked_at="torch.autograd._profiler_enabled()", fields=shown))
        run = evaluate("double", f"import torch\n{source}", "cpu", "profile", root=root)
        assert run.ending.verdict is verdict, run.ending


@pytest.fixture(params=["forked", pytest.param("in namespaces", marks=pytest.mark.slow)])
def however_workers_start(request, root):
    """The judge's workers are forked, or one of them is always started ahead where bubblewrap is installed."""
    if request.param == "forked":
        yield root
        return
    close()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", os.environ["PATH"].partition(os.pathsep)[2])
        yield root
    close()


@pytest.mark.slow(ci=True)
def test_each_call_judges_its_own_source_though_the_process_and_its_worker_are_kept(however_workers_start):
    root = however_workers_start
    pids, verdicts = set(), []
    for source in (RIGHT, WRONG, RIGHT, "def custom_kernel(data):\n    1 / 0\n"):
        run = evaluate("double", source, "cpu", "verdict", root=root)
        verdicts.append(run.ending.verdict)
        assert not run.measurements
        pids.add(judges._judges["cpu"]._process.pid)
        time.sleep(0.5)  # the next worker is started now
    assert verdicts == [Verdict.ACCEPTED, Verdict.WRONG_ANSWER, Verdict.ACCEPTED, Verdict.RUNTIME_ERROR]
    assert len(pids) == 1
    assert "<submission>" in (run.ending.detail or "") and "line 2" in run.ending.detail


class Waiting:
    """A worker that was started ahead."""

    def __init__(self, plan):
        self.plan, self.session, self.ended = plan, self, False

    def alive_at_rest(self):
        return not self.ended

    def close(self):
        self.ended = True


@pytest.fixture
def spare(monkeypatch):
    monkeypatch.setattr(spares, "Started", Waiting)
    return spares.Spare()


def plan(problem, device="cpu"):
    return spares.Plan(problem, SimpleNamespace(kind=device), 1, None, SimpleNamespace(bubblewrap=True))


def test_a_worker_is_started_for_the_next_call_of_a_plan_and_judges_no_other(spare):
    assert spare.take(plan("double")) is None
    spare.renew()
    first = spare.take(plan("double"))
    assert first.plan == plan("double") and not first.ended and spare.take(plan("double")) is None
    spare.renew()
    (waits,) = spare._waiting
    assert waits is not first and spare.take(plan("triple")) is None and waits.ended


def test_one_that_has_ended_while_it_waited_is_not_used(spare):
    spare.take(plan("double"))
    spare.renew()
    spare._waiting[0].ended = True
    assert spare.take(plan("double")) is None


def test_of_several_that_wait_the_first_is_taken_and_the_rest_go_on_waiting(spare):
    spare.take(plan("double"))
    spare.renew(2)
    first, second = spare._waiting
    assert spare.take(plan("double")) is first
    spare.renew(2)
    assert spare._waiting[0] is second and len(spare._waiting) == 2
    spare.close()
    assert second.ended and not first.ended


def test_on_a_gpu_none_is_started_ahead(spare):
    spare.take(plan("double", "cuda"))
    spare.renew()
    assert spare._waiting == []


def test_one_that_cannot_be_started_ahead_is_started_when_it_is_needed(spare, monkeypatch):
    def full(plan):
        raise OSError("no space left on device")

    spare.take(plan("double"))
    monkeypatch.setattr(spares, "Started", full)
    spare.renew()
    assert spare.take(plan("double")) is None


def test_threads_that_ask_for_the_cards_at_once_are_told_the_same(monkeypatch):
    class Slow:
        def ask(self, request, narrate):
            time.sleep(0.1)
            return ["cuda:0", "cuda:1"]

    monkeypatch.setattr(judges, "driver_present", lambda: True)
    monkeypatch.setattr(judges, "_judge_for", lambda device: Slow())
    monkeypatch.setattr(judges, "_cards", [])
    with ThreadPoolExecutor(4) as pool:
        told = [each.result() for each in [pool.submit(judges.cards) for _ in range(4)]]
    assert told == [["cuda:0", "cuda:1"]] * 4


def test_what_a_problem_imports_of_reference_is_read_anew_in_each_call(root):
    (root / "reference").mkdir()
    (root / "reference" / "__init__.py").write_text("")
    (root / "reference" / "factor.py").write_text("FACTOR = 2.0\n")
    path = root / "problems" / "double" / "reference.py"
    path.write_text("from reference.factor import FACTOR\n" + path.read_text().replace("2.0", "FACTOR"))
    fixed = "def custom_kernel(data):\n    return data[0] * 2\n"
    assert evaluate("double", fixed, "cpu", "verdict", root=root).ending.verdict is Verdict.ACCEPTED
    (root / "reference" / "factor.py").write_text("FACTOR = 3.00\n")
    assert evaluate("double", fixed, "cpu", "verdict", root=root).ending.verdict is Verdict.WRONG_ANSWER


def test_a_file_that_is_no_utf_8_is_refused_in_a_sentence(root):
    path = root / "submissions" / "double" / "latin.py"
    path.write_bytes("# caf\u00e9\n".encode("latin-1") + RIGHT.encode())
    with pytest.raises(UsageError, match="is not UTF-8 text"):
        evaluate("double", path, "cpu", "verdict", root=root)


def test_the_first_wrong_case_may_end_a_run(root):
    assert len(evaluate("double", WRONG, "cpu", "verdict", root=root).checks) == 2
    assert len(evaluate("double", WRONG, "cpu", "verdict", root=root, stop_at_first=True).checks) == 1


def test_a_file_is_judged_by_its_path_and_stored_if_asked_for(root):
    path = root / "submissions" / "double" / "mine.py"
    path.write_text(WRONG)
    run = evaluate("double", path, "cpu", "verdict", root=root, store=True)
    (stored,) = (root / "results" / "local").rglob(f"{run.id}.json")
    assert Run.model_validate_json(stored.read_bytes()) == run
    assert run.submission == "mine"
    assert evaluate("double", str(path), "cpu", "verdict", root=root).submission_sha256 == run.submission_sha256


def test_of_many_sources_each_run_stands_where_its_source_stood(root):
    runs = evaluate_many("double", [WRONG, RIGHT, WRONG], "cpu", "verdict", root=root)
    assert [run.ending.verdict.value for run in runs] == ["wrong_answer", "accepted", "wrong_answer"]
    assert [run.submission for run in runs] == ["submission_1", "submission_2", "submission_3"]
    assert evaluate_many("double", [], "cpu", root=root) == []


def test_several_cards_share_the_sources_one_at_a_time_each(root, monkeypatch):
    at_work, seen = set(), []

    def judged(request, narrate):
        assert request.device not in at_work
        at_work.add(request.device)
        time.sleep(0.05)
        at_work.remove(request.device)
        seen.append(request.device)
        return request.submission.name

    monkeypatch.setattr(judges, "judge", judged)
    monkeypatch.setattr(judges, "cards", lambda: ["cuda:0", "cuda:1"])
    assert evaluate_many("double", [RIGHT] * 6, root=root) == [f"submission_{number}" for number in range(1, 7)]
    assert set(seen) == {"cuda:0", "cuda:1"} and len(seen) == 6


def test_what_one_source_meets_ends_those_that_have_not_begun(root, monkeypatch):
    begun = []

    def judged(request, narrate):
        begun.append(request.submission.name)
        raise InfrastructureError("no disk")

    ended = []
    monkeypatch.setattr(judges, "judge", judged)
    monkeypatch.setattr(judges, "end", ended.extend)
    with pytest.raises(InfrastructureError, match="no disk"):
        evaluate_many("double", [RIGHT] * 5, "cpu", root=root)
    assert begun == ["submission_1"] and ended == ["cpu"], "an evaluation under way would be waited for"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"problem": "doubl"}, "there is no problem called 'doubl'\n  did you mean double?"),
        ({"sampling": "quik"}, "'quik' is not a sampling\n  did you mean quick?"),
        ({"name": "my kernel"}, "'my kernel' is not a name for a submission"),
        ({"source": Path("missing.py")}, "there is no file .*missing.py"),
        ({"source": "missing.py"}, "there is no file .*missing.py"),
        ({"source": "#" * (1 << 20) + "#"}, "<submission> is 1,048,577 bytes"),
        ({"source": "# \ud800\n"}, "the source is not text: surrogates not allowed at character 2"),
        ({"source": b"text"}, "a source is a text or a path, and not of bytes"),
        ({"root": "nowhere"}, "root is .*nowhere, which is not a directory"),
    ],
)
def test_what_makes_no_sense_is_one_sentence_before_a_process_is_started(root, monkeypatch, arguments, words):
    monkeypatch.setattr(judges, "Judge", None)
    monkeypatch.chdir(root)
    given = {"problem": "double", "source": RIGHT, "device": "cpu", "root": root, **arguments}
    with pytest.raises(UsageError, match=words):
        evaluate(**given)


def test_names_and_devices_of_many_are_checked_before_any_is_judged(root, monkeypatch):
    monkeypatch.setattr(judges, "Judge", None)
    with pytest.raises(UsageError, match="2 sources and 1 names"):
        evaluate_many("double", [RIGHT, WRONG], "cpu", names=["one"], root=root)
    with pytest.raises(UsageError, match="are not devices that can share the work"):
        evaluate_many("double", [RIGHT], ["cuda:0", "cuda:0"], root=root)
    with pytest.raises(UsageError, match="there is no file"):
        evaluate_many("double", [RIGHT, Path("missing.py")], "cpu", root=root)


def test_what_the_judge_finds_wrong_is_raised_here(root):
    with pytest.raises(UsageError, match="'gpu' is not a device\n  give cpu, cuda, cuda:1 or auto"):
        evaluate("double", RIGHT, "gpu", root=root)
    path = root / "problems" / "double" / "reference.py"
    path.write_text(path.read_text().replace("generator = torch", "1 / 0; generator = torch"))
    with pytest.raises(PodiumError, match="generate_input failed: ZeroDivisionError"):
        evaluate("double", RIGHT, "cpu", root=root)


# Each of these ends the judge that is kept: together, so that the others need no more of them.


@pytest.mark.slow(ci=True)
def test_what_the_caller_s_own_narrate_raises_ends_the_call_and_the_next_one_has_a_judge(root):
    def closed(line):
        raise BrokenPipeError("nobody reads")

    with pytest.raises(BrokenPipeError, match="nobody reads"):
        evaluate("double", RIGHT, "cpu", "verdict", root=root, narrate=closed)
    assert evaluate("double", RIGHT, "cpu", "verdict", root=root).ending.verdict is Verdict.ACCEPTED


@pytest.mark.slow(ci=True)
def test_a_judge_that_was_killed_is_said_to_be_and_another_is_started(root):
    evaluate("double", RIGHT, "cpu", "verdict", root=root)
    killed = judges._judges["cpu"]._process
    killed.kill()
    killed.wait()
    assert evaluate("double", RIGHT, "cpu", "verdict", root=root).ending.verdict is Verdict.ACCEPTED
    path = root / "problems" / "double" / "reference.py"
    path.write_text(path.read_text() + "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n")
    with pytest.raises(InfrastructureError, match="the process that judges has ended with status -9"):
        evaluate("double", RIGHT, "cpu", "verdict", root=root)


@pytest.fixture(params=["heard", "ignored", "blocked"])
def ctrl_c(request):
    """How this process takes Ctrl-C, which what it starts inherits: a shell's & has it ignored, Ray has it blocked."""
    before = signal.getsignal(signal.SIGINT)
    if request.param == "ignored":
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    elif request.param == "blocked":
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    yield
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    signal.signal(signal.SIGINT, before)


@pytest.mark.slow(ci=True)
def test_closing_ends_a_call_of_another_thread_at_once(own_judge, ctrl_c):
    root = own_judge
    with ThreadPoolExecutor(1) as pool:
        slow = "import time\ndef custom_kernel(data):\n    time.sleep(1000)\n"
        call = pool.submit(evaluate, "double", slow, "cpu", "verdict", root=root)
        while not list((root / "tmp").glob("podium-*/work")):
            time.sleep(0.05)
        process = judges._judges["cpu"]._process
        close()
        with pytest.raises(InfrastructureError, match="has ended with status"):
            call.result()
    assert process.returncode != -signal.SIGKILL, "it had to be killed"
    remove_abandoned()  # as the next to judge does; the end may come between a folder and its `with`
    assert not list((root / "tmp").glob("podium-*"))


@pytest.mark.slow(ci=True)
def test_a_judge_ends_with_the_program_that_is_killed_in_the_midst_of_a_call(root):
    program = f"""
        import threading, time
        from harness import evaluate
        from harness.library import judges
        source = "import time\\ndef custom_kernel(data):\\n    time.sleep(1000)\\n"
        threading.Thread(target=evaluate, args=("double", source, "cpu", "verdict"), kwargs=dict(root={str(root)!r}),
                         daemon=True).start()
        while "cpu" not in judges._judges:
            time.sleep(0.05)
        print(judges._judges["cpu"]._process.pid, flush=True)
        time.sleep(1000)
    """
    around = {**os.environ, "PYTHONPATH": str(CHECKOUT)}
    words = [sys.executable, "-c", textwrap.dedent(program)]
    with subprocess.Popen(words, env=around, stdout=subprocess.PIPE, text=True) as caller:
        judge = os.pidfd_open(int(caller.stdout.readline()))
        deadline = time.monotonic() + 120
        while not list((root / "tmp").glob("podium-*/work")) and time.monotonic() < deadline:
            time.sleep(0.1)
        time.sleep(1)
        caller.send_signal(signal.SIGKILL)
    assert select.select([judge], [], [], 60)[0], "it still lives"
    os.close(judge)
    assert not list((root / "tmp").glob("podium-*")), "its scratch directory is left"
