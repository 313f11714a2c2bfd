"""FlashInfer's trace format: what is exported is read there and computes what Podium does; its Solutions are judged."""

import json
import types

import pytest
import torch

from bench.experiment import ROOT as CHECKOUT
from harness import catalog
from harness.errors import UsageError
from harness.judge.reference import Reference
from harness.machine.device import detect
from harness.model import Verdict
from harness.records.run_file import load_run
from harness.records.store import Store
from harness.traces import forms, solution, written
from harness.traces.written import TracedRun
from harness.verbs import export

SMALL = {
    "podium_prefill": {
        "batch_size": 2,
        "seq_len": 37,
        "num_q_heads": 6,
        "num_kv_heads": 2,
        "head_dim": 64,
        "causal": True,
    },
    "podium_fmha": {"batch_size": 3, "num_q_heads": 4, "num_kv_heads": 2, "head_dim": 128, "kv_seq_len": 5},
    "podium_kv_decode_bfloat16": {
        "batch_size": 2,
        "num_q_heads": 6,
        "num_kv_heads": 2,
        "q_seq_len": 3,
        "head_dim": 64,
        "cache_max_len": 50,
        "seq_lens": [0, 40],
        "dtype": "bfloat16",
        "is_causal": True,
        "update_cache": True,
    },
}
FORMS = {form.name: form for form in forms.FORMS}


def module(source):
    made = types.ModuleType("made")
    exec(compile(source, "made", "exec"), made.__dict__)
    return made


def made(name):
    """The form, its problem's reference, and a function that draws the same data anew."""
    form = FORMS[name]
    problem = catalog.load_problem(CHECKOUT, form.problem)
    reference = Reference(problem, detect(CHECKOUT, "cpu"))._module
    return form, reference, lambda: reference.generate_input(**SMALL[name], seed=5, device="cpu")


def arguments(form, data):
    """`data` as the Definition's inputs."""
    *tensors, config = data
    given = dict(zip([name for name, (shape, _) in form.inputs.items() if shape is not None], tensors, strict=True))
    return [given[name] if name in given else config[name] for name in form.inputs]


def same(left, right):
    return torch.equal(left.nan_to_num(9.0), right.nan_to_num(9.0)) and left.dtype == right.dtype


@pytest.mark.parametrize("name", SMALL)
def test_an_exported_reference_gives_what_podiums_gives(name):
    form, reference, draw = made(name)
    found = module(form.reference).run(*arguments(form, draw()))
    data = draw()
    expected = [reference.ref_kernel(data)]
    if form.problem == "kv_decode":  # what it left in place is an output there
        expected += data[3:6]
    found = found if isinstance(found, tuple) else (found,)
    assert len(found) == len(form.outputs) and all(map(same, found, expected))


@pytest.mark.parametrize("name", SMALL)
def test_inputs_and_outputs_have_the_shapes_and_dtypes_that_the_definition_states(name):
    form, _, draw = made(name)
    case = next(iter(catalog.load_problem(CHECKOUT, form.problem).cpu.test)).model_copy(
        update={"parameters": SMALL[name]}
    )
    said = {**form.workload(case)["axes"], **dict.fromkeys(form.ones, 1)}
    given = dict(zip(form.inputs, arguments(form, draw()), strict=True))
    outputs = module(form.reference).run(*given.values())
    given |= dict(zip(form.outputs, outputs if isinstance(outputs, tuple) else (outputs,), strict=True))
    for called, (shape, dtype) in {**form.inputs, **form.outputs}.items():
        if shape is None:
            assert dtype == {bool: "bool", float: "float32"}[type(given[called])]
        else:
            assert list(given[called].shape) == [said[axis] for axis in shape]
            assert str(given[called].dtype) == f"torch.{dtype}"
    if form.lengths is not None:
        assert form.lengths_of(case) == given["seq_lens"].tolist()


@pytest.mark.parametrize("name", SMALL)
def test_a_submission_as_a_solution_leaves_its_inputs_alone_and_gives_the_same(name):
    form, reference, draw = made(name)
    torch_file = (CHECKOUT / "submissions" / form.problem / "torch_sdpa.py").read_text()
    run = module(f"{torch_file}\n{form.inwards}").podium_run
    data, before, after = draw(), draw(), draw()
    found = run(*arguments(form, data))
    assert all(map(same, data[:-1], before[:-1]))
    found = found if isinstance(found, tuple) else (found,)
    torch.testing.assert_close(found[0].float(), reference.ref_kernel(after).float(), rtol=2e-2, atol=2e-2)
    assert all(map(same, found[1:], after[3:6]))


def solved(form, source, passing=True, **changes):
    return json.dumps(
        {
            "name": "mine",
            "definition": form.name,
            "author": "me",
            "spec": {
                "language": "python",
                "target_hardware": ["cpu"],
                "entry_point": "main.py::run",
                "destination_passing_style": passing,
                **changes.pop("spec", {}),
            },
            "sources": [{"path": "main.py", "content": source}],
            **changes,
        }
    ).encode()


@pytest.mark.parametrize("passing", [True, False])
@pytest.mark.parametrize("name", SMALL)
def test_a_solution_is_a_submission_that_gives_what_its_function_gives(name, passing):
    form, reference, draw = made(name)
    source = form.reference
    if passing:
        source = source.replace("def run(", "def found(") + (
            "\n\ndef run(*given):\n"
            f"    results = found(*given[:{len(form.inputs)}])\n"
            "    results = results if isinstance(results, tuple) else (results,)\n"
            f"    for place, result in zip(given[{len(form.inputs)}:], results):\n"
            "        place.copy_(result)\n"
        )
    submission = module(solution.source_of(form.problem, solved(form, source, passing), "mine.json").decode())
    data, expected = draw(), draw()
    assert same(submission.custom_kernel(data), reference.ref_kernel(expected))
    assert all(map(same, data[:-1], expected[:-1]))


@pytest.mark.parametrize("name", SMALL)
def test_what_export_writes_can_be_judged_again(name):
    """Its function calls the custom_kernel of its file, and a submission's custom_kernel calls that function."""
    form, reference, draw = made(name)
    own = (CHECKOUT / "submissions" / form.problem / "torch_sdpa.py").read_text()
    spec = {"entry_point": "main.py::podium_run"}
    text = solved(form, f"{own}\n\n{form.inwards}", passing=False, spec=spec)
    submission = module(solution.source_of(form.problem, text, "mine.json").decode())
    for _ in range(2):
        data, expected = draw(), draw()
        found, due = submission.custom_kernel(data), reference.ref_kernel(expected)
        torch.testing.assert_close(found.float(), due.float(), rtol=2e-2, atol=2e-2)
        assert all(same(one, other) for one, other in zip(data[3:6], expected[3:6]) if isinstance(one, torch.Tensor))


@pytest.mark.parametrize("passing", [True, False])
def test_a_solutions_function_may_itself_be_called_custom_kernel(passing):
    form, reference, draw = made("podium_prefill")
    returned = form.reference.replace("def run(", "def custom_kernel(")
    passed = f"{form.reference}\n\ndef custom_kernel(*given):\n    given[-1].copy_(run(*given[:-1]))\n"
    spec = {"entry_point": "main.py::custom_kernel"}
    text = solved(form, passed if passing else returned, passing=passing, spec=spec)
    submission = module(solution.source_of("prefill", text, "mine.json").decode())
    assert same(submission.custom_kernel(draw()), reference.ref_kernel(draw()))


def test_a_solution_without_destination_passing_may_name_its_outputs():
    form, reference, draw = made("podium_prefill")
    source = form.reference.replace("return out", 'return {"out": out}')
    submission = module(solution.source_of("prefill", solved(form, source, passing=False), "mine.json").decode())
    assert same(submission.custom_kernel(draw()), reference.ref_kernel(draw()))


PREFILL = FORMS["podium_prefill"]


@pytest.mark.parametrize(
    ("problem", "text", "message"),
    [
        ("prefill", b"{", "mine.json is not JSON"),
        ("prefill", b"[]", "mine.json is not a Solution: the whole"),
        ("prefill", b"[" * 100_000, "mine.json is not JSON"),
        ("prefill", solved(PREFILL, "", sources=[]), "not a Solution: sources"),
        ("prefill", solved(PREFILL, "x", spec={"language": "cuda"}), "a Solution in cuda: those in python and triton"),
        ("prefill", solved(PREFILL, "x", spec={"entry_point": "run"}), "not a Solution: spec.entry_point"),
        ("prefill", solved(PREFILL, "x", spec={"entry_point": "m.py::x;y"}), "not a Solution: spec.entry_point"),
        ("prefill", solved(PREFILL, "x", spec={"entry_point": "other.py::run"}), "other.py, which is not among"),
        (
            "prefill",
            solved(PREFILL, "x", definition="gemm"),
            "solves gemm, and the Definition of prefill is podium_pre",
        ),
        ("fmha", solved(PREFILL, "x"), "solves podium_prefill, and the Definition of fmha is podium_fmha"),
        ("mla", solved(PREFILL, "x"), "mla has no Definition"),
        (
            "prefill",
            solved(PREFILL, "x", sources=[{"path": p, "content": "x"} for p in ("main.py", "b.py")]),
            "has 2 source files",
        ),
    ],
)
def test_what_is_no_solution_of_the_problem_is_refused_in_a_sentence(problem, text, message):
    with pytest.raises(UsageError) as refused:
        solution.source_of(problem, text, "mine.json")
    assert message in refused.value.message


@pytest.fixture(scope="module")
def judged():
    """Each published run on an H200 of a problem, with its source."""

    def of(problem):
        folder = CHECKOUT / "results" / "published" / problem
        for path in sorted((folder / "nvidia-h200").glob("*.json")):
            run = load_run(path)
            yield TracedRun(run, (folder / "sources" / f"{run.submission_sha256}.py").read_bytes())

    return of


def test_a_trace_has_the_latency_of_its_run_and_what_was_not_measured_is_not_made_up(judged, tmp_path):
    pytest.importorskip("safetensors")
    problem = catalog.load_problem(CHECKOUT, "prefill")
    runs = [each for each in judged("prefill") if each.run.ending.verdict is Verdict.ACCEPTED]
    done = written.write(tmp_path, [(problem, runs)])
    (path,) = tmp_path.glob("traces/*/*.jsonl")
    traces = [json.loads(line) for line in path.read_text().splitlines()]
    measured = {m.latency.latency_ns / 1e6 for each in runs for m in each.run.measurements}
    assert {trace["evaluation"]["performance"]["latency_ms"] for trace in traces} == measured
    assert done.traces == len(traces) == sum(len(each.run.measurements) for each in runs) > 7
    for trace in traces:
        correctness, performance = trace["evaluation"]["correctness"], trace["evaluation"]["performance"]
        assert correctness["max_absolute_error"] == correctness["max_relative_error"] == "NaN"
        assert performance["reference_latency_ms"] == performance["speedup_factor"] == 0
        assert "no reference latency was measured" in trace["evaluation"]["log"]


def test_a_baselines_latency_is_the_references_and_the_log_says_so(judged, tmp_path):
    pytest.importorskip("safetensors")
    problem = catalog.load_problem(CHECKOUT, "prefill")
    run = next(each for each in judged("prefill") if each.run.submission == "gluon_hopper")
    twice = {m.case.key: 2 * m.latency.latency_ns for m in run.run.measurements}
    written.write(tmp_path, [(problem, [TracedRun(run.run, run.source, "torch_sdpa", twice)])])
    (path,) = tmp_path.glob("traces/*/*.jsonl")
    for trace in map(json.loads, path.read_text().splitlines()):
        assert trace["evaluation"]["performance"]["speedup_factor"] == pytest.approx(2)
        assert "is that of the baseline torch_sdpa" in trace["evaluation"]["log"]


def test_a_run_that_was_not_timed_is_left_out_and_named(judged, tmp_path):
    pytest.importorskip("safetensors")
    problem = catalog.load_problem(CHECKOUT, "prefill")
    run = next(judged("prefill"))
    wrong = run.run.ending.model_copy(update={"verdict": Verdict.WRONG_ANSWER})
    failed = run.run.model_copy(update={"ending": wrong})
    done = written.write(tmp_path, [(problem, [TracedRun(failed, run.source)])])
    assert done.traces == done.solutions == 0 and done.left_out == {failed.id: "wrong answer: nothing was timed"}


def test_nothing_is_written_over(tmp_path):
    (tmp_path / "kept").write_text("mine")
    with pytest.raises(UsageError, match="is not empty: nothing is overwritten"):
        export.export(CHECKOUT, ["prefill"], tmp_path)
    with pytest.raises(UsageError, match="kept is no folder: nothing is overwritten"):
        export.export(CHECKOUT, ["prefill"], tmp_path / "kept")
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


def test_a_problem_named_twice_is_written_once_and_a_device_without_runs_is_an_error(tmp_path):
    once = export.export(CHECKOUT, ["prefill"], tmp_path / "once", "nvidia-h200")
    assert export.export(CHECKOUT, ["prefill", "prefill"], tmp_path / "twice", "nvidia-h200") == once
    assert export.export(CHECKOUT, ["prefill"], tmp_path / "part", "H200") == once
    with pytest.raises(UsageError, match="there are no runs of prefill on 'nvidia-h20'") as refused:
        export.export(CHECKOUT, ["prefill"], tmp_path / "none", "nvidia-h20")
    assert "nvidia-h200" in refused.value.hint and not (tmp_path / "none").exists()


def test_a_problem_without_a_definition_is_refused(tmp_path):
    with pytest.raises(UsageError, match="mla has no Definition"):
        export.export(CHECKOUT, ["mla"], tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_flashinfer_bench_reads_as_much_as_was_written(tmp_path):
    """pip install --no-deps flashinfer-bench==0.1.2, and apache-tvm-ffi safetensors docstring-parser."""
    data = pytest.importorskip("flashinfer_bench.data", reason="flashinfer-bench is not installed")
    pytest.importorskip("safetensors")
    done = export.export(CHECKOUT, [], tmp_path / "traces", "nvidia-h200")
    read = data.TraceSet.from_path(str(tmp_path / "traces"))
    counts = [sum(map(len, each.values())) for each in (read.workloads, read.solutions, read.traces)]
    assert [len(read.definitions), *counts] == [done.definitions, done.workloads, done.solutions, done.traces]
    assert done.traces > 50
    for traces in read.traces.values():
        assert all(trace.is_successful() and read.get_solution(trace.solution) for trace in traces)
    from safetensors.torch import load_file

    for workload in read.workloads["podium_kv_decode_bfloat16"]:
        given = workload.workload.inputs["seq_lens"]
        lengths = load_file(tmp_path / "traces" / given.path)[given.tensor_key]
        assert lengths.dtype == torch.int32 and len(lengths) == workload.workload.axes["batch_size"]


def test_a_solutions_file_has_changed_when_what_it_is_has(tmp_path):
    form, store, path = FORMS["podium_fmha"], Store(tmp_path), tmp_path / "mine.json"
    path.write_bytes(solved(form, form.reference))
    judged = catalog.load_submission(catalog.load_problem(CHECKOUT, "fmha"), path)
    assert judged.source.endswith(form.outwards.encode()) and judged.name == "mine"
    assert not store.has_changed("fmha", "mine.json", judged.sha256)
    path.write_bytes(solved(form, form.reference, description="the same"))
    assert not store.has_changed("fmha", "mine.json", judged.sha256)
    path.write_bytes(solved(form, form.reference + "# changed\n"))
    assert store.has_changed("fmha", "mine.json", judged.sha256)
    path.write_bytes(b"{")
    assert store.has_changed("fmha", "mine.json", judged.sha256)
