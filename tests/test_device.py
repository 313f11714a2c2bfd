"""The device that is here, by name; and what is known of its model, from the file that matches it."""

import fnmatch
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from harness.catalog import strict_yaml
from harness.errors import ProblemError, UsageError
from harness.machine import device
from harness.ranking.roofline import floor

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def gpus(monkeypatch):
    """A machine with these GPUs, as torch would tell of it."""

    def install(*names, hip=None, arch="gfx942:sramecc+:xnack-"):
        found = [
            SimpleNamespace(name=name, gcnArchName=arch, major=9, minor=0, total_memory=1000 + index)
            for index, name in enumerate(names)
        ]
        monkeypatch.setattr(device, "driver_present", lambda: True)
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
    assert "is not a device" in caught.value.message and "cuda:1" in caught.value.hint


def test_the_processor_is_always_here(tmp_path, gpus):
    gpus("NVIDIA H200")
    found = device.detect(tmp_path, "cpu")
    assert found.kind == "cpu" and found.torch_device == "cpu" and found.memory_bytes > 0
    assert found.slug == device.slug(found.name) and found.flush_bytes == device.DEFAULT_FLUSH_BYTES["cpu"]


def test_auto_without_a_driver_is_the_processor_and_torch_is_not_asked(toy_root, monkeypatch):
    monkeypatch.setattr(device, "driver_present", lambda: False)
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
        self.write(toy_root, "a-other", "matches: ['*h100*']\nflush_bytes: 1\nsources: {flush_bytes: x}\n")
        self.write(
            toy_root,
            "h200",
            "matches: ['*L40*', 'nvidia h200*']\nflush_bytes: 7\nbandwidth_bytes_per_s: 4.8e+12\n"
            "peak_flops_per_s: {bfloat16: 989.0e+12}\n"
            "sources: {flush_bytes: x, bandwidth_bytes_per_s: x, peak_flops_per_s: x}\n",
        )
        found = device.detect(toy_root)
        assert found.flush_bytes == 7 and found.bandwidth_bytes_per_s == 4.8e12
        assert found.peak_flops_per_s == {"bfloat16": 989e12} and found.name == "NVIDIA H200"

    def test_a_pattern_must_fit_the_whole_name(self, toy_root, gpus):
        gpus("NVIDIA H200 NVL")
        self.write(toy_root, "h200", "matches: ['NVIDIA H200']\nflush_bytes: 7\nsources: {flush_bytes: x}\n")
        assert device.detect(toy_root).flush_bytes == 256 << 20

    @pytest.mark.parametrize(
        "text, said",
        [
            ("matches: [x]\nflush_byte: 7\n", "flush_byte"),
            ("matches: [x]\nflush_bytes: 0\n", "flush_bytes"),
            ("matches: [x]\nflush_bytes: 1\nbandwidth_bytes_per_s: -1\n", "bandwidth_bytes_per_s"),
            ("matches: [x]\nflush_bytes: 1\nsources: {}\n", "flush_bytes has no entry in sources"),
            (
                "matches: [x]\nflush_bytes: 1\npeak_flops_per_s: {float8: 1.0}\nsources: {flush_bytes: x}\n",
                "peak_flops_per_s has no entry in sources",
            ),
            ("matches: [x]\nflush_bytes: 1\npeak_flops_per_s: {bf16: 1.0}\nsources: {flush_bytes: x}\n", "bf16"),
        ],
    )
    def test_a_fault_in_a_file_is_named(self, toy_root, text, said):
        self.write(toy_root, "broken", text)
        with pytest.raises(ProblemError, match=said):
            device.detect(toy_root, "cpu")


KNOWN = {
    "NVIDIA H100 80GB HBM3": "h100",
    "NVIDIA H200": "h200",
    "AMD Instinct MI300X": "mi300x",
    "AMD Instinct MI325X": "mi325x",
    "AMD Instinct MI355X": "mi355x",
    "AMD Radeon RX 7900 XT": "rx7900xt",
    "Some Processor (8 CPUs)": "cpu",
}
"""How drivers call the models that are described, and the file of each."""


@pytest.mark.parametrize("name, file", KNOWN.items())
def test_each_model_s_file_describes_it_and_no_other_does(name, file):
    fitting = [
        path.stem
        for path in sorted((ROOT / "configs" / "devices").glob("*.yml"))
        if any(fnmatch.fnmatch(name.lower(), p.lower()) for p in strict_yaml.read(path, device.DeviceFile).matches)
    ]
    assert fitting == [file]


def test_there_is_no_file_for_a_model_that_no_driver_names():
    assert {path.stem for path in (ROOT / "configs" / "devices").glob("*.yml")} == set(KNOWN.values())


@pytest.mark.parametrize("other", ["NVIDIA H100 PCIe", "NVIDIA H200 NVL", "AMD Radeon RX 7900 XTX", "NVIDIA L4"])
def test_a_model_with_other_peaks_does_not_pass_for_its_namesake(gpus, other):
    gpus(other)
    assert device.detect(ROOT, "auto").bandwidth_bytes_per_s is None


@pytest.mark.parametrize("name, microseconds", [("NVIDIA H200", 112.0), ("AMD Instinct MI355X", 67.2)])
def test_the_shipped_peaks_give_the_floors_that_the_problems_quote(gpus, name, microseconds):
    """kv_decode at 16 sequences of 2048, 32 KV heads of 128 in bf16: 537.7 MB, as its README says."""
    gpus(name)
    found = floor({"bf16": {"bytes": 537.7e6, "flops": {"bfloat16": 5.4e8}}}, device.detect(ROOT, "auto"))
    assert found.latency_ns / 1e3 == pytest.approx(microseconds, rel=1e-3) and found.binds == "bandwidth"


@pytest.mark.parametrize("path", sorted((ROOT / "configs" / "devices").glob("*.yml")), ids=lambda path: path.stem)
def test_the_flush_exceeds_the_cache_that_it_is_to_empty(path):
    known = strict_yaml.read(path, device.DeviceFile)
    assert known.last_level_cache_bytes is None or known.flush_bytes >= 3 * known.last_level_cache_bytes
