"""The wire of the cache server: bytes that may not change, and what readers let pass."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kvferry.chunks.prompt import Prompt
from kvferry.server import protocol as p

HASHES = bytes(range(32))
GENERATION = b"g" * 16
PROMPT = Prompt(HASHES, 40, 16, GENERATION, 0, 8, (2, 3), 0.0, ("h", 1))
PROMPT_HEX = (
    f"99 c4 20 {HASHES.hex()} 28 10 c4 10 {GENERATION.hex()} 00 08 92 02 03"
    " cb 0000000000000000 92 a1 68 01"
)
SHARED = b"everyone"
SHARED_HEX = f"c4 08 {SHARED.hex()}"
HEAD = (7, 9, 250)  # id, session, timeout_ms
HEAD_HEX = "07 09 cc fa"

# Each message with its bytes. What is here was written once by hand from the msgpack specification,
# and is changed only together with VERSION, or by a field at the end.
REQUESTS: dict[str, tuple[Any, str]] = {
    "Register": (
        p.Register(
            *HEAD, 1, {"model": "m", "layout": {"layers": 2}}, b"d" * 16, "kvferry 1", 4, "p", "t"
        ),
        f"9b 01 {HEAD_HEX} 01 82 a5 6d6f64656c a1 6d a6 6c61796f7574 81 a6 6c6179657273 02"
        f" c4 10 {'64' * 16} a9 6b7666657272792031 04 a1 70 a1 74",
    ),
    "Attached": (p.Attached(*HEAD), f"94 02 {HEAD_HEX}"),
    "Lookup": (
        p.LookupRequest(*HEAD, PROMPT, False, True),
        f"97 03 {HEAD_HEX} {PROMPT_HEX} c2 c3",
    ),
    "Reserve": (
        p.Reserve(*HEAD, PROMPT, 1),
        f"96 04 {HEAD_HEX} {PROMPT_HEX} 01",
    ),
    "Commit": (p.Commit(*HEAD, 300, b"\1\0"), f"96 05 {HEAD_HEX} cd 012c c4 02 0100"),
    "Abort": (p.Abort(*HEAD, 300), f"95 06 {HEAD_HEX} cd 012c"),
    "Retrieve": (
        p.Retrieve(*HEAD, PROMPT),
        f"95 07 {HEAD_HEX} {PROMPT_HEX}",
    ),
    "Release": (p.Release(*HEAD, [1, 2]), f"95 08 {HEAD_HEX} 92 01 02"),
    "Prefetch": (
        p.Prefetch(*HEAD, PROMPT),
        f"95 09 {HEAD_HEX} {PROMPT_HEX}",
    ),
    "Pin": (
        p.Pin(*HEAD, PROMPT),
        f"95 0a {HEAD_HEX} {PROMPT_HEX}",
    ),
    "Unpin": (p.Unpin(*HEAD, HASHES), f"95 0b {HEAD_HEX} c4 20 {HASHES.hex()}"),
    "Stats": (p.Stats(*HEAD), f"94 0c {HEAD_HEX}"),
    "Ping": (p.Ping(*HEAD), f"94 0d {HEAD_HEX}"),
    "Clear": (
        p.Clear(*HEAD, True, False, b"its half"),
        f"97 0f {HEAD_HEX} c3 c2 c4 08 6974732068616c66",
    ),
    "Unregister": (p.Unregister(*HEAD), f"94 10 {HEAD_HEX}"),
    "Explain": (
        p.Explain(*HEAD, PROMPT),
        f"95 11 {HEAD_HEX} {PROMPT_HEX}",
    ),
    "Hello": (p.Hello(*HEAD, "t"), f"95 12 {HEAD_HEX} a1 74"),
    "Speed": (
        p.Speed(*HEAD, (0.5, 2.0, 0.0, 1.0), 64),
        f"96 13 {HEAD_HEX} 94 cb 3fe0000000000000 cb 4000000000000000 cb 0000000000000000"
        " cb 3ff0000000000000 40",
    ),
    "Counted": (
        p.Counted(*HEAD, {"s": {"": 2.0}}, {"h": {"a": (0.5, [1, 0])}}),
        f"96 14 {HEAD_HEX} 81 a1 73 81 a0 cb 4000000000000000"
        " 81 a1 68 81 a1 61 92 cb 3fe0000000000000 92 01 00",
    ),
}
REPLIES: dict[str, tuple[Any, str]] = {
    "Failure": (p.Failure(7, "busy", "later"), "94 00 07 a4 62757379 a5 6c61746572"),
    "Registered": (
        p.Registered(
            7, 1, 1 << 62, "i", "/s", 8192, 4096, 4000, 2, 1 << 61, 1.0, 60.0, True, SHARED
        ),
        "9f 65 07 01 cf 4000000000000000 a1 69 a2 2f73 cd 2000 cd 1000 cd 0fa0 02"
        f" cf 2000000000000000 cb 3ff0000000000000 cb 404e000000000000 c3 {SHARED_HEX}",
    ),
    "Done": (p.Done(7), "92 66 07"),
    "Found": (
        p.Found(7, {"l1": 2}, 1, SHARED, "cut"),
        f"96 67 07 81 a2 6c31 02 01 {SHARED_HEX} a3 637574",
    ),
    "ReservedPages": (p.ReservedPages(7, 5, [0, 2], [8, 9], 1), "96 68 07 05 92 00 02 92 08 09 01"),
    "Committed": (
        p.Committed(7, 2, {"r": 2}, {"f": 1}),
        "95 69 07 02 81 a1 72 02 81 a1 66 01",
    ),
    "Leased": (
        p.Leased(7, 5, [8, 9], {"l1": 2}, "cut", 0.5, 2.0, SHARED),
        "99 6a 07 05 92 08 09 81 a2 6c31 02 a3 637574 cb 3fe0000000000000 cb 4000000000000000"
        f" {SHARED_HEX}",
    ),
    "Count": (p.Count(7, 3), "93 6b 07 03"),
    "Report": (p.Report(7, {"a": 1}), "93 6c 07 81 a1 61 01"),
    "Pong": (p.Pong(7, "i", 2.0, SHARED), f"95 6d 07 a1 69 cb 4000000000000000 {SHARED_HEX}"),
    "Welcome": (p.Welcome(7, 1, 16), "94 6e 07 01 10"),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_request_bytes(name: str) -> None:
    message, golden = REQUESTS[name]
    assert p.encode(message).hex() == golden.replace(" ", "")
    assert p.decode_request(bytes.fromhex(golden)) == message


@pytest.mark.parametrize("name", REPLIES)
def test_reply_bytes(name: str) -> None:
    message, golden = REPLIES[name]
    assert p.encode(message).hex() == golden.replace(" ", "")
    assert p.decode_reply(bytes.fromhex(golden)) == message


def test_the_tables_are_complete() -> None:
    assert {*REQUESTS} == {kind.__name__.removesuffix("Request") for kind in p.Request.__args__}
    assert {*REPLIES} == {kind.__name__ for kind in p.Reply.__args__}


def test_fields_of_a_later_version_are_skipped() -> None:
    for table, decode in ((REQUESTS, p.decode_request), (REPLIES, p.decode_reply)):
        for message, golden in table.values():
            fields = msgspec.msgpack.decode(bytes.fromhex(golden))
            longer = msgspec.msgpack.encode([*fields, {"later": [1, b"x"]}, None])
            assert decode(longer) == message


def test_fields_that_are_missing_at_the_end_take_their_defaults() -> None:
    def cut(message: Any, fields: int) -> bytes:
        return msgspec.msgpack.encode(msgspec.msgpack.decode(p.encode(message))[:-fields])

    assert p.decode_request(cut(REQUESTS["Lookup"][0], 2)) == p.LookupRequest(*HEAD, PROMPT)
    assert p.LookupRequest(*HEAD, PROMPT) == p.LookupRequest(*HEAD, PROMPT, True, False)
    register = p.decode_request(cut(REQUESTS["Register"][0], 4))
    assert isinstance(register, p.Register)
    told = (register.software, register.pid, register.process, register.token)
    assert told == ("", 0, "", "")
    hello = p.decode_request(cut(REQUESTS["Hello"][0], 1))
    assert hello == p.Hello(*HEAD)
    assert p.decode_reply(cut(REPLIES["Leased"][0], 4)) == p.Leased(7, 5, [8, 9], {"l1": 2})
    assert p.decode_reply(cut(REPLIES["Committed"][0], 2)) == p.Committed(7, 2)
    assert p.decode_reply(cut(REPLIES["Registered"][0], 2)).prefault is False
    for message in (REQUESTS["Reserve"][0], REPLIES["ReservedPages"][0]):
        with pytest.raises(msgspec.ValidationError):  # what has no default must be there
            (p.decode_request if message is REQUESTS["Reserve"][0] else p.decode_reply)(
                cut(message, 4)
            )


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\x00",
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x94\x63\x07\x09\xfa",  # a kind that does not exist
        b"\x94\xa1a\x07\x09\xfa",  # a kind that is no number
        b"\x94\x02\xff\x09",  # cut
        b"\x94\x02\xa1x\x09\xfa",  # an id that is text
        b"\x97\x03\x07\x09\x01\xa4abcd\xc3\xc3",  # hashes that are text
        b"\x93" * 2000,  # arrays in arrays
        msgspec.msgpack.encode({"id": 1}),
    ],
)
def test_what_is_no_message_is_an_error(frame: bytes) -> None:
    for decode in (p.decode_request, p.decode_reply):
        with pytest.raises((msgspec.MsgspecError, RecursionError)):
            decode(frame)


def test_a_message_of_the_most_hashes_fits() -> None:
    hashes = bytes(16 * p.HASHES_MAX)
    pages = list(range(1 << 32, (1 << 32) + p.HASHES_MAX))
    assert len(p.encode(p.Retrieve(*HEAD, Prompt(hashes, 1 << 20, 16)))) < p.MESSAGE_BYTES_MAX
    assert len(p.encode(p.Leased(7, 1, pages, {"l1": len(pages)}))) < p.MESSAGE_BYTES_MAX
    assert len(p.encode(p.ReservedPages(7, 1, pages, pages))) < p.MESSAGE_BYTES_MAX


def test_the_page_names_every_message_and_its_fields() -> None:
    page = (Path(__file__).parents[2] / "docs" / "formats" / "server.md").read_text()
    rows = re.findall(r"^\| (\d+) \| `(\w+)` \| ([^|]*)\|", page, re.MULTILINE)
    told = {name: (int(kind), re.findall(r"`(\w+)`", fields)) for kind, name, fields in rows}
    for table, common in ((REQUESTS, 3), (REPLIES, 1)):
        for name, (message, golden) in table.items():
            kind = msgspec.msgpack.decode(bytes.fromhex(golden))[0]
            assert told.pop(name) == (kind, list(message.__struct_fields__[common:]))
    assert not told
    for golden in ("940d0709ccfa", REPLIES["Pong"][1].replace(" ", "")):
        assert golden in page.replace(" ", "")
