"""Bodies of HTTP: long lists of tokens are parsed in pieces, and nothing else is let through."""

from __future__ import annotations

import json

import pytest

from kvferry.errors import UsageError
from kvferry.http import bodies
from kvferry.http.answers import CallError
from kvferry.http.bodies import numbers, parsed


@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": "), (" ,\n", " : ")])
@pytest.mark.parametrize("count", [0, 1, 2, 3, 7, 8, 9, 1000, 20_000])
def test_all_tokens_come_through(count: int, separators: tuple[str, str]) -> None:
    tokens = [index * 7919 % 200_000 for index in range(count)]
    body = json.dumps({"tokens": tokens, "identity": "m"}, separators=separators).encode()
    found = parsed(b" " + body + b"\n")
    assert found["tokens"].tolist() == tokens
    assert found["identity"] == "m"


def test_engines_are_let_in_between_the_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parsing holds the interpreter for a piece at a time, and never for a whole body."""
    pauses: list[float] = []
    decoded: list[int] = []
    whole = bodies._whole.decode
    monkeypatch.setattr("kvferry.http.bodies.time.sleep", pauses.append)

    class Decoder:
        @staticmethod
        def decode(piece: bytes) -> list[int]:
            decoded.append(len(piece))
            return whole(piece)

    monkeypatch.setattr(bodies, "_whole", Decoder)
    assert len(numbers(json.dumps(list(range(500_000))).encode())) == 500_000
    assert max(decoded) < 10_000
    assert len(pauses) == len(decoded) - 1 > 300


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[",
        "]",
        "1",
        "{}",
        "[1,]",
        "[,1]",
        "[1,,2]",
        "[1 2]",
        "[1.0]",
        "[true]",
        '["1"]',
        "[[1]]",
    ],
)
def test_what_is_no_list_of_whole_numbers(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for size in (1, 1 << 20):  # also where pieces meet
        monkeypatch.setattr(bodies, "_PIECE_BYTES", size)
        with pytest.raises(UsageError):
            numbers(text.encode())


@pytest.mark.parametrize("text", [b"{", b"[1]", b"7", b"\xff", b'{"a": \xff}', b'{"a": "\xff"}'])
def test_what_is_no_object(text: bytes) -> None:
    with pytest.raises(CallError) as caught:
        parsed(text)
    assert (caught.value.status, caught.value.code) == (400, "json")
