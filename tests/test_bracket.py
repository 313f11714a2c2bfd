"""Around a call: inputs at fresh addresses, poison, the clock, and a snapshot of what was computed when time was up."""

import contextlib

import pytest
import torch

from harness.arena import Arena, TensorSpec, extent, flatten, layout
from harness.judge.reply import CallReply
from harness.worker import bracket
from harness.worker.bracket import Bracket
from harness.worker.timers import CpuTimer, Sample
from harness.worker.transports import CpuTransport


class World:
    """A bracket on the CPU, an arena, and requests as the judge would make them."""

    def __init__(self, spare=1 << 14):
        self.bracket, self.spare = Bracket("cpu", CpuTimer(1), CpuTransport()), spare

    def call(
        self, kernel, data=(), state=(), around=contextlib.nullcontext, poison=(), size=None, page_in=True, **more
    ):
        tree, leaves = flatten(data, [f"in{i}" for i in range(len(data))])
        tensors = [tensor for _, tensor in leaves]
        specs = layout(tensors)
        self.bracket.arena = Arena.create(size or extent(specs) + self.spare)
        for tensor, spec in zip(tensors, specs):
            self.bracket.arena.view(spec).copy_(tensor)
        request = {"tree": tree, "inputs": [s.to_json() for s in specs], "state": list(state), "poison": list(poison)}
        request |= {"page_in": page_in, "flush": False, "turn": 3, **more}
        reply = self.bracket.call(kernel, request, around)
        CallReply.model_validate({**reply, "interpreted": False})
        return reply

    def at(self, offset, like):
        (spec,) = layout([like])
        return self.bracket.arena.view(TensorSpec(spec.dtype, spec.shape, offset))


@pytest.fixture
def world():
    return World()


def test_the_kernel_gets_the_data_and_the_judge_its_output(world):
    x = torch.randn(5, 7)
    reply = world.call(lambda data: data[0] * data[1]["factor"], (x, {"factor": 3.0}))
    (output,) = reply["outputs"]
    assert output == {
        "type": "Tensor",
        "dtype": "float32",
        "shape": [5, 7],
        "stride": [7, 1],
        "device": "cpu",
        "offset": output["offset"],
    }
    assert torch.equal(world.at(output["offset"], x), x * 3) and reply["several"] is False and reply["latency_ns"] > 0


def test_the_order_is_poison_page_in_clock_call_clock_snapshot(world, monkeypatch):
    log = []

    class Transport(CpuTransport):
        def place(self, *arguments):
            log.append("place")
            return super().place(*arguments)

        def page_in(self, *arguments):
            log.append("page in")
            super().page_in(*arguments)

        def poison(self, sizes):
            log.append(f"poison {sizes}")
            super().poison(sizes)

        def page_out(self, *arguments):
            log.append("snapshot")
            super().page_out(*arguments)

    class Timer:
        def sample(self, call, page_in, snapshot, flush, turn):
            page_in()
            log.append(f"flush {flush}, turn {turn}")
            output = call()
            log.append("clock")
            snapshot(output)
            return Sample(output, 5.0, ("host-bound",))

    @contextlib.contextmanager
    def around():
        log.append("enter")
        yield
        log.append("leave")

    world.bracket = Bracket("cpu", Timer(), Transport())
    kernel = lambda data: log.append("call") or data[0] + 1  # noqa: E731
    reply = world.call(kernel, (torch.ones(3), torch.ones(3)), state=[0], around=around, poison=[12])
    before = ["place"] * 2 + ["poison [12]"] + ["page in"] * 2
    assert log == before + ["enter", "flush False, turn 3", "call", "clock", "leave"] + ["snapshot"] * 2
    assert reply["latency_ns"] == 5.0 and reply["labels"] == ["host-bound"]


@pytest.mark.parametrize("waits", [True, False])
def test_an_idle_call_fills_what_is_asked_for_and_waits_for_the_device_before_if_told_to(world, monkeypatch, waits):
    waited = []
    monkeypatch.setattr(bracket, "_synchronize", lambda: waited.append(True))
    idle = [{"shape": [2, 3], "dtype": "float32"}, {"input": 0}]
    reply = world.call(pytest.fail, (torch.full((4,), 7.0),), state=[0], idle=idle, waits=waits)
    filled, returned = (world.at(output["offset"], torch.ones(output["shape"])) for output in reply["outputs"])
    assert filled.tolist() == [[1.0] * 3] * 2 and returned.tolist() == [7.0] * 4
    assert waited == [True] * waits


def test_each_call_finds_its_inputs_elsewhere(world):
    seen = []
    for _ in range(30):
        world.call(lambda data: seen.append((data, data[0].data_ptr())) or data[0], (torch.ones(8),))
    assert len({address for _, address in seen}) == 30
    assert len({address % 16384 for _, address in seen}) > 10


def test_inputs_change_nothing_in_the_arena_until_the_snapshot(world):
    def kernel(data):
        data[0].zero_()
        assert torch.equal(world.at(0, torch.ones(4)), torch.ones(4))
        return data[0] + 5

    world.call(kernel, (torch.ones(4),))


def test_what_a_call_left_in_its_inputs_is_in_the_reply(world):
    def kernel(data):
        data[1].fill_(9)
        return torch.zeros(2)

    reply = world.call(kernel, (torch.arange(4), torch.ones(300)), state=[0, 1])
    first, second = reply["state"]
    assert world.at(first, torch.arange(4)).tolist() == [0, 1, 2, 3]
    assert (world.at(second, torch.ones(300)) == 9).all()


def test_a_call_that_does_not_page_in_works_on_the_arena_itself_and_what_is_new_lies_behind(world):
    def kernel(data):
        assert {tensor.data_ptr() - world.bracket.arena.address for tensor in data} == {0, 256}
        assert data[0].untyped_storage().nbytes() == 16, "as if it had been made on its own"
        data[1].fill_(9)
        return data[0] + 5

    reply = world.call(kernel, (torch.ones(4), torch.ones(3)), state=[0, 1], page_in=False)
    (output,) = reply["outputs"]
    assert reply["state"] == [0, 256] and output["offset"] == 512
    assert world.at(0, torch.ones(4)).tolist() == [1] * 4 and world.at(256, torch.ones(3)).tolist() == [9] * 3
    assert world.at(512, torch.ones(4)).tolist() == [6] * 4
    assert world.bracket.aftermath()["overrun"] == []


def test_memory_of_the_arena_that_is_returned_and_is_no_state_is_copied_when_time_is_up(world):
    """It could be written to until the judge reads it."""
    reply = world.call(lambda data: data[0].mul_(2), (torch.ones(4),), page_in=False)
    assert reply["outputs"][0]["offset"] == 256 and world.at(256, torch.ones(4)).tolist() == [2] * 4


def test_inputs_without_elements_can_lie_in_the_arena(world):
    reply = world.call(lambda data: data[0] + 1, (torch.ones(0, 5), torch.ones(2)), page_in=False)
    assert reply["outputs"][0]["shape"] == [0, 5]


def test_state_that_is_not_asked_for_is_not_copied(world):
    reply = world.call(lambda data: data[0] + 1, (torch.ones(4), torch.ones(4)), state=[1])
    assert len(reply["state"]) == 1


def test_an_input_that_is_returned_is_copied_once(world):
    def kernel(data):
        return data[0].mul_(2)

    reply = world.call(kernel, (torch.ones(1024),), state=[0], size=4096)
    assert reply["outputs"][0]["offset"] == reply["state"][0] == 0
    assert (world.at(0, torch.ones(1024)) == 2).all()


def test_an_output_without_room_has_no_place(world):
    reply = world.call(lambda data: torch.zeros(1025), size=4096)
    assert reply["outputs"][0]["offset"] is None and reply["outputs"][0]["shape"] == [1025]
    assert world.call(lambda data: torch.zeros(1024), size=4096)["outputs"][0]["offset"] == 0


def test_several_outputs_lie_side_by_side(world):
    one, other = torch.randn(100), torch.randn(3, 3, dtype=torch.float64)
    for returned in ((one, other), [one, other]):
        reply = world.call(lambda data, returned=returned: returned)
        assert reply["several"] is True
        assert all(
            torch.equal(world.at(output["offset"], tensor), tensor)
            for output, tensor in zip(reply["outputs"], (one, other), strict=True)
        )


class Lazy(torch.Tensor):
    pass


class Pair(tuple):
    pass


@pytest.mark.parametrize(
    "returned, name",
    [
        (torch.ones(2).as_subclass(Lazy), "Lazy"),
        (torch.nn.Parameter(torch.ones(2)), "Parameter"),
        (None, "NoneType"),
        ("text", "str"),
        (Pair((torch.ones(2),)), "Pair"),
        ({"y": torch.ones(2)}, "dict"),
    ],
)
def test_what_is_no_plain_tensor_is_known_by_its_type_alone(world, returned, name):
    reply = world.call(lambda data: returned)
    assert reply["outputs"] == [{"type": name}] and reply["several"] is False


@pytest.mark.parametrize(
    "returned",
    [
        torch.ones(4, 4).t()[:, 1:],
        torch.ones(1).expand(8),
        torch.ones(8)[::2],
        torch.ones(3, dtype=torch.complex64),
        torch.ones(3, device="meta"),
        torch.eye(3).to_sparse(),
    ],
    ids=["transposed", "expanded", "strided", "complex", "meta", "sparse"],
)
def test_what_does_not_travel_is_described_and_not_copied(world, returned):
    (output,) = world.call(lambda data: returned)["outputs"]
    assert output["offset"] is None and output["type"] == "Tensor" and output["shape"] == list(returned.shape)


@pytest.mark.parametrize("shape", [(), (0,), (2, 0)])
def test_scalars_and_empty_outputs_are_copied(world, shape):
    (output,) = world.call(lambda data: torch.full(shape, 3.0))["outputs"]
    assert output["shape"] == list(shape) and torch.equal(
        world.at(output["offset"], torch.empty(shape)), torch.full(shape, 3.0)
    )


def test_the_exception_of_a_kernel_is_its_own(world):
    with pytest.raises(ZeroDivisionError):
        world.call(lambda data: 1 // 0)


def test_many_outputs_are_a_wrong_answer_and_no_forgery(world):
    """A kernel that returns list(out) by mistake: its reply is checked like any other."""
    assert world.call(lambda data: [0.0] * 1000)
