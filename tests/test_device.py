"""The device that is here, by name; and what is known of its model, from the file that matches it."""

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from harness import device
from harness.errors import ProblemError, UsageError


@pytest.fixture
def gpus(monkeypatch):
    """A machine with these GPUs, as torch would tell of it."""

    def install(*names, hip=None, arch="gfx942:sramecc+:xnack-"):
        found = [
            SimpleNamespace(name=name, gcnArchName=arch, major=9, minor=0, total_memory=1000 + index)
            for index, name in enumerate(names)
        ]
        monkeypatch.setattr(device, "_driver_present", lambda: True)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: bool(found))
        monkeypatch.setattr(torch.cuda, "device_count", lambda: len(found))
        monkeypatch.setattr(torch.cuda, "get_device_properties", found.__getitem__)
        monkeypatch.setattr(torch.version, "hip", hip)

    return install


@pytest.mark.parametrize(
    "name, folder",
    [
        ("NVIDIA H200", "nvidia-h200"),
        ("AMD Instinct MI300X", "amd-instinct-mi300x"),
        ("Intel(R) Xeon(R) CPU @ 2.20GHz (2 CPUs)", "intel-r-xeon-r-cpu-2-20ghz-2-cpus"),
        ("../../etc", "etc"),
        ("  ", "device"),
    ],
)
def test_a_device_s_folder_is_called_by_its_name(name, folder):
    assert device.slug(name) == folder


@given(st.text())
def test_a_slug_is_always_a_safe_name_for_a_folder(name):
    made = device.slug(name)
    assert made and set(made) <= set("abcdefghijklmnopqrstuvwxyz0123456789-") and made.strip("-") == made
    assert device.slug(made) == made


@pytest.mark.parametrize("wanted", ["", "gpu", "CPU", "cuda:", "cuda:x", "cuda:-1", "cpu:0", "cuda:0:1", "auto "])
def test_a_word_that_is_no_device_is_refused(toy_root, wanted):
    with pytest.raises(UsageError) as caught:
        device.detect(toy_root, wanted)
    assert "is no device" in caught.value.message and "cuda:1" in caught.value.hint


def test_the_processor_is_always_here(toy_root, gpus):
    gpus("NVIDIA H200")
    found = device.detect(toy_root, "cpu")
    assert found.kind == "cpu" and found.torch_device == "cpu" and found.memory_bytes > 0
    assert found.slug == device.slug(found.name) and found.flush_bytes == device.DEFAULT_FLUSH_BYTES["cpu"]


def test_auto_without_a_driver_is_the_processor_and_torch_is_not_asked(toy_root, monkeypatch):
    monkeypatch.setattr(device, "_driver_present", lambda: False)
    monkeypatch.setattr(device, "_gpu", lambda *_: pytest.fail("asked torch"))
    assert device.detect(toy_root).kind == "cpu"


def test_auto_with_a_driver_that_torch_cannot_use_is_the_processor(toy_root, gpus):
    gpus()
    assert device.detect(toy_root).kind == "cpu"


def test_a_cuda_device_is_described(toy_root, gpus):
    gpus("NVIDIA H200", "NVIDIA L4")
    first, second = device.detect(toy_root), device.detect(toy_root, "cuda:1")
    assert (first.kind, first.name, first.arch, first.torch_device) == ("cuda", "NVIDIA H200", "sm_90", "cuda:0")
    assert (second.name, second.slug, second.torch_device, second.memory_bytes) == (
        "NVIDIA L4",
        "nvidia-l4",
        "cuda:1",
        1001,
    )
    assert first.flush_bytes == 256 << 20 and first.bandwidth_bytes_per_s is None


def test_a_rocm_device_is_described_by_its_architecture_alone(toy_root, gpus):
    gpus("AMD Instinct MI300X", hip="6.4")
    found = device.detect(toy_root, "rocm:0")
    assert (found.kind, found.arch, found.torch_device, found.flush_bytes) == ("rocm", "gfx942", "cuda:0", 768 << 20)


@pytest.mark.parametrize("wanted", ["cuda:1", "rocm:7"])
def test_a_device_that_is_not_here_is_a_usage_error(toy_root, gpus, wanted):
    gpus("NVIDIA H200")
    with pytest.raises(UsageError) as caught:
        device.detect(toy_root, wanted)
    assert f"torch sees no GPU {wanted}" in caught.value.message and "DEVICE=cpu" in caught.value.hint


@pytest.mark.parametrize("wanted, hip", [("rocm", None), ("cuda", "6.4")])
def test_a_gpu_of_the_other_make_is_not_what_was_asked_for(toy_root, gpus, wanted, hip):
    gpus("Some GPU", hip=hip)
    with pytest.raises(UsageError):
        device.detect(toy_root, wanted)


class TestFiles:
    def write(self, root, name, text):
        (root / "configs" / "devices" / f"{name}.yml").write_text(text)

    def test_the_file_whose_pattern_fits_the_name_describes_it(self, toy_root, gpus):
        gpus("NVIDIA H200")
        self.write(toy_root, "a-other", "matches: ['*h100*']\nflush_bytes: 1\n")
        self.write(
            toy_root,
            "h200",
            "matches: ['*L40*', 'nvidia h200*']\nflush_bytes: 7\nbandwidth_bytes_per_s: 4.8e+12\n"
            "peak_flops_per_s: {bf16: 989.0e+12}\nsources: {bandwidth_bytes_per_s: datasheet}\n",
        )
        found = device.detect(toy_root)
        assert found.flush_bytes == 7 and found.bandwidth_bytes_per_s == 4.8e12
        assert found.peak_flops_per_s == {"bf16": 989e12} and found.name == "NVIDIA H200"

    def test_a_pattern_must_fit_the_whole_name(self, toy_root, gpus):
        gpus("NVIDIA H200 NVL")
        self.write(toy_root, "h200", "matches: ['NVIDIA H200']\nflush_bytes: 7\n")
        assert device.detect(toy_root).flush_bytes == 256 << 20

    @pytest.mark.parametrize(
        "text, said",
        [
            ("matches: [x]\nflush_byte: 7\n", "flush_byte"),
            ("matches: [x]\nflush_bytes: 0\n", "flush_bytes"),
            ("matches: [x]\nflush_bytes: 1\nbandwidth_bytes_per_s: -1\n", "bandwidth_bytes_per_s"),
        ],
    )
    def test_a_fault_in_a_file_is_named(self, toy_root, text, said):
        self.write(toy_root, "broken", text)
        with pytest.raises(ProblemError, match=said):
            device.detect(toy_root, "cpu")
