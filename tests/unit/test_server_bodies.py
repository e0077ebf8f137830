"""Bodies of HTTP: long lists of tokens are parsed in pieces, and nothing else is let through."""

from __future__ import annotations

import json

import msgspec
import pytest

from kvferry.base.errors import UsageError
from kvferry.http import bodies
from kvferry.http.answers import CallError
from kvferry.http.bodies import Tokens, asked, converted, numbers, parsed


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


class Named(msgspec.Struct, forbid_unknown_fields=True):
    tokens: Tokens | None = None
    names: list[str] | None = None
    limit: int = 64
    wait: bool = False


class Loose(msgspec.Struct):
    names: list[str]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"limitt": 5}, "unknown name 'limitt' in the body; did you mean 'limit'?"),
        ({"limit": "5"}, "'limit': expected `int`, got `str`"),
        ({"limit": True}, "'limit': expected `int`, got `bool`"),
        ({"tokens": "abc"}, "'tokens': no list of whole numbers"),
        ({"names": ["a", 5]}, "'names[1]': expected `str`, got `int`"),
    ],
)
def test_what_is_wrong_in_a_body_is_named(body: dict[str, object], said: str) -> None:
    with pytest.raises(UsageError) as caught:
        converted(body, Named)
    assert str(caught.value) == said


def test_null_is_not_given_and_what_is_missing_is_said() -> None:
    assert converted({"limit": None, "names": None}, Named) == Named()
    assert converted({"names": [], "more": 1}, Loose) == Loose([])
    with pytest.raises(UsageError, match="missing required field `names`"):
        converted({"names": None}, Loose)


def test_a_query_has_commas_between_and_numbers_as_text() -> None:
    query = {"tokens": "1,2,3", "names": "a,b", "limit": "5", "wait": "true"}
    found = converted(asked(query, Named), Named, strict=False)
    assert found.tokens is not None
    assert (found.tokens.tolist(), found.names) == ([1, 2, 3], ["a", "b"])
    assert (found.limit, found.wait) == (5, True)
    for wrong in ({"tokens": "1,x"}, {"limit": "x"}, {"tokens": str(1 << 70)}):
        with pytest.raises(UsageError):
            converted(asked(wrong, Named), Named, strict=False)
