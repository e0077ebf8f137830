"""ZeroMQ's wire: what libzmq sends is understood in any pieces, everything else ends in ZmtpError.

The bytes were recorded from libzmq 4.3.5, whose sockets were connected to a plain one.
"""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvferry.rpc.zmtp import GREETING, READY, READY_CLIENT, ZmtpError, ZmtpParser, framed

SIZE_MAX = 4 << 20

# Version 3.1, NULL. Libzmq has the length of the identity and one more in the signature.
RECORDED_GREETING = bytes.fromhex("ff00000000000000017f0301") + b"NULL".ljust(52, b"\0")
DEALER = bytes.fromhex(
    "0429 05 52454144590b 536f636b65742d54797065 00000006 4445414c455208 4964656e74697479 00000000"
)
ROUTER = bytes.fromhex(
    "0429 05 52454144590b 536f636b65742d54797065 00000006 524f5554455208 4964656e74697479 00000000"
)
REQ = bytes.fromhex(
    "0426 05 5245414459 0b 536f636b65742d54797065 00000003 524551 08 4964656e74697479 00000000"
)
NAMED_GREETING = bytes.fromhex("ff00000000000000037f0301") + b"NULL".ljust(52, b"\0")
NAMED = bytes.fromhex(
    "042b 05 5245414459"
    "0b 536f636b65742d54797065 00000006 4445414c4552"
    "08 4964656e74697479 00000002 6d65"
)
# send(b"hello"); send(b""); send(b"l" * 300)
RECORDED = bytes.fromhex("0005 68656c6c6f 0000 02 000000000000012c") + b"l" * 300
MESSAGES = [b"hello", b"", b"l" * 300]
# send_multipart([b"", b"more"])
TWO_FRAMES = bytes.fromhex("0100 0004 6d6f7265")
# Of a socket with ZMQ_HEARTBEAT_IVL: PING, no time to live, no context.
PING = bytes.fromhex("0407 04 50494e47 0000")

HELLO = RECORDED_GREETING + DEALER


def cut(data: bytes, places: Sequence[int]) -> list[bytes]:
    ends = sorted({place % (len(data) + 1) for place in places} | {len(data)})
    return [data[a:b] for a, b in zip([0, *ends], ends, strict=False) if a < b]


def fed(data: bytes, places: Sequence[int] = (), size_max: int = SIZE_MAX) -> list[bytes]:
    """All messages of a stream that comes in pieces."""
    wire, messages = ZmtpParser(size_max), []
    for piece in cut(data, places):
        messages += wire.feed(piece)
    return messages


def error_of(data: bytes, size_max: int = SIZE_MAX) -> str:
    """It is an error whole and byte by byte, and the same one."""
    texts = set()
    for places in ((), range(len(data))):
        with pytest.raises(ZmtpError) as caught:
            fed(data, places, size_max)
        texts.add(str(caught.value))
    assert len(texts) == 1
    return texts.pop()


def ready() -> ZmtpParser:
    wire = ZmtpParser(SIZE_MAX)
    assert wire.feed(HELLO) == []
    assert wire.ready
    return wire


# --- What libzmq sends ---


@pytest.mark.parametrize(
    "hello", [HELLO, RECORDED_GREETING + ROUTER, NAMED_GREETING + NAMED], ids=("d", "r", "named")
)
def test_the_recorded_stream_is_understood(hello: bytes) -> None:
    assert fed(hello + RECORDED) == MESSAGES
    assert fed(hello + RECORDED, range(10_000)) == MESSAGES


@given(st.lists(st.integers(0, 1000), max_size=40))
def test_any_cut_gives_the_same_messages(places: list[int]) -> None:
    assert fed(HELLO + RECORDED + PING + RECORDED, places) == MESSAGES * 2


bodies = st.one_of(st.binary(max_size=300), st.sampled_from([255, 256, 257]).map(bytes))


@given(st.lists(bodies, max_size=20), st.lists(st.integers(0, 1 << 14), max_size=30))
def test_what_is_framed_is_read_back(sent: list[bytes], places: list[int]) -> None:
    assert fed(HELLO + b"".join(map(framed, sent)), places) == sent


def test_frames_are_as_libzmq_makes_them() -> None:
    assert framed(b"hello") + framed(b"") + framed(b"l" * 300) == RECORDED
    assert framed(b"x" * 255)[:2] == b"\x00\xff"
    assert framed(b"x" * 256)[:9] == b"\x02" + (256).to_bytes(8, "big")


def test_our_side_of_the_handshake() -> None:
    assert len(GREETING) == 64
    assert (GREETING[0], GREETING[9], GREETING[10:12]) == (0xFF, 0x7F, b"\x03\x00")
    assert GREETING[12:32].rstrip(b"\0") == b"NULL"
    for ready in (READY, READY_CLIENT):
        assert fed(GREETING + ready + framed(b"x")) == [b"x"]


def test_ready_is_not_before_the_whole_handshake() -> None:
    wire = ZmtpParser(SIZE_MAX)
    for index in range(len(HELLO)):
        assert not wire.ready
        assert wire.feed(HELLO[index : index + 1]) == []
    assert wire.ready


def test_commands_after_the_handshake_are_passed_over() -> None:
    unknown = b"\x04\x06\x05LATER"
    long = b"\x06" + (300).to_bytes(8, "big") + b"\x05LATER" + bytes(294)
    data = HELLO + PING + unknown + framed(b"a") + long + framed(b"b") + DEALER
    assert fed(data) == fed(data, range(10_000)) == [b"a", b"b"]


def test_whether_something_is_half() -> None:
    wire = ready()
    assert not wire.half
    data = framed(b"one and two")
    for index in range(len(data) - 1):
        assert wire.feed(data[index : index + 1]) == []
        assert wire.half
    assert wire.feed(data[-1:]) == [b"one and two"]
    assert not wire.half
    assert wire.feed(framed(b"three") + b"\0") == [b"three"]
    assert wire.half


# --- What nobody who speaks the protocol sends ---


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"GET / HTTP/1.1\r\nHost: kvferry\r\n\r\n", "no ZeroMQ"),
        (b"*1\r\n$4\r\nPING\r\n", "no ZeroMQ"),
        (b"\x16\x03\x01\x02\x00\x01", "no ZeroMQ"),  # TLS
        (b"\x00", "no ZeroMQ"),
        (b"\xff" + bytes(9), "no ZeroMQ"),
        (b"\xff" + bytes(8) + b"\x7f\x01", "version 1"),
        (b"\xff" + bytes(8) + b"\x7f\x02", "version 2"),
        (RECORDED_GREETING[:12] + b"CURVE".ljust(52, b"\0"), "CURVE"),
        (RECORDED_GREETING[:12] + b"PLAIN".ljust(52, b"\0"), "PLAIN"),
        (RECORDED_GREETING[:12] + bytes(52), "mechanism"),
        (RECORDED_GREETING + REQ, "no DEALER"),
        (RECORDED_GREETING + DEALER.replace(b"DEALER", b"DEALES"), "no DEALER"),
        (RECORDED_GREETING + b"\x04\x06\x05READY", "no DEALER"),
        (RECORDED_GREETING + b"\x04\x07\x05ERROR\x00", "no READY"),
        (RECORDED_GREETING + PING, "no READY"),
        (RECORDED_GREETING + framed(b"hello"), "before the handshake"),
        (RECORDED_GREETING + b"\x06" + (5000).to_bytes(8, "big"), "5000 bytes"),
        (HELLO + b"\x08\x00", "flags"),
        (HELLO + b"\x80\x00", "flags"),
        (HELLO + b"\xff\x00", "flags"),
        (HELLO + b"\x05\x00", "flags"),  # a command that is not the last frame
        (HELLO + b"\x07" + bytes(8), "flags"),
        (HELLO + framed(b"a") + b"\x10\x00", "flags"),
        (HELLO + b"\x02" + (SIZE_MAX + 1).to_bytes(8, "big"), f"{SIZE_MAX + 1} bytes"),
        (HELLO + b"\x02" + b"\xff" * 8, "bytes"),
        (HELLO + b"\x06" + b"\xff" * 8, "bytes"),
        (HELLO + TWO_FRAMES, "more than one frame"),
    ],
)
def test_it_is_an_error_as_soon_as_it_is_seen(data: bytes, said: str) -> None:
    assert said in error_of(data)


@pytest.mark.parametrize("size", range(7, 34))
def test_metadata_that_is_cut(size: int) -> None:
    body = DEALER[2:]
    cut_off = bytes([4, size]) + body[:size]
    if size == 28:  # the socket's type is whole there, and nothing follows
        assert fed(RECORDED_GREETING + cut_off + framed(b"x")) == [b"x"]
    else:
        assert "cut" in error_of(RECORDED_GREETING + cut_off)


def test_lengths_of_metadata_that_cannot_be() -> None:
    for body in (b"\x05READY\xff", b"\x05READY\x01a\xff\xff\xff\xff", b"\x05READY\x00\x00"):
        assert "cut" in error_of(RECORDED_GREETING + bytes([4, len(body)]) + body)


def test_names_of_metadata_have_no_case() -> None:
    shouted = DEALER.replace(b"Socket-Type", b"SOCKET-TYPE")
    assert fed(RECORDED_GREETING + shouted + framed(b"x")) == [b"x"]


def test_the_longest_message_and_one_more() -> None:
    assert fed(HELLO + framed(bytes(1000)), size_max=1000) == [bytes(1000)]
    assert "1001 bytes" in error_of(HELLO + framed(bytes(1001)), size_max=1000)


# --- Any bytes at all ---

parts = st.one_of(
    st.binary(max_size=80),
    st.sampled_from([RECORDED_GREETING, DEALER, ROUTER, REQ, PING, RECORDED, TWO_FRAMES, HELLO]),
    st.builds(framed, st.binary(max_size=20)),
)


@given(
    st.sampled_from([b"", RECORDED_GREETING, HELLO]),
    st.lists(parts, max_size=8).map(b"".join),
    st.lists(st.integers(0, 1 << 12), max_size=20),
)
def test_any_bytes_are_messages_or_an_error(before: bytes, data: bytes, places: list[int]) -> None:
    """And the pieces make no difference: neither to what was understood, nor to whether it ends."""

    def run(places: Sequence[int]) -> tuple[list[bytes], bool]:
        wire, messages = ZmtpParser(10_000), []
        for piece in cut(before + data, places):
            try:
                messages += wire.feed(piece)
            except ZmtpError:
                return messages, True
        return messages, False

    messages, ended = run(places)
    assert all(type(message) is bytes for message in messages)
    byte_by_byte = run(range(len(before + data)))
    assert byte_by_byte[1] == ended
    assert byte_by_byte[0][: len(messages)] == messages  # an error takes those of its piece along


# --- Many small pieces ---


def test_a_long_message_in_small_pieces_takes_no_longer_than_its_bytes() -> None:
    """65,536 pieces: 50 ms when each byte is moved a few times, a minute when each piece moves all
    that came before."""
    wire, body = ready(), bytes(SIZE_MAX)
    data, messages = framed(body), []
    began = time.process_time()
    for at in range(0, len(data), 64):
        messages += wire.feed(data[at : at + 64])
    assert time.process_time() - began < 3
    assert messages == [body]


def test_memory_is_bounded_by_the_message_when_bytes_come_one_at_a_time() -> None:
    size = 1 << 17
    wire = ready()
    wire.feed(framed(bytes(size))[:9])
    tracemalloc.start()
    try:
        for _ in range(size - 1):
            assert wire.feed(b"x") == []
        held, peak = tracemalloc.get_traced_memory()
        assert wire.feed(b"x") == [b"x" * size]
        left, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 1.5 * size
    assert peak < 3 * size
    assert left < 10_000


def test_memory_is_bounded_when_a_message_never_ends() -> None:
    tracemalloc.start()
    try:
        wire = ready()
        for _ in range(100):
            wire.feed(framed(bytes(60_000)))
            wire.feed(PING * 1000)
        assert tracemalloc.get_traced_memory()[0] < 100_000
    finally:
        tracemalloc.stop()
