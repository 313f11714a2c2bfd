"""Tensor maps of inline CUDA: the driver is told what the tensor is, and the kernel gets what the driver wrote.

The driver is test_hip.py's, whose device is the CPU, with a cuTensorMapEncodeTiled that writes down its arguments.
"""

import ctypes

import pytest
import torch

from harness import hip
from harness.hip import LaunchError, Module, NoDevice, ptr, tensor_map
from tests.test_hip import DRIVER, CpuCompiler, CpuGpu, gxx, needs_gxx

ENCODE = r"""
typedef unsigned long long u64;
int cuTensorMapEncodeTiled(u64* map, int type, unsigned rank, void* at, const u64* sizes, const u64* strides,
                           const unsigned* box, const unsigned* steps, int interleave, int swizzle, int promotion,
                           int fill) {
    if ((size_t)map % 64) return 1;
    u64 seen[16] = {type, rank, (u64)at, sizes[0], sizes[1], sizes[2], strides[0], strides[1], box[0], box[1], box[2],
                    steps[0] + steps[1] + steps[2], interleave, swizzle, promotion, fill};
    for (int i = 0; i < 16; i++) map[i] = seen[i];
    return sizes[0] == 48 ? 1 : 0;
}
"""
SOURCE = r"""
struct alignas(64) TensorMap { unsigned long long words[16]; };
extern "C" __global__ void seen(const TensorMap x, unsigned long long* words) {
    for (int i = 0; i < 16; i++) words[i] = x.words[i];
}
"""
MAP = tensor_map(torch.bfloat16, box=(1, 4, 64), swizzle=128)


def kernel():
    return Module(SOURCE).kernel("seen", {"x": MAP, "words": ptr(torch.int64)})


def at_16_bytes(*shape):
    block = torch.zeros(torch.Size(shape).numel() + 8, dtype=torch.bfloat16)
    return block[-block.data_ptr() % 16 // 2 :][: torch.Size(shape).numel()].view(shape)


def made(folder, text):
    (folder / "driver.c").write_text(text)
    gxx("-x", "c", folder / "driver.c", "-shared", "-fPIC", "-o", folder / "driver.so", "-ldl")
    return CpuGpu(ctypes.CDLL(str(folder / "driver.so")), CpuCompiler(folder, 32))


@pytest.fixture
def gpu(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    gpu = made(tmp_path, DRIVER + ENCODE)
    monkeypatch.setattr(hip, "visible_gpu", lambda: gpu)


@pytest.fixture
def no_gpu(monkeypatch):
    monkeypatch.setattr(hip, "visible_gpu", lambda: None)


@needs_gxx
def test_a_kernel_gets_by_value_what_the_driver_made_of_the_tensor(gpu):
    words, x = torch.zeros(16, dtype=torch.int64), at_16_bytes(2, 5, 128)
    for part, width in ((x, 128), (x[..., 64:], 64)):
        kernel()(part, words, grid=1, block=1)
        bf16, swizzle_128, promotion_256 = 9, 3, 3
        sizes, strides, box = [width, 5, 2], [256, 5 * 256], [64, 4, 1]
        described = [bf16, 3, part.data_ptr(), *sizes, *strides, *box, 3, 0, swizzle_128, promotion_256, 0]
        assert words.tolist() == described


def test_a_map_lies_at_a_multiple_of_64_bytes_and_has_128():
    for _ in range(20):
        words = MAP.pack(at_16_bytes(2, 5, 128), "x")
        assert ctypes.addressof(words) % 64 == 0 and ctypes.sizeof(words) == 128


@needs_gxx
def test_a_map_that_the_driver_refuses_is_named(gpu):
    with pytest.raises(LaunchError, match=r"^seen: argument 1 \(x\): the tensor map failed: out of luck \(1\)$"):
        kernel()(at_16_bytes(1, 4, 48), torch.zeros(16, dtype=torch.int64), grid=1, block=1)


@needs_gxx
def test_a_driver_without_tensor_maps_is_said_to_have_none(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    gpu = made(tmp_path, DRIVER)
    monkeypatch.setattr(hip, "visible_gpu", lambda: gpu)
    with pytest.raises(LaunchError, match=r"argument 1 \(x\): this driver has no tensor maps"):
        kernel()(at_16_bytes(1, 4, 64), torch.zeros(16, dtype=torch.int64), grid=1, block=1)


def test_without_a_gpu_the_source_is_compiled_and_no_map_made(no_gpu, monkeypatch):
    monkeypatch.setattr("harness.hip.compilers.missing", lambda target: "install it")
    with pytest.raises(NoDevice, match="no compiler here, not run"):
        kernel()(at_16_bytes(1, 4, 64), torch.zeros(16, dtype=torch.int64), grid=1, block=1)
    assert not any(MAP.pack(at_16_bytes(1, 4, 64), "x"))


@pytest.mark.parametrize(
    ("x", "error", "says"),
    [
        ([1.0], TypeError, "must be a tensor, not list"),
        (torch.zeros(1, 4, 64), TypeError, "must be bfloat16, not float32"),
        (at_16_bytes(4, 64), ValueError, "must have as many dimensions as its box, 3, not 2"),
        (at_16_bytes(1, 0, 64), ValueError, r"is empty: its sizes are \(1, 0, 64\)"),
        (at_16_bytes(1, 64, 8).transpose(1, 2), ValueError, r"its strides are \(512, 1, 8\)"),
        (at_16_bytes(1, 4, 60), ValueError, r"multiples of 16 bytes .* its strides are \(240, 60, 1\)"),
        (at_16_bytes(1, 4, 72)[..., 4:], ValueError, "must lie at a multiple of 16 bytes"),
    ],
)
def test_a_tensor_that_no_map_describes_is_named(no_gpu, x, error, says):
    with pytest.raises(error, match=rf"^seen: argument 1 \(x\) .*{says}|^seen: argument 1 \(x\) {says}"):
        kernel()(x, torch.zeros(16, dtype=torch.int64), grid=1, block=1)


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"dtype": torch.bool}, TypeError, "a tensor map has no type for bool"),
        ({"box": (1,) * 6}, ValueError, "it must be one to 5 sizes of 1 to 256"),
        ({"box": (1, 257, 64)}, ValueError, r"box is \(1, 257, 64\)"),
        ({"swizzle": 16}, ValueError, "swizzle is 16; it must be 0, 32, 64, 128 bytes"),
        ({"box": (1, 4, 128)}, ValueError, "has 256 bytes; it must be a multiple of 16 of at most 128 bytes"),
        ({"box": (1, 4, 4), "swizzle": 0}, ValueError, "has 8 bytes; it must be a multiple of 16$"),
    ],
)
def test_a_box_that_no_map_has_is_refused_when_the_kernel_is_declared(options, error, says):
    with pytest.raises(error, match=says):
        tensor_map(**{"dtype": torch.bfloat16, "box": (1, 4, 64), "swizzle": 128, **options})
