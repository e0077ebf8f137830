"""Slots and what servers say of them: known values, every version's shapes, nonsense."""

from __future__ import annotations

from typing import Any

import pytest

from kvferry.client.pure.resp import ProtocolError
from kvferry.client.pure.slots import SLOTS, key_slot, parse_redirect, parse_slots

ID = b"0" * 40


@pytest.mark.parametrize(
    ("key", "slot"),
    [
        (b"", 0),
        (b"123456789", 0x31C3),
        (b"foo", 12182),
        (b"{user1000}.following", 3443),
        (b"{user1000}.followers", 3443),
        (b"foo{}{bar}", 8363),
        (b"foo{bar}{zap}", 5061),
        (b"foo{{bar}}zap", 4015),
        (b"foo{bar", 15278),
    ],
)
def test_slots_are_those_of_the_specification(key: bytes, slot: int) -> None:
    assert key_slot(key) == slot


def test_a_map_names_owners_and_all_nodes() -> None:
    reply: list[Any] = [
        [0, 5460, [b"10.0.0.1", 7000, ID], [b"10.0.0.4", 7003, ID]],
        [5461, 16383, [b"node-2", 7001, ID, [b"ip", b"10.0.0.2"]]],
    ]
    found = parse_slots(reply, "seed")
    assert found.owners[0] == found.owners[5460] == ("10.0.0.1", 7000)
    assert found.owners[5461] == found.owners[SLOTS - 1] == ("node-2", 7001)
    assert found.nodes == [("10.0.0.1", 7000), ("10.0.0.4", 7003), ("node-2", 7001)]


@pytest.mark.parametrize(
    ("node", "address"),
    [
        ([None, 7000, ID], ("seed", 7000)),
        ([b"", 7000], ("seed", 7000)),
        ([b"::1", 7000, ID, []], ("::1", 7000)),
        ([b"?", 7000, ID, [b"ip", b"10.0.0.9"]], ("10.0.0.9", 7000)),
        ([b"?", 7000, ID, [b"hostname", b"h", b"ip", b"10.0.0.9"]], ("10.0.0.9", 7000)),
        ([b"?", 7000, ID, []], None),
        ([b"?", 7000], None),
    ],
)
def test_hosts_that_a_server_does_not_name(node: list[Any], address: tuple[str, int]) -> None:
    found = parse_slots([[3, 3, node]], "seed")
    assert found.owners[2:5] == [None, address, None]
    assert found.nodes == ([address] if address else [])


@pytest.mark.parametrize(
    "reply",
    [
        None,
        "OK",
        b"map",
        [1],
        [[0, 1]],
        [[0, SLOTS, [b"h", 1]]],
        [[-1, 1, [b"h", 1]]],
        [[2, 1, [b"h", 1]]],
        [[b"0", 1, [b"h", 1]]],
        [[0, 1, [b"h", 0]]],
        [[0, 1, [b"h", 65536]]],
        [[0, 1, [b"h", b"7000"]]],
        [[0, 1, [7, 7000]]],
        [[0, 1, [b"a host", 7000]]],
        [[0, 1, [b"a\nhost", 7000]]],
        [[0, 1, [b"u:p@host", 7000]]],
        [[0, 1, [b"h" * 256, 7000]]],
        [[0, 1, [b"?", 7000, ID, [b"ip", b"\0"]]]],
        [[0, 1, b"h:7000"]],
        [[0, 1, [b"h", 1], []]],
        [[0, 1, [b"h", 1]]] * (SLOTS + 1),
        [[0, SLOTS - 1, [b"h", 1]], [7, 7, [b"h", 2]]],
    ],
)
def test_nonsense_is_no_map(reply: Any) -> None:
    with pytest.raises(ProtocolError):
        parse_slots(reply, "seed")


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("MOVED 3999 127.0.0.1:6381", ("127.0.0.1", 6381)),
        ("ASK 3999 ::1:6381", ("::1", 6381)),
        ("MOVED 3999 node-2.example:1", ("node-2.example", 1)),
        ("MOVED 3999 :6381", ("asked", 6381)),
        ("MOVED 3999 ?:6381", None),
    ],
)
def test_redirections(text: str, address: tuple[str, int] | None) -> None:
    assert parse_redirect(text, "asked") == address


@pytest.mark.parametrize(
    "text",
    [
        "MOVED",
        "MOVED 1",
        "MOVED 1 h",
        "ASK 1 h:",
        "ASK 1 h:0",
        "MOVED 1 h:²",
        "ASK 1 a/b:1",
        "ASK 1 h:" + "1" * 5000,
    ],
)
def test_malformed_redirections(text: str) -> None:
    with pytest.raises(ProtocolError):
        parse_redirect(text, "asked")
