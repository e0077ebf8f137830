"""What a server may make the pure-Python client hold: the size of a reply."""

from __future__ import annotations

import tracemalloc

import pytest

from kvferry.client.pure.resp import (
    NEED_MORE,
    REPLY_BYTES_MAX,
    REPLY_VALUES_MAX,
    ErrorReply,
    ProtocolError,
    ReplyParser,
)
from support.pure import MIB
from support.resp import bulk

MEGABYTE = bulk(b"x" * MIB)
MOST = REPLY_BYTES_MAX // MIB


def fed(*pieces: bytes) -> ReplyParser:
    parser = ReplyParser()
    for piece in pieces:
        parser.feed(piece)
    return parser


# Replies.


@pytest.mark.parametrize("opening", [b"*%d\r\n", b"*1\r\n*%d\r\n", b"%%1\r\n+a\r\n*%d\r\n"])
def test_text_is_counted_over_a_whole_reply(opening: bytes) -> None:
    parser = fed(opening % (MOST + 1), *[MEGABYTE] * (MOST - 1))
    assert parser.next() is NEED_MORE
    parser.feed(MEGABYTE + b"$0\r\n\r\n" if opening[0:1] == b"*" else b"$0\r\n\r\n$0\r\n\r\n")
    assert isinstance(parser.next(), list)
    parser = fed(opening % (MOST + 1), *[MEGABYTE] * MOST, b"$1000000\r\n")
    with pytest.raises(ProtocolError, match="too much text"):
        parser.next()


@pytest.mark.parametrize("element", [b"+%b\r\n", b"-%b\r\n", b"$60000\r\n%b\r\n"])
def test_lines_are_text_too(element: bytes) -> None:
    count = REPLY_BYTES_MAX // 60_000 + 1
    parser = fed(b"*%d\r\n" % count, *[element % (b"x" * 60_000)] * count)
    with pytest.raises(ProtocolError, match="too much text"):
        parser.next()


@pytest.mark.parametrize("element", [b":1\r\n", b"*0\r\n", b"$-1\r\n", b"+\r\n"])
def test_values_are_counted_over_a_whole_reply(element: bytes) -> None:
    half = REPLY_VALUES_MAX // 2
    inner = b"*%d\r\n" % half + element * half
    rest = REPLY_VALUES_MAX - half - 2  # the arrays are two values
    exactly = b"*%d\r\n" % (1 + rest) + inner + element * rest
    parser = fed(exactly, exactly)
    for _ in range(2):
        reply = parser.next()
        assert isinstance(reply, list)
        assert len(reply) == 1 + rest
    parser = fed(b"*2\r\n", inner, inner)
    with pytest.raises(ProtocolError, match="too many values"):
        parser.next()


@pytest.mark.parametrize("kind", [b"*", b"~", b"%", b">", b"|"])
def test_a_claim_beyond_the_limit_is_refused_at_once(kind: bytes) -> None:
    with pytest.raises(ProtocolError, match="beyond the limit"):
        fed(b"%b%d\r\n" % (kind, REPLY_VALUES_MAX + 1)).next()


def test_every_reply_push_and_attribute_has_the_whole_limit() -> None:
    most = b"*%d\r\n" % MOST + MEGABYTE * MOST
    push = b">%d\r\n" % MOST + MEGABYTE * MOST
    attribute = b"|%d\r\n" % (MOST // 2) + MEGABYTE * MOST
    parser = fed(*[push, attribute, most] * 2)
    for _ in range(2):
        assert parser.next() == [b"x" * MIB] * MOST
    assert (parser.skipped, parser.idle) == (4, True)


@pytest.mark.parametrize(
    "opening", [b">1000\r\n", b"|500\r\n", b"*2\r\n:1\r\n|500\r\n", b">1\r\n*1000\r\n"]
)
def test_what_is_dropped_is_not_collected(opening: bytes) -> None:
    parser = fed(opening)
    assert parser.next() is NEED_MORE
    piece = bulk(b"x" * 10_000)
    tracemalloc.start()
    try:
        for _ in range(REPLY_BYTES_MAX // 10_000):
            parser.feed(piece)
            assert parser.next() is NEED_MORE
        assert tracemalloc.get_traced_memory()[1] < 200_000
    finally:
        tracemalloc.stop()
    parser.feed(piece)
    with pytest.raises(ProtocolError, match="too much text"):
        parser.next()


def test_aggregates_inside_what_is_dropped_are_no_elements() -> None:
    data = b"|1\r\n+a\r\n*2\r\n*1\r\n:1\r\n:2\r\n>2\r\n+b\r\n%1\r\n:1\r\n*0\r\n*2\r\n:7\r\n:8\r\n"
    parser = fed(data)
    assert parser.next() == [7, 8]
    assert (parser.skipped, parser.idle) == (2, True)


@pytest.mark.parametrize("form", [b"-%b\r\n", b"!5\r\n%b\r\n"])
def test_what_is_no_text_does_not_swell(form: bytes) -> None:
    assert fed(form % b"ERR\xff\xfe").next() == ErrorReply("ERR\ufffd\ufffd")
