"""What a call returned is described and lies where the judge can read it; and how the worker goes about a call."""

import contextlib
import ctypes

import pytest
import torch
from test_transports import FakeRuntime

from harness.judge.reply import CallReply
from harness.wire.arena import ALIGNMENT, Arena, TensorSpec, extent, layout
from harness.wire.tree import flatten
from harness.worker import calls
from harness.worker.calls import Calls
from harness.worker.timers import Sample
from harness.worker.transports import CpuTransport, GpuTransport


class World:
    """A worker's calls on the CPU and an arena as the judge would fill it while the worker is stopped."""

    def __init__(self, monkeypatch):
        self.log = []
        self.poured = lambda: None
        self.transport = CpuTransport()
        monkeypatch.setattr(calls, "stopper", lambda: self._stop)
        monkeypatch.setattr(calls, "_synchronize", lambda: self.log.append("device is done"))

    def _stop(self):
        if "stop" not in self.log:
            self.poured()
        self.log.append("stop")

    def _ready(self, waits):
        self.log.append(f"ready, waits {waits}")

    def call(
        self,
        kernel,
        data=(),
        *,
        around=contextlib.nullcontext,
        spare=1 << 14,
        poison=(),
        state=(),
        sequence="between_stops",
    ):
        tree, leaves = flatten(data, [f"in{i}" for i in range(len(data))])
        tensors = [tensor for _, tensor in leaves]
        self.specs = layout(tensors, 2 * ALIGNMENT)
        self.tail = extent(self.specs) + 2 * ALIGNMENT
        self.arena = Arena.create(self.tail + spare)
        self.poured = lambda: [self.arena.view(spec).copy_(t) for spec, t in zip(self.specs, tensors)]
        worker = Calls("cpu", self.transport)
        worker.regions["arena"] = self.arena
        request = {"tree": tree, "inputs": [spec.to_json() for spec in self.specs], "poison": list(poison)}
        request |= {"tail": self.tail, "turn": 3, "state": list(state)}
        reply = getattr(worker, sequence)(kernel, request, around, self._ready)
        CallReply.model_validate({**reply, "interpreted": False})
        return reply

    def at(self, output):
        return self.arena.view(TensorSpec(output["dtype"], tuple(output["shape"]), output["offset"]))


@pytest.fixture
def world(monkeypatch):
    return World(monkeypatch)


class TestTheOrder:
    def test_a_call_is_made_when_the_judge_has_poured_and_all_before_is_done_without_inputs(self, world):
        seen = []

        class Transport(CpuTransport):
            def poison(self, sizes):
                world.log.append(f"poison {sizes}")
                seen.append(world.arena.bytes.any().item())
                super().poison(sizes)

            def copy(self, *arguments):
                world.log.append("copy")
                return super().copy(*arguments)

        @contextlib.contextmanager
        def around():
            world.log.append("enter")
            yield
            world.log.append("leave")

        world.transport = Transport()
        world.call(lambda data: world.log.append("call") or data[0] + 1, (torch.ones(3),), around=around, poison=[12])
        timed = ["stop", "call", "copy", "stop"]
        assert world.log == ["poison [12]", "enter", "ready, waits False", *timed, "leave"]
        assert seen == [False]

    def test_inputs_lie_in_the_arena_as_if_each_had_been_made_on_its_own(self, world):
        def kernel(data):
            places = [tensor.data_ptr() - world.arena.address for tensor in data[:2]]
            assert places == [spec.offset for spec in world.specs[:2]] and data[2].shape == (0, 5)
            assert data[0].untyped_storage().nbytes() == 16
            data[1].fill_(9)
            return data[0] + 5

        (output,) = world.call(kernel, (torch.ones(4), torch.ones(3), torch.ones(0, 5)))["outputs"]
        assert world.at(output).tolist() == [6] * 4 and world.arena.view(world.specs[1]).tolist() == [9] * 3

    def test_the_exception_of_a_kernel_is_its_own(self, world):
        with pytest.raises(ZeroDivisionError):
            world.call(lambda data: 1 // 0)
        assert world.log == ["ready, waits False", "stop", "stop"], "it has ended for the judge as any other"

    def test_a_call_that_computes_nothing_returns_nothing(self, world):
        reply = world.call(Calls("cpu", CpuTransport()).null(1), (torch.ones(3),))
        assert reply["several"] is True and reply["returned"] == 0 and reply["outputs"] == []


class TestWhereAnOutputLies:
    def test_memory_of_its_own_is_copied_behind_the_inputs(self, world):
        static = torch.randn(5, 7)
        (output,) = world.call(lambda data: static, (torch.ones(3),))["outputs"]
        assert output["copied"] is True and output["offset"] == world.tail
        assert {key: output[key] for key in ("dtype", "shape", "stride", "device")} == {
            "dtype": "float32", "shape": [5, 7], "stride": [7, 1], "device": "cpu",
        }  # fmt: skip
        assert torch.equal(world.at(output), static)
        before = static.clone()
        static.fill_(7)
        assert torch.equal(world.at(output), before), "what is written later is not in it"

    def test_an_output_whose_memory_holds_negated_values_has_its_values(self, world):
        made = torch.tensor([1.0, -2.0, 3.0])
        outputs = world.call(lambda data: (torch._neg_view(made), made), (torch.ones(3),))["outputs"]
        assert [world.at(output).tolist() for output in outputs] == [[-1, 2, -3], [1, -2, 3]]

    def test_state_stays_where_it_is(self, world):
        (output,) = world.call(lambda data: data[1].mul_(2), (torch.ones(3), torch.ones(9)), state=[1])["outputs"]
        assert output["offset"] == world.specs[1].offset and "copied" not in output
        assert world.at(output).tolist() == [2] * 9

    def test_an_input_that_is_no_state_is_copied_for_the_judge_reads_no_other(self, world):
        (output,) = world.call(lambda data: data[1].mul_(2), (torch.ones(3), torch.ones(9)))["outputs"]
        assert output["offset"] == world.tail and output["copied"] is True

    @pytest.mark.parametrize("part", [slice(None), slice(64, None)])
    def test_on_a_device_whatever_lies_aligned_in_shared_memory_stays(self, world, part):
        (output,) = world.call(lambda data: data[0][part], (torch.arange(128.0),), sequence="awaited")["outputs"]
        assert output["offset"] == world.specs[0].offset + (ALIGNMENT if part.start else 0) and "copied" not in output

    def test_the_device_is_waited_for_before_a_copy_and_after_it(self, world):
        world.call(lambda data: torch.ones(3), sequence="awaited")
        assert world.log == ["ready, waits False", "stop", "device is done", "device is done"]

    def test_the_least_that_a_call_takes_is_two_stops(self, world):
        reply = world.call(pytest.fail, (torch.ones(3),), sequence="bare")
        assert world.log == ["ready, waits False", "stop", "stop"] and reply["returned"] == 0

    @pytest.mark.parametrize("sequence", ["between_stops", "awaited"])
    def test_a_part_that_begins_elsewhere_is_copied_to_where_the_judge_can_read_it(self, world, sequence):
        (output,) = world.call(lambda data: data[0][1:], (torch.arange(128.0),), sequence=sequence)["outputs"]
        assert output["copied"] is True and output["offset"] == world.tail
        assert world.at(output).tolist() == list(range(1, 128))

    def test_several_lie_side_by_side_and_one_returned_twice_once(self, world):
        one, other = torch.randn(100), torch.randn(3, 3, dtype=torch.float64)
        for returned in ((one, other, one), [one, other, one]):
            reply = world.call(lambda data, returned=returned: returned)
            assert reply["several"] is True and reply["returned"] == 3
            places = [output["offset"] for output in reply["outputs"]]
            assert places[0] == places[2] != places[1]
            for output, tensor in zip(reply["outputs"], returned, strict=True):
                assert torch.equal(world.at(output), tensor)

    def test_what_there_is_no_room_for_has_no_place(self, world):
        (output,) = world.call(lambda data: torch.zeros(1 << 20))["outputs"]
        assert "offset" not in output and output["shape"] == [1 << 20]

    @pytest.mark.parametrize("shape", [(), (0,), (2, 0)])
    def test_scalars_and_empty_outputs_have_one(self, world, shape):
        (output,) = world.call(lambda data: torch.full(shape, 3.0))["outputs"]
        assert torch.equal(world.at(output), torch.full(shape, 3.0))


class TestCallsThatTheWorkerTimes:
    """For GPUs that the judge's clock does not work on; here with a runtime whose device memory is the host's."""

    def call(self, kernel, data, state=()):
        tree, leaves = flatten(data, [f"in{i}" for i in range(len(data))])
        tensors = [tensor for _, tensor in leaves]
        specs = layout(tensors, 2 * ALIGNMENT)
        tail = extent(specs)
        arena, log = Arena.create(tail + 4096), []
        for tensor, spec in zip(tensors, specs):
            arena.view(spec).copy_(tensor)

        class Timer:
            def sample(self, call, page_in):
                page_in()
                log.append("timed")
                return Sample(call(), 5.0)

        worker = Calls("cpu", GpuTransport(FakeRuntime(), "cpu"), Timer)
        worker.regions["arena"] = arena
        request = {"tree": tree, "inputs": [spec.to_json() for spec in specs], "state": list(state), "poison": []}
        ready = lambda waits: log.append(f"ready, waits {waits}")  # noqa: E731
        reply = worker.timed(kernel, {**request, "tail": tail}, contextlib.nullcontext, ready)
        CallReply.model_validate({**reply, "interpreted": False})
        assert log == ["ready, waits True", "timed"] and reply["inside_ns"] == 5.0
        return reply, lambda place, like: arena.view(TensorSpec("float32", tuple(like.shape), place)), specs

    def test_inputs_are_copied_to_fresh_addresses_and_what_is_left_in_them_and_returned_is_copied_back(self):
        x = torch.ones(3, 3)

        def kernel(data):
            data[1].fill_(9)
            return data[0] + 1, data[1]

        reply, at, specs = self.call(kernel, (x, x.clone()), state=[1])
        assert torch.equal(at(specs[0].offset, x), x) and (at(specs[1].offset, x) == 9).all()
        one, other = reply["outputs"]
        assert (at(one["offset"], x) == 2).all() and one["copied"] is True
        assert other["offset"] == specs[1].offset and reply["overrun"] == []

    def test_an_input_that_is_no_state_and_returned_is_copied_like_any_other(self):
        x = torch.ones(3, 3)
        reply, at, specs = self.call(lambda data: data[0].mul_(2), (x,))
        assert reply["outputs"][0]["copied"] is True and (at(reply["outputs"][0]["offset"], x) == 2).all()
        assert torch.equal(at(specs[0].offset, x), x)

    def test_a_store_beyond_an_input_is_in_the_reply(self):
        def kernel(data):
            ctypes.memset(data[0].data_ptr() + 36, 0, 1)
            return data[0] + 0

        assert self.call(kernel, (torch.ones(3, 3), torch.ones(2)))[0]["overrun"] == [0]


class Lazy(torch.Tensor):
    pass


class Pair(tuple):
    pass


class TestWhatAnOutputIs:
    @pytest.mark.parametrize(
        "returned, name",
        [
            (torch.ones(2).as_subclass(Lazy), "Lazy"),
            (torch.nn.Parameter(torch.ones(2)), "Parameter"),
            (None, "NoneType"),
            ("text", "str"),
            (Pair((torch.ones(2),)), "Pair"),
            ({"y": torch.ones(2)}, "dict"),
            (torch.eye(3).to_sparse(), "Tensor of the layout torch.sparse_coo"),
            (type("Tensor", (torch.Tensor,), {})(2), "Tensor of another class"),
            (type("Two\nlines", (), {})(), "Two lines"),
        ],
    )
    def test_what_is_no_plain_tensor_is_known_by_its_type_alone(self, world, returned, name):
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
        ],
        ids=["transposed", "expanded", "strided", "complex", "meta"],
    )
    def test_what_does_not_travel_is_described_and_not_copied(self, world, returned):
        (output,) = world.call(lambda data: returned)["outputs"]
        assert "offset" not in output and output["type"] == "Tensor" and output["shape"] == list(returned.shape)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.complex64])
    def test_an_output_whose_storage_was_freed_is_not_read(self, world, dtype):
        freed = torch.ones(3, dtype=dtype)
        freed.untyped_storage().resize_(0)
        (output,) = world.call(lambda data: freed)["outputs"]
        assert output == {"type": "Tensor without memory of its own"}

    def test_one_that_does_not_travel_leaves_the_others_their_places(self, world):
        right = torch.arange(40.0)
        (first,) = world.call(lambda data: right)["outputs"]
        odd, second = world.call(lambda data: (torch.ones(40, dtype=torch.uint32), right))["outputs"]
        assert "offset" not in odd and second["offset"] == first["offset"] and torch.equal(world.at(second), right)

    def test_many_outputs_are_a_wrong_answer_and_no_forgery(self, world):
        """A kernel that returns list(out) by mistake: its reply is checked like any other."""
        reply = world.call(lambda data: [0.0] * 1000)
        assert reply["returned"] == 1000 and len(reply["outputs"]) == 16
