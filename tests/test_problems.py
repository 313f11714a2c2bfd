"""What holds for every problem alike."""

import re
from pathlib import Path

import pytest
import torch

from harness import catalog
from harness.judge.inputs import Dealer
from harness.judge.reference import Reference
from harness.judge.seeds import OneSeed
from harness.judge.selection import Selection
from harness.machine.device import detect
from harness.model import Verdict
from harness.render import document, lists
from harness.wire.tree import flatten

CHECKOUT = Path(__file__).resolve().parents[1]
PROBLEMS = [catalog.load_problem(CHECKOUT, name) for name in catalog.problem_names(CHECKOUT)]


@pytest.fixture(params=PROBLEMS, ids=lambda problem: problem.name)
def problem(request):
    return request.param


@pytest.fixture
def reference(problem):
    return Reference(problem, detect(CHECKOUT, "cpu"))


def tensors_of(problem, reference, case, seed):
    data = reference.generate(case, seed)
    return data, [tensor for _, tensor in flatten(data, problem.inputs)[1]]


def test_the_five_problems_are_here():
    assert {problem.name for problem in PROBLEMS} == {"mla", "fmha", "kv_replicate", "kv_decode", "prefill"}


def test_a_problem_has_its_readme_template_controls_and_baseline(problem):
    assert (problem.folder / "README.md").stat().st_size > 1000
    compile((problem.folder / "template.py").read_text(), "template.py", "exec")
    due = {verdict for _, verdict in catalog.controls(problem)}
    assert {Verdict.ACCEPTED, Verdict.WRONG_ANSWER, Verdict.COMPILE_ERROR, Verdict.RUNTIME_ERROR} <= due
    assert problem.baselines and len(catalog.submissions(CHECKOUT, problem)) >= 2


def test_every_submission_says_what_it_is(problem):
    for submission in [*catalog.submissions(CHECKOUT, problem), *(control for control, _ in catalog.controls(problem))]:
        assert re.match(r'\s*(#.*\n)*\s*"""\S.{10,}', submission.text), submission.path


def test_device_bytes_is_what_inputs_and_outputs_take(problem, reference):
    for case in problem.cpu.test[:6]:
        data, tensors = tensors_of(problem, reference, case, 1)
        stored = {tensor.data_ptr(): tensor.numel() * tensor.itemsize for tensor in tensors if tensor.numel()}
        outputs = reference.expect(data, None)
        stored |= {output.data_ptr(): output.numel() * output.itemsize for output in outputs}
        bookkeeping = 64 * (1 + max(len(str(case.label)), 1))  # indptrs, lengths and scales, which nobody counts
        stated = reference._run("device_bytes", **case.parameters)
        assert abs(sum(stored.values()) - stated) <= bookkeeping, case.label


def test_a_case_too_large_for_a_device_is_skipped_with_the_reason(problem, reference):
    largest = max(problem.cases.benchmark, key=lambda case: reference._run("device_bytes", **case.parameters))
    assert reference.does_not_fit(largest, 10**12) is None
    reason = reference.does_not_fit(largest, 10**6)
    assert reason is not None and re.match(r"needs \d+\.\d GB of device memory; 0\.0 GB are here", reason)


def test_equal_seeds_give_equal_data_and_others_do_not(problem, reference):
    case = max(problem.cpu.test, key=lambda case: reference._run("device_bytes", **case.parameters))
    one, again, other = (tensors_of(problem, reference, case, seed)[1] for seed in (1, 1, 2))
    same = [torch.equal(a.view(torch.uint8), b.view(torch.uint8)) for a, b in zip(one, again, strict=True)]
    assert all(same)
    assert not all(torch.equal(a.view(torch.uint8), b.view(torch.uint8)) for a, b in zip(one, other, strict=True))


def test_the_reference_writes_only_where_a_submission_may(problem, reference):
    for case in problem.cpu.test[:6]:
        data = reference.generate(case, 3)
        leaves = flatten(data, problem.inputs)[1]
        before = {name: tensor.clone() for name, tensor in leaves}
        reference.expect(data, None)
        for name, tensor in leaves:
            if name.split(".")[0] not in problem.in_place and tensor.numel():
                assert torch.equal(tensor.view(torch.uint8), before[name].view(torch.uint8)), name


def test_cost_is_positive_for_every_case(problem, reference):
    for case in problem.every_case:
        # Without any keys there is nothing to compute.
        least = 0 if case.parameters.get("kv_seq_len") == 0 else 1
        for entry in reference.cost(case).values():
            assert entry["bytes"] > 0 and all(count >= least for count in entry["flops"].values())
            assert set(entry["flops"]) <= {"bfloat16", "float16", "float32", "float8", "float4"}


def test_the_same_call_can_be_dealt_again(problem, reference):
    case = problem.cpu.test[0]
    calls = []
    for _ in range(2):
        dealer = Dealer(reference, case, OneSeed(11))
        calls.append(dealer.deal(everything=True))
        dealer.close()
    for name, output in calls[0].expectation.outputs.items():
        again = calls[1].expectation.outputs[name]
        assert torch.equal(output.contiguous().view(torch.uint8), again.contiguous().view(torch.uint8))


def test_chosen_rows_are_those_of_the_whole_and_memory_is_left_the_same(problem, reference):
    sampled = problem.sampled_rows
    if sampled is None:
        pytest.skip(f"{problem.name} is always checked whole")
    for case in problem.cpu.test:
        length = case.parameters[sampled.parameter]
        chosen = torch.tensor(sorted({0, length // 3, length - 1}))
        whole_data, data = (reference.generate(case, 5) for _ in range(2))
        whole = reference.expect(whole_data, None)
        some = reference.expect(data, Selection(sampled.output_axis, chosen, length))
        for one, other in zip(whole, some, strict=True):
            if one.shape == other.shape and one.shape[sampled.output_axis] != len(chosen):
                assert torch.equal(one.view(torch.uint8), other.view(torch.uint8)), "state, which is always whole"
                continue
            torch.testing.assert_close(one.index_select(sampled.output_axis, chosen), other, rtol=1e-2, atol=1e-5)
        for (_, one), (name, other) in zip(
            flatten(whole_data, problem.inputs)[1], flatten(data, problem.inputs)[1], strict=True
        ):
            assert torch.equal(one.view(torch.uint8), other.view(torch.uint8)), name


def test_the_list_of_problems_says_how_many_cases_a_gpu_has_and_how_many_a_cpu():
    shown = document.text([lists.problems([catalog.load_problem(CHECKOUT, "kv_replicate")])])
    assert re.search(r"│ 19 / 15 +│ 3 +│ 5 / 3 +│", shown) and "19 on a GPU, 15 on a CPU" in shown
