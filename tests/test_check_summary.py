"""What `check` says of kernels in few words: why each chip is out, what was stopped at a limit, what no case has."""

import json
from pathlib import Path

import pytest

from harness import catalog
from harness.compile import described
from harness.compile.compilation import Compilation, CompiledKernel, Flaw
from harness.compile.kept import Kept
from harness.compile.processes import Finished
from harness.compile.reach import Reach, reach
from harness.model import Submission, Verdict
from harness.render import check as rendered
from harness.render import document
from harness.verbs import check
from harness.verbs.checkup import Checkup, Judgement

ROOT = Path(__file__).resolve().parents[1]
LARGE = "needs 77,824 bytes of LDS"
LATE = "the compiler ran out of time on attend: the limit is 30 s of processor time for a kernel"


def checkup(*compilations, verdict=Verdict.ACCEPTED, reached=None, said=""):
    judgement = Judgement(verdict=verdict, message=said, report=None, printed="", cases=())
    mine = Submission(name="mine", problem="kv_decode", path="mine.py", source=b"", sha256="0" * 64)
    return Checkup("kv_decode", mine, judgement, compilations, reach=reached)


def compiled(target, *flaws, **changed):
    kernels = [CompiledKernel(kernel="attend", fault=flaw) for flaw in flaws]
    return Compilation(target=target, kernels=kernels, **changed)


# Why a chip is out


def test_each_target_has_its_own_first_reason_and_the_number_of_them():
    needs = [Flaw(message=f"{LARGE}, variant {number}", line=9) for number in range(3)]
    said = rendered.summary(checkup(compiled("gfx942", *needs), compiled("sm_90", needs[2])))
    assert f"; not for gfx942 (the first of 3 reasons): mine.py:9: {LARGE}, variant 0; not for sm_90: " in said
    assert said.endswith(f"mine.py:9: {LARGE}, variant 2")


def test_targets_with_the_same_reason_share_it():
    flaw = Flaw(message="no such type", line=3)
    broken = checkup(compiled("gfx942", flaw), compiled("sm_90", flaw), verdict=Verdict.COMPILE_ERROR)
    assert rendered.summary(broken).count("no such type") == 1
    both = [compiled("gfx942", flaw), compiled("gfx942", flaw, hip=True)]  # Triton and inline HIP
    assert "; not for gfx942: mine.py:3: no such type" in rendered.summary(checkup(*both))
    assert "; nor does it compile for gfx942, sm_90: mine.py:3: no such type" in rendered.summary(broken)


def test_a_reason_that_the_verdict_gives_is_not_repeated():
    flaw = Flaw(message="the file defines no custom_kernel")
    both = compiled("gfx942", flaw), compiled("sm_90", flaw)
    told = rendered.summary(checkup(*both, verdict=Verdict.COMPILE_ERROR, said=flaw.message))
    assert told.count("no custom_kernel") == 1 and told.endswith("; nor does it compile for gfx942, sm_90")


def test_a_compilation_that_was_stopped_is_called_unfinished_and_a_reason_comes_before_it():
    late = Flaw(message=LATE, line=9, unfinished=True)
    said = rendered.summary(checkup(compiled("gfx1100", late), compiled("gfx942", late, Flaw(message=LARGE))))
    assert f"; unfinished for gfx1100: mine.py:9: {LATE}; not for gfx942: {LARGE}" in said
    assert "not for gfx1100" not in said


@pytest.mark.parametrize(
    ("finished", "unfinished"),
    [(Finished(None, "", ""), True), (Finished(-9, "", "", excess="took it"), True), (Finished(1, "", ""), False)],
    ids=["time", "another limit", "a crash"],
)
def test_a_compiling_process_that_was_stopped_at_a_limit_leaves_it_open(finished, unfinished):
    found = check._compilation(("cross_compile", "gfx942"), finished, checkup().submission, None)
    assert [flaw.unfinished for flaw in found.flaws] == [unfinished]


@pytest.mark.parametrize(
    ("fault", "kept"),
    [(None, True), ({"message": "ptxas was ended by SIGKILL", "unfinished": True}, False), ({"message": LARGE}, False)],
    ids=["compiles", "killed", "too large"],
)
def test_a_compilation_is_kept_only_if_every_kernel_compiles(fault, kept, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    report = json.dumps({"target": "sm_90", "kernels": [{"kernel": "attend", "fault": fault}]})
    job, cache = ("cross_compile", "sm_90"), Kept({})
    found = check._compilation(
        job, Finished(0, report, "", submission="/in/submission.py"), checkup().submission, cache
    )
    assert bool(found.flaws) != kept
    assert check._kept_compilation(cache, job) == (found.model_copy(update={"cached": True}) if kept else None)


def test_a_file_that_says_that_it_is_for_another_device_is_refused_and_has_no_flaw(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    report = json.dumps({"target": "gfx942", "fault": {"message": "only for Hopper", "refused": True}})
    refused = check._compilation(
        ("inline", "gfx942"), Finished(0, report, "", submission="/in/submission.py"), checkup().submission, Kept({})
    )
    assert (refused.refusal, refused.flaws) == ("only for Hopper", ())
    both = checkup(refused, compiled("sm_90", hip=True).model_copy(update={"kernels": (CompiledKernel(kernel="x"),)}))
    assert both.exit_code == 0 and "; not for gfx942: only for Hopper" in rendered.summary(both)
    assert checkup(refused, verdict=Verdict.INFRASTRUCTURE_ERROR).exit_code == 30


# Offsets


def remarks(reached, verdict=Verdict.ACCEPTED):
    found = checkup(compiled("sm_90"), verdict=verdict, reached=reached)
    return [part for part in rendered.parts(found) if "2^31" in str(part)]


def test_a_tensor_that_only_a_gpu_s_case_has_is_told_above_the_summary():
    (said,) = remarks(Reach(elements=2281701376, case="batch=17 kv=131072"))
    assert "2,281,701,376" in said and said.endswith("batch=17 kv=131072")
    whole = document.text(rendered.parts(checkup(compiled("sm_90"), reached=Reach(elements=2281701376, case="a=1"))))
    assert "2^31" in whole and "2^31" not in whole.rstrip().splitlines()[-1]
    assert not remarks(Reach()) and not remarks(None)


@pytest.mark.parametrize("verdict", [Verdict.COMPILE_ERROR, Verdict.WRONG_ANSWER])
def test_what_was_not_tried_is_not_told_of_a_file_that_is_wrong_in_what_was(verdict):
    assert not remarks(Reach(elements=2281701376, case="a=1"), verdict)


@pytest.mark.parametrize(
    ("gpu", "cpu", "elements"),
    [([9, (1 << 31) + 1], [9], (1 << 31) + 1), ([1 << 31], [9], 0), ([(1 << 31) + 1], [9, (1 << 31) + 1], 0)],
    ids=["only a GPU's", "none", "a CPU's too"],
)
def test_it_is_the_largest_tensor_if_32_bits_do_not_reach_it_and_no_cpu_case_has_one(tmp_path, gpu, cpu, elements):
    for name, counts in (("sm_90", gpu), ("cpu", cpu)):
        (tmp_path / name).mkdir()
        tensors = [[{"shadow": None, "values": {"shape": [count]}}] for count in counts]
        cases = [{"label": f"n={one[0]['values']['shape'][0]}", "tensors": one} for one in tensors]
        (tmp_path / name / "inputs.json").write_text(json.dumps({"cases": cases}))
    found = reach(tmp_path, ["gfx942", "sm_90"])
    assert found.elements == elements and found.case == (f"n={elements}" if elements else "")
    assert reach(tmp_path, ["gfx942"]) is None


@pytest.mark.slow
@pytest.mark.parametrize(("name", "told"), [("kv_decode", True), ("prefill", False)])
def test_the_cases_of_kv_decode_have_such_a_tensor_on_a_gpu_alone(tmp_path, name, told):
    problem = catalog.load_problem(ROOT, name)
    described.on_targets(problem, ["sm_90"], tmp_path)
    described.on_cpu(problem, tmp_path / "cpu")
    found = reach(tmp_path, ["sm_90"])
    assert bool(found.elements) == told and (not told or "cache_max_len=131072" in found.case)
