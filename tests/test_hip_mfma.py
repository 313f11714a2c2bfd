"""The two kernels in MFMA for CDNA 3 and 4, in the emulator: what the problems' CPU cases do not show."""

import functools
import importlib.util
import itertools

import pytest
import torch

pytest.importorskip("tinygrad")
pytest.importorskip("elftools")

from harness import hip
from harness.emulated import hip as emulated
from harness.emulated.launches import of_process
from tests.test_documentation import CHECKOUT

HEADS, DIMS, LATENT = 16, 576, 512


@pytest.fixture(params=["gfx942", pytest.param("gfx950", marks=pytest.mark.slow)])
def target(request, monkeypatch):
    """A chip on which launches are emulated, once each."""
    lacking = hip.compilers.missing(request.param)
    if lacking is not None:
        pytest.skip(f"no compiler for {request.param} here: {lacking}")
    monkeypatch.setattr(hip, "emulator", functools.partial(emulated.launch, request.param))
    monkeypatch.setattr(of_process(request.param), "again", False)
    return request.param


@functools.cache
def submission(problem):
    path = CHECKOUT / "submissions" / problem / "hip_mfma.py"
    spec = importlib.util.spec_from_file_location(f"{problem}_hip_mfma", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def mla_data(dtype, *lengths):
    """Codes of all kinds but NaN, -0 among them where the type has it."""
    generator = torch.Generator().manual_seed(sum(lengths))
    q = torch.randn(len(lengths), HEADS, DIMS, generator=generator).bfloat16()
    codes = torch.randn(sum(lengths), 1, DIMS, generator=generator).mul(40).clamp(-224, 224).to(dtype).view(torch.uint8)
    if dtype == torch.float8_e4m3fn:
        codes[:, :, ::7] = 0x80
    indptr = torch.tensor([0, *lengths]).cumsum(0).int()
    config = {"kv_seq_len": max(lengths), "sm_scale": DIMS**-0.5}
    return q, {"fp8": (codes.view(dtype), torch.tensor([0.02]))}, None, indptr, config


def mla_expected(data):
    q, kv_data, _, indptr, config = data
    keys = kv_data["fp8"][0].float()[:, 0] * kv_data["fp8"][1]
    out = torch.zeros(len(q), HEADS, LATENT)
    for number, (first, end) in enumerate(itertools.pairwise(indptr)):
        if end > first:
            scores = q[number].float() @ keys[first:end].T * config["sm_scale"]
            out[number] = scores.softmax(-1) @ keys[first:end, :LATENT]
    return out


def error(found, expected):
    return float((found.float() - expected).norm() / expected.norm())


@pytest.mark.parametrize("flavour", [torch.float8_e4m3fn, torch.float8_e4m3fnuz], ids=["e4m3fn", "e4m3fnuz"])
def test_mla_reads_either_flavour_of_fp8_that_its_chip_may_meet(target, flavour):
    data = mla_data(flavour, 70, 33)
    if target == "gfx950" and flavour == torch.float8_e4m3fnuz:
        with pytest.raises(hip.NoDevice, match=r"its source is for gfx942; `check --target gfx942` runs it$"):
            submission("mla").custom_kernel(data)
        return
    assert error(submission("mla").custom_kernel(data), mla_expected(data)) < 0.03


def test_mla_reads_no_part_of_a_split_that_has_no_tokens(target, monkeypatch):
    monkeypatch.setattr(torch, "empty", lambda *shape, **kind: torch.full(shape, torch.nan, **kind))
    monkeypatch.setattr(submission("mla"), "CPU_WORKGROUPS", 12)
    data = mla_data(torch.float8_e4m3fn, 100, 0, 1)
    out = submission("mla").custom_kernel(data)
    assert error(out, mla_expected(data)) < 0.03 and not out[1].any()


def kv_data(dtype, lengths, head_dim=64, slots=80, heads=4, kv_heads=2):
    generator = torch.Generator().manual_seed(head_dim)
    batch = len(lengths)

    def normal(*shape):
        return torch.randn(*shape, head_dim, generator=generator).to(dtype)

    new, caches = ([normal(batch, kv_heads, count) for _ in range(2)] for count in (1, slots))
    lengths = torch.tensor(lengths, dtype=torch.int32)
    return normal(batch, heads, 1), *new, *caches, lengths, {"is_causal": True, "update_cache": True}


def kv_expected(data, seen):
    """seen: bool [slots + 1], the cached keys that have a weight, and the new one."""
    q, k_new, v_new, k_cache, v_cache, *_ = (one.float() if torch.is_tensor(one) else one for one in data)
    group = q.shape[1] // k_new.shape[1]
    keys, values = (
        torch.cat([cache, new], 2)[:, :, seen].repeat_interleave(group, 1)
        for cache, new in ((k_cache, k_new), (v_cache, v_new))
    )
    return (q @ keys.mT / q.shape[-1] ** 0.5).softmax(-1) @ values


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_keys_whose_score_is_minus_infinity_have_no_weight_though_a_split_has_no_others(target, dtype):
    data = kv_data(dtype, [80], slots=96)
    data[0].abs_().add_(0.1)
    data[3][:, :, :48] = -torch.inf  # all of the first split's three tiles
    seen = torch.zeros(97, dtype=torch.bool)
    seen[48:80] = seen[96] = True
    expected = kv_expected(data, seen)
    assert error(submission("kv_decode").custom_kernel(data), expected) < 0.01


def test_one_split_writes_the_output_itself_and_advances_the_lengths(target, monkeypatch):
    monkeypatch.setattr(submission("kv_decode"), "CPU_SPLITS", 1)
    data = kv_data(torch.float16, [80 - 17], slots=80)
    expected = kv_expected(data, (torch.arange(81) < 63) | (torch.arange(81) == 80))
    assert error(submission("kv_decode").custom_kernel(data), expected) < 0.002
    assert data[5].tolist() == [64] and torch.equal(data[3][:, :, 63], data[1][:, :, 0])


def test_neither_has_a_bank_conflict(target, monkeypatch):
    if target != "gfx942":
        pytest.skip("banks are counted for gfx942 alone")
    launches = of_process(target)
    monkeypatch.setattr(launches, "outcomes", [])
    submission("mla").custom_kernel(mla_data(torch.float8_e4m3fn, 70))
    submission("kv_decode").custom_kernel(kv_data(torch.bfloat16, [63], head_dim=128))
    passes = [counts for _, outcome in launches.outcomes for counts in outcome.lds.values()]
    assert sum(least for _, least in passes) > 1000
    assert all(taken == least for taken, least in passes)


@pytest.mark.parametrize("problem", ["mla", "kv_decode"])
def test_a_chip_without_these_instructions_is_named(problem, monkeypatch):
    monkeypatch.setattr(hip, "emulator", functools.partial(emulated.launch, "gfx1100"))
    data = mla_data(torch.float8_e4m3fn, 1) if problem == "mla" else kv_data(torch.bfloat16, [1])
    with pytest.raises(hip.NoDevice, match="it needs another GPU: its source is for gfx942 and gfx950"):
        submission(problem).custom_kernel(data)
