"""Reading servers: INFO, CONFIG, CLUSTER, and whether a stranger is let in. Nothing is written.

What a server refuses is left out, never an error. What ends the examination is a server that cannot
be reached, or refuses our credentials.
"""

from __future__ import annotations

import ipaddress
import re
import socket
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Self

from kvferry._host import usable_cores
from kvferry._url import parse_endpoint, show_endpoint
from kvferry.client.pure_connection import Connection, Disconnected, TimedOut
from kvferry.client.pure_dial import Refused, dial
from kvferry.client.pure_resp import ErrorReply, ProtocolError, Reply
from kvferry.client.pure_tls import client_context, shake_hands
from kvferry.config import ClientConfig
from kvferry.errors import UnavailableError
from kvferry.lab.doctor.facts import ClusterFacts, NodeLine, ServerFacts

__all__ = ["Talk", "is_near", "parse_nodes", "read_cluster", "read_server"]

_ANSWER_S = 10.0
_NODES_MAX = 64
# Shown only to those who ask by name (CONFIG GET * leaves them out).
_HIDDEN_SETTINGS = ("min-string-size-avoid-copy-reply",)
_NOWHERE = frozenset(("fail", "noaddr", "handshake"))
_NO_STRANGERS = re.compile(r"NOAUTH|WRONGPASS|NOPERM|DENIED|[Aa]uthentication")


class Talk:
    """One connection for small questions; close it, or use it with `with`.

    Raises:
        UnavailableError: The server cannot be reached, refuses us, or stopped to answer.
    """

    def __init__(self, config: ClientConfig) -> None:
        self._address = config.address
        try:
            self._connection: Connection = dial(config, time.monotonic() + _ANSWER_S)
        except (Refused, TimedOut) as error:
            raise UnavailableError(str(error)) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Idempotent."""
        self._connection.close()

    def ask(self, *words: str) -> Reply:
        """The reply to one command; `None` also for an error."""
        encoded = [word.encode() for word in words]
        try:
            reply = self._connection.call(*encoded, deadline=time.monotonic() + _ANSWER_S)
        except (Disconnected, TimedOut, ProtocolError) as error:
            raise UnavailableError(f"{self._address}: {error}") from None
        return None if isinstance(reply, ErrorReply) else reply

    def fields(self, *words: str) -> dict[str, str]:
        """The ``name:value`` lines of a reply."""
        lines = _text(self.ask(*words)).splitlines()
        return dict(line.split(":", 1) for line in lines if ":" in line and line[0] != "#")


def is_near(config: ClientConfig) -> bool:
    """Whether the way to it leaves this host."""
    if config.unix_path is not None:
        return True
    try:
        found = socket.getaddrinfo(config.host, config.port, type=socket.SOCK_DGRAM)
        for family, kind, _, _, address in found:
            with socket.socket(family, kind) as probe:  # UDP: nothing is sent
                probe.connect(address)
                own, other = probe.getsockname()[0], probe.getpeername()[0]
            return bool(own == other or ipaddress.ip_address(other).is_loopback)
    except (OSError, ValueError):
        pass
    return False


def read_server(config: ClientConfig) -> ServerFacts:
    """Everything about one server.

    Raises:
        UnavailableError: See `Talk`.
    """
    near = is_near(config)
    with Talk(config) as talk:
        information = talk.fields("INFO", "everything") or talk.fields("INFO")
        return ServerFacts(
            address=config.address,
            info=information,
            config=_settings(talk),
            is_near=near,
            cores=usable_cores() if near else None,
            is_open=_is_open(config),
            has_secret=_has_secret(config),
            tls=_tls_text(config),
        )


def read_cluster(
    config: ClientConfig, is_expected: bool
) -> tuple[ClusterFacts, list[ClientConfig]] | None:
    """What a node says about its cluster, and the settings for each primary that is up.

    Returns:
        None if it is not in a cluster.
    """
    with Talk(config) as talk:
        state = talk.fields("CLUSTER", "INFO")
        lines = _text(talk.ask("CLUSTER", "NODES"))
    if "cluster_state" not in state:
        return None
    nodes = parse_nodes(lines, config.host, config.port)
    primaries: list[ClientConfig] = []
    unreached: dict[str, str] = {}
    for node in [n for n in nodes if n.is_primary and not n.flags & _NOWHERE]:
        host, port = parse_endpoint(node.address)
        if not port or len(primaries) == _NODES_MAX:
            continue
        alone = replace(config.for_node(host, port), unix_path=None)
        try:
            Talk(alone).close()
        except UnavailableError as error:
            unreached[node.address] = str(error)
        else:
            primaries.append(alone)
    facts = ClusterFacts(info=state, nodes=nodes, unreached=unreached, is_expected=is_expected)
    return facts, primaries


def parse_nodes(text: str, asked_host: str, asked_port: int) -> tuple[NodeLine, ...]:
    """``CLUSTER NODES``; a node without an address is the one that was asked, if it says so.

    Source: https://redis.io/docs/latest/commands/cluster-nodes/
    """
    found = []
    for line in text.splitlines():
        words = line.split()
        if len(words) < 8:
            continue
        flags = frozenset(words[2].split(","))
        address, _, rest = words[1].partition("@")
        host, _, port = address.rpartition(":")
        name = rest.split(",")[1] if "," in rest else ""
        if "myself" in flags:
            host, port = asked_host, str(asked_port)
        elif not host and name:
            host = name
        slots = sum(map(_slot_count, words[8:]))
        where = show_endpoint(host, int(port) if port.isdigit() else 0)
        linked = words[7] == "connected"
        found.append(NodeLine(address=where, flags=flags, is_linked=linked, slots=slots))
    return tuple(found)


def _slot_count(word: str) -> int:
    """Of ``0-5460`` or ``7``; ``[93-<-id]`` is a slot on its way, owned by somebody else."""
    match = re.fullmatch(r"(\d+)(?:-(\d+))?", word)
    return 0 if match is None else int(match[2] or match[1]) - int(match[1]) + 1


def _settings(talk: Talk) -> Mapping[str, str] | None:
    found = _pairs(talk.ask("CONFIG", "GET", "*"))
    if not found:
        return None
    for name in _HIDDEN_SETTINGS:
        found |= _pairs(talk.ask("CONFIG", "GET", name))
    return found


def _is_open(config: ClientConfig) -> bool | None:
    if config.tls_cert_file:
        return False  # our certificate lets us in
    if not _has_secret(config):
        return True
    stranger = replace(config, username=None, password=None, credentials=None)
    try:
        dial(stranger, time.monotonic() + _ANSWER_S).close()
    except (Refused, TimedOut) as error:
        return False if _NO_STRANGERS.search(str(error)) else None
    return True


def _has_secret(config: ClientConfig) -> bool:
    return config.password is not None or config.credentials is not None


def _tls_text(config: ClientConfig) -> str:
    """Protocol and cipher of a handshake made for this."""
    if not config.tls:
        return ""
    until = time.monotonic() + _ANSWER_S
    try:
        plain = socket.create_connection((config.host, config.port), _ANSWER_S)
        name = config.tls_server_name or config.host
        with shake_hands(plain, client_context(config), name, until) as secured:
            return f"{secured.version()} {(secured.cipher() or ['unknown'])[0]}"
    except (Disconnected, OSError) as error:
        raise UnavailableError(f"{config.address}: {error}") from None


def _pairs(reply: Reply) -> dict[str, str]:
    words = [_text(word) for word in reply] if isinstance(reply, list) else []
    return dict(zip(words[::2], words[1::2], strict=False))


def _text(reply: Reply) -> str:
    return reply.decode(errors="replace") if isinstance(reply, bytes) else str(reply or "")
