"""The one encoding of a prompt: bytes that may not change, and what readers let pass."""

from __future__ import annotations

import pickle

import msgspec
import pytest

from kvferry.chunks.prompt import Prompt
from kvferry.server import protocol as p

HASHES = bytes(range(32))
PROMPT = Prompt(HASHES, 45, 16, b"g" * 16, 3, 8, (2, 70_000), 1.5, ("::1", 6400))
# Written once by hand from the msgpack specification; changed only by a field at the end.
GOLDEN = (
    f"99 c4 20 {HASHES.hex()} 2d 10 c4 10 {(b'g' * 16).hex()} 03 08 92 02 ce 00011170"
    " cb 3ff8000000000000 92 a3 3a3a31 cd 1900"
)


class Wider(Prompt, frozen=True, array_like=True):
    """A prompt of a later version."""

    fresh: int = 0


def test_bytes() -> None:
    assert PROMPT.encode().hex() == GOLDEN.replace(" ", "")
    assert Prompt.decode(bytes.fromhex(GOLDEN)) == PROMPT
    assert pickle.loads(pickle.dumps(PROMPT)) == PROMPT


def test_a_field_of_a_later_version_is_skipped_in_every_message() -> None:
    facts = {name: getattr(PROMPT, name) for name in Prompt.__struct_fields__}
    later = Wider(**facts, fresh=7)
    assert Prompt.decode(later.encode()) == PROMPT
    for kind in (p.LookupRequest, p.Reserve, p.Retrieve, p.Prefetch, p.Pin, p.Explain):
        request = p.decode_request(p.encode(kind(1, 2, 3, later)))
        assert getattr(request, "prompt", None) == PROMPT


def test_a_field_that_is_missing_takes_its_default() -> None:
    fields = msgspec.msgpack.decode(PROMPT.encode())
    assert Prompt.decode(msgspec.msgpack.encode(fields[:3])) == Prompt(HASHES, 45, 16)
    with pytest.raises(msgspec.ValidationError):
        Prompt.decode(msgspec.msgpack.encode(fields[:2]))


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (0, b"cut"),
        (0, "text"),
        (1, -1),
        (1, 1 << 63),
        (2, 0),
        (3, bytes(65)),
        (4, -1),
        (5, -1),
        (6, [1]),
        (6, [1, -1]),
        (7, float("nan")),
        (7, -1.0),
        (8, ["a host", 1]),
        (8, ["", 1]),
        (8, ["h", 0]),
        (8, ["h", 65_536]),
        (8, "h:1"),
    ],
)
def test_what_cannot_be_is_no_prompt(place: int, value: object) -> None:
    fields = msgspec.msgpack.decode(PROMPT.encode())
    fields[place] = value
    with pytest.raises(msgspec.MsgspecError):
        Prompt.decode(msgspec.msgpack.encode(fields))


def test_a_prompt_of_ours_is_not_of_cut_hashes() -> None:
    with pytest.raises(ValueError, match="17 bytes"):
        Prompt(bytes(17), 40, 16)


def test_cut() -> None:
    assert PROMPT.cut(2) is PROMPT
    assert PROMPT.cut(1).hashes == HASHES[:16]
    assert PROMPT.cut(1).source == PROMPT.source
