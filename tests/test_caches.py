"""What a call has not seen before is in no cache of a CPU, and keeps its values."""

import platform

import numpy as np
import pytest
import torch

from harness.judge import caches
from harness.judge.caches import LINE_BYTES, HostCaches


@pytest.fixture
def evicted():
    """Caches that record what they are told to evict."""
    host = HostCaches()
    if host.why_not:
        pytest.skip(host.why_not)
    spans, evict = [], host._evict
    host._evict = lambda first, end: (spans.append((first, end)), evict(first, end))
    return host, spans


@pytest.mark.parametrize(("begin", "end"), [(0, 4096), (1, 64), (63, 65), (64, 128), (100, 1_000_000)])
def test_every_line_that_holds_a_byte_of_the_memory_is_evicted_and_no_value_changes(evicted, begin, end):
    host, spans = evicted
    before = torch.from_numpy(np.random.default_rng(0).integers(0, 256, 1 << 20, dtype=np.uint8))
    memory = before.clone()
    host.empty(memory[begin:end])
    [(first, last)] = spans
    assert first % LINE_BYTES == 0 and memory.data_ptr() + begin - first < LINE_BYTES
    assert last == memory.data_ptr() + end
    assert torch.equal(memory, before)


def test_no_memory_is_nothing_to_evict(evicted):
    host, spans = evicted
    host.empty(torch.empty(0))
    assert not spans


def test_a_processor_that_the_judge_has_no_code_for_keeps_its_caches_and_says_so():
    host, memory = HostCaches("s390x"), torch.arange(9)
    host.empty(memory)
    assert host.why_not == "no machine code for s390x that evicts lines from caches"
    assert memory.tolist() == list(range(9))


@pytest.mark.skipif(platform.machine() not in caches._CODE, reason="no machine code for this processor")
def test_an_eviction_after_which_reads_are_as_fast_as_before_is_none(monkeypatch):
    monkeypatch.setattr(caches, "_read_ns", lambda memory: 1000)
    assert HostCaches().why_not == "this processor keeps the lines that it is told to evict"


def test_a_system_without_memory_files_keeps_its_caches(monkeypatch):
    monkeypatch.delattr(caches.os, "memfd_create")
    assert HostCaches().why_not.startswith("no machine code for")


def test_a_system_that_lets_no_such_code_run_keeps_its_caches(monkeypatch):
    def refused(*arguments):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(caches.mmap, "mmap", refused)
    monkeypatch.setattr(caches, "_CODE", {platform.machine(): "c3"})
    assert "Operation not permitted" in HostCaches().why_not
