"""Reading servers, one connection each: INFO, CONFIG, TLS, what strangers may, and the cluster.

Nothing is written. What a server refuses is left out, never an error. What ends the examination is
a server that cannot be reached, or refuses our credentials.
"""

from __future__ import annotations

import ipaddress
import re
import socket
import time
from collections.abc import Mapping
from typing import Self

from kvferry.base.errors import DeadlineExceeded, ServerError, UnavailableError
from kvferry.base.host import usable_cores
from kvferry.client.commands import Reply, ask, sparing
from kvferry.client.pure.connection import Disconnected
from kvferry.client.pure.tls import client_context, shake_hands
from kvferry.client.sync import RedisClient
from kvferry.config import ClientConfig
from kvferry.config.url import parse_endpoint, show_endpoint
from kvferry_lab.doctor.facts import ClusterFacts, NodeLine, ServerFacts

__all__ = ["CommandConnection", "is_near", "parse_nodes", "read_cluster", "read_server"]

ANSWER_S = 10.0
VALUE_CHARS_MAX = 300
# Shown only to those who ask by name (CONFIG GET * leaves them out).
_HIDDEN_SETTINGS = ("min-string-size-avoid-copy-reply",)
_SECRET = re.compile(r"pass|auth|secret|token|seed")  # settings that we do not want to know
_NO_STRANGERS = re.compile(r"NOAUTH|WRONGPASS|NOPERM|DENIED|[Aa]uthentication")
_NODES_MAX = 64
_NOWHERE = frozenset(("fail", "noaddr", "handshake"))


class CommandConnection:
    """A client for small questions; close it, or use it with `with`.

    Raises:
        UnavailableError: The server cannot be reached, refuses us, or stopped to answer.
    """

    def __init__(self, config: ClientConfig) -> None:
        self._client = RedisClient.from_config(sparing(config))
        try:
            self.ask("PING")
        except UnavailableError:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Idempotent."""
        self._client.close()

    def ask(self, *words: str) -> Reply:
        """The reply to one command; `None` also for an error."""
        try:
            return ask(self._client, *(word.encode() for word in words), timeout_s=ANSWER_S)
        except ServerError:
            return None
        except DeadlineExceeded as error:
            raise UnavailableError(f"{self._client.config.address}: {error}") from None

    def fields(self, *words: str) -> dict[str, str]:
        """The ``name:value`` lines of a reply."""
        found = {}
        for line in text_of(self.ask(*words)).splitlines():
            name, colon, value = line.partition(":")
            if colon and not name.startswith("#"):
                found[name] = value[:VALUE_CHARS_MAX]
        return found


def text_of(reply: Reply) -> str:
    """A reply as text, nothing for null; a server's control characters stay off our terminal."""
    text = reply.decode(errors="replace") if isinstance(reply, bytes) else str(reply or "")
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char in "\r\n" else "?" for char in text)


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
        UnavailableError: See `CommandConnection`.
    """
    near = is_near(config)
    with CommandConnection(config) as talk:
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
            is_verified=config.tls_verify == "full",
        )


def _settings(talk: CommandConnection) -> Mapping[str, str] | None:
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
    stranger = config.replace(username=None, password=None, credentials=None)
    try:
        CommandConnection(stranger).close()
    except UnavailableError as error:
        return False if _NO_STRANGERS.search(str(error)) else None
    return True


def _has_secret(config: ClientConfig) -> bool:
    return config.password is not None or config.credentials is not None


def _tls_text(config: ClientConfig) -> str:
    """Protocol and cipher of a handshake made for this."""
    if not config.tls:
        return ""
    until = time.monotonic() + ANSWER_S
    try:
        plain = socket.create_connection((config.host, config.port), ANSWER_S)
        name = config.tls_server_name or config.host
        with shake_hands(plain, client_context(config), name, until) as secured:
            return f"{secured.version()} {(secured.cipher() or ['unknown'])[0]}"
    except (Disconnected, OSError) as error:
        raise UnavailableError(f"{config.address}: {error}") from None


def _pairs(reply: Reply) -> dict[str, str]:
    words = [text_of(word) for word in reply] if isinstance(reply, list) else []
    pairs = zip(words[::2], words[1::2], strict=False)
    return {name: value[:VALUE_CHARS_MAX] for name, value in pairs if not _SECRET.search(name)}


def read_cluster(
    config: ClientConfig, is_expected: bool
) -> tuple[ClusterFacts, list[ClientConfig]] | None:
    """What a node says about its cluster, and the settings for each primary that is up.

    Returns:
        None if it is not in a cluster.
    """
    with CommandConnection(config) as talk:
        state = talk.fields("CLUSTER", "INFO")
        lines = text_of(talk.ask("CLUSTER", "NODES"))
    if "cluster_state" not in state:
        return None
    nodes = parse_nodes(lines, config.host, config.port)
    primaries: list[ClientConfig] = []
    unreached: dict[str, str] = {}
    for node in [n for n in nodes if n.is_primary and not n.flags & _NOWHERE]:
        host, port = parse_endpoint(node.address)
        if not port or len(primaries) == _NODES_MAX:
            continue
        alone = config.for_node(host, port)
        try:
            CommandConnection(alone).close()
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
