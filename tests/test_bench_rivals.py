"""What bundled kernels are compared with is given its best form."""

import importlib
from pathlib import Path

import pytest
import torch


@pytest.fixture
def rivals(monkeypatch):
    """Imported late: each process that collects tests would import what torch compiles with."""
    monkeypatch.syspath_prepend(Path(__file__).resolve().parents[1] / "bench")
    return importlib.import_module("rivals")


@pytest.mark.slow(ci=True)
def test_what_torch_compiles_is_compiled_for_each_shape(rivals, monkeypatch):
    """Left to itself it takes from the second shape on one code for all, and after eight shapes none."""
    from torch._dynamo.utils import counters

    plain = rivals.compiled_rows._torchdynamo_orig_callable
    monkeypatch.setattr(rivals, "compiled_rows", torch.compile(plain, backend="eager"))  # quickly
    config = {"sm_scale": 0.1, "num_q_heads": 4, "num_kv_heads": 4}
    before = counters["frames"]["ok"]
    for keys in range(2, 12):
        q, k, v = (torch.randn(2, 4, count, 16).bfloat16() for count in (1, keys, keys))
        assert torch.equal(rivals.prepare("fmha", (q, k, v, config))["torch.compile"](), plain(q, k, v, 0.1))
    assert counters["frames"]["ok"] - before == 10
