"""The slots of a cluster: which a key belongs to, and who the servers say serves them.

Knows no sockets. What a server may not say (slots that do not exist, ports that are none) is a
ProtocolError.

Source: https://redis.io/docs/latest/operate/oss_and_stack/reference/cluster-spec/
"""

from __future__ import annotations

from binascii import crc_hqx
from dataclasses import dataclass, field
from typing import TypeAlias

from kvferry.client.pure.resp import ProtocolError, Reply

__all__ = ["SLOTS", "Address", "SlotMap", "key_slot", "parse_redirect", "parse_slots"]

SLOTS = 16384
HOST_CHARS_MAX = 255  # RFC 1035
Address: TypeAlias = tuple[str, int]


@dataclass(slots=True)
class SlotMap:
    """The server of each slot, and every server that was named, replicas too."""

    owners: list[Address | None] = field(default_factory=lambda: [None] * SLOTS)
    nodes: list[Address] = field(default_factory=list)


def key_slot(key: bytes) -> int:
    """CRC16 of the key, or of what stands between its first braces, if anything does."""
    opening = key.find(b"{")
    closing = key.find(b"}", opening + 1)
    if opening >= 0 and closing > opening + 1:
        key = key[opening + 1 : closing]
    return crc_hqx(key, 0) % SLOTS


def parse_slots(reply: Reply, asked: str) -> SlotMap:
    """The reply to CLUSTER SLOTS.

    Args:
        asked: The host that was asked, which a server leaves out where it does not know its own.
    """
    if not isinstance(reply, list) or len(reply) > SLOTS:
        raise ProtocolError("a map of slots is no list of at most all slots")
    found = SlotMap()
    named = 0
    seen: dict[Address, None] = {}
    for entry in reply:
        match entry:
            case [int(first), int(last), primary, *replicas] if 0 <= first <= last < SLOTS:
                owner, *others = [_node(node, asked) for node in (primary, *replicas)]
            case _:
                raise ProtocolError("a range of slots is malformed")
        named += last + 1 - first
        if named > SLOTS:  # nor may they cost time without end
            raise ProtocolError("a map names slots twice")
        found.owners[first : last + 1] = [owner] * (last + 1 - first)
        seen.update((node, None) for node in (owner, *others) if node is not None)
    found.nodes = list(seen)
    return found


def parse_redirect(text: str, asked: str) -> Address | None:
    """Where to, of ``MOVED slot host:port`` or ``ASK ...``; None where the server does not know."""
    words = text.split(" ")
    host, _, port = words[2].rpartition(":") if len(words) == 3 else ("", "", "")
    if not (port.isascii() and port.isdigit() and len(port) <= 5 and 0 < int(port) < 1 << 16):
        raise ProtocolError("a redirection is malformed")
    return None if host == "?" else (_checked(host or asked), int(port))


def _node(node: Reply, asked: str) -> Address | None:
    match node:
        case [None | bytes() as host, int(port), *rest] if 0 < port < 1 << 16:
            name = (host or b"").decode(errors="replace")
        case _:
            raise ProtocolError("a node of a map of slots is malformed")
    if name != "?":
        return _checked(name or asked), port
    # A host that has no name is known by its address, if the metadata has it.
    facts = rest[1] if len(rest) > 1 and isinstance(rest[1], list) else []
    known = dict(zip(facts[::2], facts[1::2], strict=False))
    address = known.get(b"ip")
    if not isinstance(address, bytes):
        return None
    return _checked(address.decode(errors="replace")), port


def _checked(host: str) -> str:
    """Something to look up: what is dialled must also be fit to be a setting, and to be logged."""
    if not host.isprintable() or len(host) > HOST_CHARS_MAX or any(char in " /@," for char in host):
        raise ProtocolError("a node has no host name")
    return host
