"""The tests' own RESP: what it cuts and reads is what was sent, however it is split."""

from __future__ import annotations

import io

import pytest

from support.resp import ReplyError, ReplyFramer, bulk, encode, read_reply

REPLIES = [
    b"+OK\r\n",
    b"-ERR no\r\n",
    b":42\r\n",
    b"$5\r\nhel\n\r\r\n",
    b"$0\r\n\r\n",
    b"$-1\r\n",
    b"_\r\n",
    b"*0\r\n",
    b"*-1\r\n",
    b"*3\r\n$3\r\nabc\r\n*2\r\n:1\r\n$-1\r\n%1\r\n+k\r\n~2\r\n:1\r\n:2\r\n",
    b"=7\r\ntxt:abc\r\n",
    b"!5\r\nERR x\r\n",
    b"|1\r\n+ttl\r\n:9\r\n$2\r\nhi\r\n",
    b"*2\r\n|1\r\n+a\r\n*1\r\n:1\r\n:5\r\n:6\r\n",
    b"$?\r\n;4\r\nabcd\r\n;2\r\nef\r\n;0\r\n",
    b"*?\r\n:1\r\n$1\r\nx\r\n%?\r\n+k\r\n+v\r\n.\r\n.\r\n",
    b">2\r\n+invalidate\r\n*1\r\n$1\r\nk\r\n",
    b"(123456789012345678901234567890\r\n",
]


@pytest.mark.parametrize("step", [1, 2, 3, 7, 64, 10_000])
def test_framer_finds_every_reply_in_any_pieces(step: int) -> None:
    framer = ReplyFramer()
    stream = b"".join(REPLIES)
    found, reply = [], b""
    for at in range(0, len(stream), step):
        for segment in framer.feed(stream[at : at + step]):
            assert segment.begins == (reply == b"")
            reply += segment.data
            assert segment.kind == reply[:1]
            if segment.ends:
                found.append(reply)
                reply = b""
    assert found == REPLIES
    assert reply == b""


def test_framer_does_not_copy_payload() -> None:
    piece = bytes(1 << 20)
    framer = ReplyFramer()
    list(framer.feed(b"$1048576\r\n"))
    (segment,) = framer.feed(piece)
    assert segment.data.obj is piece


def test_replies_are_read_as_values() -> None:
    stream = io.BytesIO(b"".join(REPLIES[:12]))
    values = [read_reply(stream) for _ in range(12)]
    assert values[0] == b"OK"
    assert isinstance(values[1], ReplyError)
    assert values[2:9] == [42, b"hel\n\r", b"", None, None, [], None]
    assert values[9] == [b"abc", [1, None], {b"k": [1, 2]}]
    assert values[10] == b"txt:abc"
    assert str(values[11]) == "ERR x"


def test_pushes_and_attributes_are_skipped() -> None:
    assert read_reply(io.BytesIO(REPLIES[16] + REPLIES[12])) == b"hi"


def test_a_cut_reply_is_an_error() -> None:
    with pytest.raises(EOFError):
        read_reply(io.BytesIO(b"$10\r\nabc"))


def test_commands_are_bulk_arrays() -> None:
    assert encode("SET", b"k", 12) == b"*3\r\n" + bulk(b"SET") + bulk(b"k") + bulk(b"12")
