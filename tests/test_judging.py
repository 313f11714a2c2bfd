"""End to end on the toy problem `double`: every way a submission can go wrong gets its verdict and one sentence."""

import os
import textwrap
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from harness import catalog
from harness.catalog.choice import choose
from harness.catalog.config import Sampling, load_config
from harness.errors import InfrastructureError
from harness.judge import assembly, bounds, caches
from harness.judge.clock import StopClock, Void
from harness.judge.ending import loosest, named
from harness.judge.entrant import MOST_VOIDS, MOST_WAITS, Entrant
from harness.judge.evaluate import evaluate, replay
from harness.judge.examination import Examination
from harness.judge.marks import unranked_because
from harness.judge.measured import measurement as measured
from harness.judge.null_calls import Constants
from harness.judge.pace import Pace
from harness.judge.reply import Fault
from harness.judge.session import Session
from harness.judge.sitting import Sitting
from harness.judge.trial import Timings
from harness.machine.device import detect
from harness.machine.neighbours import Crowding
from harness.model import (
    NO_ISOLATION,
    Case,
    ClockOwner,
    Device,
    Ending,
    Estimate,
    Floor,
    Label,
    Manner,
    Measurement,
    Round,
    Run,
    Unranked,
    Verdict,
)
from harness.sandbox import bubblewrap, enclosure, tiers
from tests.processes import below

HONEST = "def custom_kernel(data):\n    return data[0] * 2\n"
HONEST_OF_SOME_LENGTH = "import time\n" + HONEST.replace("return", "time.sleep(0.002)\n    return")


def judge(root: Path, source: str | bytes, **options) -> Run:
    path = root / "submissions" / "double" / "subject.py"
    path.write_bytes(source if isinstance(source, bytes) else textwrap.dedent(source).encode())
    problem = catalog.load_problem(root, "double")
    submission = catalog.load_submission(problem, path)
    return evaluate(problem, submission, detect(root, "cpu"), load_config(root), **options)


def test_a_worker_that_does_not_start_is_the_machine_s_fault_and_not_the_submission_s(toy_root, monkeypatch):
    monkeypatch.setitem(tiers._found, "cpu", replace(NO_ISOLATION, bubblewrap=True))
    monkeypatch.setattr(bubblewrap, "command", lambda *_: ["/bin/sh", "-c", "echo bwrap: no such place; exit 1"])
    with pytest.raises(InfrastructureError, match="a worker exited with status 1 as it started: bwrap: no such place"):
        judge(toy_root, HONEST)


def test_an_honest_submission_is_accepted_timed_and_scored(toy_root, roomy):
    run = judge(toy_root, HONEST_OF_SOME_LENGTH)
    assert run.ending.verdict is Verdict.ACCEPTED, run.ending
    assert run.tolerance == "close" and run.ranked
    assert run.score is not None and run.score.low_ns < run.score.latency_ns < run.score.high_ns
    problem = catalog.load_problem(toy_root, "double")
    assert [m.case for m in run.measurements] == list(problem.cpu.benchmark)
    assert all(len(m.samples_ns) == 2 and all(map(all, m.samples_ns)) for m in run.measurements)
    assert not any(Label.TOO_SHORT in m.labels for m in run.measurements)


def test_an_accepted_answer_names_what_a_gpu_would_compute_less_exactly(toy_root):
    switch = "    torch.backends.cuda.matmul.allow_tf32 = True\n"
    run = judge(toy_root, "import torch\n" + HONEST.replace("    return", f"{switch}    return"), timed=False)
    assert run.ending.message.endswith("are right, within close; not emulated: TF32 in torch's float32 products")


def test_a_run_says_why_the_caches_were_kept_and_only_if_it_was_timed(toy_root, monkeypatch):
    monkeypatch.setattr(caches, "_CODE", {})
    timed, checked = (judge(toy_root, HONEST, timed=timed).environment for timed in (True, False))
    assert timed["caches_kept_because"].startswith("no machine code for")
    assert "caches_kept_because" not in checked


def test_what_takes_less_than_the_bound_on_a_cpu_counts_with_the_bound_and_says_so(toy_root, roomy):
    run = judge(toy_root, HONEST)
    assert run.measurements
    if all(m.latency.latency_ns <= bounds.CPU_NS for m in run.measurements):  # or the machine is very busy
        assert {sample for m in run.measurements for process in m.samples_ns for sample in process} == {bounds.CPU_NS}
        assert all(Label.TOO_SHORT in m.labels for m in run.measurements)
    else:
        assert all(min(map(min, m.samples_ns)) >= bounds.CPU_NS for m in run.measurements)


def voiding(monkeypatch, every, void=Void.NOT_STOPPED):
    """Have the judge's clock find each `every`-th call that may count void."""
    seen, time = [], StopClock.time

    def sometimes_void(self, session, stage, call, label, null=None):
        answer = time(self, session, stage, call, label, null)
        if null is None and label == "rows=64 cols=64":
            seen.append(answer)
            if len(seen) > 6 and len(seen) % every == 0:
                return replace(answer, void=void)
        return answer

    monkeypatch.setattr(StopClock, "time", sometimes_void)
    return seen


@pytest.mark.slow(ci=True)
def test_void_calls_are_taken_again_and_change_nothing_in_how_many_count(toy_root, monkeypatch, roomy):
    monkeypatch.setattr(Sampling, "samples_for", lambda *_: 20)
    counts = []
    for every in (15, 3):
        with monkeypatch.context() as patch:
            seen = voiding(patch, every)
            run = judge(toy_root, HONEST)
        assert run.ending.verdict is Verdict.ACCEPTED
        (measurement,) = run.measurements
        counts.append([len(samples) for samples in measurement.samples_ns])
        voids = sum(measurement.voids.values())
        assert set(measurement.voids) == {Void.NOT_STOPPED.value}
        assert run.unranked_because == ("voided" if every == 3 else None), voids
        assert ("voided" in measurement.labels) == (every == 3)
        assert len(seen) == 2 + 2 * (1 + 20) + voids, "a pilot, and of each process what warms up and what counts"
    assert counts == [[20, 20]] * 2


def test_one_that_cannot_be_timed_is_accepted_and_not_ranked_and_it_is_said_why(toy_root, monkeypatch, roomy):
    seen = voiding(monkeypatch, 1)
    run = judge(toy_root, HONEST)
    assert run.ending.verdict is Verdict.ACCEPTED and run.unranked_because == "voided" and run.score is None
    assert "it could not be timed" in run.ending.message and Void.NOT_STOPPED.value in run.ending.message
    assert not run.measurements and len(seen) < 60 + MOST_VOIDS


def test_calls_that_stand_still_for_their_host_are_not_waited_for_again_and_again(toy_root, monkeypatch, roomy):
    seen = voiding(monkeypatch, 1, Void.NEEDS_ITS_HOST)
    run = judge(toy_root, HONEST)
    assert run.unranked_because == "voided" and Void.NEEDS_ITS_HOST.value in run.ending.message
    assert len(seen) <= 6 + 2 + MOST_WAITS + 1


@pytest.mark.parametrize(
    ("void", "verdict"),
    [
        (Void.CUT, Verdict.ACCEPTED),
        (Void.NO_SLICE, Verdict.ACCEPTED),
        (Void.NOT_STOPPED, Verdict.WRONG_ANSWER),
        (Void.RAN_WHILE_STOPPED, Verdict.WRONG_ANSWER),
    ],
)
def test_a_wrong_output_of_a_void_call_counts_unless_the_call_may_not_have_been_over(
    toy_root, monkeypatch, roomy, void, verdict
):
    """On a GPU one that was cut off looks like that. Whoever voids what it got wrong gains nothing."""
    voiding(monkeypatch, 1, void)
    source = """
        calls = 0
        def custom_kernel(data):
            global calls
            calls += data[0].shape[0] == 64
            return data[0] * (2 if calls <= 6 else 3)
    """
    run = judge(toy_root, source)
    assert run.ending.verdict is verdict and not run.ranked


@pytest.mark.parametrize("late", [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11])
def test_of_several_reasons_not_to_rank_a_run_the_one_that_says_most_is_given(late):
    reasons = ["interpreted", "chosen cases", "skipped", "quick", "voided", "crowded", "unstable", "imprecise",
               "below the floor", "unsandboxed", "worker-timed", "repro"]  # fmt: skip
    holds = [False] * late + [True] * (len(reasons) - late)
    said = dict(zip(reasons, holds, strict=True))
    sitting = Sitting(Manner.STOPPED, elapsed_ns=[1.0])
    sitting.crowding = Crowding(1.0, 0.0) if said["crowded"] else None
    case = Case(parameters={"n": 1})
    trial = SimpleNamespace(
        timings=[Timings(case, Pace(1, Manner.STOPPED), [sitting])],
        unclockable="no" if said["voided"] else "",
        rounds=[Round(copy_ns=1.0, product_ns=1.0, disturbed="hot" if said["unstable"] else None)],
        entrant=SimpleNamespace(
            caller=SimpleNamespace(seen=SimpleNamespace(interpreted=said["interpreted"]), by_emulator=False),
            skipped=[case] if said["skipped"] else [],
            clocks=SimpleNamespace(whose=ClockOwner.WORKER if said["worker-timed"] else ClockOwner.JUDGE),
        ),
    )
    measurement = Measurement(
        case=case, samples_ns=((1.0,),), latency=Estimate(latency_ns=1.0), bound_ns=1.0,
        floor=Floor(latency_ns=100.0 if said["below the floor"] else 1.0, binds="bandwidth", format="bf16"),
    )  # fmt: skip
    ending = Ending(verdict=Verdict.ACCEPTED, message="")
    flags = (said["chosen cases"], said["quick"], not said["unsandboxed"], said["repro"], said["imprecise"])
    found = unranked_because(trial, ending, [measurement], *flags)
    assert found == reasons[late]
    unjudged = Ending(verdict=Verdict.INFRASTRUCTURE_ERROR, message="")
    assert unranked_because(trial, unjudged, [measurement], *[True] * 5) == "unjudged"


@pytest.mark.parametrize(
    ("kind", "manner", "copied", "elapsed_ns", "launch_ns", "labels"),
    [
        ("cuda", Manner.SANDWICH, False, 1e6, 1e3, ()),
        ("cuda", Manner.SANDWICH, False, (1e6, 1.02e6), 1e3, (Label.WIDE,)),
        ("cuda", Manner.SANDWICH, False, (1e6, 1.01e6), 1e3, ()),
        ("cuda", Manner.SANDWICH, False, 1e6, 2.1e3, (Label.LATENCY_BOUND,)),
        ("cuda", Manner.SANDWICH, True, 1e6, None, (Label.COPIED,)),
        ("cuda", Manner.STOPPED, True, 1e6, 1e3, (Label.HOST_BOUND,)),
        ("rocm", Manner.WORKER, False, 1e6, None, (Label.WORKER_TIMED,)),
        ("cpu", Manner.STOPPED, True, 1e6, None, ()),
        ("cpu", Manner.STOPPED, False, bounds.CPU_NS, None, (Label.TOO_SHORT,)),
    ],
)
def test_a_case_is_labelled_by_how_it_was_timed_and_has_a_bound_if_the_judge_did(
    kind, manner, copied, elapsed_ns, launch_ns, labels
):
    device = Device(
        kind=kind, name="x", slug="x", arch="x", torch_device="cpu", memory_bytes=1, flush_bytes=1,
        bandwidth_bytes_per_s=1e9,
    )  # fmt: skip
    case, constants = Case(parameters={"n": 1}), Constants(launch_ns=launch_ns)
    problem = SimpleNamespace(tolerances_for=lambda case: {})
    cost = {"bf16": {"bytes": 4e3, "flops": {}}}  # a floor of 4 us
    reference = SimpleNamespace(cost=lambda case: cost, problem=problem)
    of_each = elapsed_ns if isinstance(elapsed_ns, tuple) else (elapsed_ns, elapsed_ns)
    sittings = [Sitting(manner, elapsed_ns=[ns] * 4) for ns in of_each]
    timings = Timings(case, Pace(4, manner, copied=copied), sittings)
    entrant = SimpleNamespace(caller=SimpleNamespace(constants=constants))
    trial = SimpleNamespace(entrant=entrant, timings=[timings])
    sampling = SimpleNamespace(processes=2, most_half_width=0.1)
    found = measured(timings, trial, reference, device, 0.95, sampling)
    assert found.labels == labels and found.floor.latency_ns == 4e3
    assert (found.bound_ns is None) == (manner is Manner.WORKER)


def test_what_nothing_confined_is_not_ranked_and_a_run_s_error_is_that_of_its_worst_case(toy_root):
    source = "def custom_kernel(data):\n    return data[0] * (2.000004 if data[0].shape[0] == 4 else 2)\n"
    run = judge(toy_root, source, timed=False, isolation=NO_ISOLATION)
    assert run.ending.verdict is Verdict.ACCEPTED and run.unranked_because == Unranked.UNSANDBOXED
    assert min(check.error for check in run.checks) == 0 < run.error == max(check.error for check in run.checks)


def test_what_was_raised_is_told_with_the_author_s_path_and_not_with_that_of_the_copy_that_ran():
    raised = Ending(
        verdict=Verdict.RUNTIME_ERROR,
        message="invalid syntax (submission.py, line 3)",
        detail='File "/scratch/submission.py", line 3',
    )
    found = named(raised, Path("/scratch"), SimpleNamespace(path="here/mine.py"))
    assert (found.message, found.detail) == ("invalid syntax (mine.py, line 3)", 'File "here/mine.py", line 3')


def test_a_run_meets_the_loosest_of_the_tolerances_that_its_cases_met():
    problem = SimpleNamespace(tolerances={"exact": None, "fp8": None, "fp4": None})
    met = [SimpleNamespace(tolerance=name) for name in ("fp8", "exact", None)]
    assert loosest(met, problem) == "fp8" and loosest([], problem) is None


def test_quick_and_untimed_evaluations_are_never_ranked(toy_root):
    assert judge(toy_root, HONEST, quick=True).unranked_because == "quick"
    untimed = judge(toy_root, HONEST, timed=False)
    assert untimed.ending.verdict is Verdict.ACCEPTED and untimed.score is None and not untimed.ranked


@pytest.mark.parametrize(
    ("source", "verdict", "words"),
    [
        ("import torch", Verdict.COMPILE_ERROR, "no custom_kernel"),
        ("custom_kernel = 7", Verdict.COMPILE_ERROR, "custom_kernel of type int"),
        ("def custom_kernel(data:\n    pass", Verdict.COMPILE_ERROR, "line 1"),
        ("import no_such_module_anywhere", Verdict.RUNTIME_ERROR, "no_such_module_anywhere"),
        ("def custom_kernel(data):\n    return data[0] / {}['a']", Verdict.RUNTIME_ERROR, "KeyError"),
        ("import sys\ndef custom_kernel(data):\n    sys.exit(0)", Verdict.RUNTIME_ERROR, "sys.exit(0)"),
        ("import os\ndef custom_kernel(data):\n    os._exit(0)", Verdict.RUNTIME_ERROR, "exited with status 0"),
        ("import os\ndef custom_kernel(data):\n    os.kill(os.getpid(), 40)", Verdict.RUNTIME_ERROR, "by signal 40"),
        ("import os\nos._exit(3)", Verdict.RUNTIME_ERROR, "exited with status 3 during loading"),
        ("import ctypes\ndef custom_kernel(data):\n    ctypes.string_at(0)", Verdict.RUNTIME_ERROR, "SIGSEGV"),
        ("def custom_kernel(data):\n    return None", Verdict.WRONG_ANSWER, "custom_kernel returned nothing (None)"),
        ("def custom_kernel(data):\n    return data[0][:-1] * 2", Verdict.WRONG_ANSWER, "its shape is"),
        ("def custom_kernel(data):\n    return data[0].double() * 2", Verdict.WRONG_ANSWER, "float64, not float32"),
        (
            "def custom_kernel(data):\n    x = data[0] * 2\n    return x.t().contiguous().t()",
            Verdict.WRONG_ANSWER,
            "not contiguous",
        ),
        ("def custom_kernel(data):\n    return data[0] * 2, data[0]", Verdict.WRONG_ANSWER, "a tuple of 2"),
        ("def custom_kernel(data):\n    return data[0] * 2.01", Verdict.WRONG_ANSWER, "x what is allowed"),
        ("def custom_kernel(data):\n    return data[0].zero_()", Verdict.WRONG_ANSWER, "may not write to it"),
    ],
)
def test_a_failing_submission_gets_its_verdict_and_a_sentence(toy_root, source, verdict, words):
    run = judge(toy_root, source)
    assert run.ending.verdict is verdict, run.ending
    assert words in f"{run.ending.message}\n{run.ending.detail}"
    assert run.score is None and not run.ranked


def test_the_message_of_a_wrong_answer_says_in_a_line_where_and_what_is_wrong(toy_root):
    run = judge(toy_root, "def custom_kernel(data):\n    return data[0].double() * 2\n", timed=False)
    what = "y: its dtype is float64, not float32"
    assert run.ending.message == f"2 of 2 test cases are wrong; the one shown is rows=4 cols=8: {what}"


ONE_ROW = "    - {rows: 4, cols: 8}\n"


@pytest.mark.parametrize(
    ("factor", "said"),
    [("2", "the one test case is right, within close"), ("3", "1 of 1 test case is wrong; it is rows=4 cols=8: y: ")],
)
def test_of_one_test_case_the_message_speaks_in_the_singular(toy_root, factor, said):
    path = toy_root / "problems" / "double" / "problem.yml"
    path.write_text(path.read_text().replace(f"{ONE_ROW}    - {{rows: 3, cols: 5}}\n", ONE_ROW))
    run = judge(toy_root, f"def custom_kernel(data):\n    return data[0] * {factor}\n", timed=False)
    assert len(run.checks) == 1 and run.ending.message.startswith(said)


def test_a_file_in_another_encoding_is_judged_if_it_says_so_and_does_not_compile_otherwise(toy_root):
    source = f"# für\n{HONEST}".encode("latin-1")
    runs = [judge(toy_root, head + source, timed=False) for head in (b"", b"# coding: latin-1\n", b"#\n" * 3)]
    verdicts = [run.ending.verdict for run in runs]
    assert verdicts == [Verdict.COMPILE_ERROR, Verdict.ACCEPTED, Verdict.COMPILE_ERROR]
    assert all("utf-8" in run.ending.message.lower() for run in (runs[0], runs[2]))


def test_a_tensor_subclass_is_not_mistaken_for_its_values(toy_root):
    source = """
        import torch
        class Lazy(torch.Tensor):
            pass
        def custom_kernel(data):
            return (data[0] * 2).as_subclass(Lazy)
    """
    run = judge(toy_root, source)
    assert run.ending.verdict is Verdict.WRONG_ANSWER and "Lazy" in (run.ending.detail or "")


@pytest.mark.slow(ci=True)
@pytest.mark.parametrize(
    ("where", "limits", "said"),
    [
        ("import", {"load_s": 4}, "loading took longer than the limit of 4 s"),
        ("call", {"call_s": 2}, "a call with rows=4 cols=8 took longer than the limit of 2 s"),
    ],
)
def test_a_hanging_submission_times_out_and_leaves_no_process(toy_root, limited, where, limits, said):
    source = (
        "import time\ntime.sleep(600)\n" if where == "import" else "def custom_kernel(data):\n    while True: pass\n"
    )
    limited(**limits)
    run = judge(toy_root, source)
    assert run.ending.verdict is Verdict.TIMEOUT and run.ending.message.partition("; it was in ")[0] == said
    assert not below(os.getpid())


def test_a_process_that_the_submission_started_dies_with_it(toy_root):
    source = """
        import subprocess
        subprocess.Popen(["sleep", "600.25"])
        def custom_kernel(data):
            return data[0] * 2
    """
    run = judge(toy_root, source, timed=False)
    assert run.ending.verdict is Verdict.ACCEPTED
    assert not [p for p in Path("/proc").glob("[0-9]*/cmdline") if p.read_bytes() == b"sleep\x00600.25\x00"]


def test_a_million_printed_lines_cost_only_their_middle(toy_root):
    source = """
        def custom_kernel(data):
            print("first")
            print("spam\\n" * 1_000_000)
            print("last")
            return data[0] * 2
    """
    run = judge(toy_root, source, timed=False)
    assert run.ending.verdict is Verdict.ACCEPTED
    assert len(run.output) < 100_000 and "bytes left out" in run.output
    assert run.output.startswith("first") and run.output.rstrip().endswith("last")


def test_answers_remembered_by_shape_are_wrong(toy_root):
    source = """
        known = {}
        def custom_kernel(data):
            x = data[0]
            return known.setdefault(x.shape, x * 2)
    """
    assert judge(toy_root, source).ending.verdict is Verdict.WRONG_ANSWER


def test_a_submission_honest_only_in_its_first_calls_is_wrong(toy_root):
    source = """
        calls = {}
        def custom_kernel(data):
            shape = tuple(data[0].shape)
            calls[shape] = calls.get(shape, 0) + 1
            return data[0] * (2 if calls[shape] < 3 else 3)
    """
    run = judge(toy_root, source)
    assert run.ending.verdict is Verdict.WRONG_ANSWER and "benchmark case" in run.ending.message


def test_a_submission_that_changes_its_input_in_benchmark_shapes_alone_is_wrong(toy_root):
    source = """
        def custom_kernel(data):
            y = data[0] * 2
            if data[0].shape[0] == 64:
                data[0].mul_(0.5)
            return y
    """
    run = judge(toy_root, source)
    assert run.ending.verdict is Verdict.WRONG_ANSWER and "benchmark case" in run.ending.message
    assert "x: it was changed; a submission may not write to it" in run.ending.detail


def test_what_torch_gives_for_empty_memory_is_poison_in_most_timed_calls(toy_root):
    """Not what an earlier call left there, nor fresh memory's zeros, either of which may complete an output. The
    allocator keeps some bytes for itself."""
    source = """
        import torch
        def custom_kernel(data):
            empty = torch.empty_like(data[0]).flatten()
            if empty.numel() == 64 * 64:
                print("EMPTY", empty.isnan().sum().item() >= empty.numel() - 16)
            return data[0] * 2
    """
    path = toy_root / "configs" / "eval.yml"
    path.write_text(path.read_text().replace("min_samples: 2\n  max_samples: 3", "min_samples: 16\n  max_samples: 16"))
    run = judge(toy_root, source)
    assert run.ending.verdict is Verdict.ACCEPTED, run.ending
    found = [line.split()[1] for line in run.output.splitlines() if line.startswith("EMPTY")]
    # Without the poison in none.
    assert len(found) >= 16 and 5 * found.count("True") >= 4 * len(found), "of the last process"


FORGERY = """
    import gc, json, os, socket, struct
    def channel():
        for fd in range(3, 4096):
            try:
                with socket.socket(fileno=os.dup(fd)) as s:
                    if s.family == socket.AF_UNIX:
                        return fd
            except OSError:
                pass
    def custom_kernel(data):
        body = BODY
        os.write(channel(), HEADER + body)
        return data[0] * 2
"""


@pytest.mark.parametrize(
    ("body", "header"),
    [
        ('b"no json at all"', 'struct.pack(">I", len(body))'),
        ('b"{}"', 'struct.pack(">I", len(body))'),
        ('b"x"', 'struct.pack(">I", 2**31)'),
        ("""json.dumps({"nonce": "guess", "reply": {}}).encode()""", 'struct.pack(">I", len(body))'),
    ],
)
def test_a_forged_message_is_an_integrity_violation(toy_root, body, header):
    run = judge(toy_root, FORGERY.replace("BODY", body).replace("HEADER", header))
    assert run.ending.verdict is Verdict.INTEGRITY_VIOLATION, run.ending


def test_a_pickle_in_the_channel_is_not_unpickled(toy_root, tmp_path):
    bomb = tmp_path / "boom"
    body = f"""__import__("pickle").dumps(type("X", (), {{"__reduce__": lambda s: (open, ({str(bomb)!r}, "w"))}})())"""
    run = judge(toy_root, FORGERY.replace("BODY", body).replace("HEADER", 'struct.pack(">I", len(body))'))
    assert run.ending.verdict is not Verdict.ACCEPTED and not bomb.exists()


def test_the_worker_knows_nothing_of_what_is_expected(toy_root):
    """What a submission can see of its process: environment, arguments, modules, objects."""
    source = """
        import gc, os, sys
        def custom_kernel(data):
            words = " ".join([*os.environ, *os.environ.values(), *sys.argv, *sys.modules, *sys.orig_argv])
            rooms = ("judge", "model", "machine", "catalog", "records", "ranking", "verbs")
            hidden = (*("harness." + room for room in rooms), "podium_problem")
            seen = [m for m in sys.modules if m.startswith(hidden)]
            secret = ("Tolerance", "Expectation", "Reference", "Dealer", "Problem")
            here = [o for o in gc.get_objects() if type(o).__name__ in secret]
            print("LEAK" if seen or here or "seed" in words.lower() else "CLEAN", seen, here)
            return data[0] * 2
    """
    run = judge(toy_root, source, timed=False)
    assert run.ending.verdict is Verdict.ACCEPTED
    assert "CLEAN" in run.output and "LEAK" not in run.output, run.output


def test_every_call_gets_other_values_at_other_addresses(toy_root):
    source = """
        def custom_kernel(data):
            x = data[0]
            print("VALUE", float(x.flatten()[0]), "ADDRESS", x.data_ptr(), x.data_ptr() % 256)
            return x * 2
    """
    output = judge(toy_root, source, timed=False).output
    lines = [line.split() for line in output.splitlines() if line.startswith("VALUE")]
    values, addresses = [line[1] for line in lines], [line[3] for line in lines]
    assert len(lines) == 4 and len(set(values)) == 4
    assert len(set(addresses)) > 1
    assert all(line[4] == "0" for line in lines)


def test_a_mismatch_report_can_be_replayed_from_its_own_line(toy_root):
    import shlex

    source = "def custom_kernel(data):\n    out = data[0] * 2\n    out[-1, -1] += 5\n    return out\n"
    run = judge(toy_root, source)
    line = next(line for line in (run.ending.detail or "").splitlines() if line.startswith("reproduce:"))
    words = shlex.split(line.removeprefix("reproduce:"))
    path, label, seed = words[5], words[6], int(words[words.index("--seed") + 1])
    problem = catalog.load_problem(toy_root, "double")
    case = next(c for c in problem.cpu.test if c.label == label)
    submission = catalog.load_submission(problem, Path(path))
    check = replay(problem, submission, detect(toy_root, "cpu"), load_config(toy_root), case, seed)
    worst = next(line for line in (run.ending.detail or "").splitlines() if "worst" in line)
    assert worst in (check.report or "")


RIGHT_ONCE = """
KEPT = []

def custom_kernel(data):
    KEPT.append(data[0] * 2)
    return KEPT[0]
"""


def replayed(root, seed):
    problem = catalog.load_problem(root, "double")
    submission = catalog.load_submission(problem, root / "submissions" / "double" / "subject.py")
    return replay(problem, submission, detect(root, "cpu"), load_config(root), problem.cpu.test[0], seed)


def test_an_answer_kept_from_the_first_call_is_wrong_in_a_replay_too(toy_root):
    run = judge(toy_root, RIGHT_ONCE, timed=False)
    assert run.ending.verdict is Verdict.WRONG_ANSWER
    first, again = replayed(toy_root, 7), replayed(toy_root, 7)
    assert first.verdict is Verdict.WRONG_ANSWER and "--seed 7 " not in first.report, "the second call is wrong"
    assert first.report == again.report, "its values follow from the seed"


def test_a_replay_makes_as_many_calls_as_a_run(toy_root):
    run = judge(toy_root, "def custom_kernel(data):\n    return data[0] * 2\n", timed=False)
    check = replayed(toy_root, 7)
    assert check.verdict is Verdict.ACCEPTED and check.calls == run.checks[0].calls == 2


BY_ROWS = """
import os, time

def custom_kernel(data):
    x = data[0]
    if x.shape[0] == 4:
        {first}
    if x.shape[0] == 3:
        {second}
    return x * 2
"""
RAISE, EXIT, RIGHT = "raise KeyError('first')", "raise SystemExit(3)", "pass"


@pytest.mark.slow(ci=True)
@pytest.mark.parametrize(
    ("first", "second", "verdicts"),
    [
        (RAISE, RIGHT, ["runtime_error", "accepted"]),
        (RAISE, "raise ValueError('second')", ["runtime_error", "runtime_error"]),
        (RAISE, "return x", ["runtime_error", "wrong_answer"]),
        (EXIT, RIGHT, ["runtime_error", "accepted"]),
        (RAISE, "os._exit(1)", ["runtime_error", "runtime_error"]),
        (RAISE, "time.sleep(60)", ["runtime_error", "timeout"]),
        ("return x", RAISE, ["wrong_answer", "runtime_error"]),
        ("os._exit(1)", RIGHT, ["runtime_error"]),
        ("time.sleep(60)", RIGHT, ["timeout"]),
    ],
)
def test_after_a_case_that_raised_the_others_are_tried_unless_the_worker_is_gone(
    toy_root, limited, first, second, verdicts
):
    if "sleep" in first + second:
        limited(call_s=1)
    run = judge(toy_root, BY_ROWS.format(first=first, second=second))
    assert [check.verdict.value for check in run.checks] == verdicts
    assert run.score is None and not run.measurements
    failed = next(verdict for verdict in verdicts if verdict not in ("accepted", "wrong_answer"))
    assert run.ending.verdict.value == failed
    if first == RAISE:
        assert "KeyError: 'first'" in run.ending.message and run.ending.detail.startswith("case rows=4 cols=8\n")


def test_after_a_case_that_raised_none_is_tried_if_the_first_wrong_one_is_the_last(toy_root):
    run = judge(toy_root, BY_ROWS.format(first=RAISE, second=RIGHT), stop_at_first=True)
    assert run.ending.verdict is Verdict.RUNTIME_ERROR and len(run.checks) == 1


def test_on_a_gpu_no_case_follows_one_that_raised(toy_root, monkeypatch):
    check_tests = Entrant.check_tests

    def as_on_a_gpu(self, *arguments):
        self._device = self._device.model_copy(update={"kind": "cuda"})
        return check_tests(self, *arguments)

    monkeypatch.setattr(Entrant, "check_tests", as_on_a_gpu)
    run = judge(toy_root, BY_ROWS.format(first=RAISE, second=RIGHT), timed=False)
    assert run.ending.verdict is Verdict.RUNTIME_ERROR and len(run.checks) == 1


@pytest.mark.parametrize(
    ("later", "ends"),
    [
        (Verdict.INTEGRITY_VIOLATION, Verdict.INTEGRITY_VIOLATION),
        (Verdict.TIMEOUT, Verdict.RUNTIME_ERROR),
        (Verdict.INFRASTRUCTURE_ERROR, Verdict.RUNTIME_ERROR),
    ],
)
def test_after_a_case_that_raised_only_a_violation_changes_the_verdict(toy_root, monkeypatch, later, ends):
    check = Entrant.check

    def then_another_fault(self, session, case, *more):
        if case.label == "rows=3 cols=5":
            raise Fault(later, "later")
        return check(self, session, case, *more)

    monkeypatch.setattr(Entrant, "check", then_another_fault)
    assert judge(toy_root, BY_ROWS.format(first=RAISE, second=RIGHT)).ending.verdict is ends


def test_a_replay_of_a_crash_raises_its_fault(toy_root):
    path = toy_root / "submissions" / "double" / "crash.py"
    path.write_text("def custom_kernel(data):\n    raise ValueError('no')\n")
    problem = catalog.load_problem(toy_root, "double")
    submission = catalog.load_submission(problem, path)
    with pytest.raises(Fault, match="ValueError: no"):
        replay(problem, submission, detect(toy_root, "cpu"), load_config(toy_root), problem.cpu.test[0], 1)


def test_a_gpu_mode_file_runs_unchanged(toy_root):
    source = """
        #!POPCORN leaderboard double
        from task import input_t, output_t
        def custom_kernel(data: input_t) -> output_t:
            x, config = data
            return x + x
    """
    assert judge(toy_root, source, timed=False).ending.verdict is Verdict.ACCEPTED


def test_a_triton_submission_is_verified_but_not_ranked_on_a_cpu(toy_root):
    source = """
        import torch, triton, triton.language as tl
        @triton.jit
        def double(X, Y, n, BLOCK: tl.constexpr):
            i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
            tl.store(Y + i, tl.load(X + i, mask=i < n) * 2, mask=i < n)
        def custom_kernel(data):
            x = data[0]
            y = torch.empty_like(x)
            double[(triton.cdiv(x.numel(), 64),)](x, y, x.numel(), BLOCK=64)
            return y
    """
    run = judge(toy_root, source)
    assert run.ending.verdict is Verdict.ACCEPTED, run.ending
    assert run.unranked_because == "interpreted" and run.score is None and not run.measurements
    wrong = judge(toy_root, source.replace("* 2", "* 3"), quick=True)  # boards fold failed quick tries, as on a GPU
    assert wrong.ending.verdict is Verdict.WRONG_ANSWER and wrong.unranked_because == "quick", wrong.ending


def test_what_this_machine_cannot_judge_gets_no_verdict_on_itself_and_is_not_tried_again(toy_root):
    from harness.verbs import eval as evaluation

    source = """
        import torch, triton, triton.language as tl
        @triton.jit
        def double(X, Y, BLOCK: tl.constexpr):
            i = tl.arange(0, BLOCK)
            x = tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [tl.load(X + i)], tl.float32, True, 1)
            tl.store(Y + i, x * 2)
        def custom_kernel(data):
            y = torch.empty_like(data[0])
            double[(1,)](data[0], y, BLOCK=8)
            return y
    """
    (toy_root / "submissions" / "double" / "asm.py").write_text(textwrap.dedent(source))
    problem, device = catalog.load_problem(toy_root, "double"), detect(toy_root, "cpu")
    waiting = evaluation.submissions_to_judge(toy_root, problem, [], device, quick=False)
    (run,) = evaluation.judge(toy_root, problem, waiting, device, False, lambda line: None)
    assert run.ending.verdict is Verdict.INFRASTRUCTURE_ERROR and "cannot be interpreted" in run.ending.message
    assert evaluation.submissions_to_judge(toy_root, problem, [], device, quick=False) == []


@pytest.mark.parametrize(
    ("build", "name"),
    [
        ('load_inline("m", "", CODE, functions=["f"])', "load_inline"),
        ('load_inline(name="m", cpp_sources="", cuda_sources=[CODE], functions=["f"])', "load_inline"),
        ('load("m", ["m.cpp", "m.cu"])', "load"),
    ],
)
def test_what_gives_torch_cuda_sources_to_build_cannot_be_judged_on_a_processor_and_is_no_error(toy_root, build, name):
    source = 'from torch.utils.cpp_extension import load, load_inline\nCODE = "__global__ void f() {}"\n'
    run = judge(toy_root, f"{source}m = {build}\n{HONEST}")
    assert run.ending.verdict is Verdict.INFRASTRUCTURE_ERROR, run.ending
    assert run.ending.message == f"its CUDA sources, for {name}, need a GPU: not run (line 3)"


@pytest.mark.slow(ci=True)
@pytest.mark.parametrize(
    ("variables", "lacking"),
    [({"PATH": "/nowhere"}, "no compiler c++"), ({"CXX": "true"}, "no Python.h, which torch's headers include")],
)
def test_cpp_that_this_machine_cannot_build_is_not_judged_and_is_no_error_of_the_file(
    toy_root, monkeypatch, tmp_path_factory, variables, lacking
):
    place, environment = tmp_path_factory.mktemp("shadow"), enclosure._clean_environment
    (place / "sitecustomize.py").write_text("import sysconfig\nsysconfig.get_path = lambda *words: '/nowhere'\n")

    def poorer(*words):
        made = environment(*words)
        return {**made, **variables, "PYTHONPATH": f"{place}{os.pathsep}{made['PYTHONPATH']}"}

    monkeypatch.setattr(enclosure, "_clean_environment", poorer)
    source = 'from torch.utils.cpp_extension import load_inline\nm = load_inline("m", "", functions=["f"])\n'
    run = judge(toy_root, source + HONEST)
    assert run.ending.verdict is Verdict.INFRASTRUCTURE_ERROR, run.ending
    assert run.ending.message == f"its C++, for load_inline, cannot be built: {lacking}: apt install g++ python3-dev"


OVERRUN = """
    import ctypes
    def custom_kernel(data):
        x = data[0]
        ctypes.memset(x.data_ptr() + x.nbytes, 0, EXTRA)
        return x * 2
"""


@pytest.mark.parametrize(("extra", "verdict"), [(0, Verdict.ACCEPTED), (1, Verdict.WRONG_ANSWER)])
def test_a_store_past_the_end_of_an_input_is_seen(toy_root, extra, verdict):
    run = judge(toy_root, OVERRUN.replace("EXTRA", str(extra)), timed=False)
    assert run.ending.verdict is verdict, run.ending
    assert ("a store out of bounds" in str(run.ending.detail)) == bool(extra)


def test_an_error_inside_an_interpreted_kernel_is_placed_in_the_kernel(toy_root):
    source = """
        import torch, triton, triton.language as tl
        @triton.jit
        def double(X, BLOCK: tl.constexpr):
            i = tl.arange(0, BLOCK)
            tl.store(X + i, nothing_of_this_name)
        def custom_kernel(data):
            double[(1,)](data[0], BLOCK=8)
    """
    run = judge(toy_root, source, timed=False)
    assert run.ending.verdict is Verdict.COMPILE_ERROR and "nothing_of_this_name" in run.ending.message
    assert "line 6" in run.ending.message


def test_a_case_that_does_not_fit_the_device_is_skipped_with_the_reason_and_the_run_not_ranked(toy_root):
    reference = toy_root / "problems" / "double" / "reference.py"
    reference.write_text(
        reference.read_text() + "\n\ndef device_bytes(*, rows: int, cols: int):\n    return 8 * rows * cols\n"
    )
    path = toy_root / "submissions" / "double" / "honest.py"
    path.write_text(HONEST)
    problem = catalog.load_problem(toy_root, "double")
    small = detect(toy_root, "cpu").model_copy(update={"memory_bytes": 2000})  # the 64 x 64 case needs 75 kB
    run = evaluate(problem, catalog.load_submission(problem, path), small, load_config(toy_root))
    assert run.ending.verdict is Verdict.ACCEPTED and len(run.checks) == 2
    (skipped,) = run.skipped
    assert skipped.case == problem.cpu.benchmark[0] and "needs 0.0 GB of device memory" in skipped.reason
    assert run.unranked_because == "skipped" and not run.ranked


@pytest.mark.parametrize("line", ["main.cpp:5:16: error: 'zero' was not declared", "main.cu(5): error: no zero"])
def test_the_message_of_a_failed_build_is_the_compiler_s_first_error(toy_root, line):
    said = (
        f"Error building extension 'm': [1/2] c++ -o main.o\nFAILED\nIn file x.h:1:\n/tmp/cache/{line}\nninja: stopped"
    )
    run = judge(toy_root, f"raise RuntimeError({said!r})\n")
    assert run.ending.verdict is Verdict.COMPILE_ERROR and run.ending.message == f"{line} (line 1)"
    assert "ninja: stopped" in (run.ending.detail or "")


def test_what_is_right_in_every_call_and_wrong_in_all_together_is_a_wrong_answer(toy_root, roomy):
    path = toy_root / "problems" / "double" / "problem.yml"
    before = path.read_text()
    close = "close: {rtol: 1.0e-5, atol: 1.0e-6, max_mismatch: 0, rel_l2: 1.0e-5}"
    assert close in before
    path.write_text(before.replace(close, "close: {rel_l2: 0.1, row_gain: [0.99, 1.01]}"))
    try:
        in_tests = judge(toy_root, "def custom_kernel(data):\n    return data[0] * 2.06\n")
        timed = "def custom_kernel(data):\n    return data[0] * (2.06 if len(data[0]) == 64 else 2)\n"
        in_timed_calls, honest = judge(toy_root, timed), judge(toy_root, HONEST)
    finally:
        path.write_text(before)
    assert in_tests.ending.verdict is in_timed_calls.ending.verdict is Verdict.WRONG_ANSWER
    assert in_tests.ending.message.startswith("row_gain of all test cases together is 1.03; allowed: 0.99 to 1.01;")
    assert in_timed_calls.ending.message.startswith("row_gain of rows=64 cols=64 together is 1.03")
    assert "row_gain is the size of the outputs over the expected size: they are too large" in in_tests.ending.detail
    assert in_timed_calls.score is None and not in_timed_calls.ranked
    assert [total.what for total in honest.totals] == ["all test cases", "rows=64 cols=64"]
    assert honest.ranked and honest.totals[0].row_gain == pytest.approx(1)


def test_of_some_of_the_cases_nothing_is_said_of_all_together(toy_root, roomy):
    path = toy_root / "problems" / "double" / "problem.yml"
    before = path.read_text()
    close = "close: {rtol: 1.0e-5, atol: 1.0e-6, max_mismatch: 0, rel_l2: 1.0e-5}"
    path.write_text(before.replace(close, "close: {rel_l2: 0.1, row_gain: [0.99, 1.01]}"))
    file = toy_root / "submissions" / "double" / "subject.py"
    file.write_text("def custom_kernel(data):\n    return data[0] * 2.06\n")
    problem = catalog.load_problem(toy_root, "double")
    submission = catalog.load_submission(problem, file)
    some = choose(problem, "cpu", [], ["rows=3"])
    runs = [
        evaluate(each, submission, detect(toy_root, "cpu"), load_config(toy_root), timed=False)
        for each in (some, choose(problem, "cpu", [], []))
    ]
    assert [run.ending.verdict for run in runs] == [Verdict.ACCEPTED, Verdict.WRONG_ANSWER]
    assert some.partial and not runs[0].totals


def test_a_score_with_too_wide_an_interval_is_shown_and_not_ranked(toy_root, roomy):
    path = toy_root / "configs" / "eval.yml"
    path.write_text(path.read_text().replace("  fresh: false", "  most_half_width: 1.0e-9\n  fresh: false", 1))
    run = judge(toy_root, HONEST_OF_SOME_LENGTH)
    assert run.ending.verdict is Verdict.ACCEPTED and run.score is not None and not run.ranked
    assert run.unranked_because is Unranked.IMPRECISE


@pytest.mark.slow(ci=True)
def test_timed_processes_start_from_nothing_unless_the_configuration_says_otherwise(toy_root):
    says = """
        import sys
        print(*sys.orig_argv)
        def custom_kernel(data):
            return data[0] * 2
    """
    assert "harness.sandbox.fork_server" in judge(toy_root, says).output
    path = toy_root / "configs" / "eval.yml"
    path.write_text(path.read_text().replace("fresh: false", "fresh: true").replace("processes: 2", "processes: 1"))
    assert "-m harness.worker" in judge(toy_root, says).output
    assert "harness.sandbox.fork_server" in judge(toy_root, says, timed=False).output


@pytest.mark.parametrize(
    "source, started",
    [(HONEST, 1), (HONEST.replace("* 2", "* 3"), 0), ("in_triton", 0)],
    ids=["right", "wrong", "interpreted"],
)
def test_the_worker_that_computes_nothing_starts_once_a_first_test_is_right(
    toy_root, monkeypatch, in_triton, source, started
):
    """It imports torch while the others are checked. What is not timed needs none."""
    order = []

    class Seen(assembly.NullWorker):
        def __init__(self, *options):
            order.append("null")
            super().__init__(*options)

    monkeypatch.setattr(assembly, "NullWorker", Seen)
    judge(toy_root, in_triton if source == "in_triton" else source, narrate=order.append)
    assert order.count("null") == started
    steps = [line.partition(":")[0] for line in order if line == "null" or line.startswith("test ")]
    if started:
        assert steps[0].startswith("test 1 of") and steps[1] == "null" and steps[2].startswith("test 2 of")


@pytest.mark.parametrize("stages, processes", [({}, 3), ({"benchmark_s": 300}, 4)], ids=["ordinary", "limited"])
def test_the_pilot_is_made_in_the_process_of_the_tests_unless_each_has_a_limit(
    toy_root, roomy, limited, monkeypatch, stages, processes
):
    """No process that has seen the submission lives while null calls are measured."""
    loaded, ended, order = [], [], []
    load, kill, calibrate = Session.load, Session.kill, Entrant.calibrate

    def loading(self, path):
        load(self, path)
        loaded.extend([self] if path is not None else [])

    def calibrating(self, null):
        order.append(all(session in ended for session in loaded))
        calibrate(self, null)

    monkeypatch.setattr(Session, "load", loading)
    monkeypatch.setattr(Session, "kill", lambda self: (ended.append(self), kill(self)))
    monkeypatch.setattr(Entrant, "calibrate", calibrating)
    limited(**stages)
    run = judge(toy_root, HONEST)
    assert run.ending.verdict is Verdict.ACCEPTED and run.score is not None
    assert len(loaded) == processes and order == [True]


def test_what_the_worker_says_at_its_end_comes_before_what_is_wrong_together(toy_root, monkeypatch):
    monkeypatch.setattr(Examination, "_wrong_together", lambda self: Fault(Verdict.WRONG_ANSWER, "wrong together"))
    assert judge(toy_root, HONEST).ending.message == "wrong together"
    violation = Fault(Verdict.INTEGRITY_VIOLATION, "sent something unasked")

    def finish(self):
        raise violation

    monkeypatch.setattr(Session, "finish", finish)
    assert judge(toy_root, HONEST).ending.verdict is Verdict.INTEGRITY_VIOLATION
