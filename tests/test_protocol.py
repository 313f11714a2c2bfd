"""Whatever arrives on the channel, the judge gets a JSON object or one of three exceptions, in time."""

import contextlib
import itertools
import json
import os
import socket
import struct
import time

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from harness.wire.protocol import MAX_FRAME_BYTES, Channel, ChannelClosed, PeerStopped, ProtocolViolation, ReplyTimeout

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**60), 10**60) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
json_objects = st.dictionaries(st.text(), json_values, max_size=5)


@contextlib.contextmanager
def channels(kind=socket.SOCK_STREAM, **options):
    """A raw socket and the channel at its other end."""
    far, near = socket.socketpair(socket.AF_UNIX, kind)
    channel = Channel(near, **options)
    with far:
        try:
            yield far, channel
        finally:
            channel.close()
            for fd in channel.fds:
                os.close(fd)


def frame(body):
    return struct.pack(">I", len(body)) + body


@settings(deadline=None)
@given(st.lists(json_objects, min_size=1, max_size=3))
@example([{"\U0001f600": "\0", "": [[], {}], "n": 2**64}])
def test_json_objects_come_through_as_they_were_sent_and_in_order(messages):
    with channels() as (far, channel):
        sender = Channel(far)
        for message in messages:
            sender.send(message)
        assert [channel.receive(5) for _ in messages] == messages
        assert channel.is_quiet()


@settings(deadline=None)
@given(st.lists(json_objects, min_size=1, max_size=3), st.lists(st.integers(0, 400), max_size=12))
def test_frames_may_be_cut_at_any_byte(messages, cuts):
    stream = b"".join(frame(json.dumps(message).encode()) for message in messages)
    places = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    with channels(socket.SOCK_SEQPACKET) as (far, channel):  # keeps the pieces apart
        for start, end in itertools.pairwise(places):
            far.send(stream[start:end])
        assert [channel.receive(5) for _ in messages] == messages
        assert channel.is_quiet()


def receive_all(stream):
    """What comes of `stream`, sent and then closed: the objects received, and the exception that ended it."""
    received = []
    with channels() as (far, channel):
        far.sendall(stream)
        far.close()
        while True:
            try:
                received.append(channel.receive(5))
            except (ChannelClosed, ReplyTimeout, ProtocolViolation) as error:
                return received, error


@settings(deadline=None, max_examples=200)
@given(st.lists(st.binary(max_size=40) | st.binary(max_size=40).map(frame), max_size=5).map(b"".join))
@example(frame(b"{}") + b"\xff\xff\xff\xff")
@example(frame(b'"text"') + frame(b"{}"))
@example(frame(b"\xfe\xff\x00{\x00}"))
@example(b"\0\0\0")
def test_garbage_gives_objects_or_one_of_three_exceptions(stream):
    received, error = receive_all(stream)
    assert all(type(message) is dict for message in received)
    assert not isinstance(error, ReplyTimeout)


@pytest.mark.parametrize(
    "body",
    [
        *[b"", b"[]", b"3", b'"x"', b"null", b"{", b"{}{}", b"\xff", b"{1: 2}"],
        *[b"[" * 50_000, b'{"a":' * 20_000, b'{"n": ' + b"9" * 5000 + b"}"],
    ],
    ids=lambda body: repr(body[:8]),
)
def test_what_is_no_json_object_is_a_violation(body):
    received, error = receive_all(frame(body))
    assert not received and isinstance(error, ProtocolViolation)


@pytest.mark.parametrize("constant", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_numbers_that_are_none_come_through_as_floats_for_the_reader_to_refuse(constant):
    received, _ = receive_all(frame(b'{"x": %s}' % constant.encode()))
    assert isinstance(received[0]["x"], float)


@pytest.mark.parametrize("length", [MAX_FRAME_BYTES + 1, 2**31, 2**32 - 1])
def test_an_oversized_length_is_refused_before_its_bytes_are_waited_for(length):
    with channels() as (far, channel):
        far.sendall(struct.pack(">I", length))
        with pytest.raises(ProtocolViolation, match="announces"):
            channel.receive(5)


def test_a_frame_of_exactly_the_limit_passes_and_one_more_is_not_sent():
    filling = MAX_FRAME_BYTES - len('{"x":""}')
    far, near = socket.socketpair()
    far.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * MAX_FRAME_BYTES)
    near.setblocking(False)
    sender, channel = Channel(far), Channel(near)
    with pytest.raises(ValueError, match="over the limit"):
        sender.send({"x": "y" * (filling + 1)})
    assert channel.is_quiet()
    child = os.fork()
    if child == 0:
        sender.send({"x": "y" * filling})
        os._exit(0)
    assert channel.receive(20) == {"x": "y" * filling}
    os.waitpid(child, 0)
    sender.close()
    channel.close()


@pytest.mark.parametrize("count", [0, 2, 4, 11])
def test_an_incomplete_frame_is_a_timeout_and_goes_on_when_the_rest_comes(count):
    whole = frame(b'{"a": 1}')
    sent = whole[:count]
    with channels() as (far, channel):
        far.sendall(sent)
        with pytest.raises(ReplyTimeout):
            channel.receive(0.01)
        far.sendall(whole[len(sent) :])
        assert set(channel.receive(5)) == {"a"}


def test_bytes_that_trickle_in_do_not_put_the_deadline_off():
    with channels(socket.SOCK_SEQPACKET) as (far, channel):
        child = os.fork()
        if child == 0:
            with contextlib.suppress(OSError):
                for byte in struct.pack(">I", 3000) + b" " * 3000:  # all of it takes half a minute
                    far.send(bytes([byte]))
                    time.sleep(0.01)
            os._exit(0)
        with pytest.raises(ReplyTimeout):
            channel.receive(0.1)
        os.kill(child, 9)
        os.waitpid(child, 0)


def test_the_far_end_s_death_is_a_closed_channel_for_both_directions():
    with channels() as (far, channel):
        far.close()
        with pytest.raises(ChannelClosed):
            channel.receive(5)
        with pytest.raises(ChannelClosed):
            channel.send({"x": 1})


def open_fds():
    return set(os.listdir("/proc/self/fd"))


def test_file_descriptors_arrive_only_where_they_are_accepted():
    reader, writer = os.pipe()
    try:
        with channels(accepts_fds=True) as (far, channel):
            Channel(far).send({"op": "arena"}, (writer,))
            assert channel.receive(5) == {"op": "arena"}
            (fd,) = channel.fds
            os.write(fd, b"same pipe")
            assert os.read(reader, 9) == b"same pipe"
        with channels() as (far, channel):
            before = open_fds()
            Channel(far).send({"op": "arena"}, (writer,))
            assert channel.receive(5) == {"op": "arena"}
            assert channel.fds == [] and open_fds() == before
            far.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("i", writer))])
            assert not channel.is_quiet()
            assert open_fds() == before
    finally:
        os.close(reader)
        os.close(writer)


def test_a_channel_is_quiet_until_something_is_sent_unasked():
    with channels() as (far, channel):
        assert channel.is_quiet()
        far.sendall(frame(b"{}"))
        assert not channel.is_quiet()
        assert not channel.is_quiet(), "asking consumes nothing"
        assert channel.receive(5) == {}
        assert channel.is_quiet()
        far.sendall(frame(b"{}") + b"\0")
        assert channel.receive(5) == {}
        assert not channel.is_quiet(), "one byte is left over"


def test_a_channel_that_is_closed_at_the_far_end_is_quiet():
    with channels() as (far, channel):
        far.close()
        assert channel.is_quiet()


def test_sending_to_one_who_does_not_read_ends():
    child = os.fork()
    if child == 0:
        _far, near = socket.socketpair()
        with contextlib.suppress(Exception):
            Channel(near).send({"x": "y" * (MAX_FRAME_BYTES - 100)}, timeout_s=0.1)
        os._exit(0)
    try:
        deadline = time.monotonic() + 0.5
        while os.waitpid(child, os.WNOHANG)[0] == 0:
            assert time.monotonic() < deadline, "still sending"
            time.sleep(0.02)
        child = 0
    finally:
        if child:
            os.kill(child, 9)
            os.waitpid(child, 0)


class Watched:
    """What tells that the far end has stopped: when a byte arrives on a socket."""

    def __init__(self):
        self._far, self._near = socket.socketpair()
        self.stopped = False

    def fileno(self):
        return self._near.fileno()

    def stop(self):
        self._far.send(b"x")

    def note(self):
        self.stopped = self._near.recv(1) == b"x"

    def close(self):
        self._far.close()
        self._near.close()


@pytest.fixture
def watch():
    watch = Watched()
    yield watch
    watch.close()


def test_of_one_that_stops_what_it_had_said_before_is_read_and_more_is_not_waited_for(watch):
    with channels() as (far, channel):
        far.sendall(frame(b'{"a": 1}'))
        watch.stop()
        assert channel.receive(60, watch) == {"a": 1}
        with pytest.raises(PeerStopped):
            channel.receive(60, watch)


@pytest.mark.parametrize("count", [0, 2, 4, 7])
def test_half_a_message_of_one_that_stops_is_none(watch, count):
    with channels() as (far, channel):
        far.sendall(frame(b'{"a": 1}')[:count])
        watch.stop()
        with pytest.raises(PeerStopped):
            channel.receive(60, watch)


def test_one_that_goes_on_saying_nothing_has_a_deadline(watch):
    with channels() as (_, channel), pytest.raises(ReplyTimeout):
        channel.receive(0.01, watch)


def test_who_is_asked_whether_there_is_more_counts_what_has_been_read_already():
    with channels() as (far, channel):
        assert not channel.awaits(0.0)
        far.sendall(frame(b"{}") + b"x")
        assert channel.awaits(60) and channel.receive(5) == {} and channel.awaits(0.0)


def test_who_receives_knows_how_long_a_message_was():
    with channels() as (far, channel):
        body = frame(b'{"a":  1}')
        far.sendall(body[:-1])
        with pytest.raises(ReplyTimeout):
            channel.receive(0.01)
        assert channel.received_bytes == 0
        far.sendall(body[-1:])
        assert channel.receive(5) == {"a": 1} and channel.received_bytes == 9
