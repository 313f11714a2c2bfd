"""The adapter calls aiter as its published sources declare it, and recognises what only shares its name.

The stand-in below has the parameter names, order and defaults of ROCm/aiter's functions (aiter/mla.py and
aiter/ops/attention.py) and checks what reaches it; its kernel is the float64 oracle.
"""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch

from reference.aiter import find_aiter, mla_decode
from reference.attention import ragged_decode_attention
from reference.quantization import quantize_fp8

CHECKOUT = Path(__file__).resolve().parents[1]
HEADS, DIM, V_DIM = 16, 576, 512
SM_SCALE = DIM**-0.5
CU_NUM = 8
FP8 = torch.float8_e4m3fn  # what fp8_dtype chooses on the CPU


class StandIn(ModuleType):
    """aiter, at one of the generations of get_mla_metadata_v1's dtype arguments."""

    def __init__(self, generation="both"):
        super().__init__("aiter")
        self.calls = 0
        self.dtypes = ModuleType("aiter.dtypes")
        self.mla = ModuleType("aiter.mla")
        self.mla.mla_decode_fwd = self._mla_decode_fwd
        self.get_mla_metadata_v1 = getattr(self, f"_metadata_{generation}")

    def get_mla_metadata_info_v1(
        self,
        batch_size: int,
        max_seqlen_qo: int,
        num_head_qo: int,
        q_dtype: torch.dtype,
        kv_dtype: torch.dtype,
        is_sparse: bool,
        fast_mode: bool = True,
        num_kv_splits: int = 32,
        intra_batch_mode: bool = False,
    ):
        assert num_head_qo % 8 == 0
        assert (is_sparse, fast_mode, num_kv_splits, intra_batch_mode) == (False, False, 32, True)
        self.planned = (batch_size, max_seqlen_qo, num_head_qo, q_dtype, kv_dtype)
        tiles = batch_size * -(-max_seqlen_qo * num_head_qo // 128)
        return (
            (2, torch.uint64),
            (CU_NUM + 1, torch.int32),
            ((tiles * num_kv_splits, 8), torch.int32),
            (tiles + 1, torch.int32),
            ((tiles, 2), torch.int32),
            (tiles * num_kv_splits, torch.int32),
        )

    # fmt: off
    def _metadata_old(
        self, seqlens_qo_indptr, seqlens_kv_indptr, num_heads_per_head_k, num_heads_k, is_causal, work_metadata_ptrs,
        work_indptr, work_info, reduce_indptr, reduce_final_map, reduce_partial_map, kv_granularity=16,
        max_seqlen_qo=-1, uni_seqlen_qo=-1, fast_mode=True, topk=-1, max_split_per_batch=-1, intra_batch_mode=False,
        dtype_q=None, dtype_kv=None,
    ):
        raise AssertionError("a version without page sizes must not be called")

    def _metadata_whole(
        self, seqlens_qo_indptr, seqlens_kv_indptr, kv_last_page_lens, num_heads_per_head_k, num_heads_k, is_causal,
        work_metadata_ptrs, work_info_set, work_indptr, reduce_indptr, reduce_final_map, reduce_partial_map,
        page_size=1, kv_granularity=16, max_seqlen_qo=-1, uni_seqlen_qo=-1, fast_mode=True, topk=-1,
        max_split_per_batch=-1, intra_batch_mode=False, dtype_q=None, dtype_kv=None,
    ):
        self._plan(locals(), dtype_q, dtype_kv)

    def _metadata_split(
        self, seqlens_qo_indptr, seqlens_kv_indptr, kv_last_page_lens, num_heads_per_head_k, num_heads_k, is_causal,
        work_metadata_ptrs, work_info_set, work_indptr, reduce_indptr, reduce_final_map, reduce_partial_map,
        page_size=1, kv_granularity=16, max_seqlen_qo=-1, uni_seqlen_qo=-1, fast_mode=True, topk=-1,
        max_split_per_batch=-1, intra_batch_mode=False, is_cp_round_robin=False, mla_version=0,
        dtype_q_nope=None, dtype_q_rope=None, dtype_kv_nope=None, dtype_kv_rope=None,
    ):
        assert (dtype_q_nope, dtype_kv_nope) == (dtype_q_rope, dtype_kv_rope)
        self._plan(locals(), dtype_q_nope, dtype_kv_nope)

    def _metadata_both(
        self, seqlens_qo_indptr, seqlens_kv_indptr, kv_last_page_lens, num_heads_per_head_k, num_heads_k, is_causal,
        work_metadata_ptrs, work_info_set, work_indptr, reduce_indptr, reduce_final_map, reduce_partial_map,
        page_size=1, kv_granularity=16, max_seqlen_qo=-1, uni_seqlen_qo=-1, fast_mode=True, topk=-1,
        max_split_per_batch=-1, intra_batch_mode=False, is_cp_round_robin=False, mla_version=0,
        dtype_q_nope=None, dtype_q_rope=None, dtype_kv_nope=None, dtype_kv_rope=None, dtype_q=None, dtype_kv=None,
    ):
        self._plan(locals(), dtype_q_nope or dtype_q, dtype_kv_nope or dtype_kv)

    def _mla_decode_fwd(
        self, q, kv_buffer, o, qo_indptr, kv_indptr, kv_indices, kv_last_page_lens, max_seqlen_q, page_size=1,
        nhead_kv=1, sm_scale=None, logit_cap=0.0, num_kv_splits=None, num_kv_splits_indptr=None, work_meta_data=None,
        work_indptr=None, work_info_set=None, reduce_indptr=None, reduce_final_map=None, reduce_partial_map=None,
        q_scale=None, kv_scale=None, intra_batch_mode=False, return_logits=False, return_lse=False,
    ):
        # fmt: on
        batch = len(qo_indptr) - 1
        plan = (work_meta_data, work_indptr, work_info_set, reduce_indptr, reduce_final_map, reduce_partial_map)
        assert [int(buffer.flatten()[0]) for buffer in plan] == [1, 2, 3, 4, 5, 6]  # each under its own name
        assert (page_size, nhead_kv, logit_cap, num_kv_splits, intra_batch_mode) == (1, 1, 0.0, 32, True)
        assert num_kv_splits_indptr is None and not return_logits and not return_lse
        assert all(t.is_contiguous() for t in (q, kv_buffer, o, qo_indptr, kv_indptr, kv_indices))
        assert q.shape == (qo_indptr[-1], HEADS, DIM)
        assert kv_buffer.shape == (kv_indptr[-1], 1, 1, DIM)  # (page, token of the page, KV head, dim)
        assert o.shape == (q.shape[0], HEADS, V_DIM) and o.dtype == torch.bfloat16
        assert torch.equal(kv_indices, torch.arange(kv_buffer.shape[0], dtype=torch.int32))
        assert kv_last_page_lens.dtype == torch.int32 and kv_last_page_lens.tolist() == [1] * batch
        assert self.planned == (batch, max_seqlen_q, HEADS, q.dtype, kv_buffer.dtype)
        self._check_indptrs(qo_indptr, kv_indptr)
        for tensor, scale in ((q, q_scale), (kv_buffer, kv_scale)):
            assert (scale is None) == (tensor.dtype == torch.bfloat16)
            assert scale is None or (scale.dtype == torch.float32 and scale.numel() == 1)
        self.calls += 1
        q_factor, kv_factor = (1.0 if scale is None else scale.item() for scale in (q_scale, kv_scale))
        o.copy_(
            kv_factor
            * ragged_decode_attention(
                q,
                kv_buffer.flatten(0, 2),
                qo_indptr,
                kv_indptr,
                sm_scale=sm_scale * q_factor * kv_factor,
                v_dim=V_DIM,
                causal=True,
            )
        )

    def _plan(self, given, dtype_q, dtype_kv):
        expected = {
            "num_heads_per_head_k": HEADS,
            "num_heads_k": 1,
            "is_causal": True,
            "page_size": 1,
            "kv_granularity": 16,
            "max_seqlen_qo": self.planned[1],
            "uni_seqlen_qo": self.planned[1],
            "fast_mode": False,
            "topk": -1,
            "max_split_per_batch": 32,
            "intra_batch_mode": True,
        }
        assert {name: given[name] for name in expected} == expected
        assert (dtype_q, dtype_kv) == self.planned[3:]
        assert given["kv_last_page_lens"].tolist() == [1] * self.planned[0]
        self._check_indptrs(given["seqlens_qo_indptr"], given["seqlens_kv_indptr"])
        buffers = (
            "work_metadata_ptrs",
            "work_indptr",
            "work_info_set",
            "reduce_indptr",
            "reduce_final_map",
            "reduce_partial_map",
        )
        for mark, name in enumerate(buffers, start=1):
            given[name].copy_(torch.full(given[name].shape, mark, dtype=given[name].dtype))
        assert given["work_metadata_ptrs"].dtype == torch.uint64
        assert given["work_indptr"].shape == (CU_NUM + 1,)
        assert given["work_info_set"].shape[1:] == (8,)

    def _check_indptrs(self, qo_indptr, kv_indptr):
        assert qo_indptr.dtype == kv_indptr.dtype == torch.int32
        assert len(qo_indptr) == len(kv_indptr) == self.planned[0] + 1
        assert (kv_indptr.diff() > 0).all(), "aiter must not see a sequence without keys"
        assert (qo_indptr.diff() == self.planned[1]).all()


def indptr(lengths):
    return torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32)


def drawn(kv_lens, q_len=1):
    """Queries and cache in bf16."""
    generator = torch.Generator().manual_seed(6)
    q = torch.randn(len(kv_lens) * q_len, HEADS, DIM, generator=generator).bfloat16()
    return q, torch.randn(sum(kv_lens), 1, DIM, generator=generator).bfloat16()


def decode_inputs(q_dtype, kv_dtype, kv_lens, q_len=1):
    """Arguments of mla_decode after `aiter`, and the float64 answer over the same quantized operands."""
    q, kv = drawn(kv_lens, q_len)
    arguments = {"qo_indptr": indptr([q_len] * len(kv_lens)), "kv_indptr": indptr(kv_lens)}
    exact_q, exact_kv = q.double(), kv.double()
    if q_dtype == FP8:
        q, arguments["q_scale"] = quantize_fp8(q)
        exact_q = q.double() * arguments["q_scale"].double()
    if kv_dtype == FP8:
        kv, arguments["kv_scale"] = quantize_fp8(kv)
        exact_kv = kv.double() * arguments["kv_scale"].double()
    expected = ragged_decode_attention(
        exact_q,
        exact_kv[:, 0],
        arguments["qo_indptr"],
        arguments["kv_indptr"],
        sm_scale=SM_SCALE,
        v_dim=V_DIM,
        causal=True,
    )
    return {"q": q, "kv": kv, "sm_scale": SM_SCALE, "v_dim": V_DIM} | arguments, expected


PAIRS = [(FP8, FP8), (torch.bfloat16, FP8), (torch.bfloat16, torch.bfloat16)]


@pytest.mark.parametrize(("q_dtype", "kv_dtype"), PAIRS)
@pytest.mark.parametrize("generation", ["whole", "split", "both"])
def test_each_pair_of_dtypes_reaches_the_kernel_as_aiter_declares_it(q_dtype, kv_dtype, generation):
    aiter = StandIn(generation)
    arguments, expected = decode_inputs(q_dtype, kv_dtype, [37, 1, 70])
    out = mla_decode(aiter, **arguments)
    assert aiter.calls == 1
    assert aiter.planned[3:] == (q_dtype, kv_dtype)
    torch.testing.assert_close(out, expected.bfloat16(), rtol=1e-2, atol=1e-4)


@pytest.mark.parametrize(("q_dtype", "kv_dtype"), PAIRS)
@pytest.mark.parametrize("kv_lens", [[0, 1, 37, 70], [5, 0, 0, 3], [4, 0]])
@pytest.mark.parametrize("q_len", [1, 2])
def test_a_sequence_without_keys_is_zeros_and_never_reaches_aiter(q_dtype, kv_dtype, kv_lens, q_len):
    aiter = StandIn()
    arguments, expected = decode_inputs(q_dtype, kv_dtype, kv_lens, q_len)
    out = mla_decode(aiter, **arguments)
    assert aiter.calls == 1
    assert aiter.planned[0] == sum(length > 0 for length in kv_lens)
    torch.testing.assert_close(out, expected.bfloat16(), rtol=1e-2, atol=1e-4)
    assert out.view(len(kv_lens), -1)[torch.tensor(kv_lens) == 0].eq(0).all()


def test_without_any_keys_aiter_is_not_called():
    aiter = StandIn()
    arguments, _ = decode_inputs(torch.bfloat16, torch.bfloat16, [0, 0])
    assert mla_decode(aiter, **arguments).eq(0).all()
    assert aiter.calls == 0


def test_fp8_queries_over_a_bf16_cache_are_refused_by_name():
    arguments, _ = decode_inputs(FP8, torch.bfloat16, [3])
    with pytest.raises(ValueError, match="no kernel for fp8 q with bf16 kv"):
        mla_decode(StandIn(), **arguments)


@pytest.mark.parametrize(
    ("pair", "change", "message"),
    [
        (PAIRS[0], {"q_scale": None}, "needs q_scale"),
        (PAIRS[0], {"kv_scale": None}, "needs kv_scale"),
        (PAIRS[0], {"kv_scale": torch.ones(2)}, "needs kv_scale"),
        (PAIRS[0], {"kv_scale": torch.ones(1, dtype=torch.float64)}, "needs kv_scale"),
        (PAIRS[1], {"q_scale": torch.ones(1)}, "q_scale is given but q is bf16"),
        (PAIRS[2], {"q": torch.zeros(2, HEADS, DIM)}, "takes bf16 or this device's fp8"),
        (PAIRS[2], {"kv": torch.zeros(7, 1, DIM).to(torch.float8_e4m3fnuz)}, "takes bf16 or this device's fp8"),
        (PAIRS[2], {"kv_indptr": torch.tensor([0, 3, 7])}, "kv_indptr must be int32"),
        (PAIRS[2], {"qo_indptr": torch.tensor([0, 0, 2], dtype=torch.int32)}, "as many queries in every sequence"),
    ],
)
def test_operands_that_aiter_would_misread_are_refused(pair, change, message):
    arguments, _ = decode_inputs(*pair, [3, 4])
    with pytest.raises(ValueError, match=message):
        mla_decode(StandIn(), **(arguments | change))


# --- the bundled submission ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def submission():
    spec = importlib.util.spec_from_file_location("aiter_fp8", CHECKOUT / "submissions/mla/aiter_fp8.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def submission_data(kv_lens):
    """The problem's inputs as far as the submission reads them, and the float64 answer over quantized operands."""
    arguments, expected = decode_inputs(FP8, FP8, kv_lens)
    config = {"sm_scale": SM_SCALE, "v_head_dim": V_DIM}
    cache = {"fp8": (arguments["kv"], arguments["kv_scale"])}
    return (drawn(kv_lens)[0], cache, arguments["qo_indptr"], arguments["kv_indptr"], config), expected


@pytest.mark.parametrize("generation", ["whole", "split", "both"])
@pytest.mark.parametrize("kv_lens", [[37, 1, 70], [0, 1, 37, 70], [5, 0, 0, 3]])
def test_the_submission_calls_aiter_as_it_is_declared_and_gives_sequences_without_keys_zeros(
    submission, generation, kv_lens
):
    aiter = StandIn(generation)
    data, expected = submission_data(kv_lens)
    out = submission.decode(aiter, data)
    assert aiter.calls == 1
    torch.testing.assert_close(out, expected.bfloat16(), rtol=1e-2, atol=1e-4)
    assert out.view(len(kv_lens), -1)[torch.tensor(kv_lens) == 0].eq(0).all()


def test_the_submission_does_not_call_aiter_without_any_keys(submission):
    aiter = StandIn()
    assert submission.decode(aiter, submission_data([0, 0])[0]).eq(0).all()
    assert aiter.calls == 0


def test_the_submission_says_that_it_needs_an_amd_gpu(submission):
    with pytest.raises(submission.NoDevice, match="needs an AMD GPU"):
        submission.custom_kernel(submission_data([3])[0])


def test_an_aiter_that_cannot_be_imported_is_not_the_submissions_fault(submission, monkeypatch, rocm, tmp_path):
    install_files(monkeypatch, tmp_path, ["mla.py"], "raise RuntimeError('no compiler for its kernels')")
    with pytest.raises(submission.NoDevice, match="no compiler for its kernels"):
        submission.find_aiter(SimpleNamespace(is_cuda=True))


def test_the_submission_does_not_take_the_async_iterator_package_for_amds(submission, monkeypatch, rocm):
    install_module(monkeypatch, ModuleType("aiter"))
    with pytest.raises(submission.NoDevice, match="not PyPI's"):
        submission.find_aiter(SimpleNamespace(is_cuda=True))


# --- which aiter is this? ----------------------------------------------------------------------------------------


@pytest.fixture
def rocm(monkeypatch):
    monkeypatch.setattr(torch.version, "hip", "7.1.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)


def install_module(monkeypatch, module):
    monkeypatch.setitem(sys.modules, "aiter", module)
    if hasattr(module, "mla"):
        monkeypatch.setitem(sys.modules, "aiter.mla", module.mla)


def install_files(monkeypatch, folder, names, init):
    """A package called aiter on sys.path, not yet imported."""
    package = folder / "aiter"
    package.mkdir()
    for name in names:
        (package / name).write_text("")
    (package / "__init__.py").write_text(init)
    for name in [name for name in sys.modules if name == "aiter" or name.startswith("aiter.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(folder)


@pytest.mark.parametrize("generation", ["whole", "split", "both"])
def test_amds_aiter_on_a_rocm_machine_is_usable(monkeypatch, rocm, generation):
    module = StandIn(generation)
    install_module(monkeypatch, module)
    status = find_aiter()
    assert status.module is module
    assert "usable" in status.reason


def test_an_aiter_without_page_sizes_is_refused(monkeypatch, rocm):
    install_module(monkeypatch, StandIn("old"))
    status = find_aiter()
    assert status.module is None
    assert "get_mla_metadata_v1(kv_last_page_lens=)" in status.reason


def test_an_aiter_without_a_function_is_refused_by_its_name(monkeypatch, rocm):
    module = StandIn()
    del module.mla.mla_decode_fwd
    install_module(monkeypatch, module)
    assert find_aiter().module is None
    assert "mla.mla_decode_fwd" in find_aiter().reason


def test_without_rocm_amds_aiter_is_not_used(monkeypatch):
    install_module(monkeypatch, StandIn())
    monkeypatch.setattr(torch.version, "hip", None)
    assert find_aiter().module is None
    assert "not a ROCm build" in find_aiter().reason


def test_without_a_gpu_amds_aiter_is_not_used(monkeypatch, rocm):
    install_module(monkeypatch, StandIn())
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert find_aiter().module is None
    assert "no AMD GPU" in find_aiter().reason


def test_the_async_iterator_package_is_recognised_when_imported(monkeypatch, rocm):
    module = ModuleType("aiter")
    module.map_aiter = lambda f, items: items
    install_module(monkeypatch, module)
    assert find_aiter().module is None
    assert "PyPI's async-iterator package" in find_aiter().reason


def test_the_async_iterator_package_is_recognised_by_its_files_without_importing_it(monkeypatch, tmp_path, rocm):
    install_files(monkeypatch, tmp_path, ["map_aiter.py", "azip.py"], "raise RuntimeError('imported')")
    assert find_aiter().module is None
    assert "PyPI's async-iterator package" in find_aiter().reason
    assert "aiter" not in sys.modules


def test_amds_aiter_is_not_imported_where_it_cannot_run(monkeypatch, tmp_path):
    install_files(monkeypatch, tmp_path, ["mla.py"], "raise RuntimeError('imported')")
    monkeypatch.setattr(torch.version, "hip", None)
    assert "not a ROCm build" in find_aiter().reason
    assert "aiter" not in sys.modules


def test_an_import_that_fails_is_reported_not_raised(monkeypatch, tmp_path, rocm):
    install_files(monkeypatch, tmp_path, ["mla.py"], "raise RuntimeError('no rocminfo')")
    assert find_aiter().module is None
    assert "importing it failed: RuntimeError: no rocminfo" in find_aiter().reason


def test_a_machine_without_aiter_is_told_where_to_get_it(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "aiter", None)  # what Python itself takes for "cannot be imported"
    assert find_aiter().module is None
    assert "not installed" in find_aiter().reason


def test_every_reason_is_one_sentence(monkeypatch, rocm):
    for module in (StandIn(), StandIn("old"), ModuleType("aiter"), None):
        monkeypatch.setitem(sys.modules, "aiter", module)
        monkeypatch.setitem(sys.modules, "aiter.mla", getattr(module, "mla", None))
        assert find_aiter().reason.endswith(".")
        assert "\n" not in find_aiter().reason
