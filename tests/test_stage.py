"""The memory in which a call takes place: guarded, empty until the judge pours, and read when the call is over."""

from types import SimpleNamespace

import pytest
import torch

from harness.judge.caches import HostCaches
from harness.judge.inputs import LEAST_GAP, scattered
from harness.judge.reply import OutputDescription
from harness.judge.stage import GUARD_BYTES, Span, Stage, misplaced, spans_of
from harness.model import Device
from harness.wire.arena import ALIGNMENT, Arena, TensorSpec, extent

CPU = Device(kind="cpu", name="x", slug="x", arch="x", torch_device="cpu", memory_bytes=1 << 30, flush_bytes=1 << 10)
INPUTS = (torch.arange(1.0, 100.0), torch.arange(1, 8), torch.ones(0, 3))

LOOKED = (
    torch.arange(1.0, 100.0),
    torch.full((8,), torch.nan),
    torch.arange(40.0).to(torch.bfloat16)[1:9],
    torch.arange(7, dtype=torch.uint8),
    torch.ones(4, 4, dtype=torch.bool),
)
"""Also NaN, a view whose memory begins at no word, and fewer bytes than one."""


@pytest.fixture
def stage():
    return Stage(CPU, HostCaches())


@pytest.fixture
def arena():
    arena = Arena.create(1 << 18)
    yield arena
    arena.close()


def placed(arena, *tensors):
    specs = scattered(list(tensors or INPUTS))
    assert extent(specs) + LEAST_GAP * ALIGNMENT <= arena.size
    return list(zip(tensors or INPUTS, specs, strict=True))


def test_nothing_of_the_inputs_is_there_before_they_are_poured(stage, arena):
    first = placed(arena)
    stage.set_up(arena, first)
    stage.pour()
    assert all(torch.equal(arena.view(spec), tensor) for tensor, spec in first)
    others = placed(arena, *(tensor + 1000 for tensor in INPUTS))
    stage.set_up(arena, others)
    assert not any(torch.equal(arena.view(spec), tensor) for tensor, spec in others if tensor.numel())


def test_lengths_that_are_not_there_yet_are_zeros_and_not_garbage_to_allocate_by(stage, arena):
    arena.bytes.fill_(0x7F)
    stage.set_up(arena, places := placed(arena))
    assert not arena.view(places[1][1]).any() and arena.view(places[0][1]).any()


def test_the_largest_inputs_are_poured_first_and_lengths_and_queries_last(stage, arena, monkeypatch):
    query, cache, lengths = torch.ones(50), torch.ones(1000), torch.ones(4, dtype=torch.int32)
    stage.set_up(arena, places := placed(arena, query, cache, lengths))
    there = []
    copy = torch.Tensor.copy_

    def copied(place, tensor):
        copy(place, tensor)
        there.append([bool((arena.view(spec) == 1).all()) for _, spec in places])

    monkeypatch.setattr(torch.Tensor, "copy_", copied)
    stage.pour()
    assert there == [[False, True, False], [True, True, False], [True, True, True]]


@pytest.mark.parametrize("number", range(len(INPUTS)))
@pytest.mark.parametrize("where", ["before", "after", "far before", "far after"])
def test_a_byte_written_beside_an_input_is_found_and_by_which(stage, arena, number, where):
    places = placed(arena)
    stage.set_up(arena, places)
    stage.pour()
    assert stage.overrun() == []
    spec = places[number][1]
    end = spec.offset + spec.nbytes
    place = {
        "before": spec.offset - 1,
        "after": end,
        "far before": spec.offset - GUARD_BYTES,
        "far after": end + GUARD_BYTES - 1,
    }[where]
    arena.bytes[place] = 0
    assert stage.overrun() == [number]


def test_a_byte_that_is_put_back_when_the_call_is_over_was_written(stage, arena):
    stage.set_up(arena, places := placed(arena))
    stage.pour()
    place = places[1][1].offset - 1
    before = int(arena.bytes[place])
    arena.bytes[place] = 0
    stage.look([])
    arena.bytes[place] = before
    assert stage.overrun() == [1]
    stage.set_up(arena, placed(arena))
    stage.look([])
    assert stage.overrun() == []


def test_guards_are_made_anew_for_each_call_and_never_lie_in_an_input(stage, arena):
    for _ in range(50):
        stage.set_up(arena, places := placed(arena))
        stage.pour()
        assert stage.overrun() == [] and all(torch.equal(arena.view(spec), tensor) for tensor, spec in places)
        arena.bytes[places[0][1].offset - 1] = 0
        assert stage.overrun() == [0]


@pytest.mark.parametrize("number", range(len(LOOKED)))
@pytest.mark.parametrize("chunk", [None, 3], ids=["whole", "in chunks, as on a GPU"])
def test_one_bit_of_an_input_that_differs_from_what_was_poured_is_found(stage, arena, monkeypatch, number, chunk):
    stage.set_up(arena, places := placed(arena, *LOOKED))
    stage.pour()
    if chunk is not None:
        monkeypatch.setattr("harness.judge.stage.LOOKED_AT", chunk)
        monkeypatch.setattr(stage, "_on_device", True)
    every = range(len(LOOKED))
    stage.look(every)
    assert stage.changed() == []
    spec = places[number][1]
    arena.bytes[spec.offset + spec.nbytes - 1] ^= 1
    stage.look(every)
    assert stage.changed() == [number]
    arena.bytes[spec.offset + spec.nbytes - 1] ^= 1
    assert stage.changed() == [number]  # as it was when it was looked at
    stage.look([other for other in every if other != number])
    assert stage.changed() == []


def test_what_was_found_of_one_call_says_nothing_of_the_next(stage, arena):
    stage.set_up(arena, placed(arena))
    stage.look([0])
    assert stage.changed() == [0]
    stage.set_up(arena, placed(arena))
    assert stage.changed() == []


def test_without_inputs_there_is_nothing_to_guard(stage, arena):
    stage.set_up(arena, [])
    stage.pour()
    assert stage.overrun() == []


class TestWhatIsFrozen:
    """State and the tail, which are all that the judge reads of a call on a CPU."""

    @pytest.fixture
    def frozen(self, stage, arena):
        arena.bytes.copy_(torch.arange(arena.size) % 251)
        self.arena, self.state = arena, TensorSpec("uint8", (300,), 1024)
        call = SimpleNamespace(
            arena=arena, request={"tail": 8192}, state_specs={"x": self.state}, writable=(), fresh_bytes=(500, 20)
        )
        frozen = stage.freeze(call)
        self.before = arena.bytes.clone()
        arena.bytes.fill_(0)
        return frozen

    def at(self, frozen, offset, *shape, region="arena"):
        return frozen.view(Span(region, TensorSpec("uint8", shape, offset)))

    @pytest.mark.parametrize(("offset", "count"), [(1024, 300), (1280, 44), (8192, 500), (8704, 20), (8192, 768)])
    def test_it_is_as_it_was_whatever_is_written_later(self, frozen, offset, count):
        assert torch.equal(self.at(frozen, offset, count), self.before[offset : offset + count])

    @pytest.mark.parametrize(
        ("offset", "count"), [(0, 8), (1024, 301), (768, 300), (8192, 769), (8960, 8), (7936, 300)]
    )
    def test_nothing_else_can_be_had(self, frozen, offset, count):
        with pytest.raises(LookupError):
            self.at(frozen, offset, count)

    def test_nor_what_cannot_be(self, frozen):
        for offset, shape in ((-256, (8,)), (8193, (8,)), (8192, (-1,)), (1 << 60, (8,))):
            with pytest.raises(ValueError, match="outside an arena"):
                self.at(frozen, offset, *shape)
        with pytest.raises(LookupError):
            self.at(frozen, 8192, 8, region="pool")


class TestSpans:
    state = TensorSpec("float32", (4,), 0)
    due = (("float32", (2, 3)), ("int64", (5,)))

    def told(self, **changed):
        one = {"type": "Tensor", "dtype": "float32", "shape": [2, 3], "offset": 512, **changed}
        other = {"type": "Tensor", "dtype": "int64", "shape": [5], "region": "pool", "offset": 256}
        return [OutputDescription.model_validate(each) for each in (one, other)]

    def test_they_are_where_the_worker_says_and_where_the_judge_has_put_state(self):
        assert spans_of(self.told(), [self.state], self.due) == [
            Span("arena", self.state),
            Span("arena", TensorSpec("float32", (2, 3), 512)),
            Span("pool", TensorSpec("int64", (5,), 256)),
        ]

    @pytest.mark.parametrize(
        "changed",
        [
            {"offset": None},
            {"dtype": "complex64"},
            {"dtype": None},
            {"dtype": "float64"},
            {"shape": None},
            {"shape": [0, 2**70]},
            {"shape": [1 << 30, 3]},
            {"shape": [-1]},
        ],
        ids=str,
    )
    def test_of_what_is_not_as_it_must_be_no_snapshot_is_taken_however_much_it_claims_to_be(self, changed):
        assert [span.region for span in spans_of(self.told(**changed), [self.state], self.due)] == ["arena", "pool"]

    @pytest.mark.parametrize(
        ("offsets", "wrong"),
        [
            ([512], False),
            ([512, 512 + ALIGNMENT], False),
            ([512, 512], False),
            ([0], False),
            ([256], True),
            ([512 - ALIGNMENT], True),
            ([512 + ALIGNMENT], True),
            ([512, 512 + 2 * ALIGNMENT], True),
        ],
    )
    def test_outputs_lie_in_state_or_in_the_tail_one_behind_the_other_and_nowhere_else(self, offsets, wrong):
        call = SimpleNamespace(request={"inputs": [{"offset": 0}, {"offset": 256}], "state": [0], "tail": 512})
        said = [
            OutputDescription(type="Tensor", dtype="float32", shape=[4], stride=[1], region="arena", offset=offset)
            for offset in offsets
        ]
        assert misplaced(said, call) is wrong

    def test_of_more_outputs_than_are_due_none_is_taken(self):
        assert spans_of(self.told() * 8, [self.state], self.due) == [Span("arena", self.state)]
        assert spans_of(self.told()[:1], [], self.due) == []
