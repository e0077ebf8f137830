"""The pure-Python RESP parser: every type, every split, and nothing malformed gets through."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvferry.client.pure.resp import (
    NEED_MORE,
    BulkHead,
    ErrorReply,
    ProtocolError,
    ReplyParser,
    encode,
)


def parse(data: bytes, step: int = 1 << 30, **options: int) -> list[Any]:
    """All replies in `data`, fed `step` bytes at a time."""
    parser = ReplyParser(**options)
    replies = []
    for start in range(0, len(data), step):
        parser.feed(data[start : start + step])
        while (reply := parser.next()) is not NEED_MORE:
            replies.append(reply)
    assert parser.idle, "something was left half read"
    return replies


EXAMPLES = [
    (b"+OK\r\n", "OK"),
    (b"+\r\n", ""),
    (b"-ERR no\r\n", ErrorReply("ERR no")),
    (b":42\r\n", 42),
    (b":-9223372036854775808\r\n", -(2**63)),
    (b":+7\r\n", 7),
    (b"$5\r\nhe\r\no\r\n", b"he\r\no"),
    (b"$0\r\n\r\n", b""),
    (b"$-1\r\n", None),
    (b"*-1\r\n", None),
    (b"_\r\n", None),
    (b"*0\r\n", []),
    (b"*2\r\n*1\r\n:1\r\n$-1\r\n", [[1], None]),
    (b"%2\r\n+a\r\n:1\r\n+b\r\n*0\r\n", ["a", 1, "b", []]),
    (b"~2\r\n:1\r\n:2\r\n", [1, 2]),
    (b"#t\r\n", True),
    (b"#f\r\n", False),
    (b",1.5e3\r\n", 1500.0),
    (b",-inf\r\n", -math.inf),
    (b"(12345678901234567890123\r\n", 12345678901234567890123),
    (b"=7\r\ntxt:abc\r\n", b"abc"),
    (b"!8\r\nERR a\r\nb\r\n", ErrorReply("ERR a\r\nb")),
    (b">2\r\n+invalidate\r\n*1\r\n$1\r\nk\r\n:1\r\n", 1),  # a push before the reply
    (b"|1\r\n+ttl\r\n:3\r\n:1\r\n", 1),  # an attribute before the reply
    (b"*2\r\n:1\r\n|1\r\n+a\r\n*1\r\n+b\r\n:2\r\n", [1, 2]),  # an attribute inside it
]


@pytest.mark.parametrize(("data", "reply"), EXAMPLES, ids=[repr(d)[2:-1] for d, _ in EXAMPLES])
def test_every_type_in_every_split(data: bytes, reply: Any) -> None:
    for step in range(1, len(data) + 1):
        assert parse(data, step) == [reply]
        assert parse(data * 3, step) == [reply] * 3


def test_nan_is_a_number() -> None:
    assert math.isnan(parse(b",nan\r\n")[0])


@pytest.mark.parametrize("data", [data for data, _ in EXAMPLES])
def test_a_reply_is_not_given_before_its_last_byte(data: bytes) -> None:
    parser = ReplyParser()
    parser.feed(data[:-1])
    assert parser.next() is NEED_MORE
    assert not parser.idle


MALFORMED = [
    b"?\r\n",
    b"OK\r\n",
    b"\r\n",
    b"$x\r\n",
    b"$-2\r\n",
    b"$+5\r\nhello\r\n",
    b"$ 5\r\nhello\r\n",
    b"$1_0\r\n",
    b"$\r\n",
    b"$5\r\nhelloXX",
    b"$5\r\nhello\n$",
    b"$?\r\n;4\r\n",
    b"*?\r\n",
    b"%?\r\n",
    b"%-1\r\n",
    b".\r\n",
    b";4\r\n",
    b":1.5\r\n",
    b":\r\n",
    b":0x10\r\n",
    b":99999999999999999999\r\n",
    b"#x\r\n",
    b"_x\r\n",
    b",1,5\r\n",
    b"(1e5\r\n",
    b"=3\r\ntxt\r\n",
    b"+a\nb\r\n",
    b"+a\rb\r\n",
    b"*1\r\n>1\r\n+x\r\n:1\r\n",
    b"*1\r\n" * 17 + b":1\r\n",
    b"$16777217\r\n",
    b"*1048577\r\n",
    b"$" + b"1" * 40,
    b"+" + b"a" * 70_000,
    b":" + b"9" * 30 + b"\r\n",
]


@pytest.mark.parametrize("data", MALFORMED, ids=[repr(d[:20])[2:-1] for d in MALFORMED])
@pytest.mark.parametrize("step", [1, 1 << 20], ids=["trickled", "at once"])
def test_malformed_is_an_error(data: bytes, step: int) -> None:
    with pytest.raises(ProtocolError):
        parse(data, step)


def test_pushes_and_attributes_are_counted() -> None:
    parser = ReplyParser()
    parser.feed(b">1\r\n+a\r\n|1\r\n+b\r\n:1\r\n:5\r\n>0\r\n")
    assert parser.next() == 5
    assert parser.next() is NEED_MORE
    assert (parser.skipped, parser.idle) == (3, True)


@given(st.binary(max_size=200), st.integers(0, 230), st.booleans())
def test_direct_bulk_is_handed_over_in_two_pieces(payload: bytes, cut: int, pushed: bool) -> None:
    data = (b">1\r\n$1\r\nx\r\n" if pushed else b"") + b"$%d\r\n%b\r\n" % (len(payload), payload)
    rest = data + b":7\r\n"
    parser = ReplyParser()

    def more() -> None:
        nonlocal rest
        assert rest, "the parser wants more than there is"
        parser.feed(rest[:cut] or rest[:1])
        rest = rest[max(cut, 1) :]

    while (head := parser.next(direct=True)) is NEED_MORE:
        more()
    assert head == BulkHead(len(payload))
    target = memoryview(bytearray(len(payload)))
    taken = parser.take(target)
    while taken < len(target):
        more()
        taken += parser.take(target[taken:])
    while not parser.end_bulk():
        more()
    assert bytes(target) == payload
    while (after := parser.next(direct=True)) is NEED_MORE:
        more()
    assert after == 7


@pytest.mark.parametrize(
    ("data", "reply"), [(b"$-1\r\n", None), (b"_\r\n", None), (b"-ERR\r\n", ErrorReply("ERR"))]
)
def test_direct_applies_to_bulks_alone(data: bytes, reply: Any) -> None:
    parser = ReplyParser()
    parser.feed(data)
    assert parser.next(direct=True) == reply


def test_direct_bulk_has_its_own_limit() -> None:
    parser = ReplyParser(bulk_bytes_max=1000)
    parser.feed(b"$1000\r\n")
    assert parser.next(direct=True) == BulkHead(1000)
    parser = ReplyParser(bulk_bytes_max=1000)
    parser.feed(b"$1001\r\n")
    with pytest.raises(ProtocolError, match="beyond the limit"):
        parser.next(direct=True)


def test_wrong_end_of_a_direct_bulk_is_an_error() -> None:
    for end in (b"x", b"\rx", b"\n"):
        parser = ReplyParser()
        parser.feed(b"$1\r\na" + end)
        assert parser.next(direct=True) == BulkHead(1)
        parser.take(memoryview(bytearray(1)))
        with pytest.raises(ProtocolError, match="CRLF"):
            parser.end_bulk()


values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.binary(max_size=30),
    lambda inner: st.lists(inner, max_size=5),
    max_leaves=30,
)


def serialise(value: Any) -> bytes:
    if value is None:
        return b"_\r\n"
    if isinstance(value, bool):
        return b"#t\r\n" if value else b"#f\r\n"
    if isinstance(value, int):
        return b":%d\r\n" % value
    if isinstance(value, bytes):
        return b"$%d\r\n%b\r\n" % (len(value), value)
    return b"*%d\r\n%b" % (len(value), b"".join(map(serialise, value)))


@given(st.lists(values, max_size=5), st.integers(1, 50))
def test_any_replies_in_any_pieces(replies: list[Any], step: int) -> None:
    assert parse(b"".join(map(serialise, replies)), step) == replies


@given(st.binary(max_size=300), st.integers(1, 64))
def test_garbage_is_an_error_or_a_wait_and_never_depends_on_the_pieces(
    data: bytes, step: int
) -> None:
    def outcome(step: int) -> list[Any]:
        parser, seen = ReplyParser(), []
        try:
            for start in range(0, len(data), step):
                parser.feed(data[start : start + step])
                while (reply := parser.next()) is not NEED_MORE:
                    seen.append(repr(reply))
        except ProtocolError:
            seen.append("error")
        return seen

    assert outcome(step) == outcome(len(data) or 1)


@given(st.lists(st.binary(max_size=50), min_size=1, max_size=10))
def test_command_is_an_array_of_bulks(args: list[bytes]) -> None:
    assert parse(encode(*args)) == [args]
