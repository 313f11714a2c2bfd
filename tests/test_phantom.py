"""Tensors without storage behave as a GPU's do, keep what the host knows, and do not make up what it does not."""

import math
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from harness import catalog
from harness.compile import operators
from harness.compile.phantom import DataDependent, Phantom, Phantoms
from harness.judge.reference import Reference
from harness.machine.device import detect
from harness.wire.tree import flatten

CHECKOUT = Path(__file__).resolve().parents[1]


@pytest.fixture
def phantoms():
    with Phantoms() as active:
        yield active


def values_of(phantoms, tensor):
    return phantoms.known(tensor)


def test_a_terabyte_takes_no_memory_and_follows_shapes_and_dtypes(phantoms):
    x = torch.empty(1 << 38, device="cuda")
    y = (x.view(-1, 64) + 1).half()
    assert (y.shape, y.dtype, y.stride()) == ((1 << 32, 64), torch.float16, (64, 1))
    assert torch.einsum("id,jd->ij", y[:4], y[:8]).shape == (4, 8) and y.shape.numel() == 1 << 38


def test_one_tensor_larger_than_the_device_s_memory_is_out_of_memory_and_views_take_none():
    with Phantoms(memory_bytes=1 << 20):
        x = torch.empty(1 << 17, device="cuda")
        assert x.view(-1, 1).expand(1 << 17, 64).shape == (1 << 17, 64)
        torch.empty(1 << 20)  # on the host
        with pytest.raises(torch.OutOfMemoryError, match=r"allocate 1,048,576 bytes \(shape \(2, 131072\)\)"):
            torch.stack([x, x])


def test_a_phantom_says_that_it_is_on_the_gpu(phantoms):
    x = torch.empty(3, device="cuda")
    assert x.is_cuda and not x.is_cpu and not x.is_meta
    assert (x.device, x.get_device()) == (torch.device("cuda", 0), 0)
    assert isinstance(x, torch.Tensor) and torch.empty_like(x).device == x.device


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.zeros(3, device="cuda:0"),
        lambda: torch.zeros(3).cuda(),
        lambda: torch.zeros(3).to("cuda", non_blocking=True),
        lambda: torch.zeros(3).pin_memory().to(torch.device("cuda", 0)),
        lambda: torch.zeros(3).to(0),
        lambda: torch.zeros(3).to(torch.ones(1, device="cuda")),
        lambda: torch.tensor([0.0, 0.0, 0.0], device="cuda"),
        lambda: torch.full((3,), 0.0, device="cuda"),
        lambda: torch.zeros_like(torch.ones(3, device="cuda")),
        lambda: torch.ones(5, device="cuda")[2:].mul(0),
    ],
)
def test_what_the_host_made_is_known_on_the_device(phantoms, make):
    x = make()
    assert isinstance(x, Phantom) and x.is_cuda
    assert x.tolist() == [0.0, 0.0, 0.0]


def test_a_card_beside_the_one_that_a_worker_sees_is_an_error_as_on_a_gpu(phantoms):
    x = torch.ones(3, device="cuda")
    for ask in (
        lambda: torch.empty(1, device="cuda:1"),
        lambda: torch.empty_like(x, device=1),
        lambda: x.to("cuda:1"),
        lambda: x.cuda(1),
        lambda: torch.ones(1).cuda(device=1),
    ):
        with pytest.raises(RuntimeError, match=r"^CUDA error: invalid device ordinal: 1"):
            ask()


def test_a_default_device_is_obeyed(phantoms):
    with torch.device("cuda"):
        assert torch.ones(2).is_cuda
    assert not torch.ones(2).is_cuda


def test_index_arithmetic_is_followed(phantoms):
    lengths = torch.tensor([5, 0, 3], dtype=torch.int32, device="cuda")
    starts = torch.zeros(4, dtype=torch.int32, device="cuda")
    starts[1:] = lengths.cumsum(0)
    assert starts.tolist() == [0, 5, 5, 8]
    assert int(starts[-1]) == lengths.sum().item() == 8
    assert torch.repeat_interleave(torch.arange(3, device="cuda"), lengths.long()).tolist() == [0] * 5 + [2] * 3
    assert lengths.nonzero().flatten().tolist() == [0, 2]
    data = torch.empty(100, 4, device="cuda")
    assert data[starts[1] : starts[3]].shape == (3, 4)
    assert lengths.cpu().numpy().max() == 5


@pytest.mark.parametrize(
    "read",
    [
        lambda x: x.sum().item(),
        lambda x: x.tolist(),
        lambda x: bool((x > 0).any()),
        lambda x: int(x[0]),
        lambda x: x.cpu().numpy(),
        lambda x: x[x > 0],
        lambda x: x.nonzero(),
        lambda x: torch.unique(x),
        lambda x: torch.equal(x, x),
        lambda x: torch.zeros(4).copy_(x),
        lambda x: torch.empty(9, device="cuda")[: x[0].int()],
    ],
)
def test_what_the_data_decide_is_refused(phantoms, read):
    with pytest.raises(DataDependent, match="depends on the data"):
        read(torch.empty(4, device="cuda"))


@pytest.mark.parametrize(
    "draw",
    [
        lambda: torch.rand(3, device="cuda"),
        lambda: torch.randint(5, (3,), device="cuda"),
        lambda: torch.zeros(3, device="cuda").uniform_(),
        lambda: torch.zeros(3, device="cuda").normal_(),
        lambda: torch.empty(3, device="cuda"),
        lambda: torch.zeros(3, device="cuda").new_empty(3),
        lambda: torch.zeros(3, device="cuda").add_(torch.rand(3, device="cuda")),
        lambda: torch.zeros(1 << 20, device="cuda")[:3],
    ],
)
def test_what_is_random_unwritten_or_large_is_unknown(phantoms, draw):
    assert values_of(phantoms, draw()) is None


def test_an_unknown_write_to_a_view_makes_the_whole_unknown(phantoms):
    x = torch.zeros(8, device="cuda")
    view, copy = x[2:4], x.clone()
    view.copy_(torch.empty(2, device="cuda"))
    assert values_of(phantoms, x) is None and values_of(phantoms, view) is None
    assert copy.tolist() == [0.0] * 8


def test_a_known_write_to_a_view_is_seen_in_the_whole(phantoms):
    x = torch.zeros(4, device="cuda")
    x[1:3] += 2
    x.view(2, 2)[1, 1] = 7
    assert x.tolist() == [0, 2, 2, 7]


def test_a_copy_to_the_other_device_is_one(phantoms):
    host = torch.zeros(2)
    device = host.cuda()
    host += 1
    assert device.tolist() == [0, 0]
    back = device.cpu()
    back += 1
    assert device.tolist() == [0, 0] and not isinstance(back, Phantom)


def test_what_a_kernel_may_have_written_is_unknown_and_what_it_may_not_is_known(phantoms):
    counter, lengths = (torch.zeros(2, dtype=torch.int32, device="cuda") for _ in range(2))
    phantoms.keep((lengths,))
    phantoms.launched_with((counter[1:], lengths[:1], 5))
    with pytest.raises(DataDependent):
        counter.tolist()
    assert lengths.tolist() == [0, 0]


TWO_DEVICES = "all tensors to be on the same device"


@pytest.mark.parametrize(
    "mix",
    [
        lambda host, there: there * host,
        lambda host, there: host.add_(there),
        lambda host, there: torch.add(there, there, out=host),
        lambda host, there: host[1:2] * there[0],
        lambda host, there: torch.cat([there, host]),
        lambda host, there: torch.where(there > 0, there, host),
        lambda host, there: there.view(1, 4) @ host,
        lambda host, there: there.gather(0, host.long()),
        lambda host, there: host[there.long()],
        lambda host, there: there + torch.empty(4, device="cuda").cpu(),
        lambda host, there: torch.nn.functional.embedding(host.long(), there.view(2, 2)),
    ],
)
def test_tensors_on_both_devices_are_refused_as_torch_does(phantoms, mix):
    with pytest.raises(RuntimeError, match=TWO_DEVICES):
        mix(torch.zeros(4), torch.zeros(4, device="cuda"))


@pytest.mark.parametrize(
    ("mix", "where"),
    [
        (lambda host, there: there * torch.tensor(2.0), "cuda"),
        (lambda host, there: there.masked_fill(there > 0, torch.tensor(2.0)), "cuda"),
        (lambda host, there: there[host.long()], "cuda"),
        (lambda host, there: there[host > 0], "cuda"),
        (lambda host, there: there.copy_(host), "cuda"),
        (lambda host, there: host.copy_(there), "cpu"),
        (lambda host, there: there.__setitem__(slice(2), host[:2]) or there, "cuda"),
        (lambda host, there: host.type_as(there), "cuda"),
        (lambda host, there: host.to(there), "cuda"),
        (lambda host, there: there.to(host), "cpu"),
        (lambda host, there: host[:1].expand_as(there), "cpu"),
        (lambda host, there: there.new_tensor([1.0, 2.0]) * there[0], "cuda"),
        (lambda host, there: host[there[0].long()], "cpu"),
        (lambda host, there: host[there[0].long()] * host, "cpu"),
    ],
)
def test_what_torch_takes_of_both_devices_is_followed_to_the_right_one(phantoms, mix, where):
    assert mix(torch.zeros(4), torch.zeros(4, device="cuda")).device.type == where


def test_a_kernel_is_refused_a_tensor_on_the_host_unless_that_is_pinned_or_empty(phantoms):
    there, host = torch.zeros(4, device="cuda"), torch.zeros(4)
    for out_of_reach in (host, host[1:], torch.tensor(1.0), there.cpu(), (there, host), SimpleNamespace(base=host)):
        with pytest.raises(ValueError, match="cannot be accessed from Triton \\(cpu tensor\\?\\)"):
            phantoms.launched_with((there, 5, out_of_reach))
    pinned = torch.zeros(4, pin_memory=True)
    phantoms.launched_with((there, 5, None, pinned, pinned[1:], torch.zeros(4).pin_memory(), torch.zeros(0)))


def test_an_operator_of_one_s_own_runs_its_implementation_for_the_gpu_not_the_fake_one(phantoms, monkeypatch):
    monkeypatch.setattr(operators, "upstream_impl", torch.library.Library.impl)
    monkeypatch.setattr(torch.library.Library, "impl", torch.library.Library.impl)
    operators.remember()
    ran = []

    @torch.library.custom_op("podium_test::filled", mutates_args={"x"})
    def filled(x: torch.Tensor, rows: int, times: int = 3) -> None:
        ran.append((x.is_cuda, rows, times))

    filled.register_fake(lambda x, rows, times=3: None)
    library = torch.library.Library("podium_test", "FRAGMENT")
    library.define("widened(Tensor x, int by=4, *, bool right=True) -> Tensor")
    library.impl("widened", lambda x, by, right: ran.append((x.is_cuda, by, right)) or x.new_empty(by), "CUDA")
    library.impl("widened", lambda x, by, right: ran.append("on the host"), "CPU")
    library._register_fake("widened", lambda x, by=4, right=True: x.new_empty(by))
    x = torch.zeros(2, device="cuda")
    filled(x, 5)
    torch.ops.podium_test.filled(x, 5, times=6)
    widened = torch.ops.podium_test.widened(x, right=False)
    torch.ops.podium_test.widened.default(x, 9)
    assert ran == [(True, 5, 3), (True, 5, 6), (True, 4, False), (True, 9, True)]
    assert widened.is_cuda and widened.shape == (4,)


def test_addresses_are_aligned_distinct_and_move_with_views(phantoms):
    x, y = torch.empty(100, dtype=torch.float16, device="cuda"), torch.empty(100, device="cuda")
    assert x.data_ptr() % 512 == y.data_ptr() % 512 == 0
    assert abs(x.data_ptr() - y.data_ptr()) >= 200
    assert x[3:].data_ptr() == x.data_ptr() + 6 and x.view(10, 10).data_ptr() == x.data_ptr()


def test_numpy_of_a_gpu_s_tensor_is_refused_as_torch_does(phantoms):
    with pytest.raises(TypeError, match=r"Use Tensor\.cpu\(\)"):
        torch.zeros(2, device="cuda").numpy()


def test_a_wrong_shape_is_still_torch_s_own_error(phantoms):
    with pytest.raises(RuntimeError, match="invalid for input of size 6"):
        torch.empty(6, device="cuda").view(4, 2)


def test_cpu_tensors_are_left_alone(phantoms):
    x = torch.arange(4)
    assert type(x + 1) is torch.Tensor and (x + 1).tolist() == [1, 2, 3, 4]
    assert math.isclose(float(torch.tensor(0.5)), 0.5)


PROBLEMS = [catalog.load_problem(CHECKOUT, name) for name in catalog.problem_names(CHECKOUT)]


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.name)
def test_inputs_without_storage_are_like_those_that_are_generated(problem):
    """The same tree, shapes, dtypes and strides; the same numbers, and the same indices, which no seed changes."""
    reference = Reference(problem, detect(CHECKOUT, "cpu"))
    for case in problem.cpu.test[:8]:
        drawn, again = (reference.generate(case, seed) for seed in (1, 2))
        with Phantoms() as phantoms:
            empty = reference._module.empty_input(**case.parameters, device="cuda")
            ((skeleton, tensors), (wanted, real)) = (flatten(data, problem.inputs) for data in (empty, drawn))
            assert skeleton == wanted
            for (name, phantom), (same_name, tensor), (_, other) in zip(
                tensors, real, flatten(again, problem.inputs)[1], strict=True
            ):
                assert isinstance(phantom, Phantom)
                assert (name, phantom.shape, phantom.dtype) == (same_name, tensor.shape, tensor.dtype)
                assert phantom.stride() == tensor.stride(), name
                indices = phantom.dtype in (torch.int32, torch.int64) and torch.equal(tensor, other)
                known = phantoms.known(phantom)
                if indices:
                    assert known is not None and torch.equal(known, tensor), name
                else:
                    assert known is None, name


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.name)
def test_the_largest_case_s_inputs_can_be_had_without_memory(problem):
    reference = Reference(problem, detect(CHECKOUT, "cpu"))
    with Phantoms():
        for case in problem.cases.benchmark:
            data = reference._module.empty_input(**case.parameters, device="cuda")
            assert all(tensor.is_cuda for _, tensor in flatten(data, problem.inputs)[1])
